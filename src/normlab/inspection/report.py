"""``normlab.inspect(model)``: the norms of the reader's own model, by watching it run. Names are not trusted."""

from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from textwrap import wrap
from typing import Any

import torch
from torch import nn

from normlab.attention import QKNorm
from normlab.inspection.cut import Cut
from normlab.inspection.norm_probe import NormReport
from normlab.inspection.subject import padding_ids
from normlab.inspection.sublayers import Norm, Sublayer
from normlab.inspection.trace import parts, tensors, with_random_weights
from normlab.inspection.wiring import Block, Stack, Wiring, run_of
from normlab.placement import Placement


class LastHidden(str, Enum):
    """What the model returns as hidden state of its last layer."""

    NORMED = "returned behind the final norm"
    BOTH = "returned twice: behind the final norm, and as it leaves the last block"
    STREAM = "returned as it leaves the last block"
    NOT_RETURNED = "not returned"
    UNKNOWN = "unknown: no stack of residual blocks was recognized"


@dataclass(frozen=True)
class QKNormReport:
    """Norms on queries and keys, and perhaps on values.

    ``how`` is PER_HEAD or JOINT (with a single head they are the same, reported as PER_HEAD), None where neither fits.
    ``after_rope`` is None where no rotation was seen.
    """

    how: QKNorm | None
    after_rope: bool | None
    query: NormReport | None
    key: NormReport | None
    value: NormReport | None = None


@dataclass(frozen=True)
class SublayerReport:
    """A residual sublayer.

    ``kind`` is "attention", "cross-attention", "mlp", "mixer" (tokens meet in another way) or "unknown".
    ``placement`` is None for a wiring without a name; ``formula`` says what was seen: x stream, F sublayer, N norm
    before it or on the stream, O norm of its output. The norms and scales are the parts of the formula: N on what F
    reads, on the sum (``post_norm``), or on the stream where the skip starts behind it (``skip_norm``); the scales
    multiply what F reads, what it adds, the stream, and the block's last sum, None for a learned one. ``inner_norms``
    are those inside F, other than QK-norms. ``joins_next``: it is added to the stream together with the next sublayer,
    in parallel. ``shares_norm``: N is also the norm of the sublayer in parallel. ``hidden_norm``: F begins or ends
    with a norm of its own, one that was not recognized or is not on just what F reads or returns, so that the
    placement cannot be told. ``unknown_qk_norm``: queries, keys or their products are normed in a way that was not
    recognized.
    """

    kind: str
    placement: Placement | None
    formula: str
    input_norm: NormReport | None
    output_norm: NormReport | None
    post_norm: NormReport | None = None
    skip_norm: NormReport | None = None
    input_scale: float | None = 1.0
    output_scale: float | None = 1.0
    stream_scale: float | None = 1.0
    sum_scale: float | None = 1.0
    qk_norm: QKNormReport | None = None
    inner_norms: tuple[NormReport, ...] = ()
    joins_next: bool = False
    shares_norm: bool = False
    hidden_norm: bool = False
    unknown_qk_norm: bool = False

    @property
    def norm(self) -> NormReport | None:
        """The N of the formula; None if there is none, or more than one."""
        norms = [norm for norm in (self.input_norm, self.post_norm, self.skip_norm) if norm]
        return norms[0] if len(norms) == 1 else None


@dataclass(frozen=True)
class BlockReport:
    """The sublayers of a block in order, or why they are unknown."""

    sublayers: tuple[SublayerReport, ...]
    unknown: str | None = None


@dataclass(frozen=True)
class StackReport:
    """A stack of blocks, and the norms before the first and behind the last one, or why these cannot be told.

    ``embedding_norm`` may be followed by sums, scales, masks and a matrix; ``final_norm`` may be on some tokens only,
    or on their mean.
    """

    blocks: tuple[BlockReport, ...]
    embedding_norm: NormReport | None
    final_norm: NormReport | None
    embedding_unknown: str | None = None
    final_unknown: str | None = None


@dataclass(frozen=True)
class ModelReport:
    """What :func:`inspect` found; print it. ``stacks`` is empty where no stack of blocks was recognized.

    ``cut`` and ``notes`` say what ``normlab inspect`` did to a configuration before it built the model.
    """

    model: str
    stacks: tuple[StackReport, ...]
    last_hidden: LastHidden
    cut: tuple[Cut, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def origin(self) -> list[str]:
        """What was built, in lines: the cut and the notes."""
        return [*([f"cut: {', '.join(map(str, self.cut))}"] if self.cut else []), *self.notes]

    def __str__(self) -> str:
        return "\n".join(_Text(self).lines())


def inspect(model: nn.Module, *args: Any, **kwargs: Any) -> ModelReport:
    """Find out which norms a model has, how they compute and where they stand, by running it once.

    Every norm is recognized by what it computes, every placement by which tensor went where; names of modules and
    attributes play no part. What does not fit anything known is reported as unknown.

    Args:
        model: a Transformer of this package, of ``transformers``, of torch (``torch.nn.TransformerEncoder``), or the
            reader's own. It is run in evaluation mode, with autograd, and left as it was. Weights that are all zero, or
            not all finite, show nothing of what they are for; random ones take their place for the run.
        args, kwargs: an input for it. Without one a few token ids are tried, or, where there is no embedding, a few
            random vectors.

    Raises:
        ValueError: no input was given and the model fails on the one that was tried, or its tensors are on the meta
            device or were made in inference mode. With an input the model's own error is raised.
    """
    return report_of(_observe(model, args, kwargs))


def report_of(wiring: Wiring) -> ModelReport:
    """What :func:`inspect` says about a run that was watched."""
    return ModelReport(
        type(wiring.run.model).__name__,
        tuple(_stack(stack) for stack in wiring.stacks),
        _last_hidden(wiring),
    )


def _observe(model: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Wiring:
    _check_tensors(model)
    given = bool(args or kwargs)
    if not given:
        args = (_example(model),)
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            kwargs = {"decoder_input_ids": args[0]}
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with with_random_weights(model):
            run = run_of(model, *args, **kwargs)
    except Exception as error:
        if given:
            raise
        what = f"a tensor {args[0].dtype} of shape {tuple(args[0].shape)}, which was tried as input"
        raise ValueError(
            f"{type(model).__name__} failed on {what}, with {type(error).__name__}: {error}. "
            "If it takes another input, pass one: normlab.inspect(model, x)"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    return Wiring(run)


def _check_tensors(model: nn.Module) -> None:
    """Raise ValueError if the model's tensors cannot take part in a run that autograd records."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta:
            raise ValueError(
                f"{name} of {type(model).__name__} is on the meta device and holds no numbers to compute with; "
                "build the model on a real device, or fill it first (Module.to_empty and an initialization)"
            )
        if isinstance(tensor, nn.Parameter) and tensor.is_inference():
            raise ValueError(
                f"{name} of {type(model).__name__} was made in torch.inference_mode(), so that autograd cannot record "
                "the run; build the model outside of it"
            )


def _example(model: nn.Module) -> torch.Tensor:
    """A few ids that every embedding knows and none has zeros for, or random vectors for a model without embeddings."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    device = weights[0].device if weights else None
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    if tables:
        ids = range(min(table.num_embeddings for table in tables))
        words = sorted(set(ids) - padding_ids(model)) or [0]
        return torch.tensor([words[i % len(words)] for i in range(8)], device=device).view(2, 4)
    if not weights:
        raise ValueError("a model without matrices has no width; pass an input: normlab.inspect(model, x)")
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, 4, weights[0].shape[-1], generator=generator).to(weights[0].detach())


def _stack(stack: Stack) -> StackReport:
    return StackReport(
        tuple(_block(block) for block in stack.blocks),
        _report(stack.embedding_norm),
        _report(stack.final_norm),
        stack.embedding_unknown,
        stack.final_unknown,
    )


def _report(norm: Norm | None) -> NormReport | None:
    return None if norm is None else norm.report


def _block(block: Block) -> BlockReport:
    sublayers = []
    for sublayer in block.sublayers:
        at_attention = _attention_norms(sublayer)
        sublayers.append(
            SublayerReport(
                sublayer.kind,
                _placement(sublayer, block),
                sublayer.formula,
                _report(sublayer.input_norm),
                _report(sublayer.output_norm),
                _report(sublayer.post_norm),
                _report(sublayer.skip_norm),
                sublayer.input_scale,
                sublayer.output_scale,
                sublayer.stream_scale,
                sublayer.sum_scale,
                _qk_norm(sublayer),
                tuple(n.report for n in sublayer.inner_norms if n not in at_attention),
                sublayer.after is None,
                sublayer.shares_norm,
                sublayer.hidden_norm,
                sublayer.unknown_qk_norm,
            )
        )
    return BlockReport(tuple(sublayers), block.unknown)


_PLACEMENTS = {  # (input norm, output norm, norm on the stream behind the sum)
    (True, False, False): Placement.PRE,
    (True, True, False): Placement.PERI,
    (False, True, False): Placement.OUTPUT,
    (False, False, True): Placement.POST,
    (False, False, False): Placement.NONE,
}


def _placement(sublayer: Sublayer, block: Block) -> Placement | None:
    """The name of the wiring, None if it has none or cannot be told."""
    if sublayer.hidden_norm:
        return None
    if _is_hybrid(block):
        return Placement.HYBRID
    norms = (bool(sublayer.input_norm), bool(sublayer.output_norm), bool(sublayer.post_norm))
    placement = None if sublayer.skip_norm or sublayer.sum_scale != 1 else _PLACEMENTS.get(norms)
    if sublayer.stream_scale != 1:
        scaled = placement is Placement.POST and sublayer.stream_scale is not None
        return Placement.DEEPNORM if scaled else None
    if sublayer.parallel:
        return Placement.PARALLEL if placement is Placement.PRE else None
    return placement


def _is_hybrid(block: Block) -> bool:
    """HybridNorm: attention on the bare stream with normed queries, keys and values, then N(x) + F(N(x))."""
    attention = [s for s in block.sublayers if s.kind == "attention"]
    others = [s for s in block.sublayers if s.kind != "attention"]
    bare = all(s.formula == "x + F(x)" and s.attention and all(s.attention.norms.values()) for s in attention)
    return bool(attention and others) and bare and all(s.formula == "N(x) + F(N(x))" for s in others)


def _attention_norms(sublayer: Sublayer) -> list[Norm]:
    return [] if sublayer.attention is None else sublayer.attention.all_norms


def _qk_norm(sublayer: Sublayer) -> QKNormReport | None:
    """What the norms between projections and scores are. Of several on one side the first is shown."""
    attention = sublayer.attention
    if attention is None or not (attention.norms["query"] or attention.norms["key"]):
        return None
    head_dim = attention.query.value.shape[-1]
    tokens = sublayer.read.value.numel() // sublayer.read.value.shape[-1]
    possible = {QKNorm.PER_HEAD, QKNorm.JOINT}  # the same thing on a side with one head
    for norm in attention.norms["query"] + attention.norms["key"]:
        width = norm.report.width // norm.report.groups
        vectors = norm.source.value.numel() // width
        if width != head_dim:
            possible.discard(QKNorm.PER_HEAD)
        if vectors != tokens or width % head_dim:
            possible.discard(QKNorm.JOINT)
    how = next((kind for kind in (QKNorm.PER_HEAD, QKNorm.JOINT) if kind in possible), None)
    first = {name: norms[0].report if norms else None for name, norms in attention.norms.items()}
    return QKNormReport(how, attention.after_rotation, **first)


def _last_hidden(wiring: Wiring) -> LastHidden:
    """What the returned values end in: the stream behind the last block, or that normed.

    Each value counts by its last tensor that is one of the two, so that of a tuple of all hidden states only the last
    counts.
    """
    if not wiring.stacks:
        return LastHidden.UNKNOWN
    stack = wiring.stacks[-1]
    stream = wiring.root(stack.blocks[-1].y)
    normed = set() if stack.final_norm is None else wiring.lightly_reached(stack.final_norm.output)
    found = set()
    for value in parts(wiring.run.output):
        nodes = [wiring.root(node) for node in map(wiring.run.node, tensors(value)) if node is not None]
        kinds = [LastHidden.NORMED if n in normed else LastHidden.STREAM for n in nodes if n in normed or n is stream]
        found |= set(kinds[-1:])
    if len(found) == 2:
        return LastHidden.BOTH
    return found.pop() if found else LastHidden.NOT_RETURNED


class _Text:
    """A report as text. Norms are numbered, and described once at the end."""

    def __init__(self, report: ModelReport):
        self.report = report
        self.numbers: dict[NormReport, int] = {}

    def lines(self) -> list[str]:
        lines = [self.report.model]
        for line in self.report.origin:
            lines += wrap(line, 118, initial_indent="  ", subsequent_indent="    ")
        if not self.report.stacks:
            lines.append("  structure unknown: no stack of residual blocks was recognized")
        for number, stack in enumerate(self.report.stacks, 1):
            title = f"  stack {number}, " if len(self.report.stacks) > 1 else "  "
            lines.append(f"{title}embedding norm: {self.norm(stack.embedding_norm, stack.embedding_unknown)}")
            lines += self.blocks(stack)
            lines.append(f"  final norm: {self.norm(stack.final_norm, stack.final_unknown)}")
        lines.append(f"  last hidden state: {self.report.last_hidden.value}")
        return lines + [f"  [{number}] {norm}" for norm, number in self.numbers.items()]

    def norm(self, norm: NormReport | None, unknown: str | None = None) -> str:
        if norm is None:
            return f"unknown: {unknown}" if unknown else "none"
        return f"[{self.numbers.setdefault(norm, len(self.numbers) + 1)}]"

    def blocks(self, stack: StackReport) -> list[str]:
        lines, first = [], 1
        for block, alike in groupby(stack.blocks):
            last = first + len(list(alike)) - 1
            lines.append(f"  block {first}" if first == last else f"  blocks {first} to {last}")
            lines += [f"    unknown: {block.unknown}"] if block.unknown else []
            lines += [f"    {self.sublayer(sublayer)}" for sublayer in block.sublayers]
            first = last + 1
        return lines

    def sublayer(self, found: SublayerReport) -> str:
        parts = [f"{found.kind}: {found.formula}, {found.placement.value if found.placement else 'unknown placement'}"]
        shared = " (shared)" if found.shares_norm else ""
        parts += [f"N = {self.norm(found.norm)}{shared}"] if found.norm else []
        parts += [f"O = {self.norm(found.output_norm)}"] if found.output_norm else []
        parts += ["F begins or ends with a norm of its own"] if found.hidden_norm else []
        parts += [f"QK-norm {self.qk_norm(found.qk_norm)}"] if found.qk_norm else []
        if found.unknown_qk_norm:
            parts.append("QK-norm unknown: something like one is written out and was not recognized")
        elif found.kind == "attention" and not found.qk_norm:
            parts.append("no QK-norm")
        parts += [f"inside F {', '.join(map(self.norm, found.inner_norms))}"] if found.inner_norms else []
        return "; ".join(parts)

    def qk_norm(self, found: QKNormReport) -> str:
        how = {QKNorm.PER_HEAD: "per head", QKNorm.JOINT: "joint", None: "of unknown kind"}[found.how]
        where = {True: "behind the rotation", False: "before the rotation", None: "no rotation seen"}[found.after_rope]
        on = {name: getattr(found, name) for name in ("query", "key", "value")}
        return ", ".join([how, where, *(f"{name} {self.norm(norm)}" for name, norm in on.items() if norm)])
