"""Drill: RMSNorm, the forward pass."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import norm_properties


def rms_norm(x, weight, eps):
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean_square = wide.square().mean(-1, keepdim=True)
    scores = wide * torch.rsqrt(mean_square + eps)
    return scores.to(x.dtype) * weight


WEIGHT = torch.tensor([1.0, -2, 3, 4]).double()

DRILL = Drill(
    solution=rms_norm,
    task="Write RMSNorm over the last axis: each token divided by its root mean square, times weight. x is a float "
    "tensor [..., d]; weight is the gain itself, of shape [d]; eps keeps a token of zeros finite. Statistics of "
    "float16 and bfloat16 are computed in a wider type. Return a tensor of the shape and dtype of x.",
    minutes=5,
    why="Llama and its relatives use it, and its few lines have room for a dozen mistakes.",
    hints=(
        "What is the mean of the squares over the last axis, and which shape must it keep?",
        "eps is added to the mean square, inside the root.",
        "rsqrt is one over the root: multiply by it.",
    ),
    probes={
        "offset": Probe("a mean of 3", lambda: (normal(3, 4, seed=1, mean=3), WEIGHT, 1e-6)),
        "big_eps": Probe(
            "eps = 0.3 and a small token",
            lambda: (normal(3, 4, seed=2, std=0.5) * torch.tensor([[1], [0.4], [1]]).double(), WEIGHT, 0.3),
        ),
        "square": Probe("batch, tokens and features all of size 4", lambda: (normal(4, 4, 4, seed=3), WEIGHT, 1e-6)),
        "three_axes": Probe(
            "shape (2, 5, 6)", lambda: (normal(2, 5, 6, seed=4, mean=1), normal(6, seed=5, mean=1), 1e-6)
        ),
        "zeros": Probe("a token of zeros", lambda: (torch.zeros(2, 4).double(), WEIGHT, 1e-6)),
        "bf16": Probe(
            "bfloat16 and uneven gains",
            lambda: (
                normal(4, 512, seed=6, dtype=torch.bfloat16),
                normal(512, seed=7, mean=1, std=0.3, dtype=torch.bfloat16),
                1e-6,
            ),
        ),
        "half_big": Probe(
            "float16 entries of size 300",
            lambda: (
                normal(2, 64, seed=8, std=300, dtype=torch.float16),
                normal(64, seed=9, mean=1, std=0.3, dtype=torch.float16),
                1e-6,
            ),
        ),
    },
    mistakes=(
        Mistake(
            "divide_by_rsqrt",
            "offset",
            {"wide * torch.rsqrt": "wide / torch.rsqrt"},
            "You divide by rsqrt(...), which multiplies by the root mean square.",
            "Multiply by rsqrt or divide by sqrt.",
            story="llm-foundry divided (#371), and training diverged.",
        ),
        Mistake(
            "no_root",
            "offset",
            {"wide * torch.rsqrt(mean_square + eps)": "wide / (mean_square + eps)"},
            "You divide by the mean square, not by its root.",
            "Take the root of mean_square + eps.",
        ),
        Mistake(
            "sum_not_mean",
            "offset",
            {".mean(-1": ".sum(-1"},
            "You divide by the Euclidean length (the root of the sum of squares), not by the root mean square.",
            "Take the mean of the squares; the two differ by the factor sqrt(d).",
        ),
        Mistake(
            "mean_abs",
            "offset",
            {"wide.square()": "wide.abs()", "torch.rsqrt(mean_square + eps)": "(1 / (mean_square + eps))"},
            "You divide by the mean absolute value.",
            "The size is the root of the mean square.",
        ),
        Mistake(
            "bessel",
            "offset",
            {".mean(-1, keepdim=True)": ".sum(-1, keepdim=True) / (wide.shape[-1] - 1)"},
            "You divide the sum of squares by d - 1.",
            "The mean square divides by d: nothing was subtracted that costs a degree of freedom.",
        ),
        Mistake(
            "max_abs",
            "offset",
            {"torch.rsqrt(mean_square + eps)": "(1 / (wide.abs().amax(-1, keepdim=True) + eps))"},
            "You divide by the largest absolute value.",
            "Divide by the root mean square.",
        ),
        Mistake(
            "centered",
            "offset",
            {
                "mean_square = wide.square()": (
                    "wide = wide - wide.mean(-1, keepdim=True)\n    mean_square = wide.square()"
                )
            },
            "You subtract the mean: that is LayerNorm without a bias.",
            "RMSNorm keeps the mean; divide x itself.",
        ),
        Mistake(
            "std_denominator",
            "offset",
            {"wide.square().mean(-1, keepdim=True)": "wide.var(-1, keepdim=True, correction=0)"},
            "You divide x by its standard deviation.",
            "Use the mean of the squares: it is the variance plus the squared mean.",
        ),
        Mistake(
            "unbiased_std_denominator",
            "offset",
            {"wide.square().mean(-1, keepdim=True)": "wide.var(-1, keepdim=True)"},
            "You divide x by its standard deviation, with d - 1 in it.",
            "Use the mean of the squares: no mean is subtracted, and the sum is divided by d.",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {"torch.rsqrt(mean_square + eps)": "(1 / (torch.sqrt(mean_square) + eps))"},
            "You add eps to the root mean square.",
            "eps stands inside the root: rsqrt(mean_square + eps).",
            story="OLMo once did (#281).",
        ),
        Mistake(
            "eps_twice",
            "big_eps",
            {"torch.rsqrt(mean_square + eps)": "(1 / (torch.sqrt(mean_square + eps) + eps))"},
            "You add eps inside the root and once more outside.",
            "Once, inside the root, is enough.",
        ),
        Mistake(
            "clamp_eps",
            "big_eps",
            {"torch.rsqrt(mean_square + eps)": "(1 / torch.sqrt(mean_square).clamp(min=eps))"},
            "You take eps as the smallest root mean square that is divided by.",
            "Add eps inside the root.",
        ),
        Mistake(
            "clamp_square",
            "big_eps",
            {"mean_square + eps": "mean_square.clamp(min=eps)"},
            "You take eps as the smallest mean square.",
            "Add eps to the mean square.",
        ),
        Mistake(
            "eps_fixed",
            "big_eps",
            {"mean_square + eps": "mean_square + 1e-6"},
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "no_eps",
            "zeros",
            {"mean_square + eps": "mean_square"},
            "You never use eps: a token of zeros, such as padding, becomes NaN.",
            "Add eps inside the root.",
        ),
        Mistake(
            "global_rms",
            "square",
            {".mean(-1, keepdim=True)": ".mean()"},
            "You take one root mean square of the whole tensor.",
            "Give the mean its axis: mean(-1, keepdim=True).",
        ),
        Mistake(
            "seq_axis",
            "square",
            {".mean(-1,": ".mean(-2,"},
            "You reduce over the axis of tokens (dim=-2): tokens see each other.",
            "Reduce over the last axis.",
        ),
        Mistake(
            "batch_axis",
            "square",
            {".mean(-1,": ".mean(0,"},
            "You reduce over the axis of the batch (dim=0).",
            "Reduce over the last axis.",
        ),
        Mistake(
            "joint_axes",
            "square",
            {".mean(-1,": ".mean((-2, -1),"},
            "You reduce over tokens and features together.",
            "Reduce over the last axis alone.",
        ),
        Mistake(
            "all_but_batch",
            "square",
            {".mean(-1,": ".mean(tuple(range(1, wide.dim())),"},
            "You reduce over all axes but the first: with three axes tokens see each other.",
            "Reduce over the last axis alone, whatever the number of axes.",
        ),
        Mistake(
            "no_keepdim",
            "square",
            {"(-1, keepdim=True)": "(-1)"},
            "Without keepdim=True the mean square loses its last axis and meets the wrong one of x.",
            "Use mean(-1, keepdim=True).",
        ),
        Mistake(
            "no_gain",
            "offset",
            {" * weight": ""},
            "You never multiply by weight.",
            "End with scores * weight.",
        ),
        Mistake(
            "gain_first",
            "offset",
            {" * weight": "", "    mean_square =": "    wide = wide * weight\n    mean_square ="},
            "You apply the gain before you normalize: it is part of the root mean square.",
            "Normalize x, then multiply by weight.",
        ),
        Mistake(
            "gemma_gain",
            "offset",
            {"* weight": "* (1 + weight)"},
            "You scale by 1 + weight.",
            "Here weight is the gain itself.",
            convention="Gemma up to version 3, which stores the gain minus 1",
        ),
        Mistake(
            "cast_after_gain",
            "bf16",
            {"scores.to(x.dtype) * weight": "(scores * weight).to(x.dtype)"},
            "You multiply by the gain in the wider type and round last.",
            "Llama rounds the scores first and multiplies then; both orders pass.",
            convention="Gemma, OLMo 2 and torch.nn.functional.rms_norm (Llama rounds before the gain)",
            accepted=True,
            story="gemma_pytorch rounded before the gain until #67.",
        ),
        Mistake(
            "half_stats",
            "half_big",
            {"x.float() if x.dtype in (torch.float16, torch.bfloat16) else x": "x"},
            "You square in float16: entries from 256 on become infinite, and their token becomes zeros.",
            "Widen half-precision inputs before the square, and cast back.",
        ),
        Mistake(
            "returns_fp32",
            "half_big",
            {"scores.to(x.dtype) * weight": "scores * weight.to(scores.dtype)"},
            "You return float32 for a half-precision input.",
            "Cast back to x.dtype.",
        ),
    ),
    properties=norm_properties(torch.ones(6).double(), 1e-12),
    dtypes="three_axes",
    gradients="three_axes",
)
