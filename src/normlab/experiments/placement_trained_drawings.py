"""Drawings of chapter 5, training. Every function draws recorded or computed data on the given axes."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from normlab.experiments.placement_trained import Cell
from normlab.figures import BLUE, COLORS, GREEN, INK, ORANGE, PINK, plain_log

LINES = ("-", "--", "-.", ":")


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
    color = "#1a1a1a" if all_failed else INK
    ax.text(column, row, f"{cell.failed}/{cell.runs}", color=color, ha="center", va="center", fontsize=11)


def losses(ax: Axes, curves: Mapping[str, Sequence[float]], entropy: float) -> None:
    """Training losses, each a mean of 10 steps, and the entropy of single characters."""
    for (name, loss), color, line in zip(curves.items(), COLORS, LINES):
        means = [fmean(loss[i : i + 10]) for i in range(0, len(loss), 10)]
        ax.plot(range(5, len(loss), 10), means, line, color=color, label=name)
    ax.axhline(entropy, color=INK, linewidth=1)
    ax.text(len(loss), entropy - 0.05, "entropy of single characters", fontsize=11, va="top", ha="right")
    ax.set(xlabel="step", ylabel="training loss (nats)", ylim=(2.2, 4.4), title="Same model, same rate: stuck or not")
    ax.legend(loc="upper right")




def profile(axes: Sequence[Axes], roads: Mapping[str, Sequence[Mapping[str, Mapping[str, Sequence[float]]]]]) -> None:
    """By block: how far it moves the stream, and what skipping it costs, {name: a result of train_road per seed}.

    Lines are means over the seeds, bands their range; dotted is the first stack at initialization.
    """
    left, right = axes
    for (name, runs), color, line in zip(roads.items(), (BLUE, ORANGE, GREEN, PINK), LINES):
        _band(left, [run["after"]["change"] for run in runs], color, line)
        _band(right, [[max(x, 1e-4) for x in run["after"]["skip"]] for run in runs], color, line, label=name)
    before = next(iter(roads.values()))
    left.plot(range(1, 13), [fmean(v) for v in zip(*(run["before"]["change"] for run in before))], ":", color=BLUE, linewidth=1)
    left.set(title="A block moves x by …", xlabel="block", ylabel="norm(y − x) / norm(x)", yscale="log", ylim=(0.05, 2))
    plain_log(left.yaxis, (0.05, 0.1, 0.2, 0.5, 1, 2))
    right.set(title="… and is worth", xlabel="block", ylabel="loss without it (nats)", yscale="log", ylim=(1e-3, 20))
    plain_log(right.yaxis, (0.001, 0.01, 0.1, 1))
    right.legend(loc="upper right", fontsize=11)
    for ax in axes:
        ax.set_xticks((1, 4, 8, 12))


def _band(ax: Axes, runs: Sequence[Sequence[float]], color: str, line: str, label: str | None = None) -> None:
    low, high, mean = ([f(values) for values in zip(*runs)] for f in (min, max, fmean))
    blocks = range(1, len(mean) + 1)
    ax.fill_between(blocks, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(blocks, mean, line, color=color, label=label)


def quality(ax: Axes, results: Mapping[str, Mapping[float, Sequence[float]]]) -> None:
    """Validation losses {stack: {rate: one per seed}}: a dot per run, a line through the means."""
    rates = sorted({rate for by_rate in results.values() for rate in by_rate})
    for k, ((name, by_rate), color, line) in enumerate(zip(results.items(), COLORS, LINES)):
        places = [rates.index(rate) + 0.12 * (k - 1.5) for rate in by_rate]
        dots = [(place, loss) for place, losses in zip(places, by_rate.values()) for loss in losses]
        ax.plot(*zip(*dots), "o", color=color, markersize=4, alpha=0.7)
        ax.plot(places, [fmean(losses) for losses in by_rate.values()], line, color=color, label=name)
    ax.set_xticks(range(len(rates)), [f"{1000 * rate:g}" for rate in rates])
    ax.set(xlabel="learning rate (10⁻³)", ylabel="validation loss (nats)")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.5 * (high - low))  # room for the legend
    ax.legend(loc="upper left", fontsize=11)
