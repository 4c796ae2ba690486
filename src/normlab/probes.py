"""Look inside a Transformer: the three quantities of every residual sublayer, and their variances."""

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from normlab.attention import CausalSelfAttention
from normlab.placement import Residual
from normlab.transformer import Transformer


@dataclass(frozen=True)
class SublayerRecord:
    """What one residual sublayer saw and did, as float64 on the CPU, each [B, T, d].

    ``stream`` is the residual stream x before the sublayer, ``sublayer_input`` what the sublayer was given
    (for PRE: Norm(x)), ``increment`` what it returned, ``stream_after`` the stream behind it.
    ``layer`` counts blocks from 1, ``kind`` is "attention" or "mlp".
    """

    layer: int
    kind: str
    stream: Tensor
    sublayer_input: Tensor
    increment: Tensor
    stream_after: Tensor


@torch.no_grad()
def record(model: Transformer, ids: Tensor, attention_mask: Tensor | None = None) -> list[SublayerRecord]:
    """Run ``ids`` [B, T] through the model and return one record per residual sublayer, in order."""
    seen: dict[Residual, dict[str, Tensor]] = {}
    handles = []

    def keep(residual: Residual) -> None:
        def sublayer_hook(_, inputs, output):
            seen[residual] = {"sublayer_input": inputs[0], "increment": output}

        def residual_hook(_, inputs, output):
            seen[residual] |= {"stream": inputs[0], "stream_after": output}

        handles.append(residual.sublayer.register_forward_hook(sublayer_hook))
        handles.append(residual.register_forward_hook(residual_hook))

    for block in model.blocks:
        for residual in block.residuals:
            keep(residual)
    try:
        model(ids, attention_mask=attention_mask)
    finally:
        for handle in handles:
            handle.remove()
    return [
        SublayerRecord(
            layer,
            "attention" if isinstance(residual.sublayer, CausalSelfAttention) else "mlp",
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


def variance_account(records: Sequence[SublayerRecord]) -> list[VarianceStep]:
    """Var(x + r) = Var(x) + Var(r) + 2 Cov(x, r), sublayer by sublayer.

    Raises:
        ValueError: a record whose stream is not the sum of stream and increment (POST, for example).
    """
    steps = []
    for r in records:
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


@contextmanager
def skipped(residuals: Sequence[Residual]):
    """Within the block, the given residual sublayers hand the stream through unchanged."""
    before: list[Callable] = [r.forward for r in residuals]
    try:
        for r in residuals:
            r.forward = lambda x, **_: x
        yield
    finally:
        for r, forward in zip(residuals, before):
            r.forward = forward
