"""A matrix of quantizers by networks: does trt-bisect read what each of them writes?"""
