"""What is true of the backward pass of a norm, whatever its formula looks like."""

import torch

from normlab.drills.checking import Property, normal
from normlab.drills.values import same


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
