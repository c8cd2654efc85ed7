"""The public names: each is found in the module that the table of homes says."""

from __future__ import annotations

import pytest

import trt_bisect


@pytest.mark.parametrize("name", trt_bisect.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(trt_bisect, name) is not None


def test_dir_names_them_all() -> None:
    assert dir(trt_bisect) == sorted(trt_bisect.__all__)
