"""Drawings of the chapter on cost. Every function draws counted or recorded numbers on the given axes."""

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.transforms import offset_copy

from normlab.cost import Bill
from normlab.experiments import drawing
from normlab.page.figures import BLUE, GREEN, INK, ORANGE, PINK, plain_log


def bytes_moved(axes: Sequence[Axes], bills: Mapping[str, Mapping[str, Bill]]) -> None:
    """Bytes per number of the input, {dtype: {implementation: bill}}, forward and backward."""
    names = list(next(iter(bills.values())))
    for ax, title, field in zip(axes, ("Forward", "Backward"), ("moved", "backward_moved")):
        for (dtype, by_name), color, shift in zip(bills.items(), (BLUE, ORANGE), (-0.2, 0.2)):
            values = [getattr(by_name[name], field) for name in names]
            ax.barh([row + shift for row in range(len(names))], values, color=color, height=0.36, label=dtype)
            for row, value in enumerate(values):
                ax.text(value, row + shift, f" {value:.0f}", color=INK, va="center", fontsize=10)
        ax.set(title=title, xlabel="bytes per number in x", yticks=range(len(names)), yticklabels=[])
        ax.set_xlim(0, 1.2 * max(getattr(b, field) for by_name in bills.values() for b in by_name.values()))
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
    axes[0].set_yticklabels(names, fontsize=11)
    axes[1].legend(loc="lower right", fontsize=11)


def roofline(
    ax: Axes, roofs: Mapping[str, float], peak: float, points: Mapping[str, tuple[float, float]], product: float
) -> None:
    """Operations a second against operations per byte, both logarithmic.

    Args:
        roofs: {name: bytes a second} of copies, from memory and from a cache.
        peak: operations a second of a product of matrices.
        points: {implementation: (operations per byte, operations a second)}.
        product: operations per byte of the product.
    """
    low, high = 0.05, 2 * product
    for (name, speed), line in zip(roofs.items(), ("-", "--")):
        ridge = peak / speed
        ax.plot([low, ridge], [low * speed / 1e9, peak / 1e9], line, color=INK, linewidth=1.5)
    ax.plot([peak / max(roofs.values()), high], [peak / 1e9] * 2, color=INK, linewidth=1.5)
    drawing.label(ax, "product of matrices", (product, peak / 1e9), INK, (0, -16), ha="right")
    ax.plot(product, peak / 1e9, "o", color=INK, markersize=6)
    for (name, (intensity, speed)), color in zip(points.items(), (BLUE, ORANGE, GREEN, PINK)):
        ax.plot(intensity, speed / 1e9, "o", color=color, markersize=7, label=name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    plain_log(ax.xaxis, (0.1, 1, 10, 100))
    plain_log(ax.yaxis, (0.1, 1, 10, 100))
    below = offset_copy(ax.transData, ax.figure, x=4, y=-3, units="points")
    for name, speed in roofs.items():  # along its line
        along = {"rotation": math.degrees(math.atan(speed / 1e9)), "transform_rotates_text": True, "rotation_mode": "anchor"}
        ax.text(low, low * speed / 1e9, name, color=INK, va="top", transform=below, **along)
    ax.set(title="Norms stand under the slope", xlabel="operations per byte", ylabel="10⁹ operations a second")
    ax.legend(loc="lower right", bbox_to_anchor=(1, 0.05))


STYLES = {
    "LayerNorm, by hand": (BLUE, "--"),
    "RMSNorm, by hand": (ORANGE, "--"),
    "F.layer_norm": (BLUE, "-"),
    "F.rms_norm": (ORANGE, "-"),
    "normlab.fast RMSNorm": (GREEN, "-"),
    "RMSNorm, compiled": (PINK, ":"),
}


def clock(axes: Sequence[Axes], widths: Sequence[int], one: Mapping, many: Mapping) -> None:
    """Left µs of a call on one token, right times a copy on many tokens; {implementation: quartiles by width}."""
    for ax, found, title, label in zip(
        axes, (one, many), ("One token", "8192 tokens"), ("µs a call", "times a copy")
    ):
        for name, quartiles in found.items():
            color, line = STYLES[name]
            low, middle, high = zip(*quartiles)
            ax.plot(widths, middle, line, color=color, label=name)
            ax.fill_between(widths, low, high, color=color, alpha=0.15, linewidth=0)
        ax.set_xscale("log")
        ax.set_yscale("log")
        plain_log(ax.xaxis, [width for width in widths if width != 4096])  # 8192 is near
        ax.set(title=title, xlabel="width", ylabel=label)
    plain_log(axes[0].yaxis, (1, 3, 10, 30, 100, 300))
    plain_log(axes[1].yaxis, (1, 2, 4, 8, 16))
    axes[0].legend(fontsize=9, loc="upper left")
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 8)


def live(ax: Axes, times: Mapping[str, Sequence[float]]) -> None:
    """Quartiles of the times of some implementations, as multiples of a copy."""
    for row, (name, (low, middle, high)) in enumerate(times.items()):
        ax.plot([low, high], [row, row], color=INK, linewidth=2)
        ax.plot(middle, row, "o", color=STYLES.get(name, (INK, ""))[0], markersize=8)
    ax.set(title="On this machine, now", xlabel="times a copy", yticks=range(len(times)), yticklabels=list(times))
    ax.invert_yaxis()
    ax.set_xlim(left=0)
    ax.grid(axis="y", visible=False)


def apart(ax: Axes, rows: Mapping[str, tuple[float, float]]) -> None:
    """{model: (LayerNorm's part of the time, what of it RMSNorm saves)}, both shares of 1."""
    for row, (part, saved) in enumerate(rows.values()):
        ax.barh(row, 100, color=INK, alpha=0.12, height=0.6)
        ax.barh(row, 100 * part, color=BLUE, height=0.6)
        ax.barh(row, 100 * part * saved, color=ORANGE, height=0.6)
    ax.set(title="What RMSNorm saved", xlabel="% of the time with LayerNorm")
    ax.set(yticks=range(len(rows)), yticklabels=list(rows))
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
