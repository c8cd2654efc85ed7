"""Sessions of ONNX Runtime with one thread."""

from trt_bisect.model import session


def use_one_thread():
    """Gives each session of this process one thread, unless its maker asks for a number."""
    usual = session.new_options

    def new_options():
        options = usual()
        options.intra_op_num_threads = 1
        return options

    session.new_options = new_options
