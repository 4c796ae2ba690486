"""Drawings of chapter 5's roads. Every function draws computed or recorded data on the given axes."""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from matplotlib.axes import Axes

from normlab.figures import BLUE, GREEN, INK, ORANGE, plain_log

_STYLES = ((ORANGE, "-", "s"), (GREEN, ":", "^"), (BLUE, "--", "o"))


def explosion(axes: Sequence[Axes], first: Mapping[str, Mapping[int, Sequence[float]]], inside: Mapping[str, Sequence]) -> None:
    """Gradient of the first attention, {stack: {depth: seeds}}, and on the stream before each block, {stack: [seeds][L]}."""
    left, right = axes
    for name, (color, line, marker) in zip(inside, _STYLES):
        if name in first:
            depths = list(first[name])
            for depth, values in first[name].items():
                left.plot([depth] * len(values), values, marker, color=color, markersize=4, alpha=0.6, linewidth=0)
            left.plot(depths, [geometric_mean(v) for v in first[name].values()], line, color=color)
        means = [geometric_mean(block) for block in zip(*inside[name])]
        right.plot(range(1, len(means) + 1), means, line, color=color)
    left.set_xscale("log")
    left.set(title="First layer", xlabel="blocks", ylabel="gradient", ylim=(0.1, 3e4))
    plain_log(left.xaxis, list(first[next(iter(first))]))
    last = len(inside[next(iter(inside))][0])
    right.set(title=f"Inside {last} blocks", xlabel="block", ylabel="gradient on the stream", xticks=(1, last // 2, last))
    for ax in axes:
        ax.set_yscale("log")
    left.text(4.2, 1200, "output norm", color=ORANGE, fontsize=11)
    left.text(5.5, 0.17, "with QK-norm", color=BLUE, fontsize=11)
    right.text(0.97, 0.93, "output norm", color=ORANGE, fontsize=11, ha="right", transform=right.transAxes)
    right.text(0.97, 0.84, "… no gradient\nthrough q, k", color=GREEN, fontsize=11, ha="right", va="top", transform=right.transAxes)
    right.text(0.97, 0.62, "with QK-norm", color=BLUE, fontsize=11, ha="right", va="top", transform=right.transAxes)


def growth(axes: Sequence[Axes], runs: Mapping[str, Mapping[float, Sequence[Mapping]]]) -> None:
    """Largest logit and validation loss against the rate, {name: {rate: runs of the record}}; bands: all seeds."""
    for ax, key, pick in ((axes[0], "logit", lambda r: r["logit"][1]), (axes[1], "validation", lambda r: r["validation"])):
        for (name, rates), (color, line, marker) in zip(runs.items(), (_STYLES[0], _STYLES[2])):
            values = [[pick(run) for run in rates[rate]] for rate in rates]
            ax.fill_between(list(rates), [min(v) for v in values], [max(v) for v in values], color=color, alpha=0.25, linewidth=0)
            mean = geometric_mean if key == "logit" else fmean
            ax.plot(list(rates), [mean(v) for v in values], line, color=color, marker=marker, markersize=5, label=name)
        ax.set_xscale("log")
        plain_log(ax.xaxis, (0.003, 0.01, 0.03, 0.1))
        ax.set(xlabel="learning rate")
    axes[0].set_yscale("log")
    start = fmean(run["logit"][0] for rates in runs.values() for found in rates.values() for run in found)
    axes[0].axhline(start, color=INK, linestyle=":", linewidth=1)
    axes[0].set(title="Largest attention logit", ylim=(1, None))
    axes[0].annotate("at the start", (0.1, start), (0, -13), textcoords="offset points", color=INK, fontsize=11, ha="right")
    axes[1].set(title="Validation loss (nats)")
    axes[0].legend(loc="upper left", fontsize=11)
