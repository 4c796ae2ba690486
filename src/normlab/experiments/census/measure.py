"""One row of the census: what is measured on one small model, as values that a JSON file and a table can hold."""

import copy
import inspect as python
import math
import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normlab import device
from normlab.experiments.census import families
from normlab.experiments.census.stored import packed
from normlab.inspection import report
from normlab.inspection.norm_probe import Cast, EpsPlace, Gain, NormReport
from normlab.inspection.sublayers import Norm, Sublayer, is_light
from normlab.inspection.trace import Node
from normlab.inspection.wiring import Wiring, wiring_of
from normlab.norms import NormKind
from normlab.record import Recipe

COLUMNS = {  # name in a row: heading in the table
    "norm": "norm",
    "placement": "placement",
    "formula": "formula",
    "final": "final norm",
    "qk_norm": "QK-norm",
    "embedding": "embedding norm",
    "inner": "norms inside F",
    "gain": "gain",
    "eps": "ε",
    "rounding": "half types: rounds",
    "wide_gain": "float32 gain, bf16 in",
    "wide_input": "bf16 gain, float32 in",
    "multipliers": "multipliers",
    "hidden": "hidden_states[-1] is",
    "sublayers": "sublayers",
}

_KINDS = {NormKind.LAYERNORM: "LayerNorm", NormKind.RMSNORM: "RMSNorm", NormKind.SCALENORM: "ScaleNorm"}
_ROUNDING = {
    Cast.ONCE: "once, at the end",
    Cast.BEFORE_GAIN: "before the gain, and after it",
    Cast.OFFSET_FIRST: "1 + w, then at the end",
    Cast.UNKNOWN: "unknown",
    None: "–",
}
_HIDDEN = {
    report.LastHidden.NORMED: "behind the final norm",
    report.LastHidden.BOTH: "both",
    report.LastHidden.STREAM: "the stream",
    report.LastHidden.NOT_RETURNED: "not told",
    report.LastHidden.UNKNOWN: "not told",
}
_NONE = "–"
_FROM_A_MODEL = r"^ *from (?:\.\.|\.\.\.models\.|\.*transformers\.models\.)(\w+)\.modeling_"


def row(candidate: families.Candidate) -> dict[str, Any]:
    """Build the model small, run it, and say what its norms are: the values of ``COLUMNS`` and what a drawing needs.

    Raises:
        ValueError: it does not build small, or fails where it is run.
    """
    model = families.build(candidate)
    given = families.inputs(model)
    with device.single_thread():
        wiring = wiring_of(model, **given)
        found = report.report_of(wiring)
        about = {"class": candidate.model, "role": candidate.role, "year": year(model)}
        about["borrowed"] = borrowers().get(type(model).__module__.split(".")[-2], 0)
        return about | _columns(model, found, wiring) | {"report": packed(found)}


def _columns(model: nn.Module, found: report.ModelReport, wiring: Wiring) -> dict[str, Any]:
    sublayers = [s for stack in wiring.stacks for block in stack.blocks for s in block.sublayers]
    norms = [n for s in sublayers for n in (s.input_norm, s.output_norm, s.post_norm, s.skip_norm) if n]
    reports = [n.report for n in norms]
    seen = [s for stack in found.stacks for block in stack.blocks for s in block.sublayers]
    unknown = not found.stacks or any(block.unknown for stack in found.stacks for block in stack.blocks)
    mixed = [mixed_types(norm) for norm in {n.call.module: n for n in norms}.values()]
    values = {
        "norm": "unknown" if unknown and not reports else _all(kind(r) for r in reports),
        "sublayers": ", ".join(dict.fromkeys(s.kind for s in seen)) or "unknown",
        "eps": _all(map(eps, reports)),
        "gain": _all(map(gain, reports)),
        "rounding": _all(_ROUNDING[r.cast] for r in reports),
        "wide_gain": _all(types[0] for types in mixed),
        "wide_input": _all(types[1] for types in mixed),
        "placement": "unknown" if unknown else _by_kind([(s.kind, _place(s)) for s in seen]),
        "formula": "unknown" if unknown else _formulas(found),
        "qk_norm": _all(sorted({qk_norm(s) for s in seen if s.kind == "attention"})),
        "inner": "; ".join(dict.fromkeys(f"{s.kind}: {_all(sorted(map(kind, s.inner_norms)))}" for s in seen if s.inner_norms))
        or _NONE,
        "embedding": _all(_at_end(stack.embedding_norm, stack.embedding_unknown) for stack in found.stacks),
        "final": _all(_at_end(stack.final_norm, stack.final_unknown) for stack in found.stacks),
        "multipliers": "; ".join(multipliers(wiring, model)) or _NONE,
        "hidden": hidden_state(model, found),
    }
    return values | {"unknown": _unknown(found)}


def _all(values: Iterable[str]) -> str:
    """The different values in order."""
    return " / ".join(dict.fromkeys(values)) or _NONE


def _by_kind(pairs: list[tuple[str, str]]) -> str:
    """One value if all kinds of sublayers share it, else the values by kind."""
    if len({value for _, value in pairs}) <= 1:
        return pairs[0][1] if pairs else _NONE
    kinds = dict.fromkeys(kind for kind, _ in pairs)
    by_kind = {kind: _all(value for k, value in pairs if k == kind) for kind in kinds}
    return "; ".join(f"{kind}: {value}" for kind, value in by_kind.items())


def _place(sublayer: report.SublayerReport) -> str:
    return sublayer.placement.value if sublayer.placement else "unnamed"


def _formulas(found: report.ModelReport) -> str:
    """The formula of every kind of sublayer; of parallel ones as one line, with A and M for attention and MLP."""
    pairs = []
    for block in (b for stack in found.stacks for b in stack.blocks):
        waiting: list[report.SublayerReport] = []
        for sublayer in block.sublayers:
            waiting.append(sublayer)
            if not sublayer.joins_next:
                pairs += [(s.kind, _joined(waiting)) for s in waiting]
                waiting = []
    return _by_kind(pairs)


def _joined(group: list[report.SublayerReport]) -> str:
    """x + A(N(x)) + M(N(x)); with a norm each: N₁, N₂."""
    if len(group) == 1:
        return group[0].formula
    stream = group[0].formula.split(" + ")[0]
    shared, branches = group[0].shares_norm, []
    for number, sublayer in zip("₁₂₃₄", group):
        letter = {"attention": "A", "mlp": "M"}.get(sublayer.kind, "F")
        branch = sublayer.formula.split(" + ", 1)[1].replace("F(", f"{letter}(")
        branches.append(branch if shared else branch.replace("N(", f"N{number}("))
    return " + ".join([stream, *branches])


def kind(norm: NormReport) -> str:
    return _KINDS.get(norm.kind, norm.kind.value) if norm.kind else "unknown"


def eps(norm: NormReport) -> str:
    place = "" if norm.eps_place in (EpsPlace.INSIDE, EpsPlace.UNKNOWN) else f" as {norm.eps_place.value}"
    return "unknown" if norm.eps is None else f"{norm.eps:g}{place}"


def gain(norm: NormReport) -> str:
    stored = {Gain.NONE: "none", Gain.UNKNOWN: "unknown"}.get(norm.gain, norm.gain.value)
    return f"{stored}, bias" if norm.bias else stored


def _at_end(norm: NormReport | None, unknown: str | None) -> str:
    return "unknown" if unknown else _NONE if norm is None else kind(norm)


@torch.no_grad()
def mixed_types(norm: Norm) -> tuple[str, str]:
    """Types of the output for (float32 gain, bf16 input) and (bf16 gain, float32 input), on the CPU."""
    if norm.written:
        return "unknown", "unknown"
    found = []
    for parameters, taken in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)):
        module = copy.deepcopy(norm.call.module).to(parameters)
        try:
            y = module(norm.source.value.detach().to(taken))
        except (RuntimeError, TypeError, ValueError):
            found.append("error")
        else:
            found.append(str(y.dtype).removeprefix("torch."))
    return found[0], found[1]


def qk_norm(sublayer: report.SublayerReport) -> str:
    """How queries and keys are normed: over a head or the whole projection, where, by which norm."""
    found = sublayer.qk_norm
    if found is None:
        return "unknown" if sublayer.unknown_qk_norm else _NONE
    how = {"per_head": "per head", "joint": "joint"}.get(getattr(found.how, "value", ""), "other")
    where = {True: "after RoPE", False: "before RoPE", None: "no RoPE seen"}[found.after_rope]
    sides = {name: getattr(found, name) for name in ("query", "key", "value")}
    norms = dict.fromkeys(f"{kind(norm)} ({gain(norm)})" for norm in sides.values() if norm)
    on = "" if sides["query"] and sides["key"] and not sides["value"] else f", on {'+'.join(n for n, v in sides.items() if v)}"
    return f"{how}, {where}, {' and '.join(norms)}{on}"


def _unknown(found: report.ModelReport) -> list[str]:
    """What could not be told, in words."""
    words = [] if found.stacks else ["no stack of blocks was recognized"]
    for stack in found.stacks:
        words += [block.unknown for block in stack.blocks if block.unknown]
        words += [text for text in (stack.embedding_unknown, stack.final_unknown) if text]
        for sublayer in (s for block in stack.blocks for s in block.sublayers):
            words += ["the kind of a sublayer"] if sublayer.kind == "unknown" else []
            words += ["a norm inside a sublayer, at its door"] if sublayer.hidden_norm else []
            words += ["a norm on queries or keys"] if sublayer.unknown_qk_norm else []
            norms = (sublayer.norm, sublayer.output_norm, *sublayer.inner_norms)
            words += ["what a norm computes" for norm in norms if norm and norm.kind is None]
    return list(dict.fromkeys(words))


def year(model: Any) -> int | None:
    """The year of the copyright line above the configuration's code, or the model's: roughly when it was written.

    A year before the first Transformer is left out.
    """
    for cls in (type(model.config), type(model)):
        source = python.getsourcefile(cls)
        found = re.search(r"Copyright (?:\(c\) )?(\d{4})", Path(source).read_text("utf-8")[:3000]) if source else None
        if found and int(found[1]) >= 2017:
            return int(found[1])
    return None


@cache
def borrowers() -> dict[str, int]:
    """For every folder of models of the library: how many other folders are written with code from its models."""
    import transformers

    found: dict[str, set[str]] = {}
    for path in Path(transformers.__file__).parent.glob("models/*/modular_*.py"):
        for other in re.findall(_FROM_A_MODEL, path.read_text("utf-8"), re.MULTILINE):
            found.setdefault(other, set()).add(path.parent.name)
    return {folder: len(names - {folder}) for folder, names in found.items()}


# --- what stands between two tensors: numbers, and a cap -----------------------------------------------------------------


def multipliers(wiring: Wiring, model: nn.Module) -> list[str]:
    """Numbers by which embeddings, attention logits and logits are multiplied, and their caps; 1 and 1/√d are left out."""
    if not wiring.stacks:
        return []
    outputs = {norm.output for norm in wiring.norms}
    found = []
    path = _Path(lambda n: n.op == "embedding", outputs, sums=True).to(wiring.stacks[-1].blocks[0].x)
    width = wiring.stacks[-1].blocks[0].x.value.shape[-1]
    found += [f"embedding × {_root(path[0], width)}"] if path and path[0] != 1 else []
    scales = [attention_scale(s, outputs) for b in wiring.stacks[-1].blocks for s in b.sublayers if s.attention]
    for scale, cap, usual in dict.fromkeys(s for s in scales if s):
        found += [f"attention logits × {scale:.4g}"] if abs(scale / usual - 1) > 1e-3 else []
        found += [f"attention logits capped at {cap:g}"] if cap else []
    logits = wiring.run.node(getattr(wiring.run.output, "logits", None))
    head = _Path(_is_learned_product, outputs).to(logits) if logits else None
    if head:
        factor, cap, product = head
        final = wiring.stacks[-1].final_norm
        before = _Path(lambda n: final is not None and n is final.output, set()).to(product.parents[0])
        factor *= before[0] if before else 1
        found += [f"logits × {_root(factor, width)}"] if abs(factor - 1) > 1e-6 else []
        found += [f"logits capped at {cap:g}"] if cap else []
    return list(dict.fromkeys(found))


def attention_scale(sublayer: Sublayer, norms: set[Node]) -> tuple[float, float, float] | None:
    """The number before query · key, the cap of the product (0 for none), and 1 / √d."""
    attention = sublayer.attention
    assert attention is not None
    path = _Path(lambda n: attention.query in n.parents and attention.key in n.parents, norms).to(attention.logits)
    sides = [_Path(_is_learned_product, norms, through_norms=True).to(n) for n in (attention.query, attention.key)]
    if path is None or None in sides:
        return None
    scale = path[0] * path[2].options.get("alpha", 1) * math.prod(side[0] for side in sides if side)
    return float(f"{scale:.6g}"), path[1], attention.query.value.shape[-1] ** -0.5


def _is_learned_product(node: Node) -> bool:
    return node.op in ("mm", "addmm", "bmm", "linear", "_grouped_mm") and any(map(_is_weight, node.parents))


def _is_weight(node: Node) -> bool:
    while node.op and node.parents and (is_light(node)):
        node = node.parents[0]
    return isinstance(node.value, nn.Parameter)


class _Path:
    """Walks from a tensor back to where it was made, and multiplies the numbers on the way.

    Args:
        is_end: where to stop.
        norms: outputs of norms. A norm hides what stands before it: there the walk ends, without a result, or
            (``through_norms``) with what has been found.
        sums: whether the other summands may depend on tokens (embeddings of positions).
    """

    def __init__(self, is_end: Callable[[Node], bool], norms: set[Node], sums: bool = False, through_norms: bool = False):
        self.is_end, self.norms, self.sums, self.through_norms = is_end, norms, sums, through_norms
        self.known: dict[Node, tuple[float, float, Node] | None] = {}

    def to(self, node: Node) -> tuple[float, float, Node] | None:
        """(product of the numbers, cap or 0, the end), None if no end was met."""
        if node not in self.known:
            self.known[node] = None
            self.known[node] = self._step(node)
        return self.known[node]

    def _step(self, node: Node) -> tuple[float, float, Node] | None:
        if self.is_end(node):
            return 1.0, 0.0, node
        if node in self.norms:
            return (1.0, 0.0, node) if self.through_norms else None
        if not (is_light(node) or node.op == "tanh") or not node.parents:
            return None
        for parent in node.parents:
            before = self.to(parent)
            if before is None:
                continue
            factor, cap, end = before
            if node.op == "tanh":
                return factor, 1.0, end
            number = self._number(node, parent)
            return factor * number, cap * number, end
        return None

    def _number(self, node: Node, moving: Node) -> float:
        """What a multiplication or division by one number multiplies by, else 1."""
        if node.op not in ("mul", "mul_", "div", "div_"):
            return 1.0
        other = node.args[1] if node.args[0] is moving else node.args[0]
        if isinstance(other, Node):
            if other.value.numel() != 1 or isinstance(other.value, nn.Parameter):
                return 1.0
            other = float(other.value)
        return 1.0 / other if node.op.startswith("div") else float(other)


def _root(factor: float, width: int) -> str:
    """A factor, as √d or 1/√d where it is that."""
    names = {"√d": width**0.5, "1/√d": width**-0.5}
    return next((name for name, value in names.items() if abs(factor / value - 1) < 1e-2), f"{factor:.4g}")


# --- the library's hidden states --------------------------------------------------------------------------------------


@torch.no_grad()
def hidden_state(model: Any, found: report.ModelReport) -> str:
    """What the last of the library's hidden states is: the stream or that normed, and whether it is last_hidden_state."""
    what = _HIDDEN[found.last_hidden]
    try:
        output = model.base_model(**families.inputs(model), output_hidden_states=True)
        states = getattr(output, "decoder_hidden_states", None) or output.hidden_states
        same = torch.equal(states[-1], output.last_hidden_state)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return what
    return f"{what}, {'=' if same else '≠'} last_hidden_state"


# --- the record -------------------------------------------------------------------------------------------------------


def measured(model_type: str, transformers: str) -> dict[str, Any]:
    """A row of the record: that of :func:`row`, or {"composite": True}, or {"not_built": why}.

    Raises:
        ValueError: another version of transformers is installed than the one asked for.
    """
    installed = version("transformers")
    if installed != transformers:
        raise ValueError(f"this row is of transformers {transformers}, {installed} is installed: change families.VERSION")
    candidate = families.candidate(model_type)
    if candidate.composite:
        return {"composite": True}
    try:
        return row(candidate)
    except ValueError as problem:
        return {"not_built": " ".join(str(problem).split())[:160]}


RECORDS = (
    Recipe(
        "census",
        "Norms of the text models of the transformers library, each built small from its default configuration with "
        "random weights and run once.",
        [{"model_type": name, "transformers": families.VERSION} for name in families.TYPES],
        measured,
    ),
)
