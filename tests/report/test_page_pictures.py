"""The worst images on a run's page in Chromium: what FP32, full INT8 and the recipe find, side by side."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

import trt_bisect
from tests.support import networks, pages
from tests.support.accessibility import grave_findings
from tests.support.editions import edition
from tests.support.records import texts
from tests.support.squares import JUDGED, SIZE, coloured, detector
from trt_bisect.report.explanation import EXPLANATION, PICTURES, Pictures
from trt_bisect.report.page import write_page
from trt_bisect.support.codec import read, write
from trt_bisect.view.index import RunFolder

LOOKS = edition([("dark", 390)], [("light", 1360), ("dark", 390)])


@pytest.fixture(scope="module")
def seen(recorded):
    """The folder of a run on a detector that finds nothing in INT8, not to be changed, and its images."""
    return recorded("pictured") / "runs/pictured", coloured()


def squares(image):
    """The top left corners of an image's bright squares and their channels: by hand, where nothing bright is before."""
    found = []
    for channel in (0, 1):
        bright = image[channel] > 0
        for y, x in np.argwhere(bright).tolist():
            if not bright[max(y - 1, 0), x] * (y > 0) and not bright[y, max(x - 1, 0)] * (x > 0):
                found.append((x, y, channel))
    return found


def again(folder, place):
    """Copies a run without what explains it, which a run there makes anew; the journal has the plans."""
    return shutil.copytree(folder, place, ignore=shutil.ignore_patterns(EXPLANATION, PICTURES, "tensors"))


def points(polygon):
    """The corners of a polygon in SVG."""
    return [tuple(map(float, corner.split(","))) for corner in polygon.get_attribute("points").split()]


def test_the_six_worst_images_are_shown_with_what_is_lost(tab, seen):
    folder, data = seen
    with tab.shown(folder / "report.html", ready="usable") as page:
        figures = page.locator("#pictures figure")
        assert figures.count() == 6
        assert page.locator('nav a[href="#pictures"]').is_visible()
        assert page.locator("#pictures .panel h3").all_inner_texts()[:3] == ["FP32", "Full INT8", "Recipe"]
        for number in range(6):
            name = figures.nth(number).locator("figcaption").inner_text()
            image = data[int(name.split()[-1])]["x"][0]
            right = sorted(squares(image))
            assert right
            for plan, kind in enumerate(("kept", "lost", "kept")):
                panel = figures.nth(number).locator(".panel").nth(plan)
                marks = panel.locator(f".mark.{kind}")
                boxes = sorted(points(mark) for mark in marks.locator("polygon").all())
                for box, (x, y, _) in zip(boxes, right, strict=True):
                    square = [(x, y), (x + SIZE, y), (x + SIZE, y + SIZE), (x, y + SIZE)]
                    assert np.abs(np.array(box) - square).max() <= 0.2, "the recipe rounds the boxes"
                assert panel.locator(".mark").count() == len(right)
            words = figures.nth(number).locator(".panel").nth(1).locator(".under").inner_text()
            assert words == f"0 kept, {len(right)} lost, 0 invented; agreement 0%"
        assert_the_picture_is_the_input(page, data)
        for look, width in LOOKS:
            tab.stand(width, 900, look)
            page.wait_for_function("look => document.documentElement.dataset.theme === look", arg=look)
            assert_it_can_be_read_by_everyone(page, width)


def assert_the_picture_is_the_input(page, data):
    """A canvas of Chromium's has the values of the input, times 255: they are 0 and 1."""
    first = page.locator("#pictures figure").first
    image = data[int(first.locator("figcaption").inner_text().split()[-1])]["x"][0]
    pixels = first.locator("image").first.evaluate(
        """async (image) => {
             const shown = new Image();
             shown.src = image.getAttribute("href");
             await shown.decode();
             const canvas = Object.assign(document.createElement("canvas"), { width: 32, height: 32 });
             canvas.getContext("2d").drawImage(shown, 0, 0);
             return [...canvas.getContext("2d").getImageData(0, 0, 32, 32).data];
           }"""
    )
    shown = np.array(pixels).reshape(32, 32, 4)[..., :3]
    assert (shown == 255 * image.transpose(1, 2, 0)).all()


def assert_it_can_be_read_by_everyone(page, width):
    page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
    assert grave_findings(page, "#pictures") == []
    panels = page.locator("#pictures figure").first.locator(".panel")
    tops = {round(panels.nth(place).bounding_box()["y"]) for place in range(3)}
    assert len(tops) == (1 if width > 1000 else 3)
    label = panels.nth(1).locator("svg").get_attribute("aria-label")
    assert label.startswith("Full INT8, ")
    assert "lost" in label
    strokes = [
        page.locator(f"#pictures .mark.{kind} polygon").first.evaluate("each => getComputedStyle(each).stroke")
        for kind in ("kept", "lost")
    ]
    assert len(set(strokes)) == 2
    page.emulate_media(media="print")
    assert panels.first.is_visible()


def test_the_text_that_a_recogniser_reads_stands_below(tab, seen, tmp_path):
    kept = read(Pictures, seen[0] / PICTURES)
    first = kept.pictures[0]
    texts_of = {"fp32": "fp32 <b>", "int8": "", "recipe": "recipe <b>"}
    drawings = tuple(replace(one, marks=(), counts={}, text=texts_of[one.plan]) for one in first.drawings)
    write(tmp_path / PICTURES, replace(kept, task="text", pictures=(replace(first, drawings=drawings),)))
    write_page(pages.read(seen[0]), tmp_path)
    with tab.shown(tmp_path / "report.html", ready="usable") as page:
        assert page.locator("#pictures .read").all_inner_texts() == ["fp32 <b>", "recipe <b>"]
        assert page.locator("#pictures .panel").nth(1).locator(".under").inner_text() == "nothing is read; agreement 0%"
        assert page.locator("#pictures-legend li").count() == 0


def test_view_shows_them_and_another_run_in_the_folder_takes_them_away(seen, tmp_path):
    folder, data = seen
    assert RunFolder(folder).state().data.pictures == read(Pictures, folder / PICTURES)
    model = networks.save(detector(3), tmp_path)
    run = again(folder, tmp_path / "run")
    wishes = {**JUDGED, "explain": "tensors", "output": run}
    trt_bisect.run(model, data, inputs=data, task="detect", **wishes)
    own = read(Pictures, run / PICTURES)
    assert own == read(Pictures, folder / PICTURES), "from saved tensors or inferred again"
    trt_bisect.run(model, data, inputs=data, **wishes)
    assert not (run / PICTURES).exists()
    assert RunFolder(run).state().data.pictures is None


@pytest.mark.parametrize("broken", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_a_run_whose_pictures_fail_keeps_its_explanation(seen, tmp_path, monkeypatch, broken):
    from trt_bisect.commands.run import pictures
    from trt_bisect.commands.run.live import StoppedRun

    def fail(*_):
        raise broken

    monkeypatch.setattr(pictures, "frames_of", fail)
    model = networks.save(detector(3), tmp_path)
    run = again(seen[0], tmp_path / "run")
    wishes = {**JUDGED, "explain": "tensors", "output": run}
    try:
        found = trt_bisect.run(model, seen[1], inputs=seen[1], task="detect", **wishes)
    except StoppedRun as stopped:
        found = stopped.report
    else:
        assert "the worst images could not be drawn: RuntimeError: no memory" in texts(found.notes)
    assert found.culprits == ("second",)
    assert (run / EXPLANATION).is_file()
    assert not (run / PICTURES).exists()
