"""Drill: the wiring of a Pre-Norm block."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal
from normlab.drills.properties import block_properties


def pre_norm_block(x, attention, mlp, norm1, norm2):
    h = x + attention(norm1(x))
    return h + mlp(norm2(h))


def rms(gain, eps=1e-6):
    return lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain.to(x.dtype)


def arguments(*shape: int, seed: int, norms: int, zero: bool = False, factor: float = 1.0):
    # Attention mixes tokens, and all norms have different gains.
    width = shape[-1]
    a, b = (normal(width, width, seed=seed + i, std=0.6 * factor) for i in (1, 2))

    def attention(h):
        return torch.zeros_like(h) if zero else torch.tanh(h.cumsum(-2) @ a.to(h.dtype)) * factor

    def mlp(h):
        return torch.zeros_like(h) if zero else torch.relu(h @ b.to(h.dtype)) * factor

    gains = [rms(normal(width, seed=seed + 3 + i, mean=1 + 0.3 * i, std=0.4)) for i in range(norms)]
    return normal(*shape, seed=seed, mean=0.5, std=2), attention, mlp, *gains


def block_probes(norms: int) -> dict[str, Probe]:
    return {
        "random": Probe("random sublayers", lambda: arguments(2, 5, 6, seed=1, norms=norms)),
        "zero_sub": Probe(
            "two sublayers that return zeros", lambda: arguments(2, 4, 6, seed=11, norms=norms, zero=True)
        ),
        "two_axes": Probe(
            "shape (3, 5) and large sublayers", lambda: arguments(3, 5, seed=21, norms=norms, factor=3.0)
        ),
    }


DRILL = Drill(
    solution=pre_norm_block,
    task="Wire a Pre-Norm block: attention first, then the mlp, each with its own norm and its own skip. attention, "
    "mlp, norm1 and norm2 are functions of a tensor [..., d] that return one of the same shape; norm1 belongs to "
    "attention. Return the new residual stream [..., d].",
    minutes=4,
    why="GPT-2 and Llama are this block; drawing it is a quick first question.",
    hints=(
        "What does each sublayer read, and what is added to the stream?",
        "With two sublayers that return zeros the block must return x unchanged.",
        "The mlp reads the stream after attention was added.",
    ),
    probes=block_probes(2),
    mistakes=(
        Mistake(
            "post",
            "zero_sub",
            {"x + attention(norm1(x))": "norm1(x + attention(x))", "h + mlp(norm2(h))": "norm2(h + mlp(h))"},
            "You normalize after the addition: that is Post-Norm.",
            "Normalize what the sublayer reads; the stream itself only adds.",
            "the 2017 Transformer and BERT",
        ),
        Mistake(
            "residual_from_normed",
            "zero_sub",
            {
                "x + attention(norm1(x))": "norm1(x) + attention(norm1(x))",
                "h + mlp(norm2(h))": "norm2(h) + mlp(norm2(h))",
            },
            "The skips start from the normalized stream.",
            "Add to x itself, so that a clean path leads through the block.",
        ),
        Mistake(
            "first_residual_from_normed",
            "zero_sub",
            {"x + attention(norm1(x))": "norm1(x) + attention(norm1(x))"},
            "The first skip starts from norm1(x).",
            "Add attention's output to x itself.",
        ),
        Mistake(
            "second_residual_from_normed",
            "zero_sub",
            {"h + mlp(norm2(h))": "norm2(h) + mlp(norm2(h))"},
            "The second skip starts from norm2(h).",
            "Add the mlp's output to the stream itself.",
        ),
        Mistake(
            "parallel",
            "random",
            {"mlp(norm2(h))": "mlp(norm2(x))"},
            "The mlp reads the block's input.",
            "It reads the stream after attention was added.",
            "GPT-NeoX: the parallel block (GPT-J and PaLM have one norm for both)",
        ),
        Mistake(
            "mlp_reads_branch",
            "random",
            {"mlp(norm2(h))": "mlp(norm2(h - x))"},
            "The mlp reads attention's output alone.",
            "It reads the stream after attention was added.",
        ),
        Mistake(
            "second_skip_from_x",
            "random",
            {"h + mlp": "x + mlp"},
            "The second skip starts from the block's input: attention's output drops out of the stream.",
            "Add the mlp's output to the stream after attention.",
        ),
        Mistake(
            "shared_norm",
            "random",
            {"norm2(h)": "norm1(h)"},
            "Both sublayers use the first norm.",
            "Each has its own gain: use norm2 for the mlp.",
        ),
        Mistake(
            "norms_swapped",
            "random",
            {"norm1(x)": "norm2(x)", "norm2(h)": "norm1(h)"},
            "The two norms are swapped.",
            "norm1 belongs to attention, norm2 to the mlp.",
        ),
        Mistake(
            "no_norm_mlp",
            "random",
            {"mlp(norm2(h))": "mlp(h)"},
            "The mlp reads the bare stream.",
            "Normalize what it reads.",
        ),
        Mistake(
            "no_norm_attention",
            "random",
            {"attention(norm1(x))": "attention(x)"},
            "Attention reads the bare stream.",
            "Normalize what it reads.",
        ),
        Mistake(
            "no_skip_attention",
            "random",
            {"x + attention": "attention"},
            "Attention has no skip.",
            "Add its output to x.",
        ),
        Mistake(
            "no_skip_mlp",
            "random",
            {"h + mlp": "mlp"},
            "The mlp has no skip.",
            "Add its output to the stream.",
        ),
        Mistake(
            "out_norm",
            "random",
            {"attention(norm1(x))": "norm1(attention(x))", "mlp(norm2(h))": "norm2(mlp(h))"},
            "You normalize what the sublayers return.",
            "Normalize what they read.",
            "OLMo 2",
        ),
        Mistake(
            "order_swapped",
            "random",
            {"attention(norm1(x))": "mlp(norm1(x))", "mlp(norm2(h))": "attention(norm2(h))"},
            "The mlp comes first.",
            "Attention first, then the mlp.",
        ),
        Mistake(
            "extra_norm",
            "zero_sub",
            {"return h + mlp(norm2(h))": "return norm2(h + mlp(norm2(h)))"},
            "You normalize the block's output once more.",
            "The final norm stands once, after the last block.",
        ),
    ),
    properties=block_properties(norms=2),
    dtypes="random",
    gradients="random",
)
