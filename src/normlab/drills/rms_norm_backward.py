"""Drill: the backward pass of RMSNorm by hand."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.gradient_properties import backward_properties


def rms_norm_backward(dy, x, weight, eps):
    rate = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    scores = x * rate
    upstream = dy * weight
    dx = rate * (upstream - scores * (upstream * scores).mean(-1, keepdim=True))
    dweight = (dy * scores).flatten(0, -2).sum(0)
    return dx, dweight


def arguments(*shape: int, seed: int, eps: float, mean: float = 0.5):
    return (
        normal(*shape, seed=seed),
        normal(*shape, seed=seed + 1, mean=mean),
        normal(shape[-1], seed=seed + 2, mean=1, std=0.5),
        eps,
    )


DRILL = Drill(
    solution=rms_norm_backward,
    task="Write the backward pass of y = weight * x / sqrt(mean(x²) + eps) by hand, without autograd. dy is the gradient "
    "of the loss with respect to y and has the shape of x, [..., d]. Return (dx, dweight), of the shapes of x [..., d] "
    "and weight [d].",
    minutes=10,
    why="Two lines, and a check of whether one can differentiate a function that divides by its own size.",
    hints=(
        "With r = 1/sqrt(mean(x²) + eps), y depends on x directly and through r.",
        "Multiply dy by weight first; then remove what points along the normalized x.",
        "The gain is shared by all tokens.",
    ),
    probes={
        "random": Probe("random dy, x and weight", lambda: arguments(3, 5, 6, seed=10, eps=1e-6)),
        "big_eps": Probe("eps = 0.5", lambda: arguments(4, 6, seed=20, eps=0.5)),
        "square": Probe("batch, tokens and features all of size 4", lambda: arguments(4, 4, 4, seed=30, eps=1e-6)),
        "large": Probe("entries of size 30", lambda: (lambda a: (a[0], 30 * a[1], *a[2:]))(arguments(2, 3, 5, seed=40, eps=1e-6))),
    },
    mistakes=(
        Mistake(
            "stats_const",
            probe="random",
            change={"(upstream - scores * (upstream * scores).mean(-1, keepdim=True))": "upstream"},
            says="You treat the root mean square as a constant.",
            fix="It depends on x: subtract scores * mean(upstream * scores). Without eps, dx is orthogonal to x.",
        ),
        Mistake(
            "ln_formula",
            probe="random",
            change={"(upstream - scores": "(upstream - upstream.mean(-1, keepdim=True) - scores"},
            says="You subtract the mean of the upstream gradient: that belongs to LayerNorm's backward pass.",
            fix="RMSNorm does not center; only the projection on the normalized x is removed.",
        ),
        Mistake(
            "sum_not_mean",
            probe="random",
            change={"(upstream * scores).mean(": "(upstream * scores).sum("},
            says="You take a sum in the projection: it is d times too large.",
            fix="Take the mean over the features.",
        ),
        Mistake(
            "gain_after",
            probe="random",
            change={"upstream = dy * weight": "upstream = dy", "dx = rate": "dx = weight * rate"},
            says="You multiply by weight after the projection.",
            fix="weight multiplies dy first; the mean in the projection mixes the features.",
        ),
        Mistake(
            "no_gain",
            probe="random",
            change={"dy * weight": "dy"},
            says="dx ignores the gain.",
            fix="Start with upstream = dy * weight.",
        ),
        Mistake(
            "x_not_xhat",
            probe="random",
            change={"scores * (upstream * scores).mean(": "x * (upstream * x).mean("},
            says="The projection uses x itself.",
            fix="It needs the normalized x in both places.",
        ),
        Mistake(
            "r_cubed_missing",
            probe="random",
            change={"scores * (upstream * scores).mean(": "x * (upstream * scores).mean("},
            says="One power of r is missing in the projection.",
            fix="Count them: the second term is r³ x mean(upstream * x).",
        ),
        Mistake(
            "sign",
            probe="random",
            change={"(upstream - scores": "(upstream + scores"},
            says="You add the projection.",
            fix="It is subtracted.",
        ),
        Mistake(
            "rms_not_rate",
            probe="random",
            change={"dx = rate *": "dx = 1 / rate *"},
            says="You multiply dx by the root mean square.",
            fix="Divide by it: larger inputs get smaller gradients.",
        ),
        Mistake(
            "no_rate",
            probe="random",
            change={"dx = rate *": "dx ="},
            says="The outer factor 1/rms is missing from dx.",
            fix="Multiply the whole bracket by r = 1/sqrt(mean(x²) + eps).",
        ),
        Mistake(
            "dw_with_gain",
            probe="random",
            change={"(dy * scores).flatten": "(upstream * scores).flatten"},
            says="weight appears in its own gradient.",
            fix="dweight sums dy times the normalized x.",
        ),
        Mistake(
            "dw_uses_x",
            probe="random",
            change={"(dy * scores).flatten": "(dy * x).flatten"},
            says="dweight multiplies dy by x.",
            fix="It needs the normalized x.",
        ),
        Mistake(
            "dw_mean",
            probe="random",
            change={".flatten(0, -2).sum(0)": ".flatten(0, -2).mean(0)"},
            says="You average dweight over the tokens.",
            fix="A shared parameter receives the sum over all tokens.",
        ),
        Mistake(
            "dw_one_axis",
            probe="square",
            change={".flatten(0, -2).sum(0)": ".sum(0)"},
            says="You sum dweight over the first axis only.",
            fix="Reduce over every axis but the last.",
            story="The gradients of norm parameters were left unreduced in Megatron-LM (issues 443 and 1446).",
        ),
        Mistake(
            "dw_not_reduced",
            probe="random",
            change={".flatten(0, -2).sum(0)": ""},
            says="dweight has the shape of x.",
            fix="Reduce over every axis but the last.",
        ),
        Mistake(
            "r_no_eps",
            probe="big_eps",
            change={" + eps)": ")"},
            says="The backward pass leaves eps out.",
            fix="Use the same r as in the forward pass, with eps.",
        ),
    ),
    properties=backward_properties(center=False),
    dtypes="",
    gradients="",
)
