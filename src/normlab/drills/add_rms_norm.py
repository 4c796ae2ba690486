"""Drill: the fused addition and RMSNorm of inference engines."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def add_rms_norm(x, residual, weight, eps):
    total = x + residual
    wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
    rate = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = (wide * rate).to(x.dtype) * weight
    return normed, total


def arguments(
    *shape: int, seed: int, eps: float, dtype: torch.dtype = torch.float64, small: float = 1.0, large: float = 2.0
):
    gain = normal(shape[-1], seed=seed + 2, mean=0.5, std=1.0, dtype=dtype)
    return (
        normal(*shape, seed=seed, std=small, dtype=dtype),
        normal(*shape, seed=seed + 1, std=large, dtype=dtype),
        gain,
        eps,
    )


DRILL = Drill(
    solution=add_rms_norm,
    task="Add a sublayer's output x to the residual stream and normalize the sum for the next sublayer: return "
    "(normed, new_residual), with normed = weight * RMSNorm(new_residual). x and residual are [..., d], weight is [d]; "
    "both results have the dtype of x. Statistics of half types are computed in a wider type. The inputs stay as they "
    "are.",
    minutes=5,
    why="Inference engines have it as one kernel; swapping its outputs or its steps raises no error.",
    hints=(
        "Two tensors are needed later: one by the next sublayer, one by the next addition.",
        "Add first, then normalize the sum.",
        "The gain touches only what the next sublayer reads.",
    ),
    probes={
        "random": Probe("random x, residual and gains", lambda: arguments(3, 5, 6, seed=1, eps=1e-6)),
        "big_eps": Probe("eps = 0.5", lambda: arguments(4, 6, seed=11, eps=0.5)),
        "square": Probe("batch, tokens and features all of size 4", lambda: arguments(4, 4, 4, seed=21, eps=1e-6)),
        "zeros": Probe(
            "a sum of zeros",
            lambda: (torch.ones(2, 4).double(), -torch.ones(2, 4).double(), torch.ones(4).double(), 1e-6),
        ),
        "bf16": Probe(
            "bfloat16, x much smaller than the residual",
            lambda: arguments(4, 512, seed=31, eps=1e-6, dtype=torch.bfloat16, small=0.1, large=8.0),
        ),
        "half_big": Probe(
            "float16 entries of size 300",
            lambda: arguments(2, 64, seed=41, eps=1e-6, dtype=torch.float16, small=200.0, large=200.0),
        ),
    },
    mistakes=(
        Mistake(
            "returns_old_residual",
            "random",
            {"return normed, total": "return normed, residual"},
            "You return the residual from before the addition.",
            "Return the sum: otherwise the next block loses this sublayer's output.",
        ),
        Mistake(
            "residual_is_normed",
            "random",
            {"return normed, total": "return normed, normed"},
            "You carry the normalized value on as the residual.",
            "The second output is the bare sum; yours makes Pre-Norm a Post-Norm.",
        ),
        Mistake(
            "norm_before_add",
            "random",
            {
                "wide = total.float() if total.dtype": "wide = x.float() if total.dtype",
                "else total": "else x",
                "* weight": "* weight + residual",
            },
            "You normalize x and then add the residual.",
            "Add first, normalize the sum.",
        ),
        Mistake(
            "norm_only_x",
            "random",
            {"wide = total.float() if total.dtype": "wide = x.float() if total.dtype", "else total": "else x"},
            "The normalized output ignores the residual.",
            "Normalize the sum.",
        ),
        Mistake(
            "norm_only_residual",
            "random",
            {
                "wide = total.float() if total.dtype": "wide = residual.float() if total.dtype",
                "else total": "else residual",
            },
            "You normalize the residual from before the addition.",
            "Normalize the sum.",
        ),
        Mistake(
            "single_output",
            "random",
            {"return normed, total": "return normed"},
            "You return the normalized value only.",
            "Return two tensors: the next addition needs the sum.",
        ),
        Mistake(
            "swapped",
            "random",
            {"return normed, total": "return total, normed"},
            "The two outputs are swapped.",
            "The order is (normed, new_residual).",
        ),
        Mistake(
            "adds_twice",
            "random",
            {"x + residual": "x + 2 * residual"},
            "You add the residual twice.",
            "Add it once.",
        ),
        Mistake(
            "gain_on_residual",
            "random",
            {"return normed, total": "return normed, total * weight"},
            "The gain leaked into the residual stream.",
            "Multiply only the normalized output by weight.",
        ),
        Mistake(
            "no_gain",
            "random",
            {" * weight": ""},
            "You never multiply by weight.",
            "The normalized output is multiplied by weight.",
        ),
        Mistake(
            "centered",
            "random",
            {"    rate =": "    wide = wide - wide.mean(-1, keepdim=True)\n    rate ="},
            "You subtract the mean: that is LayerNorm.",
            "RMSNorm keeps the mean.",
        ),
        Mistake(
            "sum_not_mean",
            "random",
            {".mean(-1": ".sum(-1"},
            "You divide by the Euclidean length.",
            "Take the mean of the squares.",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {
                "torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)": (
                    "1 / (wide.square().mean(-1, keepdim=True).sqrt() + eps)"
                )
            },
            "You add eps to the root mean square.",
            "eps stands inside the root.",
        ),
        Mistake(
            "eps_fixed",
            "big_eps",
            {" + eps": " + 1e-6"},
            "You use an eps of your own, not the one that is given.",
            "Use the argument eps.",
        ),
        Mistake(
            "no_eps",
            "zeros",
            {" + eps": ""},
            "You never use eps: a sum of zeros becomes NaN.",
            "Add eps inside the root.",
        ),
        Mistake(
            "half_stats",
            "half_big",
            {"total.float() if total.dtype in (torch.float16, torch.bfloat16) else total": "total"},
            "You square in float16: entries from 256 on become infinite.",
            "Widen half-precision sums before the square.",
        ),
        Mistake(
            "sum_not_rounded",
            "bf16",
            {"total.float() if": "x.float() + residual.float() if"},
            "You normalize the sum before it is rounded, and store the rounded one.",
            "Both pass; normalize the stored sum to get what the next block reads.",
            "kernels that keep the float32 sum in registers",
            accepted=True,
        ),
        Mistake(
            "cast_after_gain",
            "bf16",
            {"(wide * rate).to(x.dtype) * weight": "(wide * rate * weight).to(x.dtype)"},
            "You multiply by the gain in the wider type and round last.",
            "Llama rounds first; both orders pass.",
            "Gemma and OLMo 2",
            accepted=True,
        ),
    ),
    dtypes="random",
    gradients="random",
)
