"""The drawings of chapter 5's section on why Post-LN is hard. They draw recorded numbers on the given axes."""

from collections.abc import Sequence
from math import exp, log
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from normlab.experiments.placement_hypotheses import DEPTHS, GRID, POST_INIT
from normlab.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log

LINES = {  # color and line style
    "Post-LN": (BLUE, "-"),
    "Pre-LN": (ORANGE, "-"),
    POST_INIT: (INK, ":"),
    "DeepNorm": (GREEN, "-."),
    "Post-LN, N(0, 0.02)": (PINK, "--"),
    "Post-LN, warm-up": (BLUE, "--"),
}


def geometric_mean(values: Sequence[float]) -> float:
    """exp of the mean of the logarithms."""
    return exp(fmean(log(v) for v in values))


def _label(ax: Axes, text: str, point: tuple[float, float], offset: tuple[float, float], color: str, **options) -> None:
    ax.annotate(text, point, offset, textcoords="offset points", color=color, fontsize=11, **options)


def _band(ax: Axes, x: Sequence[float], runs: Sequence[Sequence[float]], color: str, style: str) -> list[float]:
    """Geometric mean of the runs as a line, smallest and largest as a band; returns the line."""
    columns = list(zip(*runs))
    middle = [geometric_mean(c) for c in columns]
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.15, linewidth=0)
    ax.plot(x, middle, style, color=color)
    return middle


def sensitivity(axes: Sequence[Axes], runs: dict[str, Sequence[dict]]) -> None:
    """Change of the output in percent against depth, {name: results of at_initialization}: noise, one small step."""
    titles = {"noise": "… after 1 % of noise", "small": "… after one Adam step"}
    for ax, (key, title) in zip(axes, titles.items()):
        for name, results in runs.items():
            color, style = LINES[name]
            _band(ax, DEPTHS, [[100 * v for v in r[key]] for r in results], color, style)
        ax.set(xscale="log", yscale="log", title=title, xlabel="blocks", xlim=(2.7, 27))
        plain_log(ax.xaxis, DEPTHS)
    plain_log(axes[0].yaxis, (0.03, 0.1, 0.3, 1, 3, 10))
    plain_log(axes[1].yaxis, (0.3, 1, 3, 10, 30))
    axes[0].set_ylabel("output changes by (%)")
    left = {
        "Post-LN": ("Post-LN", 5.2),
        "Pre-LN": ("Pre-LN", 1.55),
        POST_INIT: ("lower blocks small", 0.72),
        "DeepNorm": ("DeepNorm", 0.27),
        "Post-LN, N(0, 0.02)": ("N(0, 0.02)", 0.1),
    }
    for name, (text, y) in left.items():
        axes[0].text(3, y, text, color=LINES[name][0], fontsize=11)


def first_steps(axes: Sequence[Axes], runs: dict[str, Sequence[dict]]) -> None:
    """Left: size of the norms' inputs. Right: what gets through the stack, backward (lines) and forward (dots)."""
    left, right = axes
    for name, results in runs.items():
        color, style = LINES[name]
        _band(left, GRID, [r["norm_input"] for r in results], color, style)
        _band(right, GRID, [r["backward"] for r in results], color, style)
        forward = [geometric_mean(column) for column in zip(*(r["forward"] for r in results))]
        right.plot(GRID, forward, "o", color=color, markersize=5)
    for ax in axes:
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
        plain_log(ax.xaxis, (0, 1, 3, 10, 30, 100))
        ax.set(xlabel="training steps", xlim=(-0.05, 110))
    left.set(title="Inputs of the norms grow", ylabel="size", ylim=(0, 8))
    right.set(title="Post-LN shuts itself", ylabel="share that gets through", yscale="log", ylim=(3e-5, 40))
    right.yaxis.set_major_locator(FixedLocator((1e-4, 1e-3, 1e-2, 0.1, 1, 10)))
    right.yaxis.set_minor_locator(NullLocator())

