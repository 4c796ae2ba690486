"""What a solution returned: brought to plain form, compared, and held against the contract."""

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

HALF = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}  # a unit in the last place of numbers from 1 to 2
MAY_DIFFER = 0.02  # the share of half-precision entries that rounding in another order may change


@dataclass(frozen=True)
class Strange:
    """A result of a kind that no drill asks for."""

    kind: str


def plain(value: Any) -> Any:
    """Tensors without gradients, numbers, texts, None, and tuples, frozensets and dictionaries of them."""
    if isinstance(value, Tensor):
        return value.detach().clone().as_subclass(Tensor)
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, set | frozenset):
        return frozenset(map(str, value))
    return Strange(type(value).__name__)


def same(a: Any, b: Any, tolerance: float, loose: bool = False) -> bool:
    """a is b, up to ``tolerance`` times the largest entry of b.

    In float16 and bfloat16 nearly all entries must agree bit for bit. ``loose``: there to 5 %, and dtypes may differ.
    """
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape or (a.dtype != b.dtype and not loose):
            return False
        return _same_entries(a, b, tolerance, loose)
    if isinstance(b, dict):
        return isinstance(a, dict) and a.keys() == b.keys() and all(same(a[k], b[k], tolerance, loose) for k in b)
    if isinstance(b, tuple):
        return isinstance(a, tuple) and len(a) == len(b) and all(same(x, y, tolerance, loose) for x, y in zip(a, b))
    if _is_number(a) and _is_number(b):
        return _same_entries(_as_tensor(a), _as_tensor(b), tolerance, loose)
    return type(a) is type(b) and bool(a == b)


def _same_entries(a: Tensor, b: Tensor, tolerance: float, loose: bool) -> bool:
    half = next((dtype for dtype in (a.dtype, b.dtype) if dtype in HALF), None)
    a, b = a.double(), b.double()
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
        return False
    a, b = a[finite], b[finite]
    if not b.numel():
        return True
    off, size = (a - b).abs(), b.abs().max()
    if half is None:
        return bool(off.max() <= tolerance * size)
    if loose:
        return bool(off.max() <= 0.05 * size)
    return bool((off <= 4 * HALF[half] * b.abs()).all() and (off > 0).double().mean() <= MAY_DIFFER)


def digest(value: Any) -> list[tuple[str, float, list[float]]]:
    """Each leaf of a result in short: its kind, by how much an equal one may be off at most, its first entries."""
    if isinstance(value, dict):
        return [("dict", 0.0, [float(len(value))]), *(leaf for key in sorted(value) for leaf in digest(value[key]))]
    if isinstance(value, tuple):
        return [("tuple", 0.0, [float(len(value))]), *(leaf for item in value for leaf in digest(item))]
    if _is_number(value) or isinstance(value, Tensor):
        tensor = torch.as_tensor(value)
        entries = tensor.double().reshape(-1)
        size = float(entries.nan_to_num(0, 0, 0).abs().max()) if entries.numel() else 0.0
        shape = "number" if _is_number(value) else str(tuple(tensor.shape))
        return [(shape, size * (0.06 if tensor.dtype in HALF else 1e-3), entries[:8].tolist())]
    return [(repr(sorted(value) if isinstance(value, frozenset) else value), 0.0, [])]


def apart(a: list[tuple[str, float, list[float]]], b: list[tuple[str, float, list[float]]]) -> bool:
    """Two digests differ by so much that :func:`same` would say no; quick, for a search through many."""
    if len(a) != len(b):
        return True
    for (kind, allowed, mine), (other, allowed_too, theirs) in zip(a, b):
        most = max(allowed, allowed_too)
        if kind != other or any(abs(x - y) > most or (x == x) != (y == y) for x, y in zip(mine, theirs)):
            return True
    return False


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.dim() == 0
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.float64)


def broken(got: Any, wanted: Any, where: str = "") -> tuple[str, str] | None:
    """What of the contract a result breaks: (id, sentence), or None. Values are looked at only for NaN and infinity."""
    it = where or "the result"
    if got is None and wanted is not None:
        return "wrong_type", f"{it} is None: is the return statement missing?"
    if isinstance(wanted, dict):
        if not isinstance(got, dict) or got.keys() != wanted.keys():
            return "wrong_type", f"{it} must be a dictionary with the keys {', '.join(wanted)}, got {name(got)}"
        return None  # facts that a drill gathered itself
    if isinstance(wanted, tuple):
        count = len(got) if isinstance(got, tuple) else 1
        if count != len(wanted):
            return "wrong_count", f"{count} thing(s) returned, {len(wanted)} are asked for"
        if isinstance(got, tuple):
            places = range(len(wanted))
            return next((f for i in places if (f := broken(got[i], wanted[i], f"output {i + 1}"))), None)
    if _is_number(wanted):
        if not _is_number(got):
            return "wrong_type", f"{it} must be one number, got {name(got)}"
        if math.isfinite(float(wanted)) and not math.isfinite(float(got)):
            return "not_finite", f"{it} is {float(got)}"
        return None
    if isinstance(wanted, Tensor):
        if not isinstance(got, Tensor):
            return "wrong_type", f"{it} must be a tensor, got {name(got)}"
        if got.shape != wanted.shape:
            return "wrong_shape", f"{it} has shape {tuple(got.shape)}, it must have {tuple(wanted.shape)}"
        if got.dtype != wanted.dtype:
            return "wrong_dtype", f"{it} is {_short(got.dtype)}, it must be {_short(wanted.dtype)}"
        if wanted.isfinite().all() and not got.isfinite().all():
            return "not_finite", f"{it} holds NaN or infinity"
        return None
    return None if type(got) is type(wanted) else ("wrong_type", f"{it} must be a {name(wanted)}, got {name(got)}")


def name(value: Any) -> str:
    """How a message calls a result."""
    if isinstance(value, Strange):
        return f"a {value.kind}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{len(value)} things" if isinstance(value, tuple) else type(value).__name__


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def example(got: Any, wanted: Any, tolerance: float) -> str:
    """Where two results differ first: up to four numbers of each, as two lines of text; of sets, what is amiss."""
    if isinstance(got, frozenset) and isinstance(wanted, frozenset):
        amiss = {"missing": wanted - got, "too many": got - wanted}
        return "\n".join(f"  {how}  {', '.join(sorted(names))}" for how, names in amiss.items() if names)
    if isinstance(wanted, tuple | dict) and type(got) is type(wanted) and len(got) == len(wanted):
        keys = list(wanted) if isinstance(wanted, dict) else range(len(wanted))
        for key in keys:
            if isinstance(wanted, dict) and key not in got:
                continue
            if not same(got[key], wanted[key], tolerance):
                label = key if isinstance(wanted, dict) else f"output {key + 1}"
                return f"{label}:\n{example(got[key], wanted[key], tolerance)}"
    if isinstance(got, Tensor) and isinstance(wanted, Tensor) and got.shape == wanted.shape and wanted.dim():
        off = (got.double() - wanted.double()).abs().nan_to_num(math.inf, math.inf)
        width = wanted.shape[-1]
        row = int(off.reshape(-1).argmax()) // width if off.numel() else 0
        got, wanted = got.reshape(-1, width)[row, :4], wanted.reshape(-1, width)[row, :4]
    return f"  yours  {show(got)}\n  right  {show(wanted)}"


def show(value: Any) -> str:
    """A result in few characters."""
    if isinstance(value, Tensor):
        entries = value.double().reshape(-1)[:4].tolist()
        text = "  ".join(f"{entry:.5g}" for entry in entries)
        return f"[{text}]" if value.dim() < 2 and value.numel() <= 4 else f"shape {tuple(value.shape)}: [{text} …]"
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, tuple):
        return ", ".join(map(show, value[:4]))
    return name(value) if isinstance(value, Strange) else str(value)
