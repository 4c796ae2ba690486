"""The drawings of chapter 3. Every function draws measured data on the given axes and returns nothing."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from normlab.experiments.layernorm import Course
from normlab.page.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log

SEED = {"alpha": 0.45, "linewidth": 1}


def three_steps(axes: Sequence[Axes], steps: dict[str, Tensor]) -> None:
    """One token on its way through LayerNorm, {title: values [d]}; the dashed line is the mean."""
    for ax, (title, values), color in zip(axes, steps.items(), (INK, BLUE, ORANGE)):
        ax.bar(range(1, len(values) + 1), values, color=color)
        ax.axhline(0, color=INK, linewidth=0.8)
        ax.axhline(values.mean(), color=color, linestyle="--", linewidth=1.2)
        ax.set(title=title, xlabel="feature", ylim=(-2.6, 6.8), xticks=(1, 6, 12))
    for ax in axes[1:]:
        ax.set_yticklabels([])


def in_the_plane(tokens: Tensor) -> Tensor:
    """Tokens of three features [n, 3] as points [n, 2] of the plane in which the features sum to 0."""
    basis = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=tokens.dtype)
    return tokens @ (basis / basis.norm(dim=1, keepdim=True)).T


def circle(ax: Axes, outputs: Tensor) -> None:
    """Outputs [n, 3] of LayerNorm for tokens of three features, and the circle on which they would lie at eps = 0."""
    angle = torch.linspace(0, 2 * torch.pi, 61)
    ax.plot(3**0.5 * angle.cos(), 3**0.5 * angle.sin(), "--", color=INK, linewidth=1)
    points = in_the_plane(outputs)
    ax.plot(points[:, 0], points[:, 1], "o", color=BLUE, markersize=6)
    ax.set(title="On the circle, until the spread comes near √ε", xlim=(-3.6, 3.6), ylim=(-1.9, 1.9), aspect="equal")
    ax.set(xticks=range(-3, 4), yticks=(-1, 0, 1))


def learned_gains(axes: Sequence[Axes], names: Sequence[str], results: Sequence[dict]) -> None:
    """Left: gains of every norm, smallest, mean and largest, one line per seed. Right: size of the biases."""
    left, right = axes
    n = range(1, len(names) + 1)
    for which, color in (("max", ORANGE), ("mean", BLUE), ("min", GREEN)):
        runs = torch.tensor([r[which] for r in results])
        left.plot(n, runs.T, color=color, **SEED)
        left.plot(n, runs.mean(0), color=color, label=f"{'mean' if which == 'mean' else which + 'imum'}")
    left.axhline(1, color=INK, linestyle="--", linewidth=1)
    left.set(title="Gains leave 1 …", ylabel="gain γ", ylim=(0.6, 1.25))
    left.legend(loc="lower right", fontsize=11)
    biases = torch.tensor([r["bias"] for r in results])
    right.plot(n, biases.T, color=PINK, **SEED)
    right.plot(n, biases.mean(0), color=PINK)
    right.set(title="… and biases leave 0", ylabel="size of β", ylim=(0, None))
    for ax in axes:
        ax.set_xlabel("norm, in order")
        ax.set_xticks(range(1, len(names) + 1, 2))


def gradient_factors(ax: Axes, alphas: Sequence[float], curves: dict[str, Sequence[float]], laws: dict[str, Sequence]) -> None:
    """Factor of the gradient against the factor on W; points measured, lines from the law."""
    for (label, factors), color in zip(curves.items(), (BLUE, GREEN, ORANGE)):
        ax.plot(alphas, laws[label], color=color, linewidth=1.3)
        ax.plot(alphas, factors, "o", color=color, markersize=5, label=label)
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax.xaxis, (0.001, 0.01, 0.1, 1, 10, 100))
    plain_log(ax.yaxis, (0.01, 1, 100))
    ax.set(title="The brake always works; the accelerator ends where ε begins", xlabel="factor α on W")
    ax.set_ylabel("factor on the gradient")
    ax.legend()


def lengths(axes: Sequence[Axes], courses: dict[str, Course], starts: dict[str, Course], balance: float) -> None:
    """Left: length of W under four rules. Right: turn per step under SGD with decay, from different starts."""
    left, right = axes
    for (label, course), color in zip(courses.items(), (BLUE, GREEN, ORANGE, PINK)):
        left.plot(course.length[::4], color=color, label=label)
    ticks = (0, 50, 100, 150, 200)  # every fourth step is drawn
    left.set(title="Only decay stops growth", xlabel="step", ylabel="length of W", ylim=(0, 10.5))
    left.legend(fontsize=11, loc="upper left")
    right.set_yscale("log")
    for (label, course), color in zip(starts.items(), (ORANGE, GREEN, BLUE)):
        smooth = torch.tensor(course.turn).unflatten(0, (-1, 10)).mean(1)
        right.plot(torch.arange(len(smooth)) * 10 + 5, smooth, color=color, label=label)
    right.axhline(balance, color=INK, linestyle="--", linewidth=1.2)
    plain_log(right.yaxis, (0.001, 0.01, 0.1, 1))
    right.set(title="… and forgets the start", xlabel="step", ylabel="turn per step (radians)")
    right.legend(fontsize=11, title="start")
    left.set_xticks(ticks, [str(4 * t) for t in ticks])


def forgiveness(axes: Sequence[Axes], scales: Sequence, by_scale: dict, rates: Sequence, by_rate: dict) -> None:
    """Accuracy against the initial scale and the learning rate, {label: [[seeds] for each value]}."""
    for ax, values, curves in zip(axes, (scales, rates), (by_scale, by_rate)):
        for (label, runs), color in zip(curves.items(), (BLUE, ORANGE)):
            runs = torch.tensor(runs)
            ax.plot(values, runs, color=color, **SEED)
            ax.plot(values, runs.mean(1), "o-", color=color, markersize=4, label=label)
        ax.set_xscale("log")
        ax.set(ylim=(0, 1.03))
    axes[0].set(title="Start too large …", xlabel="factor on the initial W", ylabel="accuracy")
    axes[1].set(title="… or step too far", xlabel="learning rate")
    plain_log(axes[0].xaxis, (0.03, 0.3, 3, 30))
    plain_log(axes[1].xaxis, (0.01, 0.1, 1, 10))
    axes[1].set_yticklabels([])
    axes[0].legend(loc="lower left")
