"""Drawings of the chapter on roads after Pre and Post. Every function draws computed or recorded data on the given axes."""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from matplotlib.axes import Axes

from normlab.experiments import drawing
from normlab.page.figures import BLUE, GREEN, INK, ORANGE, plain_log

_STYLES = ((ORANGE, "-"), (GREEN, ":"), (BLUE, "--"))


def explosion(axes: Sequence[Axes], runs: Mapping[str, Mapping[int, Mapping[str, Sequence]]]) -> None:
    """Gradients of the kinds of stack, {kind: {depth: result of the record}}: first layer by depth, stream by block."""
    left, right = axes
    for by_depth, (color, line) in zip(runs.values(), _STYLES):
        depths = list(by_depth)
        if color is not GREEN:
            seeds = [by_depth[depth]["first"] for depth in depths]
            drawing.band(left, depths, list(zip(*seeds)), color)
            left.plot(depths, [geometric_mean(v) for v in seeds], line, color=color)
        means = [geometric_mean(block) for block in zip(*by_depth[depths[-1]]["stream"])]
        blocks = [*range(1, depths[-1] + 1, 8), depths[-1]]
        right.plot(blocks, means, line, color=color, linewidth=4 if color is GREEN else 2)
    for ax in axes:
        ax.set_yscale("log")
    left.set_xscale("log")
    plain_log(left.xaxis, depths)
    plain_log(left.yaxis, (1, 100, 10000))
    left.set(title="Gradients explode …", xlabel="blocks", ylabel="first layer's gradient", ylim=(0.2, 2e4))
    right.set(title="… through q and k", xlabel=f"block of {depths[-1]}", ylabel="stream's gradient", xticks=(1, 32, 64))
    plain_log(right.yaxis, (1e-4, 1e-3, 1e-2, 0.1, 1))
    left.text(4, 200, "output\nnorm", color=ORANGE)
    left.text(64, 0.26, "with QK-norm", color=BLUE, ha="right")
    right.text(64, means[0] * 6, "q, k cut", color=GREEN, ha="right")


def growth(axes: Sequence[Axes], runs: Mapping[str, Mapping[float, Sequence[Mapping]]]) -> None:
    """Largest logit and validation loss against the rate, {name: {rate: runs of the record}}; bands: all seeds."""
    for ax, key in zip(axes, ("logit", "validation")):
        for rates, (color, line) in zip(runs.values(), (_STYLES[0], _STYLES[2])):
            values = [[run[key][1] if key == "logit" else run[key] for run in found] for found in rates.values()]
            drawing.band(ax, list(rates), list(zip(*values)), color)
            mean = geometric_mean if key == "logit" else fmean
            ax.plot(list(rates), [mean(v) for v in values], line, color=color)
        ax.set_xscale("log")
        plain_log(ax.xaxis, (0.01, 0.1))
        ax.set(xlabel="learning rate")
    left, right = axes
    left.set_yscale("log")
    plain_log(left.yaxis, (1, 100, 10000))
    start = fmean(run["logit"][0] for rates in runs.values() for found in rates.values() for run in found)
    left.axhline(start, color=INK, linestyle=":", linewidth=1)
    left.set(title="Logits run away …", ylabel="largest logit", ylim=(1, 2e5))
    right.set(title="… the loss pays late", ylabel="loss (nats)")
    left.text(0.1, 1.5, "start", color=INK, ha="right")
    left.text(0.0032, 500, "without\nQK-norm", color=ORANGE)
    left.text(0.1, 95, "with", color=BLUE, ha="right")
