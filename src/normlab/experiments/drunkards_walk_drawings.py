"""The drawings of chapter 1. Every function draws measured data on the given axes and returns nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor

from normlab.experiments import drawing
from normlab.experiments.drunkards_walk import RULES, AttentionByDepth, Walk
from normlab.page.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log

SEEDS: dict[str, Any] = {"alpha": 0.55, "linewidth": 1}  # single seeds stand behind their mean


def pinned_input(ax: Axes, stream: Sequence[float], inputs: Sequence[float]) -> None:
    """Size of stream and sublayer input against the sublayer."""
    n = range(1, len(stream) + 1)
    middle = 5 * len(n) // 8
    ax.plot(n, stream, color=ORANGE)
    ax.plot(n, inputs, color=BLUE)
    drawing.label(ax, "residual stream", (n[middle], stream[middle]), ORANGE, (-12, 6), ha="right")
    drawing.label(ax, "sublayer input", (n[middle], inputs[middle]), BLUE, (0, -16))
    ax.set(title="The norm pins the input; the stream keeps growing", xlabel="sublayer", ylabel="size (rms)")
    ax.set_ylim(0, None)


def walkers(ax: Axes, walk: Walk, paths: int = 12) -> None:
    """A few paths, and both typical distances with their laws."""
    steps = torch.arange(len(walk.rms))
    ax.plot(steps, walk.paths[:paths].T, color=INK, alpha=0.35, linewidth=0.8)
    ax.plot(steps, walk.rms, color=ORANGE, label="root mean square: √ℓ")
    ax.plot(steps, walk.mean, color=BLUE, label="mean distance: √(2ℓ/π)")
    for law, color in ((steps.sqrt(), ORANGE), ((2 * steps / torch.pi).sqrt(), BLUE)):
        ax.plot(steps, law, "--", color=color, linewidth=1)
    ax.set(title="“Ten steps after a hundred” is the root mean square", xlabel="steps", ylabel="place (steps)")
    ax.legend(loc="lower left")


def rules(ax: Axes, paths: Sequence[Tensor]) -> None:
    """Sizes of the synthetic streams, one path [steps + 1] per rule of RULES, rings at the prediction."""
    colors = (BLUE, GREEN, GREEN, ORANGE, ORANGE, PINK, PINK)
    nudges = (0, 0, 0, -3, -19, 12, 0)  # points, where two labels would meet
    steps = len(paths[0]) - 1
    ax.set_yscale("log")
    for rule, path, color, nudge in zip(RULES, paths, colors, nudges):
        ax.plot(path, color=color)
        ax.plot(steps, rule.mean_square(steps) ** 0.5, "o", color=color, markersize=9, fillstyle="none")
        drawing.label(ax, rule.name, (steps, path[-1].item()), color, (9, nudge), va="center")
    plain_log(ax.yaxis, (1, 2, 5, 10, 20, 50))
    ax.set(title="One law, six exceptions, all predictable", xlabel="step", ylabel="size (rms)", xlim=(0, steps + 3))


def attention_grows(axes: Sequence[Axes], runs: Sequence[AttentionByDepth]) -> None:
    """Variance of the increments, and similarity of tokens, against the block."""
    left, right = axes
    for name, color, label in (
        ("first_token", PINK, "attention, first token"),
        ("all_tokens", ORANGE, "attention, all tokens"),
        ("mlp", BLUE, "MLP, all tokens"),
    ):
        _over_seeds(left, [getattr(run, name) for run in runs], color, label)
    left.set(title="Attention writes more …", xlabel="block", ylabel="Var r", ylim=(0, 2.6))
    left.legend(loc="upper left", fontsize=11)
    _over_seeds(right, [run.alike for run in runs], GREEN)
    right.set(title="… as tokens get alike", xlabel="block", ylabel="cosine of two tokens", ylim=(0, 1))


def _over_seeds(ax: Axes, runs: Sequence[Sequence[float]], color: str, label: str | None = None) -> None:
    values = torch.tensor(runs).T
    n = range(1, len(values) + 1)
    ax.plot(n, values, color=color, **SEEDS)
    ax.plot(n, values.mean(1), color=color, label=label)


def trained_stream(axes: Sequence[Axes], live: dict, seeds: dict[str, Sequence[Sequence[float]]]) -> None:
    """Left: stream before and after training. Right: stream and the band of sublayer inputs, this run."""
    left, right = axes
    for when, color, label in (("before", BLUE, "at initialization"), ("after", ORANGE, "trained")):
        left.plot(torch.tensor(seeds[when]).T, color=color, **SEEDS)
        left.plot(live[when]["stream"], color=color, label=label)
    left.set(title="Trained, the stream grows …", xlabel="sublayer", ylabel="stream size (rms)", ylim=(0, None))
    left.legend()
    after = live["after"]
    n = range(1, len(after["input"]) + 1)
    right.set_yscale("log")
    right.fill_between(n, after["input_min"], after["input_max"], color=BLUE, alpha=0.3)
    right.plot(n, after["input"], color=BLUE)
    right.plot(n, after["stream"][1:], color=ORANGE)
    drawing.label(right, "stream", (12, 5), ORANGE, (4, -16))
    drawing.label(right, "sublayer input", (8, 1), BLUE, (0, 8))
    plain_log(right.yaxis, (1, 2, 5, 10))
    right.set(title="… the input stays put", xlabel="sublayer", ylabel="size (rms)")


def where_growth_came_from(ax: Axes, title: str, increments: Sequence, twice_covariances: Sequence) -> None:
    """What increments and covariance have added to Var x so far, each [seeds][sublayers]."""
    for runs, color, label in ((increments, BLUE, "sum of Var r"), (twice_covariances, ORANGE, "sum of 2 Cov")):
        total = torch.tensor(runs).cumsum(1).T
        n = range(1, len(total) + 1)
        ax.plot(n, total, color=color, **SEEDS)
        ax.plot(n, total.mean(1), color=color, label=label)
    ax.axhline(0, color=INK, linewidth=0.8)
    ax.set(title=title, xlabel="sublayer", ylabel="added to Var x")
    ax.legend(loc="upper left")


def three_streams(ax: Axes, streams: dict[str, Sequence[Sequence[float]]]) -> None:
    """Stream size after training, {label: [seeds][sublayers + 1]}."""
    for (label, runs), color in zip(streams.items(), (ORANGE, GREEN, BLUE)):
        sizes = torch.tensor(runs).T
        ax.plot(sizes, color=color, **SEEDS)
        ax.plot(sizes.mean(1), color=color, label=label)
    ax.set(title="Same task, same size: three different streams", xlabel="sublayer", ylabel="stream size (rms)")
    ax.set_ylim(0, None)
    ax.legend()
