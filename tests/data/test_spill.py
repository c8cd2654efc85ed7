"""Arrays beyond a limit are read from files."""

from pathlib import Path

import numpy as np

from trt_bisect.data.feeds import Spill


def test_arrays_beyond_the_limit_are_in_files_until_it_is_closed(random):
    arrays = [random.normal(size=(10, 10)).astype(np.float32) for _ in range(4)]
    with Spill(2 * arrays[0].nbytes) as spill:
        kept = [spill.kept({"x": array})["x"] for array in arrays]
        assert [isinstance(array, np.memmap) for array in kept] == [False, False, True, True]
        assert all(np.array_equal(one, other) for one, other in zip(kept, arrays, strict=True))
        files = [Path(array.filename) for array in kept[2:]]
        assert all(file.exists() for file in files)
    assert not any(file.exists() for file in files)


def test_texts_stay_in_memory():
    texts = np.array(["a", "b"], object)
    with Spill(0) as spill:
        assert spill.kept({"x": texts})["x"] is texts
