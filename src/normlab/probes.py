"""Look inside a Transformer: the quantities of every residual sublayer, their variances, what a block changes.

:mod:`normlab.inspection.observe` does more, and for any model: attention logits, gradients, what a block is worth.
"""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlab.attention import SelfAttention
from normlab.placement import Residual
from normlab.transformer import Transformer


@dataclass(frozen=True)
class SublayerReading:
    """What one residual sublayer saw and did, as float64 on the CPU, each [B, T, d].

    ``stream`` is the residual stream x before the sublayer, ``sublayer_input`` what the sublayer was given (for PRE:
    Norm(x)), ``increment`` what is added to the stream: what the sublayer returned, behind its output norm and scale
    if there are any. ``stream_after`` is the stream behind it. Of parallel sublayers, which all read the same stream,
    the second one's ``stream`` holds the first one's increment.
    ``layer`` counts blocks from 1, ``kind`` is "attention" or "mlp".
    """

    layer: int
    kind: str
    stream: Tensor
    sublayer_input: Tensor
    increment: Tensor
    stream_after: Tensor


@torch.no_grad()
def readings(
    model: Transformer, ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any
) -> list[SublayerReading]:
    """Run ``ids`` [B, T] through the model and return one reading per residual sublayer, in order.

    Args:
        model: a Transformer of this package; for any other see :func:`normlab.inspection.observe.readings`.
        attention_mask: [B, T], 1 or True at real tokens, None if all are.
        inputs: more arguments of the model's call.

    Raises:
        TypeError: another model.
    """
    if not isinstance(model, Transformer):
        raise TypeError(
            f"probes.readings takes a normlab Transformer, got {type(model).__name__}; "
            "for other models there is normlab.inspection.observe.readings"
        )
    seen: dict[Residual, dict[str, Tensor]] = {}
    handles = []

    def keep(residual: Residual) -> None:
        def sublayer_hook(_, inputs, output):
            seen[residual] = {"sublayer_input": inputs[0], "increment": output}

        def output_norm_hook(_, inputs, output):
            seen[residual]["increment"] = residual.norm_scale * output

        def residual_hook(_, inputs, output):
            seen[residual] |= {"stream": inputs[0], "stream_after": output}

        handles.append(residual.sublayer.register_forward_hook(sublayer_hook))
        if residual.output_norm is not None:
            handles.append(residual.output_norm.register_forward_hook(output_norm_hook))
        handles.append(residual.register_forward_hook(residual_hook))

    for block in model.blocks:
        for residual in block.residuals:
            keep(residual)
    try:
        model(ids, attention_mask=attention_mask, **inputs)
    finally:
        for handle in handles:
            handle.remove()
    return [
        SublayerReading(
            layer,
            "attention" if isinstance(residual.sublayer, SelfAttention) else "mlp",
            **{name: tensor.cpu().double() for name, tensor in seen[residual].items()},
        )
        for layer, block in enumerate(model.blocks, start=1)
        for residual in block.residuals
    ]


def size(x: Tensor) -> float:
    """Root mean square over all entries, in float64."""
    return x.double().square().mean().sqrt().item()


def variance(x: Tensor) -> float:
    """Biased variance over the features (last axis) of each vector, averaged over the vectors, in float64."""
    return x.double().var(-1, correction=0).mean().item()


def covariance(x: Tensor, y: Tensor) -> float:
    """Biased covariance over the features of each pair of vectors, averaged over the pairs, in float64."""
    x, y = x.double(), y.double()
    return ((x - x.mean(-1, keepdim=True)) * (y - y.mean(-1, keepdim=True))).mean().item()


def correlation(x: Tensor, y: Tensor) -> float:
    """Covariance over the root of both variances, all as defined above; 0 if one of them is constant."""
    scale = (variance(x) * variance(y)) ** 0.5
    return covariance(x, y) / scale if scale else 0.0


def token_cosine(x: Tensor) -> float:
    """Mean cosine between different tokens of one sequence, x [B, T, d], in float64; 1 if all tokens are alike."""
    unit = torch.nn.functional.normalize(x.detach().double(), dim=-1)
    T = x.shape[1]
    total = unit.sum(1).square().sum(-1) - T  # all ordered pairs of different tokens
    return (total / (T * (T - 1))).mean().item()


@dataclass(frozen=True)
class VarianceStep:
    """One line of the variance account: after = before + increment + twice_covariance, up to rounding."""

    layer: int
    kind: str
    before: float
    increment: float
    twice_covariance: float
    after: float

    @property
    def error(self) -> float:
        """Relative error of the identity."""
        return abs(self.before + self.increment + self.twice_covariance - self.after) / self.after


def variance_account(readings: Sequence[SublayerReading]) -> list[VarianceStep]:
    """Var(x + r) = Var(x) + Var(r) + 2 Cov(x, r), sublayer by sublayer.

    Raises:
        ValueError: a reading whose stream is not the sum of stream and increment (POST, for example).
    """
    steps = []
    for r in readings:
        total = r.stream + r.increment
        if not torch.allclose(total, r.stream_after, rtol=1e-3, atol=1e-3 * size(total)):
            raise ValueError(f"block {r.layer} ({r.kind}): the stream after it is not stream + increment")
        steps.append(
            VarianceStep(
                r.layer,
                r.kind,
                variance(r.stream),
                variance(r.increment),
                2 * covariance(r.stream, r.increment),
                variance(r.stream_after),
            )
        )
    return steps


def covariance_share(account: Sequence[VarianceStep]) -> float:
    """The part of the growth of the stream's variance that came from covariance rather than from the increments."""
    return sum(s.twice_covariance for s in account) / (account[-1].after - account[0].before)


@dataclass(frozen=True)
class BlockStep:
    """How far one block moves the stream, each a mean over tokens.

    ``cosine`` is the cosine between the block's input x and its output y, ``change`` is norm(y - x) / norm(x).
    """

    layer: int
    cosine: float
    change: float


def block_steps(readings: Sequence[SublayerReading], attention_mask: Tensor | None = None) -> list[BlockStep]:
    """Compare every block's output with its input, at real tokens only."""
    steps = []
    for layer in sorted({r.layer for r in readings}):
        own = [r for r in readings if r.layer == layer]
        x, y = (_real(t, attention_mask) for t in (own[0].stream, own[-1].stream_after))
        steps.append(BlockStep(layer, torch.cosine_similarity(x, y, -1).mean().item(), relative_size(y - x, x)))
    return steps


def relative_size(r: Tensor, x: Tensor, attention_mask: Tensor | None = None) -> float:
    """norm(r) / norm(x) of each pair of vectors (last axis), averaged over the pairs, in float64."""
    r, x = _real(r.double(), attention_mask), _real(x.double(), attention_mask)
    return (r.norm(dim=-1) / x.norm(dim=-1)).mean().item()


def _real(x: Tensor, attention_mask: Tensor | None) -> Tensor:
    return x if attention_mask is None else x[attention_mask.cpu().bool()]


@contextmanager
def skipped(residuals: Sequence[Residual]):
    """Within the block, the given residual sublayers of our own Transformer hand the stream through unchanged."""
    before: list[Callable] = [r.forward for r in residuals]
    try:
        for r in residuals:
            r.forward = lambda x, **_: x  # type: ignore[method-assign, assignment]
        yield
    finally:
        for r, forward in zip(residuals, before):
            r.forward = forward  # type: ignore[method-assign]
