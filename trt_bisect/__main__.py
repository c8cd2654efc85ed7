"""``python -m trt_bisect``: the same as the command ``trt-bisect``."""

from trt_bisect.cli import main

if __name__ == "__main__":
    main()
