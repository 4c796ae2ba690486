"""House style, and the one way a chapter shows a figure."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normlab.page.claims import publish
from normlab.page.panels import views

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# All colors are equally light, so that lines and words read equally well on white and on near-black (contrast 4.3 : 1 on
# both): an image in the page cannot follow its dark mode. Their hues are told apart by readers with any of the usual color
# deficiencies. Tests measure both.
INK = "#797979"
BLUE, ORANGE, GREEN, PINK = "#2c76e7", "#c35c00", "#428850", "#b25aa0"
COLORS = (BLUE, ORANGE, GREEN, PINK)

STYLE: dict[Any, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 13,  # larger, not bold: a second weight would put a second set of letters into every file
    "font.size": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "legend.fontsize": 12,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": INK,
    "grid.alpha": 0.2,
    "lines.linewidth": 2,
    "svg.hashsalt": "normlab",  # the same drawing gives the same bytes
    "svg.fonttype": "path",  # readable without the font
}


def plain_log(axis: "Axis", ticks: Sequence[float]) -> None:
    """Label a logarithmic axis at ``ticks`` with plain numbers: raised exponents are too small for a phone."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.FixedLocator(ticks))
    axis.set_major_formatter(ticker.FuncFormatter(lambda x, _: plain(x)))
    axis.set_minor_locator(ticker.NullLocator())


def plain(x: float) -> str:
    """A number of a logarithmic axis as code has it: 0.001, 1e-5, 1e9."""
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{x:g}")


@contextmanager
def canvas(panels: int = 1, height: float = 3.4) -> Iterator[tuple["Figure", Any]]:
    """A matplotlib figure in house style, ``height`` inches high, and its axes; closed at the end of the block."""
    from cycler import cycler
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE | {"axes.prop_cycle": cycler(color=COLORS)}):
        fig, axes = plt.subplots(1, panels, figsize=(6.4, height), layout="constrained")
        try:
            yield fig, axes
        finally:
            plt.close(fig)


@contextmanager
def figure(alt: str, panels: int = 1, height: float = 3.4):
    """Draw a figure in house style and show it, with a text for those who cannot see it.

    Use as ``with figure(alt=...) as ax:``, or with ``panels=2`` as ``as (left, right)``. In a notebook the
    drawing is shown as SVG; elsewhere the alt text is printed. If the block raises, nothing is shown.

    Args:
        alt: what the figure shows, with its numbers.
        panels: axes side by side; on a phone the book shows them under one another.
        height: in inches; the width is fixed, so that all figures have one font size on the page, and small, so that
            they stay legible on a phone.

    Raises:
        ValueError: empty alt text.
    """
    if not alt.strip():
        raise ValueError("a figure needs an alt text that says what it shows")
    with canvas(panels, height) as (fig, axes):
        yield axes
        svg = slim_svg(fig)
        found = views(fig, axes)
    data = {"image/svg+xml": svg, "text/plain": alt}
    about = {"alt": alt} | ({"panels": found} if found else {})
    if not publish(data, {"image/svg+xml": {"alt": alt}, "normlab": about}):
        print(alt)


def slim_svg(fig: "Figure") -> str:
    """The drawing at about half of the bytes that matplotlib writes, and the same to the eye.

    Left out are prolog, metadata and comments. Coordinates have a tenth of a point. Letters have short names.
    """
    file = io.StringIO()
    fig.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->", "", svg)
    for places in (r' (?:d|x|y)="[^"]*"', r"translate\([^)]*\)"):
        svg = re.sub(places, lambda place: re.sub(r"-?\d+\.\d+", _tenths, place[0]), svg)
    svg = re.sub(r'(<path id="DejaVu\w+-\w+" d="[^"]*") transform="scale\(0\.015625\)"/>', _letter, svg)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(?<=[\w\"])\s*([A-Za-z])\s*", r"\1", path[0]), svg)
    svg = re.sub(r'(["#])DejaVu\w+-', r"\1", svg)
    svg = svg.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    svg = re.sub(r'(<use href="#\w+") transform="translate\(([\d.-]+) 0\)"/>', r'\1 x="\2"/>', svg)
    svg = re.sub(r'(<use href="#m\w+"[^>]*?) style="[^"]*stroke-width: 0.8"/>', r"\1/>", svg)  # ticks know their style
    svg = re.sub(r' id="\w*\.?\w+_\d+"', "", svg)  # names of groups that nothing refers to
    return re.sub(r"\s+", " ", svg)  # a notebook file spends more on the start of a line than the line holds


def _letter(outline: re.Match) -> str:
    """A letter on a grid 16 times as coarse: 400 steps for its size."""
    start, path = outline[1].split(' d="')
    return f'{start} d="{re.sub(r"-?[0-9.]+", lambda n: str(round(float(n[0]) / 16)), path)} transform="scale(0.25)"/>'


def _tenths(number: re.Match) -> str:
    return f"{round(float(number[0]), 1) + 0.0:g}"
