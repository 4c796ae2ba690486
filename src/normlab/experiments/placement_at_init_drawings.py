"""The drawings of chapter 5's first sections: the two wirings, and stacks at initialization."""

from collections.abc import Sequence
from statistics import geometric_mean

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from torch import Tensor

from normlab.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log

LINES = {  # color and line style
    "Post": (BLUE, "-"),
    "Pre": (ORANGE, "-"),
    "Pre, 1/√(2L) weights": (GREEN, "--"),
    "Pre, no final norm": (PINK, "-."),
    "Peri": (PINK, "--"),
    "DeepNorm": (GREEN, "-."),
}


def _label(ax: Axes, text: str, point: tuple[float, float], color: str, offset=(0, 0), **options) -> None:
    ax.annotate(text, point, offset, textcoords="offset points", color=color, **options)


# --- wiring -----------------------------------------------------------------------------------------------------------


def _box(ax: Axes, x: float, y: float, text: str, color: str = INK) -> None:
    ax.add_patch(
        FancyBboxPatch((x - 0.42, y - 0.3), 0.84, 0.6, boxstyle="round,pad=0.05", fill=False, edgecolor=color, lw=1.5)
    )
    ax.text(x, y, text, color=color, ha="center", va="center")


def _line(ax: Axes, points: Sequence[tuple[float, float]], color: str = INK, **options) -> None:
    ax.plot(*zip(*points), color=color, solid_capstyle="butt", **{"linewidth": 1.5} | options)


def wirings(axes: Sequence[Axes]) -> None:
    """Two sublayers of Post-Norm and of Pre-Norm, and the way past all sublayers."""
    for ax, post in zip(axes, (True, False)):
        top = 8.4
        for y in (0.4, 4.4):  # where a branch leaves the stream
            _line(ax, [(0, y), (1.6, y), (1.6, y + 0.55 if not post else y + 0.95)])
            if not post:
                _box(ax, 1.6, y + 0.9, "N", ORANGE)
                _line(ax, [(1.6, y + 1.25), (1.6, y + 1.6)])
            _box(ax, 1.6, y + (1.3 if post else 1.95), "F")
            _line(ax, [(1.6, y + (1.65 if post else 2.3)), (1.6, y + 2.8), (0.25, y + 2.8)])
            ax.text(0, y + 2.8, "+", color=INK, ha="center", va="center", fontsize=14)
            ax.plot([0], [y + 2.8], "o", markersize=14, markerfacecolor="none", markeredgecolor=INK)
            if post:
                _box(ax, 0, y + 3.45, "N", ORANGE)
        pieces = [(-0.4, 2.95), (3.45, 3.5), (4.2, 6.95), (7.45, 7.5), (8.2, top)] if post else [(-0.4, 2.95)]
        pieces = pieces if post else [*pieces, (3.45, 6.95), (7.45, top)]
        for low, high in pieces:
            _line(ax, [(0, low), (0, high)], BLUE, linewidth=4 if not post else 2, linestyle=":" if post else "-")
        if not post:
            _box(ax, 0, top + 0.35, "N", ORANGE)
            _label(ax, "final norm", (0.6, top + 0.35), ORANGE, va="center")
        ax.text(0, -0.9, "x", color=INK, ha="center", va="center")
        ax.set(xlim=(-0.9, 3), ylim=(-1.3, 9.3), xticks=[], yticks=[])
        ax.set_title("Post: the stream meets every N" if post else "Pre: the stream meets none", fontsize=12)
        ax.grid(False)
        for side in ax.spines.values():
            side.set_visible(False)


# --- gradients ----------------------------------------------------------------------------------------------------------


def across_models(ax: Axes, depths: Sequence[int], gradients: dict[str, Sequence[Sequence[float]]]) -> None:
    """Gradient of the last block's second MLP matrix against depth: {name: [seeds][depths]}."""
    offsets = {"Post": (0, -16), "Pre": (0, -15), "Pre, 1/√(2L) weights": (0, 5), "Pre, no final norm": (0, 4)}
    for name, runs in gradients.items():
        color, style = LINES[name]
        columns = [sorted(c) for c in zip(*runs)]
        middle = [geometric_mean(c) for c in columns]
        ax.fill_between(depths, [c[0] for c in columns], [c[-1] for c in columns], color=color, alpha=0.15, linewidth=0)
        ax.plot(depths, middle, style, color=color)
        _label(ax, name, (depths[-1], middle[-1]), color, offsets[name], ha="right", fontsize=11)
    start = 0.4
    ax.plot(depths, [start * (2 / d) ** 0.5 for d in depths], ":", color=INK, linewidth=1)
    _label(ax, "∝ 1/√L", (depths[2], start * 0.5), INK, (-6, -16), ha="right", fontsize=11)
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax.xaxis, depths)
    plain_log(ax.yaxis, (0.1, 0.3, 1, 3))
    ax.set(title="Deeper: Pre's last gradient falls, Post's does not", xlabel="blocks L in the model", ylabel="gradient of the last block")
    ax.set_ylim(0.05, 4)


def inside_one(ax: Axes, gradients: dict[str, Tensor]) -> None:
    """Gradient of every block's second MLP matrix, {name: [seeds, L]}: geometric means."""
    for name, runs in gradients.items():
        color, style = LINES[name]
        layers = range(1, runs.shape[1] + 1)
        ax.fill_between(layers, runs.min(0).values, runs.max(0).values, color=color, alpha=0.15, linewidth=0)
        ax.plot(layers, runs.log().mean(0).exp(), style, color=color, label=name)
    ax.set_yscale("log")
    plain_log(ax.yaxis, (0.1, 0.2, 0.5, 1))
    ax.set(title="Inside one model: Pre falls towards the output", xlabel="block ℓ of 32", ylabel="gradient of block ℓ")
    ax.set(xticks=(1, 8, 16, 24, 32), ylim=(0.07, 5))
    ax.legend(loc="upper left", ncols=1, fontsize=11)


# --- the price -----------------------------------------------------------------------------------------------------------


def price(axes: Sequence[Axes], found: dict[str, dict[str, Tensor]]) -> None:
    """Size of the stream and relative contribution block by block, {name: {quantity: [seeds, L]}}."""
    for ax, key, title in zip(axes, ("stream", "share"), ("Pre's stream grows …", "… so the share falls")):
        for name, values in found.items():
            color, style = LINES[name]
            mean = values[key].log().mean(0).exp()
            ax.plot(range(1, len(mean) + 1), mean, style, color=color, label=name)
        ax.set_yscale("log")
        ax.set(title=title, xlabel="block ℓ", xticks=(1, 16, 32))
    plain_log(axes[0].yaxis, (1, 2, 4, 8))
    plain_log(axes[1].yaxis, (0.01, 0.1, 1))
    axes[0].set_ylim(0.85, 20)
    axes[1].set_ylim(0.006, 1.2)
    axes[0].legend(loc="upper left", fontsize=11, ncols=2, columnspacing=0.8, handlelength=1.6)
    axes[1].set_ylabel("‖r‖ / ‖x‖")
    axes[0].set_ylabel("root mean square")


def depth_frame(axes: Sequence[Axes], table: dict[str, dict[str, Sequence[float]]], frame: int) -> None:
    """One frame of the slider, {placement: {quantity: [depths]}}: a dot per placement, gray from 2 to 64 blocks."""
    panels = {"stream": ("Stream", (1, 3, 10)), "down": ("Gradient", (0.03, 0.2)), "share": ("Share", (0.01, 0.1))}
    limits = {"stream": (0.8, 16), "down": (0.011, 1), "share": (0.003, 0.9)}
    for ax, (key, (title, ticks)) in zip(axes, panels.items()):
        for row, quantities in enumerate(table.values()):
            values = quantities[key]
            ax.plot([min(values), max(values)], [row, row], color=INK, linewidth=1)
            ax.plot([values[frame]], [row], "o", color=ORANGE, markersize=9)
        ax.set_xscale("log")
        plain_log(ax.xaxis, ticks)
        ax.set(title=title, xlim=limits[key], ylim=(len(table) - 0.5, -0.5), yticks=range(len(table)))
        ax.set_yticklabels(list(table) if ax is axes[0] else [])
        ax.tick_params(axis="y", length=0)
        ax.grid(False)
        ax.spines["left"].set_visible(False)
