"""The right answers of inspect_answers.yml, and what ``normlab.inspect`` said, compared field by field.

Helpers for tests, no tests.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from normlab.attention import QKNorm
from normlab.inspection.norm_probe import Cast, Gain, NormReport
from normlab.inspection.report import BlockReport, LastHidden, ModelReport, QKNormReport, StackReport, SublayerReport
from normlab.norms import NormKind
from normlab.placement import Placement

ANSWERS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text("utf-8"))
WIDTH = 32  # of every stream
RIGHT, UNKNOWN, WRONG = "right", "unknown", "wrong"

_KINDS = {"ln": NormKind.LAYERNORM, "rms": NormKind.RMSNORM, "scale": NormKind.SCALENORM}
_GAINS = {"w": Gain.WEIGHT, "1+w": Gain.OFFSET, "bare": Gain.NONE}
_CASTS = {"once": Cast.ONCE, "twice": Cast.BEFORE_GAIN, "first": Cast.OFFSET_FIRST}
_FORMULAS = {
    "pre": "x + F(N(x))",
    "parallel": "x + F(N(x))",
    "post": "N(x + F(x))",
    "output": "x + O(F(x))",
    "peri": "x + O(F(N(x)))",
    "none": "x + F(x)",
}
_LAST = {"normed": LastHidden.NORMED, "stream": LastHidden.STREAM, "both": LastHidden.BOTH}


@dataclass(frozen=True)
class Field:
    """One thing that is known about a model, what was said of it, and what that is worth."""

    name: str
    verdict: str
    wanted: Any
    found: Any


def compare(answer: dict[str, Any], report: ModelReport) -> list[Field]:
    """All fields of a model. Blocks that are alike in both are compared once."""
    fields = [_last_hidden(answer, report)]
    stacks = [answer | stack for stack in answer.get("stacks", [{}])]
    if not report.stacks:
        known = sum(1 for stack in stacks for _ in _wanted_fields(stack))
        return fields + [Field(f"field {n}", UNKNOWN, None, "no stack was recognized") for n in range(known)]
    fields.append(_field("stacks", len(stacks), len(report.stacks)))
    for number, (stack, found) in enumerate(zip(stacks, report.stacks), 1):
        fields += [Field(f"stack {number} {f.name}", f.verdict, f.wanted, f.found) for f in _stack(stack, found)]
    return fields


def _wanted_fields(stack: dict[str, Any]) -> Iterator[str]:
    for block in dict.fromkeys(_blocks(stack)):
        yield from (f"{sublayer} {n}" for sublayer in block.split(";") for n in range(7))
    yield from ("blocks", "embedding", "final")


def _field(name: str, wanted: Any, found: Any, unknown: bool = False) -> Field:
    return Field(name, UNKNOWN if unknown else RIGHT if wanted == found else WRONG, wanted, found)


def _last_hidden(answer: dict[str, Any], report: ModelReport) -> Field:
    wanted, found = _LAST[answer.get("last", "normed")], report.last_hidden
    return _field("last hidden state", wanted, found, found.name == "UNKNOWN")


def _blocks(stack: dict[str, Any]) -> list[str]:
    blocks = stack.get("blocks", [])
    return blocks if isinstance(blocks, list) else [blocks] * 2


def _stack(answer: dict[str, Any], found: StackReport) -> Iterator[Field]:
    if "blocks" not in answer:
        yield from _nothing_said(found)
    else:
        blocks = _blocks(answer)
        yield _field("blocks", len(blocks), len(found.blocks))
        qk = answer.get("qk", "no")
        each = qk if isinstance(qk, list) else [qk] * len(blocks)
        for wanted, qk_norm, block in dict.fromkeys(zip(blocks, map(str, each), found.blocks)):
            yield from _block(answer, wanted, qk_norm, block)
    for name, otherwise in (("embedding", "no"), ("final", "yes")):
        if "blocks" not in answer and name not in answer:
            continue
        norm, why = getattr(found, f"{name}_norm"), getattr(found, f"{name}_unknown")
        if answer.get(name) == "unclear":
            yield Field(f"{name} norm", UNKNOWN if why and norm is None else WRONG, None, norm or why)
            continue
        yield from _norm(f"{name} norm", _spec(answer, answer.get(name, otherwise)), norm, why)


def _nothing_said(found: StackReport) -> Iterator[Field]:
    """Of blocks that are not understood nothing must be said."""
    for number, block in enumerate(found.blocks, 1):
        yield Field(f"block {number}", UNKNOWN if block.unknown and not block.sublayers else WRONG, None, block)


def _spec(answer: dict[str, Any], said: Any) -> str | None:
    """A norm as text: "yes" stands for the model's own."""
    if said in ("no", False):
        return None
    return str(answer["norm"]) if said in ("yes", True) else str(said)


def _block(answer: dict[str, Any], wanted: str, qk: str, found: BlockReport) -> Iterator[Field]:
    parts = [part.strip() for part in wanted.split(";")]
    if found.unknown:
        for part in parts:
            yield from (Field(f"{part} {n}", UNKNOWN, part, found.unknown) for n in range(7))
        return
    kinds = [part.split()[0] for part in parts], [s.kind for s in found.sublayers]
    yield _field("sublayers", *kinds, len(kinds[0]) == len(kinds[1]) and "unknown" in kinds[1])
    for part, sublayer in zip(parts, found.sublayers):
        yield from _sublayer(answer, part, qk, sublayer)


def _sublayer(answer: dict[str, Any], wanted: str, qk: str, found: SublayerReport) -> Iterator[Field]:
    words, _, formula = wanted.partition(" = ")
    kind, where, *more = words.split()
    placement = None if where == "unnamed" else Placement(where)
    formula = formula or _FORMULAS[where]
    if found.hidden_norm:
        yield from (Field(f"{kind} {name}", UNKNOWN, wanted, "a hidden norm") for name in ("placement", "formula"))
    else:
        yield _field(f"{kind} placement", placement, found.placement)
        yield _field(f"{kind} formula", formula, found.formula)
    yield _field(f"{kind} shares its norm", bool(more), found.shares_norm)
    several = "N(N(" in formula  # then the report shows neither
    yield from _norm(f"{kind} N", answer["norm"] if "N(" in formula and not several else None, found.norm)
    yield from _norm(f"{kind} O", answer["norm"] if "O(" in formula else None, found.output_norm)
    if kind == "attention":
        yield from _qk_norm(answer, qk, found.qk_norm, found.unknown_qk_norm)
    inside = answer.get("inside", {}).get(kind, [])
    yield _field(f"norms inside {kind}", len(inside), len(found.inner_norms))
    for spec, norm in zip(inside, found.inner_norms):
        yield from _norm(f"inside {kind}", spec, norm)


def _qk_norm(answer: dict[str, Any], wanted: str, found: QKNormReport | None, unknown: bool) -> Iterator[Field]:
    if found is None or wanted in ("no", "False"):
        wanted_none = wanted in ("no", "False")
        yield _field("QK-norm", None if wanted_none else wanted, "not recognized" if unknown else found, unknown)
        return
    both, _, value = wanted.partition(", value ")
    how, where, *norm = both.split()
    yield _field("QK-norm", {"head": QKNorm.PER_HEAD, "joint": QKNorm.JOINT}[how], found.how)
    yield _field("QK-norm and rotation", {"before": False, "behind": True, "none": None}[where], found.after_rope)
    for name in ("query", "key"):
        yield from _norm(f"norm of {name}", " ".join(norm) or answer["norm"], getattr(found, name), width=None)
    yield from _norm("norm of value", value or None, found.value, width=None)


def _norm(
    name: str, wanted: str | None, found: NormReport | None, why: str | None = None, width: int | None = WIDTH
) -> Iterator[Field]:
    if wanted is None or found is None:
        yield _field(name, wanted, found or why, found is None and why is not None)
        return
    spec = re.fullmatch(r"(?P<kind>\w+) (?P<eps>\S+) (?P<words>[^@]*)(@(?P<width>\d+)( in (?P<groups>\d+))?)?", wanted)
    assert spec is not None, wanted
    words = spec["words"].split()
    yield _field(f"{name} kind", _KINDS[spec["kind"]], found.kind, found.kind is None)
    if found.kind is None:
        return
    yield _field(f"{name} eps", float(spec["eps"]), found.eps, found.eps is None)
    yield _field(f"{name} gain", _GAINS[words[0]], found.gain, found.gain is Gain.UNKNOWN)
    yield _field(f"{name} bias", "b" in words, found.bias, found.bias is None)
    cast = next((_CASTS[word] for word in words if word in _CASTS), None)
    yield _field(f"{name} rounding", cast, found.cast, found.cast is Cast.UNKNOWN)
    width = int(spec["width"]) if spec["width"] else width
    yield _field(f"{name} groups", int(spec["groups"] or 1), found.groups)
    if width is not None:
        yield _field(f"{name} width", width, found.width)
