"""The drawings of chapter 4. Every function draws computed or recorded data on the given axes and returns nothing."""

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from normlab import functional
from normlab.experiments import drawing
from normlab.experiments.rmsnorm import NORMS
from normlab.page.figures import BLUE, COLORS, GREEN, INK, ORANGE, plain_log

NORM_COLORS = dict(zip(NORMS, (BLUE, ORANGE)))


def steps(axes: Sequence[Axes], states: dict[str, Sequence[Tensor]]) -> None:
    """One token on its way through LayerNorm and RMSNorm: {title: (input, normalized, output)}, each [d]."""
    captions = (
        ("1 mean, 2 variance", "3 center and scale", "4 gain and bias"),
        ("1 root mean square", "", "2 scale by gain / rms"),
    )
    for ax, (title, rows), names, color in zip(axes, states.items(), captions, (BLUE, ORANGE)):
        for level, (row, name) in enumerate(zip(rows, names)):
            if not name:
                continue
            base = -7.5 * level
            ax.bar(range(1, len(row) + 1), row, bottom=base, color=INK if level == 0 else color, width=0.7)
            ax.axhline(base, color=INK, linewidth=0.8)
            ax.text(0.4, base + max(row.max().item(), 2.2) + 0.7, name, color=INK if level == 0 else color, fontsize=11)
        x = rows[0]
        if len(names[1]):
            ax.axhline(x.mean().item(), color=BLUE, linestyle="--", linewidth=1)
        else:
            ax.axhline(x.square().mean().sqrt().item(), color=ORANGE, linestyle="--", linewidth=1)
        ax.set(title=title, xlabel="feature", xticks=(1, 4, 8, 12), yticks=[], ylim=(-18, 8))
        ax.grid(False)
        ax.spines["left"].set_visible(False)


def shift(axes: Sequence[Axes], token: Tensor, c: float) -> None:
    """A token [d] plus the constant c, and what both norms make of it. Outlines: each is a single element to change."""
    left, right = axes
    features = torch.arange(1, len(token) + 1)
    left.plot(features, token + c, color=INK, drawstyle="steps-mid")
    left.plot([1, len(token)], [(token + c).mean().item()] * 2, "--", color=INK, linewidth=1)
    left.set(title="The token, shifted …", xlabel="feature", ylim=(-3, 8), xticks=(1, 4, 8, 12))
    for norm, color in ((functional.layer_norm, BLUE), (functional.rms_norm, ORANGE)):
        right.plot(features, norm(token + c, eps=0.0), color=color, drawstyle="steps-mid")
    right.text(1, 2.75, "LayerNorm", color=BLUE, fontsize=11)
    right.text(7, 2.75, "RMSNorm", color=ORANGE, fontsize=11)
    right.set(title="… and normalized", xlabel="feature", ylim=(-2.6, 3.4), xticks=(1, 4, 8, 12))
    for ax in axes:
        ax.axhline(0, color=INK, linewidth=0.8)


def mean_shares(axes: Sequence[Axes], shares: dict[str, dict[str, Sequence[Sequence[float]]]], width: int) -> None:
    """Share of the squared mean in the stream, {"before" | "after": {norm: [seeds][sublayers + 1]}}."""
    for ax, (when, title) in zip(axes, {"before": "At initialization …", "after": "… and trained"}.items()):
        for norm, runs in shares[when].items():
            percent = 100 * torch.tensor(runs).T
            drawing.band(ax, range(len(percent)), percent.T.tolist(), NORM_COLORS[norm])
            ax.plot(percent.mean(1), color=NORM_COLORS[norm], label=NORMS[norm])
        ax.axhline(100 / width, color=INK, linestyle="--", linewidth=1, label="random vector, 1/d")
        ax.set(title=title, xlabel="sublayer", ylim=(0, 6))
    axes[0].set_ylabel("mean² of mean square (%)")
    axes[1].legend(loc="upper right")


def paired_differences(ax: Axes, differences: Sequence[float], center: float, half: float) -> None:
    """Difference of two losses, one dot per seed, and the interval of their mean."""
    ax.axvline(0, color=INK, linewidth=1)
    for seed, difference in enumerate(differences):
        ax.plot(difference, seed, "o", color=BLUE, markersize=6)
    ax.errorbar(center, -1.6, xerr=half, fmt="D", color=ORANGE, capsize=5, markersize=7)
    drawing.label(ax, "mean, 95 % interval", (center, -1.6), ORANGE, (0, -18), ha="center")
    edge = 1.25 * max(map(abs, differences))
    ax.set(
        title="Ten pairs, no winner",
        xlabel="loss with RMSNorm − loss with LayerNorm (nats)",
        ylabel="seed",
        xlim=(-edge, edge),
        ylim=(-3.3, len(differences)),
        yticks=range(0, len(differences), 3),
        xticks=(-0.006, -0.003, 0, 0.003, 0.006),
    )


def half_types(ax: Axes, sizes: Sequence[float], results: dict[str, Sequence[float]]) -> None:
    """Size of the normalized vector against the size of the input."""
    for (name, values), color, style in zip(results.items(), (GREEN, BLUE, ORANGE), ("-", "--", "-")):
        ax.plot(sizes, values, style, color=color, label=name, linewidth=4 if color is GREEN else 2)
    ax.axvline(256, color=INK, linestyle=":", linewidth=1)
    drawing.label(ax, "256", (256, 0.5), INK, (5, 0))
    ax.set_xscale("log")
    plain_log(ax.xaxis, (0.001, 0.01, 0.1, 1, 10, 100, 1000))
    ax.set(title="In float16 a large token becomes zero", xlabel="size of the input", ylabel="size of the output")
    ax.set_ylim(-0.06, 1.2)
    ax.legend(loc="lower left", bbox_to_anchor=(0.12, 0.05))


def variance_errors(ax: Axes, means: Sequence[float], errors: dict[str, Sequence[float]]) -> None:
    """Median relative error of a float32 variance against the mean of the data."""
    for (name, values), color in zip(errors.items(), COLORS):
        ax.plot(means, values, "o-", color=color, label=name, markersize=4)
    ax.axhline(1, color=INK, linestyle=":", linewidth=1)
    drawing.label(ax, "as large as the variance itself", (means[0], 1), INK, (0, 5))
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax.xaxis, means)
    ax.set(title="The difference of squares breaks first", xlabel="mean (spreads)", ylabel="relative error")
    ax.set_ylim(1e-9, 1e4)
    plain_log(ax.yaxis, [10.0**power for power in range(-9, 5, 2)])
    ax.legend(loc="upper left", ncols=2)


def traffic(axes: Sequence[Axes], passes: dict[str, Sequence[tuple[int, int]]]) -> None:
    """Reads and writes of x-sized tensors, {name: ((read, written) forward, (read, written) backward)}."""
    names = list(passes)
    for column, (ax, title) in enumerate(zip(axes, ("Forward", "Backward"))):
        for row, name in enumerate(names):
            read, written = passes[name][column]
            ax.barh(row, read, color=BLUE, height=0.62)
            ax.barh(row, written, left=read, color=ORANGE, height=0.62)
            ax.text(read + written, row, f" {read + written}", color=INK, va="center", fontsize=11)
        ax.set(title=title, xlabel="x-sized tensors moved", yticks=range(len(names)), yticklabels=[])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
    axes[0].set_yticklabels(names, fontsize=11)
    axes[0].set_xlim(0, 17)
    axes[1].set_xlim(0, 50)
    drawing.label(axes[1], "read", (14, 2), BLUE, (0, -4), fontsize=11)
    drawing.label(axes[1], "written", (27, 2), ORANGE, (0, -4), fontsize=11)


