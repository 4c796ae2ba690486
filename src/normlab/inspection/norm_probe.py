"""What a module computes, found by feeding it: is it a norm, which one, with which eps, gain, bias and rounding?

Neither the module's name nor its attributes are read. Everything is tried on a copy with random parameters, because
unit gains hide most differences.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import Tensor, nn

from normlab.inspection.trace import FunctionalNorm
from normlab.norms import Convention, NormKind

_TOLERANCE = 1e-4  # relative; many norms compute in float32 whatever they are given
_LARGE = 1e3  # so large that no usual eps matters, so small that float32 squares are exact enough


class Gain(str, Enum):
    """How the gain is stored."""

    WEIGHT = "w"
    OFFSET = "1 + w"
    NONE = "none"
    UNKNOWN = "unknown"


class Cast(str, Enum):
    """When a norm with half-precision parameters rounds to the half type."""

    ONCE = "rounds once, at the end"
    BEFORE_GAIN = "rounds before the gain and again after it"
    OFFSET_FIRST = "adds 1 to the stored gain in the half type, then rounds once, at the end"
    UNKNOWN = "unknown"


class EpsPlace(str, Enum):
    """Where eps stands, with m the mean square (LayerNorm: the variance; ScaleNorm: the squared length)."""

    INSIDE = "sqrt(m + eps)"
    OUTSIDE = "sqrt(m) + eps"
    CLAMP = "max(sqrt(m), eps)"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NormReport:
    """What a norm was found to compute. None and UNKNOWN: nothing known fits; None also: does not apply.

    ``module`` is the class of the module, for the reader only. ``fraction`` is the leading part of the features that
    enters the statistic (1 except for partial RMSNorm); each of ``groups`` has a statistic of its own.
    ``across_tokens``: in training a token's output depends on other tokens.
    """

    module: str
    kind: NormKind | None
    width: int
    eps: float | None = None
    eps_place: EpsPlace = EpsPlace.UNKNOWN
    gain: Gain = Gain.UNKNOWN
    bias: bool | None = None
    cast: Cast | None = Cast.UNKNOWN
    fraction: float = 1.0
    groups: int = 1
    across_tokens: bool = False

    @property
    def convention(self) -> Convention | None:
        """The convention under which :func:`normlab.norms.make_norm` builds such a norm; None if there is none."""
        return _CONVENTIONS.get((self.kind, self.gain, self.bias, self.cast))

    def __str__(self) -> str:
        parts = [f"{self.kind.value if self.kind else 'unknown norm'} over {self.width} features"]
        if self.fraction != 1:
            parts.append(f"statistic over the first {self.fraction:.0%}")
        if self.groups != 1:
            parts.append(f"in {self.groups} groups")
        if self.across_tokens:
            parts.append("statistics across tokens")
        if self.eps is not None:
            place = "" if self.eps_place is EpsPlace.INSIDE or not self.eps else f" as {self.eps_place.value}"
            parts.append(f"eps {self.eps:g}{place}")
        if self.kind is not None:
            parts.append({Gain.NONE: "no gain", Gain.UNKNOWN: "unknown gain"}.get(self.gain, f"gain {self.gain.value}"))
            parts.append({True: "bias", False: "no bias", None: "unknown bias"}[self.bias])
            if self.cast is not None:
                parts.append("unknown rounding" if self.cast is Cast.UNKNOWN else self.cast.value)
        return ", ".join(parts) + f" ({self.module})"


_CONVENTIONS: dict[tuple[NormKind | None, Gain, bool | None, Cast | None], Convention] = {
    (NormKind.LAYERNORM, Gain.WEIGHT, True, Cast.ONCE): Convention.TORCH,
    (NormKind.LAYERNORM, Gain.WEIGHT, False, Cast.ONCE): Convention.NO_BIAS,
    (NormKind.LAYERNORM, Gain.OFFSET, True, Cast.OFFSET_FIRST): Convention.NEMOTRON,
    (NormKind.LAYERNORM, Gain.NONE, False, None): Convention.BARE,
    (NormKind.RMSNORM, Gain.WEIGHT, False, Cast.ONCE): Convention.OLMO2,
    (NormKind.RMSNORM, Gain.WEIGHT, False, Cast.BEFORE_GAIN): Convention.LLAMA,
    (NormKind.RMSNORM, Gain.OFFSET, False, Cast.ONCE): Convention.GEMMA,
    (NormKind.RMSNORM, Gain.NONE, False, None): Convention.BARE,
}


def measure(module: nn.Module, example: Tensor) -> NormReport | None:
    """Find out what ``module`` computes; None if it does not normalize, or takes no inputs but ``example``.

    Args:
        module: called with one tensor; a copy is tried.
        example: an input that it takes, features last, or second as in torch.nn.BatchNorm1d; only shape, dtype and
            device are used.
    """
    name = type(module).__name__
    candidates = [(module, example)]
    if example.dim() == 3:
        candidates.append((_FeaturesLast(module), example.transpose(1, 2)))
    reports = []
    for candidate, inputs in candidates:
        try:
            report = _measure(candidate, inputs, name)
        except Exception:  # whatever a module of unknown making raises on inputs that it was not made for
            continue
        if report is None or report.kind is not None:
            return report
        reports.append(report)
    return reports[0] if reports else None


@dataclass(frozen=True)
class Formula:
    """What a norm should compute, in float64: gain * (values / divisor) + bias, with the parameters that it has."""

    report: NormReport
    statistic: "_Statistic"
    gain: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        eps = self.report.eps or 0.0
        return self.gain * self.statistic.scores(x, eps, self.report.eps_place) + self.bias

    def mean_square(self, x: Tensor) -> Tensor:
        """What eps is added to, [..., groups, 1]."""
        return self.statistic.parts(x)[1]


def formula(module: nn.Module, example: Tensor, report: NormReport) -> Formula | None:
    """The formula of a norm with the gain and bias that it has now; None if its kind, eps or gain can't be told.

    Args:
        module, example, report: as in :func:`measure`, and what that returned.
    """
    centered = {NormKind.LAYERNORM: True, NormKind.RMSNORM: False, NormKind.SCALENORM: False, NormKind.GROUPNORM: True}
    if report.across_tokens or report.kind not in centered or report.eps_place is EpsPlace.UNKNOWN:
        return None
    statistic = _Statistic(centered[report.kind], (-1,), report.groups, report.fraction)
    try:
        probe = _Probe(module, example, torch.float64, redraw=False)
        x = probe.inputs()
        z, b = probe.halves(x)
    except Exception:  # whatever a module of unknown making raises
        return None
    eps, bias = report.eps or 0.0, probe.over_tokens(b)[0]
    if report.kind is NormKind.SCALENORM:  # its eps stands beside the squared length
        eps /= probe.width if report.eps_place is EpsPlace.INSIDE else probe.width**0.5
        report = replace(report, eps=eps)
    scores = statistic.scores(x, eps, report.eps_place)
    gain = _gain(probe, z, scores)
    if not gain.isfinite().all() or not _equal(z, gain * scores, 1e-3, floor=1e-3):
        return None
    gain = _as_stored(gain, probe.parameters)
    bias = _as_stored(bias, probe.parameters)
    return Formula(report, statistic, gain, bias)


def _as_stored(found: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """What was measured, to the last digit where it is a stored parameter, or that plus 1."""
    for parameter in parameters:
        if parameter.numel() == found.numel():
            stored = parameter.double().view(found.shape)
            for exact in (stored, 1 + stored):
                if _equal(exact, found, floor=1e-2):
                    return exact
    return found


def _measure(module: nn.Module, example: Tensor, name: str) -> NormReport | None:
    probe = _Probe(module, example)
    report = NormReport(name, None, probe.width, across_tokens=probe.crosses_tokens())
    fit = _match(probe)
    if fit is None:
        return report if probe.ignores_scale() else None
    gain, gain_parameter, bias_parameter = _roles(probe, fit)
    report = replace(report, kind=fit.kind, gain=gain, bias=bias_parameter is not None, cast=None)
    if fit.statistic is None:
        return report
    eps, place = _eps(probe, fit)
    report = replace(report, eps=eps, eps_place=place, fraction=fit.statistic.fraction, groups=fit.statistic.groups)
    if gain is Gain.NONE or fit.kind is NormKind.SCALENORM:
        return report
    if gain is Gain.UNKNOWN or gain_parameter is None or eps is None:
        return replace(report, cast=Cast.UNKNOWN)
    probe = _Probe(module, example, torch.bfloat16)
    x = probe.inputs(sequences=4, tokens=max(3, 2048 // probe.width))
    weight = probe.parameters[gain_parameter].double() + (1.0 if gain is Gain.OFFSET else 0.0)
    bias = None if bias_parameter is None else probe.parameters[bias_parameter].double()
    return replace(report, cast=_cast(probe(x), fit.statistic.scores(x, eps, place), weight, bias, gain))


class _FeaturesLast(nn.Module):
    """A module that wants features second, for inputs with features last."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.transpose(1, 2)).transpose(1, 2)


class _Probe:
    """A copy of the module with random parameters (or, without ``redraw``, its own), and inputs to feed it.

    Attributes:
        trailing: the axes over which gains may differ: features, or heads and features.
    """

    def __init__(self, module: nn.Module, example: Tensor, dtype: torch.dtype | None = None, redraw: bool = True):
        self.dtype = dtype or (torch.float64 if example.dtype == torch.float64 else torch.float32)
        self.module = copy.deepcopy(module).requires_grad_(False).to(self.dtype)
        # Running statistics take part in training only; norms without them behave the same in both modes.
        self.module.train(next(self.module.buffers(), None) is not None)
        self.parameters = list(self.module.parameters())
        self.device = example.device
        self.width = example.shape[-1]
        self.trailing = example.shape[-max([1, *(p.dim() for p in self.parameters)]) :]
        self.leading = example.dim() - len(self.trailing)
        self.generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters if redraw else ():
            self.redraw(parameter)

    def redraw(self, parameter: Tensor) -> None:
        """New random entries between 0.5 and 1.5."""
        parameter.copy_(torch.rand(parameter.shape, generator=self.generator) + 0.5)

    def inputs(self, sequences: int = 4, tokens: int = 3) -> Tensor:
        """Random vectors without small entries, three quarters of them positive, so that the mean matters."""
        leading = (sequences, tokens, *(1,) * self.leading)[: self.leading] if self.leading else ()
        shape = (*leading, *self.trailing)
        size = torch.rand(shape, generator=self.generator, dtype=torch.float64) + 0.5
        sign = 1.0 - 2.0 * (torch.rand(shape, generator=self.generator) < 0.25)
        return (size * sign).to(self.dtype).to(self.device)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        return self.module(x).double()

    def halves(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the output that changes sign with x (gain times normed x) and the part that does not (bias)."""
        plus, minus = self(x), self(-x)
        return (plus - minus) / 2, (plus + minus) / 2

    def over_tokens(self, x: Tensor) -> Tensor:
        """x with all axes of tokens made one."""
        return x.reshape(-1, *self.trailing)

    def reach(self) -> Tensor:
        """Where the output changes when one entry of the input does, bool of the input's shape."""
        x = self.inputs()
        other = x.clone()
        other.view(-1)[0] *= 16  # more than any other, so that the largest entry of the vector changes too
        return (self(x) - self(other)).abs() > 1e-5  # less is rounding: some norms choose their way by the whole batch

    def crosses_tokens(self) -> bool:
        return bool(self.over_tokens(self.reach())[1:].any())

    def ignores_scale(self) -> bool:
        """True if a large input may be doubled, features depend on each other, and x and -x differ by sign."""
        x = _LARGE * self.inputs()
        (z, b), (doubled, _) = self.halves(x), self.halves(2 * x)
        return _equal(doubled, z) and self.same_in_all_tokens(b) and bool(self.reach().sum() > 1)

    def same_in_all_tokens(self, b: Tensor) -> bool:
        return _equal(self.over_tokens(b)[:1], self.over_tokens(b), floor=1.0)


@dataclass(frozen=True)
class _Statistic:
    """What a vector is divided by: the root of the mean of squares over ``axes`` of the grouped features."""

    center: bool
    axes: tuple[int, ...]
    groups: int = 1
    fraction: float = 1.0

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The (centered) values and their mean square, both with the features split into [groups, features]."""
        x = x.double().unflatten(-1, (self.groups, -1))
        if self.center:
            x = x - x.mean(self.axes, keepdim=True)
        leading = x[..., : max(1, round(self.fraction * x.shape[-1]))]
        return x, leading.square().mean(self.axes, keepdim=True)

    def scores(self, x: Tensor, eps: float = 0.0, place: EpsPlace = EpsPlace.INSIDE) -> Tensor:
        values, square = self.parts(x)
        divisors = {
            EpsPlace.INSIDE: (square + eps).sqrt(),
            EpsPlace.OUTSIDE: square.sqrt() + eps,
            EpsPlace.CLAMP: square.sqrt().clamp_min(eps),
        }
        return (values / divisors[place]).flatten(-2)


@dataclass(frozen=True)
class _Fit:
    """output = gain * scores + bias on large inputs. Without ``statistic`` the scores are tanh(alpha x)."""

    kind: NormKind
    gain: Tensor
    statistic: _Statistic | None

    def scores(self, x: Tensor) -> Tensor:
        """The scores of large inputs."""
        return x.double().sign() if self.statistic is None else self.statistic.scores(x)


def _match(probe: _Probe) -> _Fit | None:
    """Which known norm gives the module's output on large inputs, up to a gain and a bias per feature."""
    if not (probe.parameters or probe.ignores_scale()):
        return None  # activations that saturate ignore scale too, but they have no parameters
    x = _LARGE * probe.inputs()
    z, b = probe.halves(x)
    if not z.any() or not (_equal(probe.halves(2 * x)[0], z) and probe.same_in_all_tokens(b)):
        return None  # all zero: its squares overflow at this size
    for kind, statistic in _candidates(probe, x, z):
        fit = _Fit(kind, _gain(probe, z, statistic.scores(x)), statistic)
        if _equal(fit.gain * fit.scores(x), z):
            return replace(fit, kind=NormKind.SCALENORM) if _is_scale_norm(probe, fit) else fit
    return _match_dyt(probe, z, x)


def _candidates(probe: _Probe, x: Tensor, z: Tensor) -> Iterator[tuple[NormKind, _Statistic]]:
    """Known norms: over the features of a token, over tokens, over groups of features, over some features."""
    features, tokens = (-1,), tuple(range(probe.leading))
    yield NormKind.LAYERNORM, _Statistic(True, features)
    yield NormKind.RMSNORM, _Statistic(False, features)
    if tokens:
        yield NormKind.BATCHNORM, _Statistic(True, tokens)
        yield NormKind.POWERNORM, _Statistic(False, tokens)
    divisors = [groups for groups in range(1, probe.width) if probe.width % groups == 0]
    if len(tokens) > 1:
        yield from ((NormKind.GROUPNORM, _Statistic(True, (*tokens[1:], -1), groups)) for groups in divisors)
    for groups in divisors[1:]:
        yield NormKind.GROUPNORM, _Statistic(True, features, groups)
        yield NormKind.RMSNORM, _Statistic(False, features, groups)
    # Partial RMSNorm: what two tokens are divided by compares as the mean squares of their leading features do.
    shrink = probe.over_tokens(z / x.double())
    divided = (shrink[:1] / shrink[1:]).flatten(1).mean(1, keepdim=True)
    squares = probe.over_tokens(x.double().square()).flatten(1)[:, : probe.width].cumsum(-1)
    misses = ((squares[1:] / squares[:1]).sqrt() - divided).abs().amax(0)
    yield NormKind.RMSNORM, _Statistic(False, features, fraction=(int(misses.argmin()) + 1) / probe.width)


def _match_dyt(probe: _Probe, z: Tensor, x: Tensor) -> _Fit | None:
    """gain * tanh(alpha x): entry by entry, and one alpha explains small inputs."""
    if not probe.parameters or probe.reach().sum() != 1:
        return None
    fit = _Fit(NormKind.DYT, _gain(probe, z, x.double().sign()), None)
    small = x / _LARGE
    alpha = torch.atanh(probe.halves(small)[0] / fit.gain) / small.double()
    return fit if _equal(alpha.flatten()[:1], alpha) else None


def _is_scale_norm(probe: _Probe, fit: _Fit) -> bool:
    """True if the vector is brought to one length, w or 1, rather than each feature to a size of its own."""
    length = fit.gain.flatten() * probe.width**0.5
    target = torch.ones(1, dtype=torch.float64, device=probe.device)
    if len(probe.parameters) == 1 and probe.parameters[0].numel() == 1:
        target = probe.parameters[0].double().flatten()
    plain = fit.statistic == _Statistic(False, (-1,))
    return plain and len(probe.parameters) < 2 and probe.width > 1 and _equal(target, length)


def _roles(probe: _Probe, fit: _Fit) -> tuple[Gain, int | None, int | None]:
    """How the gain is stored, and which parameters (by number) are gain and bias."""
    x = _LARGE * probe.inputs()
    z, b = probe.halves(x)
    gain_parameter = bias_parameter = None
    for number, parameter in enumerate(probe.parameters):
        before = parameter.clone()
        probe.redraw(parameter)
        other_z, other_b = probe.halves(x)
        parameter.copy_(before)
        if not _equal(other_z, z):
            gain_parameter = number
        elif not _equal(other_b, b, floor=1.0):
            bias_parameter = number
    length = probe.width**0.5 if fit.kind is NormKind.SCALENORM else 1.0
    gain = fit.gain * length
    if gain_parameter is None:
        return (Gain.NONE if _equal(torch.ones_like(gain), gain) else Gain.UNKNOWN), None, bias_parameter
    stored = probe.parameters[gain_parameter].double().expand_as(gain)
    if _equal(stored, gain):
        how = Gain.WEIGHT
    else:
        how = Gain.OFFSET if _equal(1 + stored, gain) else Gain.UNKNOWN
    if isinstance(probe.module, FunctionalNorm) and not probe.module.stored_gain:
        how = Gain.UNKNOWN
    return how, gain_parameter, bias_parameter


def _eps(probe: _Probe, fit: _Fit) -> tuple[float | None, EpsPlace]:
    """Shrink the input until eps shows, then see which formula gives the same eps at two sizes."""
    statistic = fit.statistic
    assert statistic is not None
    unit = probe.inputs()

    def divisor(size: float) -> tuple[Tensor, Tensor]:
        """What the values are divided by, and their mean square."""
        x = (size * unit.double()).to(unit.dtype)
        values, square = statistic.parts(x)
        values = fit.gain.unflatten(-1, (statistic.groups, -1)) * values
        got = probe.halves(x)[0].unflatten(-1, (statistic.groups, -1))
        sums = [(values * other).sum(statistic.axes, keepdim=True) for other in (values, got)]
        return sums[0] / sums[1], square

    size = 1.0
    while True:
        size /= 2
        D, square = divisor(size)
        if not D.isfinite().all() or size < 1e-16:
            return 0.0, EpsPlace.INSIDE
        if (D / square.sqrt()).min() > 1.2:
            break
    D2, square2 = divisor(size / 4)
    forms = {
        EpsPlace.INSIDE: (D**2 - square, D2**2 - square2),
        EpsPlace.OUTSIDE: (D - square.sqrt(), D2 - square2.sqrt()),
        EpsPlace.CLAMP: (D, D2),
    }
    for place, (first, second) in forms.items():
        if _equal(first.flatten()[:1], first, 1e-3) and _equal(first, second, 1e-3):
            eps = first.median().item()
            if fit.kind is NormKind.SCALENORM:
                eps *= probe.width if place is EpsPlace.INSIDE else probe.width**0.5
            return float(f"{eps:.5g}"), place
    return None, EpsPlace.UNKNOWN


def _cast(got: Tensor, scores: Tensor, weight: Tensor, bias: Tensor | None, gain: Gain) -> Cast:
    """Compare bfloat16 outputs with all orders of rounding, computed from float64 scores and effective gain."""

    def half(t: Tensor) -> Tensor:
        return t.to(torch.bfloat16).double()

    shift = 0.0 if bias is None else bias
    orders = {
        Cast.ONCE: half(weight * scores + shift),
        Cast.BEFORE_GAIN: half(half(half(weight) * half(scores)) + shift),
    }
    if gain is Gain.OFFSET:
        orders[Cast.OFFSET_FIRST] = half(half(weight) * scores + shift)
    misses = {order: (got != expected).double().mean().item() for order, expected in orders.items()}
    best, second = sorted(misses, key=misses.__getitem__)[:2]
    return best if misses[best] < 0.01 and misses[second] > 0.03 else Cast.UNKNOWN


def _gain(probe: _Probe, z: Tensor, scores: Tensor) -> Tensor:
    """Least-squares gain per feature: z = gain * scores over all tokens."""
    z, scores = probe.over_tokens(z), probe.over_tokens(scores)
    return (z * scores).sum(0) / scores.square().sum(0)


def _equal(expected: Tensor, actual: Tensor, tolerance: float = _TOLERANCE, floor: float = 0.0) -> bool:
    """True if the largest difference is small against the largest expected entry, or against ``floor``."""
    return bool((actual - expected).abs().max() <= tolerance * max(expected.abs().max().item(), floor))
