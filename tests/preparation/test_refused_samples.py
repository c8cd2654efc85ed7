"""A sample on which FP32 does not run is refused by its name, wherever the user gives it."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import trt_bisect
from tests.support import networks
from trt_bisect.errors import BadInput, NothingMeasured

ROWS = 40
NODES = [
    helper.make_node("Gather", ["table", "ids"], ["rows"], "rows"),
    helper.make_node("MatMul", ["rows", "w"], ["y"], "y"),
]


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A lookup in a table of 40 rows, and a product."""
    constants = [
        numpy_helper.from_array(networks.normal(0, ROWS, 8), "table"),
        numpy_helper.from_array(networks.normal(1, 8, 4), "w"),
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 6])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 4])]
    graph = helper.make_graph(NODES, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return networks.save(model, tmp_path_factory.mktemp("lookup"))


def ids(count: int = 24, wrong: int | None = None) -> dict[str, np.ndarray]:
    """Samples of row numbers; that with the index ``wrong`` has one beyond the table."""
    values = np.random.default_rng(2).integers(0, ROWS, (count, 1, 6))
    if wrong is not None:
        values[wrong, 0, 3] = ROWS
    return {"ids": values}


@pytest.mark.parametrize("given", ["validation", "inputs", "dataset", "first"])
def test_a_row_beyond_the_table_is_an_error_of_the_sample(network, tmp_path, given):
    path = tmp_path / "wrong.npz"
    np.savez(path, **ids(5, wrong=0 if given == "first" else 3))
    named = {"validation": "wrong.npz 3'", "inputs": "input 3", "dataset": "sample 3", "first": ""}[given]
    error = NothingMeasured if given == "first" else BadInput
    data = {"inputs" if given == "first" else given: str(path)}
    with pytest.raises(error, match=f"{named}.*idx=40"):
        trt_bisect.run(network, ids(), **data, explain="none", history="none", output=None)
