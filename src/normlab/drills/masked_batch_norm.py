"""Drill: BatchNorm over the tokens of padded sequences."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import norm_properties


def masked_batch_norm(x, mask, weight, bias, eps):
    real = mask.unsqueeze(-1).to(x.dtype)
    count = real.sum()
    mean = (x * real).sum((0, 1)) / count
    centered = (x - mean) * real
    var = centered.square().sum((0, 1)) / count
    scores = centered / torch.sqrt(var + eps)
    return (scores * weight + bias) * real


def arguments(lengths: tuple[int, ...], tokens: int, width: int, pad: float, eps: float, seed: int):
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    x = normal(len(lengths), tokens, width, seed=seed, mean=2)
    x[~mask] = pad
    return x, mask, normal(width, seed=seed + 1, mean=0.5, std=1.5), normal(width, seed=seed + 2), eps


DRILL = Drill(
    solution=masked_batch_norm,
    task="Write BatchNorm for padded sequences in training: one mean and one biased variance per feature over all real "
    "tokens of the batch. x is [B, T, d], mask is a bool tensor [B, T] that is True at real tokens, weight and bias "
    "have shape [d]. Padding holds arbitrary finite numbers, counts nowhere, and comes out as zeros. Return [B, T, d].",
    minutes=8,
    why="Its mistakes run without an error, and some are invisible while all lengths are equal.",
    hints=(
        "How many numbers go into each mean?",
        "Center first, mask afterwards: otherwise each padded slot adds mean².",
        "After the bias the padding is no longer zero.",
    ),
    probes={
        "pad": Probe("padding that holds 50", lambda: arguments((5, 3, 2), 5, 4, 50.0, 1e-5, seed=1)),
        "zeropad": Probe("padding that holds zeros", lambda: arguments((6, 2), 6, 3, 0.0, 1e-5, seed=11)),
        "full": Probe("no padding and eps = 0.2", lambda: arguments((4, 4), 4, 4, 0.0, 0.2, seed=21)),
    },
    mistakes=(
        Mistake(
            "no_mask",
            "pad",
            {"mask.unsqueeze(-1).to(x.dtype)": "torch.ones_like(x[..., :1])"},
            "You never use the mask.",
            "Sums, counts and the output all need it.",
        ),
        Mistake(
            "ignores_mask",
            "pad",
            {
                "real.sum()": "x.shape[0] * x.shape[1]",
                "(x * real).sum": "x.sum",
                "(x - mean) * real": "x - mean",
            },
            "Padding is in your statistics; only the output is masked.",
            "Take sums of masked entries and divide by the number of real tokens.",
        ),
        Mistake(
            "divide_by_BT",
            "pad",
            {"real.sum()": "x.shape[0] * x.shape[1]"},
            "You zero the padding, but divide by B * T.",
            "Divide by the number of real tokens, mask.sum().",
        ),
        Mistake(
            "var_of_zeroed",
            "pad",
            {"(x - mean) * real": "x * real - mean"},
            "You mask before centering: each padded slot adds mean² to the squares.",
            "Center, then mask, then square.",
        ),
        Mistake(
            "mean_of_means",
            "pad",
            {
                "(x * real).sum((0, 1)) / count": "((x * real).sum(1) / real.sum(1)).mean(0)",
                "centered.square().sum((0, 1)) / count": "(centered.square().sum(1) / real.sum(1)).mean(0)",
            },
            "You average the statistics of the sequences: tokens of short ones weigh more.",
            "Sum over all real tokens of the batch, divide once.",
        ),
        Mistake(
            "pads_not_rezeroed",
            "pad",
            {
                "(scores * weight + bias) * real": "(x - mean) / torch.sqrt(var + eps) * weight + bias",
            },
            "Padding comes out as normalized garbage.",
            "Multiply the output by the mask.",
        ),
        Mistake(
            "pads_hold_bias",
            "pad",
            {"(scores * weight + bias) * real": "scores * weight + bias"},
            "Padding comes out as the bias.",
            "Apply the mask after the bias.",
        ),
        Mistake(
            "per_position",
            "pad",
            {
                "count = real.sum()": "count = real.sum(0)",
                "(x * real).sum((0, 1))": "(x * real).sum(0)",
                "centered.square().sum((0, 1))": "centered.square().sum(0)",
            },
            "You take statistics for each position over the batch alone.",
            "Reduce over batch and positions together.",
        ),
        Mistake(
            "per_sequence",
            "pad",
            {
                "count = real.sum()": "count = real.sum(1, keepdim=True)",
                "(x * real).sum((0, 1))": "(x * real).sum(1, keepdim=True)",
                "centered.square().sum((0, 1))": "centered.square().sum(1, keepdim=True)",
            },
            "You take statistics for each sequence alone: that is instance norm.",
            "Reduce over batch and positions together.",
        ),
        Mistake(
            "layer_axis",
            "full",
            {
                "(x * real).sum((0, 1)) / count": "x.mean(-1, keepdim=True)",
                "centered.square().sum((0, 1)) / count": "centered.square().mean(-1, keepdim=True)",
            },
            "You reduce over the features: that is LayerNorm, which needs no mask for its statistics.",
            "Reduce over batch and positions.",
        ),
        Mistake(
            "global",
            "full",
            {
                "(x * real).sum((0, 1)) / count": "(x * real).sum() / (count * x.shape[-1])",
                "centered.square().sum((0, 1)) / count": "centered.square().sum() / (count * x.shape[-1])",
            },
            "You take one mean and one variance for all features together.",
            "Each feature has its own statistics.",
        ),
        Mistake(
            "unbiased_norm",
            "full",
            {"centered.square().sum((0, 1)) / count": "centered.square().sum((0, 1)) / (count - 1)"},
            "You normalize with the unbiased variance.",
            "The batch variance that normalizes is biased; n - 1 is for running_var only.",
        ),
        Mistake(
            "inverted_mask",
            "pad",
            {"mask.unsqueeze": "(~mask).unsqueeze"},
            "Your mask is the wrong way round.",
            "Here True marks a real token; torch's key_padding_mask is True at padding.",
        ),
        Mistake(
            "eps_outside",
            "full",
            {"torch.sqrt(var + eps)": "(torch.sqrt(var) + eps)"},
            "You add eps to the standard deviation.",
            "eps stands under the root.",
        ),
        Mistake(
            "eps_fixed",
            "full",
            {"var + eps": "var + 1e-6"},
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "bias_before_gain",
            "pad",
            {"scores * weight + bias": "(scores + bias) * weight"},
            "You add the bias before the gain.",
            "The gain comes first.",
        ),
        Mistake(
            "no_affine",
            "pad",
            {"(scores * weight + bias) * real": "scores"},
            "You never apply weight and bias.",
            "End with (scores * weight + bias) * mask.",
        ),
    ),
    properties=norm_properties(
        torch.ones(2, 5, dtype=torch.bool), torch.ones(6).double(), torch.zeros(6).double(), 1e-12
    ),
    dtypes="zeropad",
    gradients="zeropad",
)
