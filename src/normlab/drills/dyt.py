"""Drill: dynamic tanh, the layer that wants to replace the norm."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import norm_properties


def dyt(x, alpha, weight, bias):
    return torch.tanh(alpha * x) * weight + bias


def arguments(*shape: int, seed: int, std: float = 2.0, mean: float = 0.3, slope: float = 0.7):
    alpha = torch.tensor(slope).double()
    return (
        normal(*shape, seed=seed, mean=mean, std=std),
        alpha,
        normal(shape[-1], seed=seed + 1, mean=0.5, std=1.5),
        normal(shape[-1], seed=seed + 2),
    )


DRILL = Drill(
    solution=dyt,
    task="Write dynamic tanh (DyT): each entry of x [..., d] is squashed by a tanh whose slope is alpha (a tensor "
    "without axes), then scaled by weight [d] and shifted by bias [d]. Entries may be as large as 2000. Return the "
    "shape of x.",
    minutes=3,
    why="Behind it stands the question what a norm does that an elementwise function cannot.",
    hints=(
        "No statistic is taken.",
        "alpha sets the slope at 0, weight the range.",
        "exp(2000) is infinite; torch.tanh is not.",
    ),
    probes={
        "random": Probe("random entries", lambda: arguments(2, 5, 6, seed=1)),
        "huge": Probe(
            "entries of size 2000", lambda: (lambda a: (a[0].sign() * 2000, *a[1:]))(arguments(3, 4, seed=11))
        ),
        "square": Probe(
            "batch, tokens and features all of size 4", lambda: arguments(4, 4, 4, seed=21, std=1.0, slope=-1.3)
        ),
        "zeros": Probe("a token of zeros", lambda: (lambda a: (0 * a[0], *a[1:]))(arguments(2, 3, seed=31))),
    },
    mistakes=(
        Mistake(
            "exp_tanh",
            "huge",
            {
                "return torch.tanh(alpha * x)": (
                    "up, down = torch.exp(alpha * x), torch.exp(-alpha * x)\n    return (up - down) / (up + down)"
                )
            },
            "Your tanh is a quotient of exponentials, which overflow: inf/inf = NaN.",
            "Use torch.tanh.",
        ),
        Mistake(
            "alpha_outside",
            "random",
            {"torch.tanh(alpha * x)": "alpha * torch.tanh(x)"},
            "alpha stands outside the tanh.",
            "It belongs inside: it sets the slope, not the range.",
        ),
        Mistake("no_alpha", "random", {"alpha * x": "x"}, "alpha is not used.", "Use tanh(alpha * x)."),
        Mistake("alpha_divides", "random", {"alpha * x": "x / alpha"}, "You divide by alpha.", "Multiply x by alpha."),
        Mistake(
            "bias_inside",
            "random",
            {"alpha * x) * weight + bias": "alpha * x + bias) * weight"},
            "The bias stands inside the tanh.",
            "Add it at the end.",
        ),
        Mistake(
            "bias_before_gain",
            "random",
            {"torch.tanh(alpha * x) * weight + bias": "(torch.tanh(alpha * x) + bias) * weight"},
            "You add the bias before the gain.",
            "The gain comes first.",
        ),
        Mistake(
            "gain_inside",
            "random",
            {"alpha * x) * weight": "alpha * x * weight)"},
            "The gain stands inside the tanh.",
            "Multiply the tanh's result by it.",
        ),
        Mistake(
            "no_affine",
            "random",
            {" * weight + bias": ""},
            "You never apply weight and bias.",
            "End with * weight + bias.",
        ),
        Mistake("no_bias", "random", {" + bias": ""}, "You never add the bias.", "Add it at the end."),
        Mistake(
            "sigmoid",
            "random",
            {"torch.tanh(": "torch.sigmoid("},
            "You use the sigmoid, which is not 0 at 0.",
            "Use tanh.",
        ),
        Mistake("erf", "random", {"torch.tanh(": "torch.erf("}, "You use the error function.", "DyT uses tanh."),
        Mistake(
            "hardtanh",
            "random",
            {"torch.tanh(alpha * x)": "(alpha * x).clamp(-1, 1)"},
            "You clip instead of squashing smoothly.",
            "Use tanh.",
        ),
        Mistake(
            "softsign",
            "random",
            {"torch.tanh(alpha * x)": "torch.nn.functional.softsign(alpha * x)"},
            "You use x / (1 + |x|).",
            "Use tanh.",
        ),
        Mistake(
            "layer_norm_first",
            "random",
            {"alpha * x": "alpha * torch.nn.functional.layer_norm(x, x.shape[-1:])"},
            "You normalize before the tanh.",
            "DyT takes no statistic.",
        ),
        Mistake(
            "rms_norm_first",
            "random",
            {"alpha * x": "alpha * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)"},
            "You divide by the root mean square before the tanh.",
            "DyT takes no statistic.",
        ),
    ),
    properties=norm_properties(torch.tensor(0.1).double(), torch.ones(6).double(), torch.zeros(6).double()),
    dtypes="random",
    gradients="random",
)
