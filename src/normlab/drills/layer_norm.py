"""Drill: LayerNorm, the forward pass."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import norm_properties


def layer_norm(x, weight, bias, eps):
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    mean = wide.mean(-1, keepdim=True)
    var = wide.var(-1, keepdim=True, correction=0)
    scores = (wide - mean) / torch.sqrt(var + eps)
    return (scores * weight + bias).to(x.dtype)


WEIGHT, BIAS = torch.tensor([1.0, -2, 3, 4]).double(), torch.tensor([0.1, -0.5, 2, 4]).double()

DRILL = Drill(
    solution=layer_norm,
    task="Write LayerNorm over the last axis: the standard score of each token, times weight, plus bias. x is a float "
    "tensor [..., d]; weight and bias have shape [d]; eps stands where the formula has it. Statistics of float16 and "
    "bfloat16 are computed in a wider type. Return a tensor of the shape and dtype of x.",
    minutes=6,
    why="Which variance, which axis and where eps stands are asked in one go.",
    hints=(
        "Which axis do the statistics run over, and which shape must they have to be subtracted from x?",
        "The variance divides by d, and eps is added to it before the root.",
        "300 squared does not fit into float16.",
    ),
    probes={
        "small_d": Probe("four features", lambda: (normal(3, 4, seed=1, mean=1, std=2), WEIGHT, BIAS, 1e-5)),
        "big_eps": Probe("eps = 0.3", lambda: (normal(3, 4, seed=2, mean=1, std=0.5), WEIGHT, BIAS, 0.3)),
        "square": Probe(
            "batch, tokens and features all of size 4", lambda: (normal(4, 4, 4, seed=3, mean=2), WEIGHT, BIAS, 1e-5)
        ),
        "three_axes": Probe(
            "shape (2, 5, 6)",
            lambda: (normal(2, 5, 6, seed=4, mean=1), normal(6, seed=5, mean=1), normal(6, seed=6), 1e-5),
        ),
        "constant": Probe("a constant token", lambda: (torch.full((2, 4), 7.0).double(), WEIGHT, BIAS, 1e-5)),
        "far": Probe(
            "float32 entries of 8191 and 8193",
            lambda: (
                torch.tensor([[8193.0, 8191, 8193, 8191], [8191, 8191, 8193, 8193]]),
                WEIGHT.float(),
                BIAS.float(),
                1e-5,
            ),
            tolerance=2e-3,
        ),
        "half_small": Probe(
            "float16 entries of size 300",
            lambda: (
                normal(2, 64, seed=7, mean=50, std=300, dtype=torch.float16),
                normal(64, seed=8, mean=1, std=0.3, dtype=torch.float16),
                normal(64, seed=9, dtype=torch.float16),
                1e-5,
            ),
        ),
    },
    mistakes=(
        Mistake(
            "unbiased_var",
            "small_d",
            {"correction=0": "correction=1"},
            "Your variance divides by d - 1, which is the default of torch.var.",
            "LayerNorm divides by d: var(-1, keepdim=True, correction=0).",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {"torch.sqrt(var + eps)": "(torch.sqrt(var) + eps)"},
            "You add eps to the standard deviation.",
            "eps stands under the root: sqrt(var + eps).",
            story="With eps = 1e-5 and ordinary inputs a test with a tolerance of 1e-4 does not see it.",
        ),
        Mistake(
            "clamp_eps",
            "big_eps",
            {"var + eps": "var.clamp(min=eps)"},
            "You take eps as the smallest variance.",
            "Add eps to the variance.",
        ),
        Mistake(
            "eps_fixed",
            "big_eps",
            {"var + eps": "var + 1e-6"},
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "no_eps",
            "constant",
            {"torch.sqrt(var + eps)": "torch.sqrt(var)"},
            "You never use eps, so that a constant token gives 0/0 = NaN.",
            "Add eps to the variance before the root.",
            story="In TIM-VX eps was 0 by mistake, and a constant row came out as NaN (#589).",
        ),
        Mistake(
            "divide_by_var",
            "small_d",
            {"torch.sqrt(var + eps)": "(var + eps)"},
            "You divide by the variance, not by its square root.",
            "Take the root of var + eps.",
            story="TPlinker has ** 2 where ** 0.5 is meant (#37).",
        ),
        Mistake(
            "one_pass",
            "far",
            {
                "wide.var(-1, keepdim=True, correction=0)": (
                    "(wide.square().mean(-1, keepdim=True) - mean.square())"
                )
            },
            "You take the variance as mean(x²) - mean(x)², which loses its digits far from zero.",
            "Subtract the mean first, then take the mean of the squares.",
            story="PyTorch's kernel for Apple GPUs did (pytorch #190491).",
        ),
        Mistake(
            "mean_abs_deviation",
            "small_d",
            {"torch.sqrt(var + eps)": "((wide - mean).abs().mean(-1, keepdim=True) + eps)"},
            "You divide by the mean absolute deviation.",
            "Divide by the root of the mean squared deviation.",
        ),
        Mistake(
            "wrong_axis_seq",
            "square",
            {"mean(-1,": "mean(-2,", "var(-1,": "var(-2,"},
            "You reduce over the axis of tokens (dim=-2): tokens see each other.",
            "LayerNorm reduces over the last axis only.",
        ),
        Mistake(
            "batch_axis",
            "square",
            {"mean(-1,": "mean(0,", "var(-1,": "var(0,"},
            "You reduce over the axis of the batch (dim=0), which for [B, d] is BatchNorm in training.",
            "LayerNorm reduces over the last axis only.",
        ),
        Mistake(
            "joint_axes",
            "square",
            {"mean(-1,": "mean((-2, -1),", "var(-1,": "var((-2, -1),"},
            "You reduce over tokens and features together: one statistic for a whole sequence.",
            "Reduce over dim=-1 alone, so that each token has its own statistics.",
        ),
        Mistake(
            "all_axes",
            "square",
            {"wide.mean(-1, keepdim=True)": "wide.mean()", "wide.var(-1, keepdim=True, ": "wide.var("},
            "You take one mean and one variance of the whole tensor.",
            "Give both the axis: dim=-1, keepdim=True.",
        ),
        Mistake(
            "all_but_batch",
            "square",
            {
                "mean(-1,": "mean(tuple(range(1, wide.dim())),",
                "var(-1,": "var(tuple(range(1, wide.dim())),",
            },
            "You reduce over all axes but the first: with three axes tokens see each other.",
            "Reduce over dim=-1 alone, whatever the number of axes.",
        ),
        Mistake(
            "no_keepdim",
            "square",
            {"mean(-1, keepdim=True)": "mean(-1)", "var(-1, keepdim=True,": "var(-1,"},
            "Without keepdim=True the statistics lose their last axis and meet the wrong one of x.",
            "Use keepdim=True in the mean and in the variance.",
        ),
        Mistake(
            "no_center",
            "small_d",
            {
                "(wide - mean)": "wide",
                "wide.var(-1, keepdim=True, correction=0)": "(wide * wide).mean(-1, keepdim=True)",
            },
            "You scale by the root mean square and never subtract the mean: that is RMSNorm with a bias.",
            "Subtract the mean before both the variance and the division.",
        ),
        Mistake(
            "no_center_std",
            "small_d",
            {"(wide - mean) /": "wide /"},
            "You divide by the standard deviation, but do not subtract the mean from x.",
            "The numerator is x - mean.",
        ),
        Mistake(
            "rms_denominator",
            "small_d",
            {"wide.var(-1, keepdim=True, correction=0)": "wide.square().mean(-1, keepdim=True)"},
            "You center the numerator, but divide by the root mean square of the uncentered x.",
            "Divide by the standard deviation: the variance is that of x - mean.",
        ),
        Mistake(
            "bias_before_gain",
            "small_d",
            {"scores * weight + bias": "(scores + bias) * weight"},
            "You add the bias before the gain.",
            "The gain comes first: scores * weight + bias.",
        ),
        Mistake(
            "no_affine",
            "small_d",
            {"scores * weight + bias": "scores"},
            "You never apply weight and bias.",
            "End with scores * weight + bias. With weight 1 and bias 0 nobody would notice.",
        ),
        Mistake(
            "no_bias",
            "small_d",
            {" + bias)": ")"},
            "You never add the bias.",
            "End with scores * weight + bias.",
        ),
        Mistake(
            "gemma_gain",
            "small_d",
            {"* weight": "* (1 + weight)"},
            "You scale by 1 + weight.",
            "Here weight is the gain itself.",
            convention="Nemotron, which stores the gain minus 1",
        ),
        Mistake(
            "half_stats",
            "half_small",
            {"x.float() if x.dtype in (torch.float16, torch.bfloat16) else x": "x"},
            "You compute the statistics in float16, where 300 squared is infinite.",
            "Widen half-precision inputs before the first square, and cast back at the end.",
        ),
    ),
    properties=norm_properties(torch.ones(6).double(), torch.zeros(6).double(), 1e-12),
    dtypes="three_axes",
    gradients="three_axes",
)
