"""The parts of a run's page, as a user finds and moves them in a browser."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, TimeoutError as NotInTime

from tests.support.waiting import wait_until
from trt_bisect.report.parts import LayerRow

_DRAWN = 2000.0
"""Milliseconds after which the mouse is moved again."""


def plotted(page: Page, plot: str) -> Locator:
    """Brings the plot of that selector into sight, where it is drawn; returns it when it is."""
    found = page.locator(plot)
    found.scroll_into_view_if_needed()
    page.wait_for_function("plot => plot.layout && !plot.ariaBusy", arg=found.element_handle())
    return found


def in_order(page: Page) -> None:
    """Makes the table show all layers, in the order of execution."""
    page.get_by_label("Show", exact=True).select_option("all")
    page.locator("#table-head [data-key=index]").click()


def put_back(page: Page, name: str) -> None:
    """Takes back what a test did to a page: nothing is searched, all layers stand in order, one layer is selected."""
    page.evaluate(
        """name => {
          const part = id => document.getElementById(id);
          const set = (id, value, event) => {
            if (part(id).value === value) return;
            part(id).value = value;
            part(id).dispatchEvent(new Event(event));
          };
          document.activeElement?.blur();
          scrollTo({ top: 0, behavior: 'instant' });
          set('search', '', 'input');
          set('filter', 'all', 'change');
          set('op', '', 'change');
          set('shade', 'precision', 'change');
          if (!part('curve-log').checked) part('curve-log').click();
          const by = key => document.querySelector(`#table-head [data-key=${key}]`);
          while (by('index').parentElement.getAttribute('aria-sort') !== 'ascending') by('index').click();
          part('table').scrollTo(0, 0);
          document.querySelector('#recipe-body [role=tab]').click();
          const row = [...document.querySelectorAll('#table-body [role=row]')]
            .find(each => each.querySelector('.name').textContent === name);
          if (row.getAttribute('aria-selected') !== 'true') row.click();
          part('unfold').click();
          part('zoom-fit').click();
          document.activeElement.blur();
        }""",
        name,
    )
    page.wait_for_function(
        "name => !document.querySelector('#graph .node.group')"
        " && document.querySelector('#graph .selected')?.dataset.layer === name",
        arg=name,
    )


def idle(page: Page) -> None:
    """Waits until the page has done what it left for later, such as the graph."""
    # Without a timeout it may never come: a page that Chromium does not draw is never idle.
    page.evaluate(
        """() => new Promise(done => {
          const later = work => requestIdleCallback(work, { timeout: 1000 });
          later(() => later(done));
        })"""
    )


def names_in_table(page: Page) -> list[str]:
    """Returns the layers that the table shows, in its order."""
    return page.locator("#table-body .name").all_inner_texts()


def row_of(page: Page, name: str) -> Locator:
    """Returns the row of a layer in the table."""
    return page.locator("#table-body [role=row]").filter(has=page.get_by_text(name, exact=True))


def selected(page: Page) -> dict[str, str | None]:
    """Returns the selected layer of each part of the page, after the graph shows it too."""
    name = page.locator("#details-body .layer-name").text_content() if page.locator(".layer-name").count() else None
    page.wait_for_function(
        "name => (document.querySelector('#graph .selected')?.dataset.layer ?? null) === name", arg=name
    )
    in_table = page.locator('#table-body [aria-selected="true"] .name')
    return {
        "panel": name,
        "table": in_table.text_content() if in_table.count() else None,
        "curve": plotted(page, "#curve-plot").evaluate(
            "plot => plot.layout.shapes.find(shape => shape.name === 'selected')?.x0 ?? null"
        ),
    }


def hovered(page: Page, row: LayerRow) -> None:
    """Moves the mouse to a layer's point in the curve and waits for its text; the curve may still be drawn anew."""
    text = plotted(page, "#curve-plot").locator(".hoverlayer .hovertext").first

    def shows() -> bool:
        place = _place_in_curve(page, row)
        page.mouse.move(place[0] - 30, place[1] - 30)
        page.mouse.move(*place)
        try:
            text.wait_for(timeout=_DRAWN)
        except NotInTime:
            return False
        return True

    wait_until(shows)


def _place_in_curve(page: Page, row: LayerRow) -> tuple[float, float]:
    """Returns the pixels of a layer's point in the window."""
    x, y = page.evaluate(
        """index => {
          const plot = document.querySelector('#curve-plot');
          plot.scrollIntoView({ behavior: 'instant', block: 'center' });
          for (const [number, trace] of plot.data.entries()) {
            const place = trace.mode === 'markers' ? trace.x.indexOf(index) : -1;
            if (place < 0) continue;
            const box = plot.getBoundingClientRect();
            const axis = trace.yaxis === 'y2' ? plot._fullLayout.yaxis2 : plot._fullLayout.yaxis;
            const x = plot._fullLayout.xaxis;
            return [box.x + x._offset + x.d2p(index), box.y + axis._offset + axis.d2p(trace.y[place])];
          }
        }""",
        row.index,
    )
    return x, y
