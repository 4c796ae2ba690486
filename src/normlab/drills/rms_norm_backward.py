"""Drill: the backward pass of RMSNorm by hand."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import backward_properties


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
        normal(shape[-1], seed=seed + 2, mean=0.5, std=1.5),
        eps,
    )


DRILL = Drill(
    solution=rms_norm_backward,
    task="Write the backward pass of y = weight * x / sqrt(mean(x²) + eps) by hand, without autograd. dy is the "
    "gradient of the loss with respect to y and has the shape of x, [..., d]. Return (dx, dweight), of the shapes of x "
    "[..., d] and weight [d].",
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
        "large": Probe(
            "entries of size 30", lambda: (lambda a: (a[0], 30 * a[1], *a[2:]))(arguments(2, 3, 5, seed=40, eps=1e-6))
        ),
    },
    mistakes=(
        Mistake(
            "stats_const",
            "random",
            {"(upstream - scores * (upstream * scores).mean(-1, keepdim=True))": "upstream"},
            "You treat the root mean square as a constant.",
            "It depends on x: subtract scores * mean(upstream * scores). Without eps, dx is orthogonal to x.",
        ),
        Mistake(
            "ln_formula",
            "random",
            {"(upstream - scores": "(upstream - upstream.mean(-1, keepdim=True) - scores"},
            "You subtract the mean of the upstream gradient: that belongs to LayerNorm's backward pass.",
            "RMSNorm does not center; only the projection on the normalized x is removed.",
        ),
        Mistake(
            "sum_not_mean",
            "random",
            {"(upstream * scores).mean(": "(upstream * scores).sum("},
            "You take a sum in the projection: it is d times too large.",
            "Take the mean over the features.",
        ),
        Mistake(
            "mean_twice",
            "random",
            {"(upstream * scores).mean(-1, keepdim=True)": "(upstream * scores).mean(-1, keepdim=True) / x.shape[-1]"},
            "Your projection is divided by d twice.",
            "A mean, or a sum divided by d, but not both.",
        ),
        Mistake(
            "gain_after",
            "random",
            {"upstream = dy * weight": "upstream = dy", "dx = rate": "dx = weight * rate"},
            "You multiply by weight after the projection.",
            "weight multiplies dy first; the mean in the projection mixes the features.",
        ),
        Mistake(
            "no_gain",
            "random",
            {"dy * weight": "dy"},
            "dx ignores the gain.",
            "Start with upstream = dy * weight.",
        ),
        Mistake(
            "x_not_xhat",
            "random",
            {"scores * (upstream * scores).mean(": "x * (upstream * x).mean("},
            "The projection uses x itself.",
            "It needs the normalized x in both places.",
        ),
        Mistake(
            "r_cubed_missing",
            "random",
            {"scores * (upstream * scores).mean(": "x * (upstream * scores).mean("},
            "One power of r is missing in the projection.",
            "Count them: the second term is r³ x mean(upstream * x).",
        ),
        Mistake(
            "sign",
            "random",
            {"(upstream - scores": "(upstream + scores"},
            "You add the projection.",
            "It is subtracted.",
        ),
        Mistake(
            "rms_not_rate",
            "random",
            {"dx = rate *": "dx = 1 / rate *"},
            "You multiply dx by the root mean square.",
            "Divide by it: larger inputs get smaller gradients.",
        ),
        Mistake(
            "no_rate",
            "random",
            {"dx = rate *": "dx ="},
            "The outer factor 1/rms is missing from dx.",
            "Multiply the whole bracket by r = 1/sqrt(mean(x²) + eps).",
        ),
        Mistake(
            "dw_with_gain",
            "random",
            {"(dy * scores).flatten": "(upstream * scores).flatten"},
            "weight appears in its own gradient.",
            "dweight sums dy times the normalized x.",
        ),
        Mistake(
            "dw_uses_x",
            "random",
            {"(dy * scores).flatten": "(dy * x).flatten"},
            "dweight multiplies dy by x.",
            "It needs the normalized x.",
        ),
        Mistake(
            "dw_mean",
            "random",
            {".flatten(0, -2).sum(0)": ".flatten(0, -2).mean(0)"},
            "You average dweight over the tokens.",
            "A shared parameter receives the sum over all tokens.",
        ),
        Mistake(
            "dw_one_axis",
            "square",
            {".flatten(0, -2).sum(0)": ".sum(0)"},
            "You sum dweight over the first axis only.",
            "Reduce over every axis but the last.",
            story="Megatron-LM #1446 reports gradients of final_layernorm that differ on ranks sharing the tokens.",
        ),
        Mistake(
            "dw_not_reduced",
            "random",
            {".flatten(0, -2).sum(0)": ""},
            "dweight has the shape of x.",
            "Reduce over every axis but the last.",
        ),
        Mistake(
            "r_no_eps",
            "big_eps",
            {" + eps)": ")"},
            "The eps that is given is not used.",
            "Use the same r as in the forward pass, with eps.",
        ),
    ),
    properties=backward_properties(center=False),
    dtypes="",
    gradients="",
)
