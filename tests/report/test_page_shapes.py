"""The page's curve table shows the shape of what a layer makes, and that of the final output that was compared."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

COLUMNS = ("#", "Layer shape", "Output shape")


def shapes_of(path):
    """The shape of what each node makes, by ONNX Runtime on the file."""
    model = onnx.load(str(path))
    makers = {node.output[0]: node.name for node in model.graph.node}
    known = {each.name for each in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in makers if name not in known)
    session = ort.InferenceSession(model.SerializeToString())
    (given,) = session.get_inputs()
    outputs = session.run(list(makers), {given.name: np.zeros([1, *given.shape[1:]], np.float32)})
    return {name: values.shape for name, values in zip(makers.values(), outputs, strict=True)}


@pytest.fixture(scope="module")
def opened(tab, finished):
    with tab.shown(finished / "report.html", width=2400) as page:
        yield page


def test_both_shapes_stand_in_the_table(opened, lenet):
    opened.get_by_label("Show", exact=True).select_option("all")
    titles = opened.locator("#table .head button").evaluate_all("cells => cells.map(cell => cell.innerText.trim())")
    places = [next(k for k, title in enumerate(titles) if title.startswith(name)) for name in ("Layer", *COLUMNS[1:])]
    rows = opened.locator("#table .body [role=row]").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
    )
    made = shapes_of(lenet / "lenet_planted.onnx")
    found = {row[places[0]]: (row[places[1]], row[places[2]]) for row in rows}
    expected = "×".join(map(str, made["prob"]))
    assert found == {name: ("×".join(map(str, shape)), expected) for name, shape in made.items()}
