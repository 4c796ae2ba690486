"""Drawings of the chapter on training that breaks. Every function draws computed or recorded data on the given axes."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from normlab.page.figures import BLUE, GREEN, INK, ORANGE, plain_log

_STYLES = ((ORANGE, "-"), (BLUE, "--"), (GREEN, ":"))
AT_NAN = 2.3  # where a run that ended at NaN is drawn


def apart(ax: Axes, losses: Mapping[str, Sequence[float]]) -> None:
    """Loss of the faulty run minus that of its control, a dot a seed, {fault: differences}, infinite for NaN."""
    names = sorted(losses, key=lambda name: (fmean(losses[name]), name), reverse=True)
    for row, name in enumerate(names):
        values = [min(value, AT_NAN) for value in losses[name]]
        ended = [math.isinf(value) for value in losses[name]]
        color = ORANGE if min(values) > 0.3 else BLUE
        ax.plot(values, [row] * len(values), "x" if all(ended) else "o", color=color, markersize=6, alpha=0.8)
        if all(ended):
            ax.text(AT_NAN + 0.08, row, "NaN", color=ORANGE, va="center")
    ax.axvline(0, color=INK, linewidth=1)
    ax.axvline(0.3, color=INK, linewidth=1, linestyle="--")
    ax.set_yticks(range(len(names)), names)
    ax.set(title="What the loss says", xlabel="faulty minus healthy (nats)", xlim=(-0.15, 2.75))
    ax.grid(axis="y", alpha=0.1)


def curves(ax: Axes, losses: Mapping[str, Sequence[float]], every: int = 5) -> None:
    """Training losses {name: losses}, each point the mean of ``every`` steps."""
    for (name, values), (color, line) in zip(losses.items(), _STYLES):
        means = [fmean(values[i : i + every]) for i in range(0, len(values), every)]
        ax.plot([i * every + every / 2 for i in range(len(means))], means, line, color=color)
        end = (len(values), max(means[-len(means) // 4 :]))  # above all of the line's last quarter
        ax.annotate(name, end, (0, 5), textcoords="offset points", color=color, ha="right", va="bottom")
    ax.set(title="Bad training, no NaN", xlabel="step", ylabel="loss (nats)")


def streams(ax: Axes, sizes: Mapping[str, Sequence[float]]) -> None:
    """Size of the stream over depth, over its first value, {name: sizes}."""
    for (name, values), (color, line) in zip(sizes.items(), _STYLES):
        ax.plot(range(len(values)), [value / values[0] for value in values], line, color=color, label=name)
    ax.set_yscale("log")
    plain_log(ax.yaxis, (1, 10, 100))
    ax.set(title="Growth alone does not tell", xlabel="blocks passed", ylabel="stream, times its start")
    ax.legend()


def shares(ax: Axes, paths: Mapping[str, Sequence[float]], every: int = 5) -> None:
    """Share of context over the steps of training, {placement: shares}."""
    for (name, values), (color, line) in zip(paths.items(), _STYLES):
        ax.plot([every * (i + 1) for i in range(len(values))], values, line, color=color, label=f"{name.title()}-LN")
    ax.axhline(1e-4, color=INK, linewidth=1, linestyle=":")
    ax.set_yscale("log")
    plain_log(ax.yaxis, [10.0**power for power in range(-8, 1)])
    ax.set(title="Stuck, or only passing", xlabel="step", ylabel="share of context")
    ax.legend()


def jumps(ax: Axes, steps: Mapping[float, Sequence[float]]) -> None:
    """Lengths of AdamW's steps after a jump of the gradient, in rates, {β₂: lengths}."""
    for (beta2, values), (color, line) in zip(steps.items(), _STYLES):
        ax.plot(range(1, len(values) + 1), values, line, color=color, label=f"β₂ = {beta2:g}")
    ax.axhline(1, color=INK, linewidth=1, linestyle=":")
    ax.set(title="One jump, many long steps", xlabel="steps after the jump", ylabel="step, in rates", ylim=(0, 7.5))
    ax.legend()
