"""The drawings of chapter 2. Every function draws measured data on the given axes and returns nothing."""

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from normlab.experiments import drawing
from normlab.experiments.batchnorm_pitfalls import padded_moments
from normlab.page.figures import BLUE, COLORS, GREEN, INK, ORANGE, PINK, plain_log

SEEDS: dict[str, Any] = {"alpha": 0.5, "linewidth": 1}  # single seeds stand behind their mean
NORM_COLORS = {"none": INK, "none, wide start": PINK, "batchnorm": BLUE, "noisy batchnorm": ORANGE, "layernorm": GREEN}
NORM_LABELS = {
    "none": "no norm, Xavier",
    "none, wide start": "no norm, √(2/fan-in)",
    "batchnorm": "BatchNorm",
    "noisy batchnorm": "BatchNorm + noise",
    "layernorm": "LayerNorm",
}


def column_and_row(ax: Axes, x: Tensor, column: int, row: int) -> None:
    """The table x [tokens, features] as squares whose area shows the size, one column and one row framed."""
    tokens, features = x.shape
    largest = x.abs().max().item()
    for i in range(tokens):
        for j in range(features):
            value = x[i, j].item()
            side = 0.8 * (abs(value) / largest) ** 0.5
            corner = (j - side / 2, i - side / 2)
            ax.add_patch(Rectangle(corner, side, side, facecolor=ORANGE if value > 0 else BLUE, edgecolor="none"))
    frame: dict[str, Any] = {"fill": False, "linewidth": 2.5}
    ax.add_patch(Rectangle((column - 0.47, -0.47), 0.94, tokens - 0.06, edgecolor=PINK, **frame))
    ax.add_patch(Rectangle((-0.47, row - 0.47), features - 0.06, 0.94, edgecolor=GREEN, **frame))
    ax.text(column, -0.7, "BatchNorm", color=PINK, ha="center", va="bottom")
    ax.text(features - 0.35, row, "LayerNorm", color=GREEN, ha="left", va="center")
    ax.set(xlim=(-0.6, features + 1.6), ylim=(tokens - 0.3, -1.4), xlabel="feature", aspect="equal")
    ax.set_yticks(range(tokens), [f"token {i + 1}" for i in range(tokens)])
    ax.set_xticks(range(features), [f"{j + 1}" for j in range(features)])
    ax.set_title("BatchNorm reads columns, LayerNorm rows")
    ax.grid(False)
    ax.tick_params(length=0)
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)


def noisy_training(
    axes: Sequence[Axes], curves: dict[str, Sequence[Sequence[float]]], finals: dict[str, dict[float, Sequence[float]]]
) -> None:
    """Left: training loss, {kind: [seeds][tens of steps]}. Right: final loss by learning rate, {kind: {lr: seeds}}.

    Bands and bars reach from the lowest seed to the highest.
    """
    left, right = axes
    for norm, runs in curves.items():
        steps = [10 * n + 5 for n in range(len(runs[0]))]
        losses = torch.tensor(runs)
        drawing.band(left, steps, runs, NORM_COLORS[norm])
        left.plot(steps, losses.mean(0), color=NORM_COLORS[norm], label=NORM_LABELS[norm])
    left.set(title="Shift back, still trained …", xlabel="step", ylabel="training loss (nats)", ylim=(0, 3.8))
    left.legend(loc="upper right", fontsize=11)
    right.set(xscale="log", yscale="log")
    for nudge, (norm, by_rate) in zip((0.86, 0.93, 1, 1.07, 1.15), finals.items()):
        at = [lr * nudge for lr in by_rate]
        means = [sum(losses) / len(losses) for losses in by_rate.values()]
        right.vlines(at, [min(v) for v in by_rate.values()], [max(v) for v in by_rate.values()], NORM_COLORS[norm], linewidth=1.5)
        right.plot(at, means, "o-", color=NORM_COLORS[norm], markersize=5, linewidth=1)
    plain_log(right.xaxis, (0.03, 0.1, 0.3, 1.0))
    plain_log(right.yaxis, (0.01, 0.1, 1.0))
    right.set(title="… at all four rates", xlabel="learning rate", ylabel="final loss (nats)")


def padded_variance(ax: Axes, measured: dict[float, Sequence[tuple[float, float]]]) -> None:
    """Variance with zero padding over variance without, against the share of real tokens.

    ``measured`` holds points (share, ratio) by mean^2/variance of the feature; the lines are the formula.
    """
    q = torch.linspace(0, 1, 41)
    for (ratio, points), color in zip(measured.items(), COLORS):
        law = [padded_moments(ratio**0.5, 1.0, share)[1] for share in q.tolist()]
        ax.plot(q, law, color=color, linewidth=1.2)
        ax.plot(*zip(*points), "o", color=color, markersize=6)
        end = max(law)
        point, up = {0: ((0.85, 0.85), -24), 1: ((0.8, 1), 5)}.get(ratio, ((q[law.index(end)].item(), end), 6))
        drawing.label(ax, f"mean² = {ratio:g} σ²", point, color, (0, up), ha="center")
    ax.axhline(1, color=INK, linewidth=0.8, linestyle="--")
    ax.set(title="Padding: less variance, or more", xlabel="share of real tokens q", xlim=(0, 1.02), ylim=(0, 3.2))
    ax.set_ylabel("variance / that of real tokens")


def padded_batch(
    axes: Sequence[Axes], mean: float, share: float, moments: tuple[float, float], outputs: dict[str, Tensor]
) -> None:
    """Left: mean and variance over all positions at this ``share`` of real tokens, dots on the formula for spread 1.

    Right: the real tokens after BatchNorm, {"masked" | "not masked": [n]}, as outlines: one element each to change.
    """
    left, right = axes
    q = torch.linspace(0, 1, 41).tolist()
    law = [padded_moments(mean, 1.0, s) for s in q]
    for k, color in enumerate((PINK, BLUE)):
        left.plot(q, [pair[k] for pair in law], color=color, linewidth=1.2)
        left.plot(share, moments[k], "o", color=color, markersize=8)
    left.text(0.93, 2.04, "mean qμ", color=PINK, ha="right", fontsize=11)
    left.text(0.05, 1.35, "variance", color=BLUE, fontsize=11)
    left.set(title="Zeros move both moments …", xlabel="share of real tokens q", xlim=(0, 1.03), ylim=(0, 2.4))
    left.set(xticks=(0, 0.5, 1), yticks=(0, 1, 2), ylabel="over all positions")
    width = 0.4
    edges = torch.arange(-4, 8.01, width, dtype=torch.float64)
    for (name, values), color, wide in zip(outputs.items(), (GREEN, ORANGE), (5, 2)):  # both show where they agree
        counts = torch.histogram(values, edges).hist / len(values) / width
        right.plot(edges[:-1] + width / 2, counts, color=color, linewidth=wide, drawstyle="steps-mid", label=name)
    right.set(title="… and thereby the tokens", xlabel="normalized value", xlim=(-4, 8), ylim=(0, 0.62))
    right.set(xticks=(-3, 0, 3, 6), yticks=())
    right.legend(loc="upper right", fontsize=11)


def leak(axes: Sequence[Axes], influences: dict[str, Tensor], position: int) -> None:
    """Influence of each embedding [T] on the logit at ``position``, one panel a norm; the future is shaded."""
    top = 1.15 * max(values.max().item() for values in influences.values())
    for ax, (label, values) in zip(axes, influences.items()):
        T = len(values)
        colors = [BLUE if s <= position else ORANGE for s in range(T)]
        ax.bar(range(1, T + 1), values, color=colors)
        ax.axvspan(position + 1.5, T + 0.5, color=INK, alpha=0.12, linewidth=0)
        ax.set(title=label, xlabel="position of the embedding", ylim=(0, top), xlim=(0.4, T + 0.6))
        ax.text(position + 1.8, 0.9 * top, "the future", color=INK)
    axes[0].set_ylabel("influence on the logit")


def small_batches(ax: Axes, tokens: Sequence[int], gaps: Sequence[Sequence[float]]) -> None:
    """Extra loss of batch statistics by size of the evaluation batch, [seeds][sizes]."""
    values = torch.tensor(gaps)
    ax.set_xscale("log", base=2)
    ax.plot(tokens, values.T, color=BLUE, **SEEDS)
    ax.plot(tokens, values.mean(0), "o-", color=BLUE)
    ax.axhline(0, color=INK, linewidth=0.8)
    plain_log(ax.xaxis, tokens)
    ax.set(title="Small batches at evaluation cost dearly", xlabel="tokens in the evaluation batch")
    ax.set_ylabel("extra loss (nats)")


def cheating(ax: Axes, results: dict[str, tuple[Sequence[float], Sequence[float]]]) -> None:
    """Loss minus that of the best guess, {label: (training seeds, evaluation seeds)}."""
    for i, (training, evaluation) in enumerate(results.values()):
        for offset, values, color, label in (
            (-0.17, training, ORANGE, "training, statistics of the batch"),
            (0.17, evaluation, BLUE, "evaluation, running statistics"),
        ):
            mean = sum(values) / len(values)
            ax.bar(i + offset, mean, 0.32, facecolor=(color, 0.3), edgecolor=color, label=None if i else label)
            ax.plot([i + offset] * len(values), values, "_", color=INK, markersize=9)
    ax.axhline(0, color=INK, linewidth=1)
    ax.set_xticks(range(len(results)), list(results))
    ax.set(title="Unpredictable tokens, predicted in training", ylabel="loss − log 8 (nats)", ylim=(-0.8, 2))
    ax.legend(loc="upper right")
