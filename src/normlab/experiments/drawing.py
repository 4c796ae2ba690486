"""What the drawings of several chapters share: labels, boxes, lines, arrows, bands."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from normlab.page.figures import INK

Point = tuple[float, float]


def label(ax: Axes, text: str, point: Point, color: str, offset: Point = (0, 0), **options) -> None:
    """Text at a point of the data, moved by ``offset`` in points."""
    ax.annotate(text, point, offset, textcoords="offset points", color=color, **options)


def box(ax: Axes, x: float, y: float, text: str, color: str = INK, width: float = 0.84, height: float = 0.6) -> None:
    """A box with a word in it, centered at (x, y)."""
    corner = (x - width / 2, y - height / 2)
    ax.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle="round,pad=0.05", fill=False, edgecolor=color, linewidth=1.5)
    )
    ax.text(x, y, text, color=color, ha="center", va="center")


def line(ax: Axes, points: Sequence[Point], color: str = INK, **options) -> None:
    """A line through points, with ends that do not reach beyond them."""
    ax.plot(*zip(*points), color=color, solid_capstyle="butt", **{"linewidth": 1.5} | options)


def arrow(ax: Axes, start: Point, end: Point, color: str = INK) -> None:
    """An arrow from one point to another."""
    style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style)


def band(ax: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], color: str, alpha: float = 0.2) -> None:
    """The range over runs, each a sequence of values at the places x."""
    columns = list(zip(*runs))
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=alpha, linewidth=0)
