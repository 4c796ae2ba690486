"""Drill: the backward pass of LayerNorm by hand."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe
from normlab.drills.properties import backward_properties
from normlab.drills.rms_norm_backward import arguments


def layer_norm_backward(dy, x, weight, eps):
    centered = x - x.mean(-1, keepdim=True)
    rate = torch.rsqrt(centered.square().mean(-1, keepdim=True) + eps)
    scores = centered * rate
    upstream = dy * weight
    along = (upstream * scores).mean(-1, keepdim=True)
    dx = rate * (upstream - upstream.mean(-1, keepdim=True) - scores * along)
    dweight = (dy * scores).flatten(0, -2).sum(0)
    dbias = dy.flatten(0, -2).sum(0)
    return dx, dweight, dbias


DRILL = Drill(
    solution=layer_norm_backward,
    task="Write the backward pass of y = weight * (x - mean) / sqrt(var + eps) + bias by hand, without autograd. dy is "
    "the gradient of the loss with respect to y and has the shape of x, [..., d]. Return (dx, dweight, dbias), of the "
    "shapes of x [..., d], weight [d] and bias [d].",
    minutes=12,
    why="It is a derivation that shows calculus and not recall.",
    hints=(
        "Mean and standard deviation depend on x as well: three paths lead from x to y.",
        "Multiply dy by weight first; then two means over the features are removed.",
        "dx must sum to zero over the features; without eps it is orthogonal to the normalized x.",
    ),
    probes={
        "random": Probe("random dy, x and weight", lambda: arguments(3, 5, 6, seed=110, eps=1e-6), 1e-5),
        "big_eps": Probe("eps = 0.5", lambda: arguments(4, 6, seed=120, eps=0.5)),
        "square": Probe(
            "batch, tokens and features all of size 4", lambda: arguments(4, 4, 4, seed=130, eps=1e-6), 1e-5
        ),
        "offset": Probe("a mean of 5", lambda: arguments(2, 3, 5, seed=140, eps=1e-6, mean=5.0), 1e-5),
    },
    mistakes=(
        Mistake(
            "stats_const",
            "random",
            {"(upstream - upstream.mean(-1, keepdim=True) - scores * along)": "upstream"},
            "You treat mean and standard deviation as constants.",
            "They depend on x: two terms are missing. dx must sum to zero over the features.",
        ),
        Mistake(
            "no_mean_term",
            "random",
            {" - upstream.mean(-1, keepdim=True)": ""},
            "The mean of the upstream gradient is not subtracted.",
            "Subtract mean(dy * weight) over the features: then dx sums to zero.",
        ),
        Mistake(
            "no_proj_term",
            "random",
            {" - scores * along": ""},
            "The projection on the normalized x is missing.",
            "Subtract scores * mean(upstream * scores): then dx is orthogonal to the scores, eps aside.",
        ),
        Mistake(
            "sum_not_mean",
            "random",
            {"upstream.mean(-1": "upstream.sum(-1", "(upstream * scores).mean(": "(upstream * scores).sum("},
            "You take sums in both terms: they are d times too large.",
            "Take means over the features.",
        ),
        Mistake(
            "gain_after",
            "random",
            {"upstream = dy * weight": "upstream = dy", "dx = rate": "dx = weight * rate"},
            "You multiply by weight after the projections.",
            "weight multiplies dy first; the means mix the features.",
        ),
        Mistake(
            "no_gain",
            "random",
            {"dy * weight": "dy"},
            "dx ignores the gain.",
            "Start with upstream = dy * weight.",
        ),
        Mistake(
            "sign",
            "random",
            {"- scores * along": "+ scores * along"},
            "You add the projection.",
            "It is subtracted.",
        ),
        Mistake(
            "x_not_xhat",
            "random",
            {"(upstream * scores).mean(": "(upstream * x).mean(", "scores * along": "x * along"},
            "The projection uses x itself.",
            "It needs the normalized x in both places.",
        ),
        Mistake(
            "centered_not_scaled",
            "random",
            {"(upstream * scores).mean(": "(upstream * centered).mean(", "scores * along": "centered * along"},
            "The projection uses x - mean, not divided by the standard deviation.",
            "Use the scores in both places, or multiply the term by the squared rate.",
        ),
        Mistake(
            "std_not_rstd",
            "random",
            {"dx = rate *": "dx = 1 / rate *"},
            "You multiply dx by the standard deviation.",
            "Divide by it: larger inputs get smaller gradients.",
        ),
        Mistake(
            "no_rate",
            "random",
            {"dx = rate *": "dx ="},
            "The outer factor 1/sqrt(var + eps) is missing from dx.",
            "Multiply the whole bracket by it.",
        ),
        Mistake(
            "rms_formula",
            "offset",
            {"x - x.mean(-1, keepdim=True)": "x", " - upstream.mean(-1, keepdim=True)": ""},
            "That is the backward pass of RMSNorm: nothing is centered.",
            "Center x, and subtract the mean of the upstream gradient.",
        ),
        Mistake(
            "dw_uses_x",
            "random",
            {"(dy * scores).flatten": "(dy * x).flatten"},
            "dweight multiplies dy by x.",
            "It needs the normalized x.",
        ),
        Mistake(
            "dw_with_gain",
            "random",
            {"(dy * scores).flatten": "(upstream * scores).flatten"},
            "weight appears in its own gradient.",
            "dweight sums dy times the normalized x.",
        ),
        Mistake(
            "db_with_gain",
            "random",
            {"dbias = dy": "dbias = upstream"},
            "dbias contains the gain.",
            "dbias is the sum of dy alone.",
        ),
        Mistake(
            "dw_mean",
            "random",
            {
                "scores).flatten(0, -2).sum(0)": "scores).flatten(0, -2).mean(0)",
                "dy.flatten(0, -2).sum(0)": "dy.flatten(0, -2).mean(0)",
            },
            "You average dweight and dbias over the tokens.",
            "Shared parameters receive the sum over all tokens.",
        ),
        Mistake(
            "dw_one_axis",
            "square",
            {"scores).flatten(0, -2).sum(0)": "scores).sum(0)", "dy.flatten(0, -2).sum(0)": "dy.sum(0)"},
            "You sum dweight and dbias over the first axis only.",
            "Reduce over every axis but the last.",
        ),
        Mistake(
            "dw_not_reduced",
            "random",
            {"scores).flatten(0, -2).sum(0)": "scores)"},
            "dweight has the shape of x.",
            "Reduce over every axis but the last.",
        ),
        Mistake(
            "swapped",
            "random",
            {"dx, dweight, dbias\n": "dx, dbias, dweight\n"},
            "dweight and dbias are swapped.",
            "The order is (dx, dweight, dbias).",
        ),
        Mistake(
            "r_no_eps",
            "big_eps",
            {" + eps)": ")"},
            "The eps that is given is not used.",
            "Use the same rate as in the forward pass, with eps.",
        ),
        Mistake(
            "unbiased_var",
            "random",
            {"centered.square().mean(-1, keepdim=True)": "x.var(-1, keepdim=True)"},
            "The rate uses the variance that divides by d - 1.",
            "Use the variance of the forward pass: it divides by d.",
        ),
    ),
    properties=backward_properties(center=True),
)
