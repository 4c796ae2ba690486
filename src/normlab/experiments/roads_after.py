"""Roads after Pre and Post: what runs, why an output norm wants QK-norm, what QK-norm bounds."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from normlab import device, probes
from normlab.attention import QKNorm, SelfAttention, visibility
from normlab.experiments import small_models
from normlab.inspection import observe
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.training.losses import next_token_loss
from normlab.transformer import Transformer

# --- every road, one step ---------------------------------------------------------------------------------------------


def without_gradient(model: Transformer) -> list[str]:
    """Names of the parameters whose gradient on held-out text is zero but for rounding: in float64, below 1e-12 of the
    largest entry of all gradients.

    Raises:
        FloatingPointError: the loss or a gradient is not finite.
    """
    model = copy.deepcopy(model).double()
    with device.single_thread():
        loss = next_token_loss(model, *small_models.passages(2))
        loss.backward()
    sizes = {name: 0.0 if p.grad is None else p.grad.abs().max().item() for name, p in model.named_parameters()}
    largest = max(sizes.values())
    if not (loss.isfinite() and all(map(math.isfinite, sizes.values()))):
        raise FloatingPointError(f"the loss is {loss.item()}, the largest gradient {largest}")
    return [name for name, size in sizes.items() if size <= 1e-12 * largest]


# --- output norm with and without QK-norm -----------------------------------------------------------------------------


def output_stack(layers: int, seed: int, qk_norm: str = "none", init: str = "xavier", width: int = 32) -> Transformer:
    """x + RMSNorm(F(x)) in every sublayer, 2 heads, float64."""
    options = {"norm": "rmsnorm", "placement": Placement.OUTPUT, "qk_norm": qk_norm, "init": init}
    return small_models.model(seed, layers=layers, width=width, heads=2, **options).double()


@contextmanager
def frozen_logits(model: Transformer) -> Iterator[None]:
    """Within the block no gradient flows through queries and keys; what the model computes is the same."""
    attentions = [m for m in model.modules() if isinstance(m, SelfAttention)]
    handles = [
        projection.register_forward_hook(lambda module, inputs, output: output.detach())
        for attention in attentions
        for projection in (attention.query, attention.key)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def gradients(model: Transformer, sequences: int = 4) -> tuple[float, list[float]]:
    """Gradient of the loss on held-out text: its norm over the value and output matrices of the first attention
    (which get one under :func:`frozen_logits` as well), its root mean square on the stream before every block.
    """
    ids, targets = small_models.passages(sequences)
    streams: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0])) for block in model.blocks]
    first = model.blocks[0].residuals[0].sublayer
    with device.single_thread():
        try:
            loss = next_token_loss(model, ids, targets)
        finally:
            for hook in hooks:
                hook.remove()
        value, out, *slopes = torch.autograd.grad(loss, [first.value.weight, first.out.weight, *streams])
    return (value.square().sum() + out.square().sum()).sqrt().item(), [s.square().mean().sqrt().item() for s in slopes]


@torch.no_grad()
def focus(model: Transformer, sequences: int = 4) -> list[observe.AttentionReading]:
    """The attention logits of every block on held-out text, as :func:`normlab.inspection.observe.attention` gives them.

    That one traces the whole run, which takes seconds for 64 blocks; here the model is known.
    """
    ids = small_models.passages(sequences)[0]
    with device.single_thread():
        streams = [r.sublayer_input for r in probes.readings(model, ids) if r.kind == "attention"]
        logits = [block.residuals[0].sublayer.logits(x) for block, x in zip(model.blocks, streams, strict=True)]
    hidden = ~visibility(ids.shape[1])
    return [observe.AttentionReading(i, z.masked_fill(hidden, float("-inf"))) for i, z in enumerate(logits, 1)]


KINDS = {  # QK-norm, initialization
    "output norm": ("none", "xavier"),
    "no gradient through q, k": ("none", "xavier"),
    "with QK-norm": ("joint", "xavier"),
    "output norm, N(0, 0.02)": ("none", "gpt2"),
}


def explosion(kind: str, layers: int, seed: int) -> dict:
    """One of KINDS: :func:`gradients` (``first``; ``stream`` before every eighth block and the last), and the largest
    ``logit`` and the ``entropy`` of the first and the last block.
    """
    model = output_stack(layers, seed, *KINDS[kind])
    with frozen_logits(model) if kind.startswith("no gradient") else nullcontext():
        first, stream = gradients(model)
    attentions = focus(model)
    ends = attentions[0], attentions[-1]
    return {
        "first": first,
        "stream": [*stream[::8], stream[-1]],
        "logit": [end.largest for end in ends],
        "entropy": [end.entropy for end in ends],
    }


def slope(qk_norm: str, scale: float, seed: int = 0, tokens: int = 32, width: int = 32) -> float:
    """How strongly O(A(c x)) reacts to its input, c = ``scale``: ||J^T v|| / ||v|| for random x and v, float64.

    A is self-attention with Xavier weights, O an RMSNorm with eps = 0. With QK-norm O(A(c x)) = O(A(x)) for every c,
    so that the slope is exactly 1/c of that at c = 1.
    """
    attention = output_stack(1, seed, qk_norm, width=width).blocks[0].residuals[0].sublayer
    for norm in (attention.query_norm, attention.key_norm):
        if hasattr(norm, "eps"):
            norm.eps = 0.0
    generator = torch.Generator().manual_seed(100 + seed)
    x, v = (torch.randn(4, tokens, width, generator=generator, dtype=torch.float64) for _ in range(2))
    x = (scale * x).requires_grad_()
    with device.single_thread():
        y = attention(x)
        y = y / y.square().mean(-1, keepdim=True).sqrt()
        return (torch.autograd.grad((y * v).sum(), x)[0].norm() / v.norm()).item()


# --- the bound of QK-norm ---------------------------------------------------------------------------------------------


def logit_bound(attention: SelfAttention) -> float:
    """Largest logit that RMSNorms on queries and keys let through, whatever input and matrices are.

        per head: sqrt(d_h) max|g_q| max|g_k|
        joint: sqrt(H K) times as much, for H query and K key heads, since one head may hold all of a normed vector

    By Cauchy-Schwarz: a normed vector of n features is at most sqrt(n) max|g| long; scores are divided by sqrt(d_h).

    Raises:
        ValueError: no QK-norm.
    """
    if attention.qk_norm is QKNorm.NONE:
        raise ValueError("without QK-norm there is no bound")
    gains = [norm.weight.abs().max().item() for norm in (attention.query_norm, attention.key_norm)]
    heads = (attention.heads * attention.kv_heads) ** 0.5 if attention.qk_norm is QKNorm.JOINT else 1.0
    return heads * attention.head_dim**0.5 * gains[0] * gains[1]


def attention(qk_norm: str, seed: int = 0, gains: float = 0.0, scale: float = 1.0, **options: Any) -> SelfAttention:
    """Self-attention of width 32 with 4 heads, float64: matrices N(0, scale²/32), gains 1 + gains · N(0, 1)."""
    module = SelfAttention(32, 4, qk_norm=qk_norm, **options).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(scale * draw / 32**0.5 if p.dim() > 1 else 1 + gains * draw)
    return module


# --- record -----------------------------------------------------------------------------------------------------------


def _explosions(kind: str, layers: int, seeds: int) -> dict:
    found = [explosion(kind, layers, seed) for seed in range(seeds)]
    return small_models.five_digits({key: [run[key] for run in found] for key in found[0]})


RECORDS = (
    Recipe(
        "output_norm_gradients",
        "gradients at initialization behind output norms, with and without QK-norm, by depth: width 32, float64",
        grid(kind=list(KINDS), layers=[4, 16, 64], seeds=[6]),
        _explosions,
        larger=grid(kind=list(KINDS), layers=[4, 16, 64, 256], seeds=[20]),
    ),
)
