"""The drawings of chapter 5: wirings, stacks at initialization and in training, and the Llama stack.

Every function draws recorded or computed data on the given axes.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from normlab.experiments import drawing
from normlab.experiments.placement.trained import Cell
from normlab.page.figures import BLUE, COLORS, GREEN, INK, ORANGE, PINK, plain_log

DASHES = ("-", "--", "-.", ":")
LINES = {  # color and line style
    "Post": (BLUE, "-"),
    "Pre": (ORANGE, "-"),
    "Pre, 1/√(2L) weights": (GREEN, "--"),
    "Pre, no final norm": (PINK, "-."),
    "Peri": (PINK, "--"),
    "DeepNorm": (GREEN, "-."),
}


# --- wiring -----------------------------------------------------------------------------------------------------------


def wirings(axes: Sequence[Axes]) -> None:
    """Two sublayers of Post-Norm and of Pre-Norm, and the way past all sublayers."""
    for ax, post in zip(axes, (True, False)):
        top = 8.4
        for y in (0.4, 4.4):  # where a branch leaves the stream
            drawing.line(ax, [(0, y), (1.6, y), (1.6, y + 0.55 if not post else y + 0.95)])
            if not post:
                drawing.box(ax, 1.6, y + 0.9, "N", ORANGE)
                drawing.line(ax, [(1.6, y + 1.25), (1.6, y + 1.6)])
            drawing.box(ax, 1.6, y + (1.3 if post else 1.95), "F")
            drawing.line(ax, [(1.6, y + (1.65 if post else 2.3)), (1.6, y + 2.8), (0.25, y + 2.8)])
            ax.text(0, y + 2.8, "+", color=INK, ha="center", va="center", fontsize=14)
            ax.plot([0], [y + 2.8], "o", markersize=14, markerfacecolor="none", markeredgecolor=INK)
            if post:
                drawing.box(ax, 0, y + 3.45, "N", ORANGE)
        pieces = [(-0.4, 2.95), (3.45, 3.5), (4.2, 6.95), (7.45, 7.5), (8.2, top)] if post else [(-0.4, 2.95)]
        pieces = pieces if post else [*pieces, (3.45, 6.95), (7.45, top)]
        for low, high in pieces:
            drawing.line(ax, [(0, low), (0, high)], BLUE, linewidth=4 if not post else 2, linestyle=":" if post else "-")
        if not post:
            drawing.box(ax, 0, top + 0.35, "N", ORANGE)
            drawing.label(ax, "final norm", (0.6, top + 0.35), ORANGE, va="center")
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
        middle = [geometric_mean(c) for c in zip(*runs)]
        drawing.band(ax, depths, runs, color)
        ax.plot(depths, middle, style, color=color)
        drawing.label(ax, name, (depths[-1], middle[-1]), color, offsets[name], ha="right")
    start = 0.4
    ax.plot(depths, [start * (2 / d) ** 0.5 for d in depths], ":", color=INK, linewidth=1)
    drawing.label(ax, "∝ 1/√L", (depths[2], start * 0.5), INK, (-6, -16), ha="right")
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
        drawing.band(ax, layers, runs.tolist(), color)
        ax.plot(layers, runs.log().mean(0).exp(), style, color=color, label=name)
    ax.set_yscale("log")
    plain_log(ax.yaxis, (0.1, 0.2, 0.5, 1))
    ax.set(title="Inside one model: Pre falls towards the output", xlabel="block ℓ of 32", ylabel="gradient of block ℓ")
    ax.set(xticks=(1, 8, 16, 24, 32), ylim=(0.07, 5))
    ax.legend(loc="upper left", ncols=1)


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


# --- training --------------------------------------------------------------------------------------------------------


def phase(axes: Sequence[Axes], diagrams: Mapping[str, Mapping[tuple[int, float, int], Cell]], warmups: Sequence[int]) -> None:
    """Who trains where: one panel per warm-up, one block of rows per stack, a row per depth, a column per rate.

    A dot: all seeds train. A box: so many of them failed; it is filled if that is all of them.
    """
    rates = sorted({rate for cells in diagrams.values() for _, rate, _ in cells})
    for ax, warmup in zip(axes, warmups):
        row, ticks, dots = 0.0, {}, []
        for name, cells in diagrams.items():
            ax.text(-0.5, row + 0.35, name, fontsize=12)
            for layers in sorted({layers for layers, _, _ in cells}):
                row += 1
                ticks[row] = layers
                for column, rate in enumerate(rates):
                    cell = cells.get((layers, rate, warmup))
                    if cell is not None and cell.failed:
                        _failures(ax, column, row, cell)
                    elif cell is not None:
                        dots.append((column, row))
            row += 1.3
        ax.plot(*zip(*dots), "o", color=BLUE, markersize=9)
        ax.set_yticks(list(ticks), list(map(str, ticks.values())))
        ax.set_xticks(range(len(rates)), [f"{1000 * rate:g}" for rate in rates])
        ax.set(xlim=(-0.5, len(rates) - 0.5), ylim=(row - 0.7, -0.3), xlabel="learning rate (10⁻³)")
        ax.set_title(f"{warmup} steps of warm-up" if warmup else "No warm-up")
        ax.grid(False)
        ax.tick_params(length=0)
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)
    axes[0].set_ylabel("blocks")


def _failures(ax: Axes, column: int, row: float, cell: Cell) -> None:
    corner, all_failed = (column - 0.4, row - 0.38), cell.failed == cell.runs
    ax.add_patch(Rectangle(corner, 0.8, 0.76, fill=all_failed, facecolor=ORANGE, edgecolor=ORANGE, linewidth=1.5))
    color = "black" if all_failed else INK
    ax.text(column, row, f"{cell.failed}/{cell.runs}", color=color, ha="center", va="center", fontsize=11)


def losses(ax: Axes, curves: Mapping[str, Sequence[float]], entropy: float) -> None:
    """Training losses, each a mean of 10 steps, and the entropy of single characters."""
    for (name, loss), color, line in zip(curves.items(), COLORS, DASHES):
        means = [fmean(loss[i : i + 10]) for i in range(0, len(loss), 10)]
        ax.plot(range(5, len(loss), 10), means, line, color=color, label=name)
    ax.axhline(entropy, color=INK, linewidth=1)
    ax.text(len(loss), entropy - 0.05, "single-character entropy", va="top", ha="right")
    ax.set(xlabel="step", ylabel="training loss (nats)", ylim=(2.2, 4.4), title="Same model, same rate: stuck or not")
    ax.legend(loc="upper right")



def profile(axes: Sequence[Axes], roads: Mapping[str, Sequence[Mapping[str, Mapping[str, Sequence[float]]]]]) -> None:
    """By block: how far it moves the stream, and what skipping it costs, {name: a result of train_road per seed}.

    Lines are means over the seeds, bands their range; dotted is the first stack at initialization.
    """
    left, right = axes
    for (name, runs), color, style in zip(roads.items(), (BLUE, ORANGE, GREEN, PINK), DASHES):
        _means(left, [run["after"]["change"] for run in runs], color, style)
        _means(right, [[max(x, 1e-4) for x in run["after"]["skip"]] for run in runs], color, style, label=name)
    before = next(iter(roads.values()))
    left.plot(range(1, 13), [fmean(v) for v in zip(*(run["before"]["change"] for run in before))], ":", color=BLUE, linewidth=1)
    left.set(title="A block moves x by …", xlabel="block", ylabel="norm(y − x) / norm(x)", yscale="log", ylim=(0.05, 2))
    plain_log(left.yaxis, (0.05, 0.1, 0.2, 0.5, 1, 2))
    right.set(title="… and is worth", xlabel="block", ylabel="loss without it (nats)", yscale="log", ylim=(1e-3, 20))
    plain_log(right.yaxis, (0.001, 0.01, 0.1, 1))
    right.legend(loc="upper right", fontsize=11)
    for ax in axes:
        ax.set_xticks((1, 4, 8, 12))


def _means(ax: Axes, runs: Sequence[Sequence[float]], color: str, style: str, label: str | None = None) -> None:
    blocks = range(1, len(runs[0]) + 1)
    drawing.band(ax, blocks, runs, color)
    ax.plot(blocks, [fmean(values) for values in zip(*runs)], style, color=color, label=label)


def quality(ax: Axes, results: Mapping[str, Mapping[float, Sequence[float]]]) -> None:
    """Validation losses {stack: {rate: one per seed}}: a dot per run, a line through the means."""
    rates = sorted({rate for by_rate in results.values() for rate in by_rate})
    for k, ((name, by_rate), color, line) in enumerate(zip(results.items(), COLORS, DASHES)):
        places = [rates.index(rate) + 0.12 * (k - 1.5) for rate in by_rate]
        dots = [(place, loss) for place, losses in zip(places, by_rate.values()) for loss in losses]
        ax.plot(*zip(*dots), "o", color=color, markersize=4, alpha=0.85)
        ax.plot(places, [fmean(losses) for losses in by_rate.values()], line, color=color, label=name)
    ax.set_xticks(range(len(rates)), [f"{1000 * rate:g}" for rate in rates])
    ax.set(xlabel="learning rate (10⁻³)", ylabel="validation loss (nats)")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.5 * (high - low))  # room for the legend
    ax.legend(loc="upper left")


def roads(ax: Axes, results: Mapping[str, Mapping[float, Sequence[float]]]) -> None:
    """Validation losses {road: {rate: one per seed}}, a row per road: means by rate, the best one filled, its seeds as a line."""
    names = sorted(results, key=lambda name: min(map(fmean, results[name].values())))
    markers = dict(zip(sorted({rate for by_rate in results.values() for rate in by_rate}), ("v", "o", "^")))
    for row, name in enumerate(names):
        means = {rate: fmean(losses) for rate, losses in results[name].items()}
        best = min(means, key=means.__getitem__)
        ax.plot([min(results[name][best]), max(results[name][best])], [row, row], color=BLUE, linewidth=2)
        for rate, mean in means.items():
            ax.plot([mean], [row], markers[rate], color=BLUE, markerfacecolor=BLUE if rate == best else "none", markersize=7)
    for rate, marker in markers.items():
        ax.plot([], [], marker, color=INK, markerfacecolor="none", label=f"rate {rate:g}")
    low = min(min(map(fmean, by_rate.values())) for by_rate in results.values())
    ax.set(xlim=(low - 0.04, low + 0.6), ylim=(len(names) - 0.5, -0.5), xlabel="validation loss (nats)")
    ax.set_yticks(range(len(names)), names)
    ax.set_title("Best against best")
    ax.legend(loc="lower right")


# --- the Llama stack -------------------------------------------------------------------------------------------------

STREAM, BRANCH = 2.0, 4.9  # where the residual stream runs, and where the sublayers stand


def llama_stack(ax: Axes) -> None:
    """One of L blocks with a norm at the door of each sublayer, the stream passing by, final norm and head on top."""
    ax.set(xlim=(0.6, 7.4), ylim=(-0.5, 9.6), title="Norms at the doors")
    ax.axis("off")
    ax.plot([STREAM] * 2, [0.29, 7.42], color=INK, lw=3)
    for y, name in ((1.1, "attention"), (4.0, "MLP")):
        ax.plot([STREAM, BRANCH], [y] * 2, color=INK, lw=1.4)
        drawing.arrow(ax, (BRANCH, y), (BRANCH, y + 0.4))
        drawing.box(ax, BRANCH, y + 0.69, "RMSNorm", BLUE, width=2.4, height=0.5)
        drawing.arrow(ax, (BRANCH, y + 0.98), (BRANCH, y + 1.35))
        drawing.box(ax, BRANCH, y + 1.64, name, ORANGE, width=2.4, height=0.5)
        ax.plot([BRANCH] * 2, [y + 1.93, y + 2.3], color=INK, lw=1.4)
        drawing.arrow(ax, (BRANCH, y + 2.3), (STREAM + 0.24, y + 2.3))
        ax.plot(STREAM, y + 2.3, "o", markersize=17, color=INK)
        ax.plot(STREAM, y + 2.3, "+", markersize=10, mew=2, color="white")
    ax.add_patch(Rectangle((1.0, 0.7), 5.6, 6.05, fc="none", ec=INK, ls="--", lw=1))
    ax.text(6.75, 3.7, "× L", color=INK, va="center", fontsize=12)
    drawing.box(ax, STREAM, 0, "tokens", INK, width=2.4, height=0.5)
    drawing.box(ax, STREAM, 7.71, "RMSNorm", BLUE, width=2.4, height=0.5)
    ax.text(STREAM + 1.5, 7.71, "final norm", color=BLUE, va="center", fontsize=12)
    drawing.arrow(ax, (STREAM, 8.0), (STREAM, 8.6))
    drawing.box(ax, STREAM, 8.89, "head", INK, width=2.4, height=0.5)
