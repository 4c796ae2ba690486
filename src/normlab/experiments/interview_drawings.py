"""The drawings of chapter 6. Every function draws computed data on the given axes and returns nothing."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from normlab.experiments import drawing
from normlab.page.figures import BLUE, COLORS, GREEN, INK, ORANGE, PINK, plain_log

CONTEXT_TICKS = (2048, 4096, 8192, 16384)


def growth(ax: Axes, contexts: Sequence[int], curves: dict[str, Sequence[float]]) -> None:
    """Each quantity over its value at the shortest context, {name: [contexts]}, up to four of them."""
    for (name, values), color in zip(curves.items(), COLORS):
        ax.plot(contexts, values, "o-", color=color, markersize=4)
        drawing.label(ax, name, (contexts[-1], values[-1]), color, (6, -4), annotation_clip=False)
    _contexts(ax)
    ax.set_yscale("log")
    plain_log(ax.yaxis, (1, 2, 4, 8, 16, 32, 64))
    ax.set(title="Eight times the tokens: × 64, × 12.3, × 8, × 1", xlabel="tokens", ylabel="over its value at 2,048")
    ax.set_xlim(1900, 56_000)  # the names stand behind the curves
    ax.spines["bottom"].set_bounds(1900, 16_384)


def operations(ax: Axes, contexts: Sequence[int], curves: dict[str, Sequence[float]], level: int) -> None:
    """Operations of a prefill, {"matrices" | "attention" | "LayerNorm" | "RMSNorm": [contexts]}; equal at ``level``."""
    styles = {"matrices": (BLUE, "-"), "attention": (ORANGE, "-"), "LayerNorm": (PINK, "--"), "RMSNorm": (GREEN, "-")}
    offsets = {"matrices": (-4, 8), "attention": (4, -16), "LayerNorm": (-4, 8), "RMSNorm": (4, -16)}
    at = len(contexts) // 3
    for name, values in curves.items():
        color, style = styles[name]
        ax.plot(contexts, values, style, color=color)
        ha = "right" if offsets[name][0] < 0 else "left"
        drawing.label(ax, name, (contexts[at], values[at]), color, offsets[name], ha=ha)
    ax.axvline(level, color=INK, linestyle=":", linewidth=1)
    _contexts(ax, (1024, 4096, 16384, 65536))
    ax.set_yscale("log")
    plain_log(ax.yaxis, [10.0**power for power in range(9, 16)])
    ax.set(title="The norms' line lies four decades down", xlabel="tokens", ylabel="operations of a prefill")


def traffic(axes: Sequence[Axes], gigabytes: dict[str, Sequence[float]], launches: dict[str, Sequence[int]]) -> None:
    """Bars, {norm: (step by step, fused)}: bytes that all norms of a prefill move, and kernels they start."""
    titles = ("Gigabytes moved", "Kernels started")
    for ax, title, values in zip(axes, titles, (gigabytes, launches)):
        for shift, (norm, pair), color in zip((-0.2, 0.2), values.items(), (BLUE, ORANGE)):
            bars = ax.bar([0 + shift, 1 + shift], pair, width=0.36, color=color, label=norm)
            ax.bar_label(bars, [f"{value:.0f}" for value in pair], color=INK, fontsize=11)
        ax.set(title=title, xticks=(0, 1), xticklabels=("step by step", "fused"))
        ax.margins(y=0.15)
        ax.grid(False, axis="x")
    axes[0].legend(loc="upper right", fontsize=11)


def louder(ax: Axes, sizes: Sequence[float], factors: Sequence[float]) -> None:
    """By how much a norm's output grows when its ε shrinks, against the size of the token."""
    ax.plot(sizes, factors, color=BLUE)
    ax.set_xscale("log")
    plain_log(ax.xaxis, (0.001, 0.01, 0.1, 1))
    ax.set(title="A smaller ε is heard where tokens are small", xlabel="root mean square of the token", ylabel="output ×")


def _contexts(ax: Axes, ticks: Sequence[int] = CONTEXT_TICKS) -> None:
    ax.set_xscale("log")
    plain_log(ax.xaxis, ticks)
    ax.set_xticklabels([f"{tick:,}" for tick in ticks])
