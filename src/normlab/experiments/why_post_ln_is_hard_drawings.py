"""The drawings of the chapter on why Post-LN is hard. They draw recorded numbers on the given axes."""

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes

from normlab.experiments import drawing
from normlab.experiments.why_post_ln_is_hard import DEPTHS, GRID, POST_INIT
from normlab.page.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log

LINES = {  # color and line style
    "Post-LN": (BLUE, "-"),
    "Pre-LN": (ORANGE, "-"),
    POST_INIT: (INK, ":"),
    "DeepNorm": (GREEN, "-."),
    "Post-LN, N(0, 0.02)": (PINK, "--"),
    "Post-LN, warm-up": (BLUE, "--"),
}


def _medians(ax: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], color: str, style: str) -> None:
    """Median of the runs as a line, smallest and largest as a band."""
    drawing.band(ax, x, runs, color)
    ax.plot(x, [median(c) for c in zip(*runs)], style, color=color)


def last_gradients(ax: Axes, runs: dict[str, Sequence[dict]]) -> None:
    """Gradient of the last block's second MLP matrix against depth; {name: results of at_initialization}."""
    for name, results in runs.items():
        color, style = LINES[name]
        _medians(ax, DEPTHS, [r["last"] for r in results], color, style)
    ax.set(xscale="log", yscale="log", title="Post-LN's gradient is large and flat", xlabel="blocks", xlim=(2.9, 46), ylim=(2e-3, 2))
    ax.set_ylabel("gradient of the last MLP")
    plain_log(ax.xaxis, DEPTHS)
    plain_log(ax.yaxis, (0.01, 0.1, 1))
    for name, results in runs.items():
        text = {POST_INIT: "small below", "Post-LN, N(0, 0.02)": "N(0, 0.02)"}.get(name, name)
        ax.text(25, median(r["last"][-1] for r in results), text, color=LINES[name][0], va="center")


def sensitivity(ax: Axes, runs: dict[str, Sequence[dict]]) -> None:
    """Change of the output in percent by one small step of Adam, against depth; {name: results of at_initialization}."""
    for name, results in runs.items():
        color, style = LINES[name]
        _medians(ax, DEPTHS, [[100 * v for v in r["small"]] for r in results], color, style)
    ax.set(xscale="log", yscale="log", title="Post-LN reacts most", xlabel="blocks", xlim=(2.9, 40), ylim=(0.2, 60))
    ax.set_ylabel("one step moves the output by (%)")
    plain_log(ax.xaxis, DEPTHS)
    plain_log(ax.yaxis, (0.3, 1, 3, 10, 30))
    labels = {"Post-LN": 32, "Pre-LN": 8.4, POST_INIT: 2.4, "Post-LN, N(0, 0.02)": 1.6, "DeepNorm": 0.95}
    for name, y in labels.items():
        text = {POST_INIT: "small below", "Post-LN, N(0, 0.02)": "N(0, 0.02)"}.get(name, name)
        ax.text(25, y, text, color=LINES[name][0], va="center")


def first_steps(axes: Sequence[Axes], runs: dict[str, Sequence[dict]]) -> None:
    """Left: size of the norms' inputs. Right: what gets through the stack, backward (lines) and forward (dots)."""
    left, right = axes
    for name, results in runs.items():
        color, style = LINES[name]
        _medians(left, GRID, [r["norm_input"] for r in results], color, style)
        _medians(right, GRID, [r["backward"] for r in results], color, style)
        forward = [median(column) for column in zip(*(r["forward"] for r in results))]
        right.plot(GRID, forward, "o", color=color, markersize=5)
    for ax in axes:
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
        plain_log(ax.xaxis, (0, 1, 10, 100))
        ax.grid(False, axis="x")
        ax.set(xlabel="steps", xlim=(-0.05, 110))
    left.set(title="Norm inputs grow", ylabel="size", ylim=(0, 9))
    right.set(title="Post-LN shuts", ylabel="share that gets through", yscale="log", ylim=(1e-5, 40))
    plain_log(right.yaxis, (1e-4, 1e-2, 1))
    for (text, x, y), name in zip((("Post", 12, 3.3), ("warm-up", 1.2, 0.35), ("Pre", 1.2, 4.4)), runs):
        left.text(x, y, text, color=LINES[name][0], fontsize=11)
