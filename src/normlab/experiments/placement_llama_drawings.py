"""Chapter 5's picture of the Llama stack: where today's usual choice puts its norms."""

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from normlab.figures import BLUE, INK, ORANGE

STREAM, BRANCH = 2.0, 4.9  # where the residual stream runs, and where the sublayers stand


def _box(ax: Axes, x: float, y: float, text: str, color: str, width: float = 2.5) -> None:
    ax.add_patch(Rectangle((x - width / 2, y - 0.29), width, 0.58, fc="none", ec=color, lw=1.6))
    ax.text(x, y, text, color=color, ha="center", va="center", fontsize=12)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": color, "lw": 1.4, "shrinkA": 0, "shrinkB": 0})


def llama_stack(ax: Axes) -> None:
    """One of L blocks with a norm at the door of each sublayer, the stream passing by, final norm and head on top."""
    ax.set(xlim=(0.6, 7.4), ylim=(-0.5, 9.6), title="Norms at the doors")
    ax.axis("off")
    ax.plot([STREAM] * 2, [0.29, 7.42], color=INK, lw=3)
    for y, name in ((1.1, "attention"), (4.0, "MLP")):
        ax.plot([STREAM, BRANCH], [y] * 2, color=INK, lw=1.4)
        _arrow(ax, (BRANCH, y), (BRANCH, y + 0.4))
        _box(ax, BRANCH, y + 0.69, "RMSNorm", BLUE)
        _arrow(ax, (BRANCH, y + 0.98), (BRANCH, y + 1.35))
        _box(ax, BRANCH, y + 1.64, name, ORANGE)
        ax.plot([BRANCH] * 2, [y + 1.93, y + 2.3], color=INK, lw=1.4)
        _arrow(ax, (BRANCH, y + 2.3), (STREAM + 0.24, y + 2.3))
        ax.plot(STREAM, y + 2.3, "o", markersize=17, color=INK)
        ax.plot(STREAM, y + 2.3, "+", markersize=10, mew=2, color="white")
    ax.add_patch(Rectangle((1.0, 0.7), 5.6, 6.05, fc="none", ec=INK, ls="--", lw=1))
    ax.text(6.75, 3.7, "× L", color=INK, va="center", fontsize=12)
    _box(ax, STREAM, 0, "tokens", INK)
    _box(ax, STREAM, 7.71, "RMSNorm", BLUE)
    ax.text(STREAM + 1.5, 7.71, "final norm", color=BLUE, va="center", fontsize=12)
    _arrow(ax, (STREAM, 8.0), (STREAM, 8.6))
    _box(ax, STREAM, 8.89, "head", INK)
