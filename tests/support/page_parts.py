"""The parts of a run's page, as a user finds and moves them in a browser."""

from __future__ import annotations

from playwright.sync_api import Locator, Page

from trt_bisect.results.layer_row import LayerRow


def in_order(page: Page) -> None:
    """Makes the table show all layers, in the order of execution."""
    page.get_by_label("Show", exact=True).select_option("all")
    page.locator("#table-head [data-key=index]").click()


def spread_out(page: Page) -> None:
    """Makes the table show all layers in order, and unfolds all groups of the graph."""
    in_order(page)
    page.get_by_role("button", name="Unfold", exact=True).click()
    page.wait_for_function("() => !document.querySelector('#graph .node.group')")


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
        "curve": page.evaluate(
            "document.querySelector('#curve-plot').layout.shapes.find(s => s.name === 'selected')?.x0 ?? null"
        ),
    }


def hovered(page: Page, row: LayerRow) -> None:
    """Moves the mouse to a layer's point in the curve and waits for its text."""
    place = page.evaluate(
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
    page.mouse.move(place[0] - 30, place[1] - 30)
    page.mouse.move(*place)
    page.wait_for_selector("#curve-plot .hoverlayer .hovertext")
