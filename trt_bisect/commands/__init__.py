"""The functions behind the commands of ``trt-bisect``, such as ``run`` and ``compare``."""
