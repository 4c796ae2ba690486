"""The panels of a figure under one another, for a screen on which they are too small side by side.

The figure stays one drawing, and every panel is a view of it: the boxes "x y width height", in the units of the drawing
and with commas between them, that show the panel by itself. The last box is the panel; one before it has the names of the
rows, where only the first panel has them.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NARROW = "(max-width: 480px)"  # screens for which panels stand under one another, as CSS says it
ROW = 330  # panels share a row up to this width, at which letters of 12 points have 13 pixels on a phone
GAP = 12  # between rows
LEAST = 280  # a row is at least that wide, so that its letters are no larger than those of the text


def views(fig: "Figure", axes: Any) -> list[str]:
    """The views of a figure that has been drawn; none if it has one panel, or if panels reach into each other."""
    from matplotlib.backends.backend_svg import RendererSVG

    panels = list(getattr(axes, "flat", [axes]))
    fig.set_dpi(72)
    wide, high = fig.bbox.size
    renderer = RendererSVG(wide, high, io.StringIO())  # letters have other widths elsewhere
    seen = [panel.get_tightbbox(renderer) for panel in panels]
    cuts = [0, *(round((left.x1 + right.x0) / 2) for left, right in zip(seen, seen[1:])), round(wide)]
    apart = all(left.x1 < cut - 1 and cut + 1 < right.x0 for left, cut, right in zip(seen, cuts[1:], seen[1:]))
    legends = [legend.get_window_extent(renderer) for legend in fig.legends]
    if len(panels) < 2 or not apart or any(legend.x0 < cut < legend.x1 for legend in legends for cut in cuts):
        return []
    frame = panels[0].bbox
    names = f"0 0 {round(frame.x0)} {round(high - frame.y0) + 6}, "  # as far down as the lowest row's letters
    found = []
    for panel, low, end in zip(panels, cuts, cuts[1:]):
        before = names if _lacks_names(panel, panels[0]) else ""
        found.append(f"{before}{low} 0 {end - low} {round(high)}")
    return found


def _lacks_names(panel: Any, first: Any) -> bool:
    """Whether a panel has the rows of the first one, and a reader sees what they are at the first one only."""

    def rows(axes: Any) -> tuple:
        return axes.get_ylim(), axes.get_yscale(), list(axes.get_yticks())

    def named(axes: Any) -> bool:
        return axes.axison and any(label.get_visible() and label.get_text() for label in axes.get_yticklabels())

    return rows(panel) == rows(first) and named(first) and not named(panel)


def stacked(svg: str, found: Sequence[str]) -> str:
    """The drawing with its panels under one another, each an SVG in the SVG, which a browser cuts at its box."""
    before, behind = around(found)
    return before + svg[svg.index(">") + 1 : svg.rindex("</svg>")] + behind


def around(found: Sequence[str]) -> tuple[str, str]:
    """What stands before and behind the elements of a drawing whose panels stand under one another."""
    rows: list[list[list[int]]] = []
    for view in found:
        boxes = [[int(number) for number in box.split()] for box in view.split(",")]
        if rows and _width(rows[-1] + boxes[-1:]) <= ROW:
            rows[-1].append(boxes[-1])
        else:
            rows.append(boxes)
    wide = max(LEAST, *map(_width, rows))
    windows, high = [], 0
    for row in rows:
        left = (wide - max(map(_width, rows))) // 2
        for x, y, width, height in row:
            place = f'x="{left}" y="{high}" width="{width}" height="{height}"'
            windows.append(f'<svg {place} viewBox="{x} {y} {width} {height}">')
            left += width
        high += max(box[3] for box in row) + GAP
    high -= GAP
    size = f'viewBox="0 0 {wide} {high}" width="{wide}" height="{high}"'
    again = "".join(f'{window}<use href="#drawing"/></svg>' for window in windows[1:])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{windows[0]}<g id="drawing">', f"</g></svg>{again}</svg>"


def _width(row: Sequence[Sequence[int]]) -> int:
    return sum(box[2] for box in row)
