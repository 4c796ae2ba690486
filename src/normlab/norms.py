"""Normalization layers as modules that hold the parameters (knob one: how to compute).

Parameter names are torch's (``weight``, ``bias``), so that state dicts are interchangeable with those of
``torch.nn.LayerNorm``, ``RMSNorm``, ``GroupNorm`` and ``BatchNorm1d``. Features stand last. Every module is called as
``norm(x, mask=None)`` with x [..., width] and mask [...] (1/True = real token); a norm that treats each token alone
has no use for the mask and ignores it. LayerNorm and RMSNorm compute by :mod:`normlab.fast`, or inside
``with fast.enabled(False):`` by the formulas of :mod:`normlab.functional`, which are meant to be read.
"""

from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from normlab import fast, functional
from normlab.across_tokens import GroupOver
from normlab.arithmetic import check_count, check_eps, check_number, check_share, check_width
from normlab.conventions import (
    LAYER_NORM_CONVENTIONS,
    RMS_NORM_CONVENTIONS,
    Convention,
    check_fraction,
    choose_convention,
)

__all__ = [
    "BatchNorm",
    "Convention",
    "DyT",
    "GroupNorm",
    "GroupOver",
    "Identity",
    "LayerNorm",
    "NormKind",
    "PowerNorm",
    "RMSNorm",
    "ScaleNorm",
    "make_norm",
]


class NormKind(str, Enum):
    """How a normalization layer computes."""

    LAYERNORM = "layernorm"
    RMSNORM = "rmsnorm"
    BATCHNORM = "batchnorm"
    GROUPNORM = "groupnorm"
    POWERNORM = "powernorm"
    SCALENORM = "scalenorm"
    DYT = "dyt"
    IDENTITY = "identity"


class LayerNorm(nn.Module):
    """:func:`normlab.functional.layer_norm` with a learned gain ``weight`` [width] and shift ``bias`` [width].

    The convention decides which of the two exist. Under NEMOTRON ``weight`` is the gain minus 1 and starts at 0.
    """

    def __init__(self, width: int, eps: float = 1e-5, convention: Convention | str = Convention.DEFAULT):
        super().__init__()
        _check_settings(width, eps)
        self.width = width
        self.eps = eps
        self.convention = choose_convention(convention, LAYER_NORM_CONVENTIONS, "layernorm")
        self.weight = _gain(width, self.convention)
        has_bias = self.convention not in (Convention.NO_BIAS, Convention.BARE)
        self.bias = nn.Parameter(torch.zeros(width)) if has_bias else None

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        weight = self.weight
        if weight is None:
            check_width(x, self.width)
        formulas = fast if fast.is_enabled() else functional
        return formulas.layer_norm(x, weight, self.bias, self.eps, convention=self.convention)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, convention={self.convention.value}"


class RMSNorm(nn.Module):
    """:func:`normlab.functional.rms_norm` with a learned gain ``weight`` [width].

    Under GEMMA ``weight`` is the gain minus 1 and starts at 0; under BARE it is None.
    """

    def __init__(
        self,
        width: int,
        eps: float = 1e-6,
        convention: Convention | str = Convention.DEFAULT,
        fraction: float = 1.0,
    ):
        super().__init__()
        _check_settings(width, eps)
        self.width = width
        self.eps = eps
        self.convention = choose_convention(convention, RMS_NORM_CONVENTIONS, "rmsnorm")
        check_fraction(fraction, self.convention)
        self.fraction = fraction
        self.weight = _gain(width, self.convention)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        weight = self.weight
        if weight is None:
            check_width(x, self.width)
        formulas = fast if fast.is_enabled() else functional
        return formulas.rms_norm(x, weight, self.eps, convention=self.convention, fraction=self.fraction)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, convention={self.convention.value}, fraction={self.fraction}"


class BatchNorm(nn.Module):
    """:func:`normlab.functional.batch_norm` with running statistics, kept as ``torch.nn.BatchNorm1d`` keeps them.

    In training the batch is normalized with its own biased variance, and ``running_mean`` and ``running_var`` [width]
    move towards its mean and *unbiased* variance by the share ``momentum`` (torch's sense: the weight of the new
    value; None = the mean over all batches so far). In evaluation the running statistics are used. As with torch's
    module, ``torch.func`` transforms of training need them passed in: ``functional_call(norm, (parameters, buffers), x)``.

    Raises (in training): ValueError on a batch with fewer than two real tokens.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, width: int, eps: float = 1e-6, momentum: float | None = 0.1):
        super().__init__()
        _check_settings(width, eps)
        if momentum is not None:
            check_share("momentum", momentum)
        self.width = width
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.training:
            y = functional.batch_norm(x, self.weight, self.bias, self.eps, mask=mask)
            self._track(x, mask)
            return y
        running = functional.Moments(self.running_mean, self.running_var, 0)
        return functional.batch_norm(x, self.weight, self.bias, self.eps, mask=mask, moments=running)

    @torch.no_grad()
    def _track(self, x: Tensor, mask: Tensor | None) -> None:
        batch = functional.batch_moments(x, mask)
        self.num_batches_tracked.add_(1)
        batches = self.num_batches_tracked.to(_wide(self.running_mean))
        share = 1 / batches if self.momentum is None else self.momentum
        _move(self.running_mean, batch.mean, share)
        _move(self.running_var, batch.unbiased_var, share)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, momentum={self.momentum}"


def _wide(running: Tensor) -> torch.dtype:
    """The dtype in which a running quantity is updated."""
    return torch.promote_types(running.dtype, torch.float32)


def _move(running: Tensor, target: Tensor, share: Tensor | float) -> None:
    """Move a running quantity in place towards ``target``, by ``share`` of the way."""
    wide = _wide(running)
    running.copy_(torch.lerp(running.to(wide), target.to(wide), share))


class GroupNorm(nn.Module):
    """:func:`normlab.functional.group_norm` with a learned gain ``weight`` [width] and shift ``bias`` [width].

    Over FEATURES it treats every token alone and ignores the mask; over TOKENS it is torch's GroupNorm.
    """

    def __init__(self, width: int, eps: float = 1e-6, groups: int = 1, over: GroupOver | str = GroupOver.FEATURES):
        super().__init__()
        _check_settings(width, eps)
        check_count("groups", groups)
        if width % groups:
            raise ValueError(f"groups must divide the width, got groups={groups}, width={width}")
        self.width = width
        self.eps = eps
        self.groups = groups
        self.over = GroupOver(over)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.group_norm(x, self.groups, self.weight, self.bias, self.eps, over=self.over, mask=mask)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, groups={self.groups}, over={self.over.value}"


class PowerNorm(nn.Module):
    """:func:`normlab.functional.power_norm` with its running quantities.

    For the first ``warmup`` training steps the batch's own mean square divides, and ``running_phi`` [width] is the
    mean over those batches. Later the running value of the steps before divides, then moves by 1 - ``alpha_fwd``
    towards the batch. The backward pass uses and updates ``running_nu`` [width] throughout (``alpha_bkw``).
    Evaluation divides by the running value.

    ``group_scaling`` puts :func:`normlab.functional.group_scaling` with so many groups in front. The published code
    always does that, with one group (an RMSNorm), and training was reported to fail without it.
    """

    running_phi: Tensor
    running_nu: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        width: int,
        eps: float = 1e-6,
        alpha_fwd: float = 0.9,
        alpha_bkw: float = 0.9,
        warmup: int = 10_000,
        group_scaling: int | None = None,
    ):
        super().__init__()
        _check_settings(width, eps)
        check_share("alpha_fwd", alpha_fwd)
        check_share("alpha_bkw", alpha_bkw)
        check_count("warmup", warmup, least=0)
        if group_scaling is not None:
            check_count("group_scaling", group_scaling)
            if width % group_scaling:
                raise ValueError(f"group_scaling must divide the width, got {group_scaling} and width={width}")
        self.width = width
        self.eps = eps
        self.alpha_fwd = alpha_fwd
        self.alpha_bkw = alpha_bkw
        self.warmup = warmup
        self.group_scaling = group_scaling
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("running_phi", torch.ones(width))
        self.register_buffer("running_nu", torch.zeros(width))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        check_width(x, self.width)
        if self.group_scaling is not None:
            x = functional.group_scaling(x, self.group_scaling, self.eps, mask=mask)
        weight, bias, eps, phi = self.weight, self.bias, self.eps, self.running_phi
        if not self.training:
            return functional.power_norm(x, weight, bias, eps, mask=mask, phi=phi)
        batch = functional.mean_square(x, mask)
        used = torch.where(self.num_batches_tracked < self.warmup, batch, phi)
        y = functional.power_norm(
            x, weight, bias, eps, mask=mask, phi=used, nu=self.running_nu, backward_decay=self.alpha_bkw
        )
        if x.numel():
            self._track(batch, True if mask is None else mask.any())
        return y

    @torch.no_grad()
    def _track(self, batch: Tensor, seen: Tensor | bool) -> None:
        """Take in the mean square of a batch, unless it had no real token."""
        self.num_batches_tracked.add_(seen)
        step = self.num_batches_tracked.to(_wide(self.running_phi))
        share = torch.where(step <= self.warmup, 1 / step.clamp(min=1), 1 - self.alpha_fwd)
        _move(self.running_phi, batch, share * seen)

    def extra_repr(self) -> str:
        return (
            f"{self.width}, eps={self.eps}, alpha_fwd={self.alpha_fwd}, alpha_bkw={self.alpha_bkw}, "
            f"warmup={self.warmup}, group_scaling={self.group_scaling}"
        )


class ScaleNorm(nn.Module):
    """:func:`normlab.functional.scale_norm` with one learned length ``weight`` [], at first sqrt(width)."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        _check_settings(width, eps)
        self.width = width
        self.eps = eps
        self.weight = nn.Parameter(torch.tensor(width**0.5))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        check_width(x, self.width)
        return functional.scale_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}"


class DyT(nn.Module):
    """:func:`normlab.functional.dyt` with learned ``alpha`` [], ``weight`` [width] and ``bias`` [width]."""

    def __init__(self, width: int, alpha: float = 0.5):
        super().__init__()
        check_count("width", width)
        check_number("alpha", alpha)
        self.width = width
        self.alpha = nn.Parameter(torch.tensor(float(alpha)))
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.dyt(x, self.weight, self.bias, self.alpha)

    def extra_repr(self) -> str:
        return f"{self.width}"


class Identity(nn.Identity):
    """No normalization: returns x."""

    def __init__(self) -> None:
        super().__init__()  # nn.Identity would swallow any argument

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return functional.identity(x)


def make_norm(
    kind: NormKind | str,
    width: int,
    *,
    eps: float | None = None,
    convention: Convention | str = Convention.DEFAULT,
    **options: Any,
) -> nn.Module:
    """Build a normalization layer over vectors of ``width`` features.

    Args:
        kind: a :class:`NormKind` or its string.
        width: number of features, at least 1.
        eps: None means 1e-5 for layernorm and 1e-6 for the others. dyt and identity have no use for it.
        convention: a :class:`Convention` or its string; kinds other than layernorm and rmsnorm know only DEFAULT.
        options: passed on to the class of that kind: ``fraction`` (rmsnorm), ``momentum`` (batchnorm), ``groups``
            and ``over`` (groupnorm), ``alpha_fwd``, ``alpha_bkw``, ``warmup`` and ``group_scaling`` (powernorm),
            ``alpha`` (dyt).

    Raises:
        ValueError: unknown kind (the message lists the kinds), a convention that the kind does not know, width below
            1, or a number out of range (NaN and infinity are).
        TypeError: an option that the kind does not have, a width that is no integer, or another number that is none.
    """
    try:
        kind = NormKind(kind)
    except ValueError:
        known = ", ".join(k.value for k in NormKind)
        raise ValueError(f"unknown norm kind {kind!r}; known kinds: {known}") from None
    _check_settings(width, 0.0 if eps is None else eps)
    if kind is NormKind.LAYERNORM:
        return LayerNorm(width, 1e-5 if eps is None else eps, convention, **options)
    if kind is NormKind.RMSNORM:
        return RMSNorm(width, 1e-6 if eps is None else eps, convention, **options)
    choose_convention(convention, (Convention.DEFAULT,), kind.value)
    if kind is NormKind.IDENTITY:
        return Identity(**options)
    if kind is NormKind.DYT:
        return DyT(width, **options)
    classes = {
        NormKind.BATCHNORM: BatchNorm,
        NormKind.GROUPNORM: GroupNorm,
        NormKind.POWERNORM: PowerNorm,
        NormKind.SCALENORM: ScaleNorm,
    }
    return classes[kind](width, 1e-6 if eps is None else eps, **options)


def _check_settings(width: int, eps: float) -> None:
    check_count("width", width)
    check_eps(eps)


def _gain(width: int, convention: Convention) -> nn.Parameter | None:
    """The stored gain of a fresh layer, whose effect is always a gain of 1."""
    if convention is Convention.BARE:
        return None
    stored_minus_one = convention in (Convention.GEMMA, Convention.NEMOTRON)
    return nn.Parameter(torch.zeros(width) if stored_minus_one else torch.ones(width))
