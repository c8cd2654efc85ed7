"""The page of a run on several inputs: each input, and of each layer its shape and that of the compared output."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.support import pages
from tests.support.page_parts import plotted

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


def test_several_inputs(opened, finished):
    report = pages.read(finished)
    plot = plotted(opened, "#inputs-plot")
    int8, recipe = plot.evaluate("plot => plot.data.slice(0, 2).map(trace => trace.y)")
    assert recipe == sorted(report.by_input.recipe.values)
    by_recipe = sorted(zip(report.by_input.recipe.values, report.by_input.int8.values, strict=True))
    assert sorted(int8) == pytest.approx(sorted(value for _, value in by_recipe))
    assert int8[0] == pytest.approx(by_recipe[0][1])
    worst = opened.locator("#inputs-table tbody tr").first.locator("td").all_inner_texts()
    assert worst[0] == report.answer.given.worst_input
    assert worst[2:] == [pages.percent(value, report.threshold) for value in by_recipe[0]]


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
