"""The public names: each is found in the module that the table of homes says."""

import trt_bisect


def test_every_public_name_is_there_and_dir_names_them_all():
    assert all(getattr(trt_bisect, name) is not None for name in trt_bisect.__all__)
    assert dir(trt_bisect) == sorted(trt_bisect.__all__)
