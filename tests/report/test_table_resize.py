"""A table whose window becomes narrow and wide again shows the columns of that width, in its head and in its rows."""

import pytest

import trt_bisect
from tests.support import networks

WIDE, PHONE = {"width": 1600, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def page(tab, tmp_path_factory):
    place = tmp_path_factory.mktemp("resize")
    trt_bisect.profile(networks.save(networks.chain(3), place), output=place)
    with tab.shown(place / "profile.html", ready="plots", **PHONE) as page:
        yield page


def cells(page):
    """The number of cells in the head and in each row."""
    head = page.locator("#tensors-table .head button").count()
    rows = page.locator("#tensors-table .body [role=row]").evaluate_all("rows => rows.map(row => row.children.length)")
    return head, set(rows)


def test_rows_have_the_columns_of_the_head(page):
    narrow, rows = cells(page)
    assert rows == {narrow}
    for size, wider in ((WIDE, True), (PHONE, False)):
        page.set_viewport_size(size)
        page.wait_for_function(
            "([narrow, wider]) => (document.querySelectorAll('#tensors-table .head button').length > narrow) === wider",
            arg=[narrow, wider],
        )
        head, rows = cells(page)
        assert rows == {head}
