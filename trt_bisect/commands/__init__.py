"""The functions behind the commands of ``trt-bisect``."""
