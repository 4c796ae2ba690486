"""The two drawings of a diagnosis: sizes over depth, and gradients and attention logits over depth."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from normlab.page.figures import BLUE, GREEN, INK, ORANGE, canvas, figure, plain_log, slim_svg


@dataclass(frozen=True, repr=False)
class Drawing:
    """A drawing that is made when it is asked for. ``alt`` says what it shows, with its numbers."""

    alt: str
    panels: int
    draw: Callable[[Any], None]

    def __repr__(self) -> str:
        return self.alt

    def show(self) -> None:
        """Show it as the book's figures are shown: as SVG in a notebook, as its alt text elsewhere."""
        with figure(self.alt, self.panels) as axes:
            self.draw(axes)

    def svg(self) -> str:
        """The drawing as SVG."""
        with canvas(self.panels) as (fig, axes):
            self.draw(axes)
            return slim_svg(fig)


Points = list[tuple[float, float]]


def sizes(stream: Points, read: Points, increment: Points) -> Drawing:
    """Root mean square over depth (in blocks) of the stream, of what the sublayers read, and of what they add."""
    curves = (("stream", stream, BLUE, "o"), ("sublayer reads", read, GREEN, "s"), ("adds", increment, ORANGE, "^"))

    def draw(ax: Any) -> None:
        for name, points, color, marker in curves:
            _line(ax, points, color, marker, name)
        ax.set_title("How large the stream is")
        ax.set_xlabel("depth in blocks")
        ax.set_ylabel("root mean square")
        _log(ax, [y for _, points, _, _ in curves for _, y in points])
        _legend(ax)

    ends = [f"{name} {points[0][1]:.2g} to {points[-1][1]:.2g}" for name, points, _, _ in curves if points]
    return Drawing("Sizes from the first to the last block: " + (", ".join(ends) or "not measured") + ".", 1, draw)


def gradients_and_logits(gradient: Points, logit: Points, bound: Points) -> Drawing:
    """Gradient per parameter by layer; largest attention logit and its bound by block."""

    def draw(axes: Any) -> None:
        left, right = axes
        _line(left, gradient, BLUE, "o", "gradient")
        left.set_title("Gradient by layer")
        left.set_xlabel("layer (0: embedding)")
        left.set_ylabel("root mean square")
        _log(left, [y for _, y in gradient])
        _line(right, logit, ORANGE, "o", "largest")
        _line(right, bound, INK, "_", "bound |q| |k|", linestyle="--")
        right.set_title("Attention logits")
        right.set_xlabel("block")
        _log(right, [y for _, y in logit + bound])
        _legend(right)

    parts = []
    if gradient:
        values = [y for _, y in gradient]
        parts.append(f"gradient per parameter by layer, {min(values):.2g} to {max(values):.2g}")
    if logit:
        parts.append(f"largest attention logit {max(y for _, y in logit):.2g}")
    if bound:
        parts.append(f"its bound {max(y for _, y in bound):.2g}")
    text = ", ".join(parts) or "gradients and attention logits: not measured"
    return Drawing(text[0].upper() + text[1:] + ".", 2, draw)


def _line(ax: Any, points: Points, color: str, marker: str, label: str, **options: Any) -> None:
    if points:
        ax.plot(*zip(*points), color=color, marker=marker, label=label, **options)


def _legend(ax: Any) -> None:
    """Below the axes, where no curve is."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.figure.legend(handles, labels, loc="outside lower right", ncols=len(handles))


def _log(ax: Any, values: list[float]) -> None:
    if values and min(values) > 0 and max(values) > 10 * min(values):
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        every, factors = (1, (1, 2, 5)) if high - low <= 2 else (math.ceil((high - low) / 7), (1,))
        ax.set_yscale("log")
        plain_log(ax.yaxis, [factor * 10.0**power for power in range(low, high + 1, every) for factor in factors])
