"""Questions that describe a solution without its formula, for the drills of one kind."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from normlab.drills.checking import Property, Solution, clone, normal
from normlab.drills.values import same


def norm_properties(*rest: Any) -> tuple[Property, ...]:
    """Questions to a function ``f(x, *rest)`` that normalizes x [2, 5, 6]; each gets copies of ``rest``."""
    x = normal(2, 5, 6, seed=11, mean=1.0)

    def apply(f: Solution, change: Callable[[Tensor], Tensor]) -> Tensor:
        return f(change(x.clone()), *clone(rest))

    def equal(f: Solution, change: Callable[[Tensor], Tensor], where: Any = ..., factor: float = 1.0) -> bool:
        return same(apply(f, change)[where], factor * apply(f, lambda x: x)[where], 1e-5)

    def other_tokens(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], 3 * x[:, 1:] + 1], 1)

    def other_sequence(x: Tensor) -> Tensor:
        return torch.cat([x[:1], 3 * x[1:] + 1])

    return (
        Property(
            "a token's result stays if the other tokens of its sequence change",
            "a token's result changes if other tokens of its sequence change",
            lambda f: equal(f, other_tokens, (slice(None), 0)),
        ),
        Property(
            "a sequence's result stays if the other sequence changes",
            "a sequence's result changes if the other sequence changes",
            lambda f: equal(f, other_sequence, 0),
        ),
        Property(
            "adding 10 to all features changes nothing",
            "adding 10 to all features changes the result",
            lambda f: equal(f, lambda x: x + 10),
        ),
        Property(
            "an input 100 times as large gives the same result (eps aside)",
            "an input 100 times as large gives another result",
            lambda f: same(apply(f, lambda x: 1e4 * x), apply(f, lambda x: 1e2 * x), 1e-4),
        ),
        Property(
            "an input of opposite sign gives the opposite result",
            "an input of opposite sign gives something else than the opposite result",
            lambda f: equal(f, lambda x: -x, factor=-1.0),
        ),
        Property(
            "a token of zeros gives finite numbers",
            "a token of zeros gives NaN or infinity",
            lambda f: bool(apply(f, torch.zeros_like).isfinite().all()),
        ),
    )


def backward_properties(center: bool) -> tuple[Property, ...]:
    """Questions to a function f(dy, x, weight, eps) that returns dx first and dweight second."""
    dy, x, weight = normal(3, 6, seed=51), normal(3, 6, seed=52, mean=1), normal(6, seed=53, mean=1, std=0.5)

    def dx(f, factor=1.0, scale=1.0):
        return f(factor * dy, scale * x, weight.clone(), 1e-12)[0]

    def small(values, beside):
        return bool(values.abs().max() < 1e-5 * beside.abs().max())

    def orthogonal(f):
        found, scores = dx(f), x - x.mean(-1, keepdim=True) if center else x
        return small((found * scores).sum(-1), found)

    def others(f):
        one = f(dy.clone(), torch.cat([x[:1], 2 * x[1:]]), weight.clone(), 1e-12)[0][0]
        return same(one, dx(f)[0], 1e-6)

    def gain_in_dweight(f):
        one, other = f(dy.clone(), x.clone(), 2 * weight, 1e-12)[1], f(dy.clone(), x.clone(), weight.clone(), 1e-12)[1]
        return same(one, other, 1e-6)

    found = [
        Property("dx is linear in dy", "dx is not linear in dy", lambda f: same(dx(f, 3.0), 3 * dx(f), 1e-6)),
        Property(
            "dx is orthogonal to the normalized x (eps aside)", "dx is not orthogonal to the normalized x", orthogonal
        ),
        Property(
            "an x twice as large halves dx (eps aside)",
            "an x twice as large does not halve dx",
            lambda f: same(2 * dx(f, scale=2.0), dx(f), 1e-6),
        ),
        Property("dx of a token ignores other tokens", "dx of a token depends on other tokens", others),
        Property("dweight ignores weight", "dweight depends on weight", gain_in_dweight),
    ]
    if center:
        sums = Property(
            "dx sums to zero over the features",
            "dx does not sum to zero over the features",
            lambda f: small(dx(f).sum(-1), dx(f)),
        )
        found.insert(0, sums)
    return tuple(found)


def block_properties(*, norms: int) -> tuple[Property, ...]:
    """Questions to a block ``f(x, attention, mlp, *norms)``."""
    x, matrix = normal(2, 5, 6, seed=61, mean=1), normal(6, 6, seed=62, std=0.5)
    wiring = [lambda h: h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-12)] * norms

    def nothing(h):
        return torch.zeros_like(h)

    def something(h):
        return torch.tanh(h @ matrix)

    def size(h):
        return h.square().mean(-1).sqrt()

    return (
        Property(
            "with two sublayers that return zeros the block returns x",
            "with two sublayers that return zeros the block does not return x",
            lambda f: same(f(x.clone(), nothing, nothing, *wiring), x, 1e-6),
        ),
        Property(
            "each token leaves the block with a root mean square of 1",
            "tokens leave the block with different sizes",
            lambda f: same(size(f(x.clone(), something, something, *wiring)), torch.ones(2, 5).double(), 1e-6),
        ),
        Property(
            "an attention output 1000 times as large gives nearly the same result",
            "an attention output 1000 times as large changes the result much",
            lambda f: same(
                f(x.clone(), lambda h: 1e6 * something(h), something, *wiring),
                f(x.clone(), lambda h: 1e3 * something(h), something, *wiring),
                1e-2,
            ),
        ),
    )
