"""Ways to compute a variance in floating point, to see which ones survive a large mean.

All take x [..., n], compute in the dtype of x, return the biased variance over the last axis [...], and are
written for reading, not for speed: two of them loop over the entries in Python.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def two_pass(x: Tensor) -> Tensor:
    """Mean first, then the mean of the squared deviations: mean((x - mean(x))^2)."""
    return (x - x.mean(-1, keepdim=True)).square().mean(-1)


def centered_twice(x: Tensor) -> Tensor:
    """:func:`two_pass` of the deviations, which removes the rounding error of the first mean: what layer_norm does."""
    return two_pass(x - x.mean(-1, keepdim=True))


def difference_of_squares(x: Tensor) -> Tensor:
    """mean(x^2) - mean(x)^2, from two sums of one pass. A large mean cancels every digit; it may turn negative."""
    return x.square().mean(-1) - x.mean(-1).square()


def shifted(x: Tensor) -> Tensor:
    """The same difference after subtracting the first entry: one pass, and the large mean is gone beforehand."""
    return difference_of_squares(x - x[..., :1])


@dataclass(frozen=True)
class Partial:
    """What one part of the data contributes: how many entries, their mean and sum of squared deviations [...]."""

    count: int
    mean: Tensor
    deviations: Tensor

    @property
    def variance(self) -> Tensor:
        return self.deviations / self.count


def welford(x: Tensor) -> Tensor:
    """One pass that updates mean and deviations entry by entry. Source: Welford 1962, Technometrics 4(3)."""
    mean, deviations = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for count, entry in enumerate(x.unbind(-1), start=1):
        before = entry - mean
        mean = mean + before / count
        deviations = deviations + before * (entry - mean)
    return Partial(x.shape[-1], mean, deviations).variance


def merge(a: Partial, b: Partial) -> Partial:
    """The :class:`Partial` of both parts together: how threads or devices combine what each has seen.

    Source: Chan, Golub and LeVeque 1979, Stanford STAN-CS-79-773.
    """
    count = a.count + b.count
    step = b.mean - a.mean
    mean = a.mean + step * (b.count / count)
    return Partial(count, mean, a.deviations + b.deviations + step.square() * (a.count * b.count / count))


def chunked(x: Tensor, size: int = 64) -> Tensor:
    """Two passes inside chunks of ``size`` entries, then :func:`merge` from left to right."""
    if size < 1:
        raise ValueError(f"size must be at least 1, got {size}")
    parts = [Partial(c.shape[-1], c.mean(-1), two_pass(c) * c.shape[-1]) for c in x.split(size, -1)]
    total = parts[0]
    for part in parts[1:]:
        total = merge(total, part)
    return total.variance


ALGORITHMS: dict[str, Callable[[Tensor], Tensor]] = {
    "two-pass": two_pass,
    "centered twice": centered_twice,
    "Welford": welford,
    "E[x²] − μ²": difference_of_squares,
    "shifted one-pass": shifted,
    "chunks merged": chunked,
}


def relative_error(algorithm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """How far ``algorithm`` in the dtype of x is from the two-pass variance in float64, as a share of that."""
    exact = two_pass(x.double())
    return (algorithm(x).double() - exact) / exact
