"""``normlab.doctor(model, batch)``: is something wrong with the norms of a model, and with what they should keep in
bounds? One batch, a few passes, no training."""

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.diagnosis_drawings import Drawing, gradients_and_logits, sizes
from normlab.inspection.findings import NOT_VISIBLE, Finding, Severity
from normlab.inspection.judgement import judged, number
from normlab.inspection.measurements import Measurements, first_not_finite, measured
from normlab.inspection.subject import LossFunction, Subject, default_loss
from normlab.inspection.trials import Trials, tried
from normlab.inspection.wiring import Wiring
from normlab.page.tables import table_html, table_text
from normlab.training import nonfinite

_HEADERS = ("measurement", "here", "healthy small models")


@dataclass(frozen=True)
class Row:
    """A measured number, as text, beside what healthy small models show ("" where that says nothing)."""

    name: str
    value: str
    healthy: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What :func:`doctor` found; print it, or let a notebook show it.

    Attributes:
        model: name of its class.
        findings: errors first; empty if nothing was found.
        table: what was measured.
        figures: two drawings: sizes over depth, and gradients and attention logits over depth.
        not_measured: (what, why) for each measurement that could not be made here.
        not_visible: (fault, why) for faults that a model, a batch and an optimizer do not show.
    """

    model: str
    findings: tuple[Finding, ...]
    table: tuple[Row, ...]
    figures: tuple[Drawing, ...]
    not_measured: tuple[tuple[str, str], ...]
    not_visible: tuple[tuple[str, str], ...] = NOT_VISIBLE

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the findings, keys of ``KINDS`` of :mod:`normlab.inspection.findings`, each once."""
        return tuple(dict.fromkeys(finding.id for finding in self.findings))

    @property
    def summary(self) -> str:
        """One line: how many findings there are."""
        if not self.findings:
            return f"{self.model}: nothing found"
        errors = sum(f.severity is Severity.ERROR for f in self.findings)
        return f"{self.model}: {_count(errors, 'error')}, {_count(len(self.findings) - errors, 'warning')}"

    def __str__(self) -> str:
        lines = [self.summary]
        for finding in self.findings:
            lines += [f"  {finding.severity.value} {finding.id}: {finding.text}"]
            lines += [f"    try: {finding.advice} See {finding.chapter}."]
        lines += ["", table_text(_HEADERS, self._rows()), ""]
        lines += [f"not measured: {what}, because {why}" for what, why in self.not_measured]
        lines += [f"cannot be seen from here: {fault} ({why})" for fault, why in self.not_visible]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        items = "".join(_item(finding) for finding in self.findings)
        html = [f"<p><strong>{escape(self.summary)}</strong></p>", f"<ul>{items}</ul>" if items else ""]
        html.append(table_html(_HEADERS, self._rows(), f"What was measured on {self.model}"))
        html += [f'<div role="img" aria-label="{escape(f.alt, quote=True)}">{f.svg()}</div>' for f in self.figures]
        for title, pairs in (("Not measured", self.not_measured), ("Cannot be seen from here", self.not_visible)):
            rows = "".join(f"<li>{escape(what)}: {escape(why)}</li>" for what, why in pairs)
            if rows:
                html.append(f"<details><summary>{title} ({len(pairs)})</summary><ul>{rows}</ul></details>")
        return "".join(html)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the drawings, for JSON."""
        return {
            "model": self.model,
            "findings": [
                {"id": f.id, "severity": f.severity.value, "text": f.text, "try": f.advice, "chapter": f.chapter}
                for f in self.findings
            ],
            "table": [{"name": r.name, "value": r.value, "healthy": r.healthy} for r in self.table],
            "figures": [drawing.alt for drawing in self.figures],
            "not_measured": [{"what": what, "why": why} for what, why in self.not_measured],
            "not_visible": [{"fault": fault, "why": why} for fault, why in self.not_visible],
        }

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(row.name, row.value, row.healthy) for row in self.table]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _item(finding: Finding) -> str:
    page = finding.chapter.rsplit("/", 1)[-1]
    return (
        f"<li><strong>{finding.severity.value}</strong> <code>{finding.id}</code>: {escape(finding.text)} "
        f'Try: {escape(finding.advice)} <a href="{page}.html">Chapter {page.split("_")[0].lstrip("0")}</a></li>'
    )


def doctor(
    model: nn.Module,
    batch: Tensor | Mapping[str, Any],
    loss: LossFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Diagnosis:
    """Measure on one batch what goes wrong with norms, and with what norms keep in bounds.

    The model runs in evaluation mode, once with autograd and every operation kept, and a few times on changed ids.
    Weights, buffers, gradients, modes, random numbers and the optimizer are left as they were; hooks of your own run.
    What can't be measured is listed with the reason. Thresholds come from small models (widths 32 to 128).

    Args:
        model: a Transformer of this package, of ``transformers``, or the reader's own.
        batch: ids [B, T], or a dictionary of arguments for the model's call. 4 rows of 24 tokens or more are good.
        loss: ``loss(output, batch)``, a scalar tensor, with what the model returned and the dictionary of its arguments
            (ids that were given as a tensor are its "batch"). None: the ``loss`` that the model returned if there is
            one, else the cross-entropy of the next token at real tokens.
        optimizer: for what only it shows: decay on gains, and gains that its steps cannot move. It is not stepped; a
            copy of it with copies of the gains is.

    Raises:
        TypeError: ``model`` is no module, ``batch`` neither a tensor nor a dictionary, ``optimizer`` no optimizer, a
            ``loss`` that is no function or returns no scalar tensor.
        ValueError: the model fails on the batch (its error is named and chained); a batch of another shape, empty or on
            another device; a model without parameters, on the meta device, or made in inference mode.
    """
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function loss(output, batch), got {type(loss).__name__}")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    subject = Subject(model, batch)
    with torch.inference_mode(False), torch.random.fork_rng(), warnings.catch_warnings():
        wiring = subject.wiring()
        seen = measured(subject, wiring, loss)
        trials = tried(subject, wiring, seen, optimizer)
        findings = judged(seen, trials, wiring, _culprits(subject, wiring, seen, loss))
    missing = seen.missing | trials.missing
    return Diagnosis(
        subject.described,
        findings,
        tuple(_table(seen, trials, wiring)),
        _figures(seen),
        tuple(missing.items()),
    )


def _culprits(
    subject: Subject, wiring: Wiring, seen: Measurements, loss: LossFunction | None
) -> dict[str, str]:
    """Where the first number that is not finite came from, on the way forward or, if all is well there, back."""
    finite_loss = seen.loss is None or math.isfinite(seen.loss)
    if not (seen.finite_output and finite_loss):
        with subject.at_rest():
            module = nonfinite.first_output(subject.model, subject.call)
        return {"forward": module or first_not_finite(subject, wiring) or "in the loss"}
    if seen.finite_gradient:
        return {}
    named = {name or "batch": value for name, value in subject.arguments.items()}

    def again() -> Tensor:
        output = subject.call()
        value = default_loss(subject, output)[0] if loss is None else loss(output, named)
        assert value is not None  # it was there before
        return value

    gradients = {parameter: parameter.grad for parameter in subject.model.parameters()}
    try:
        for parameter in gradients:
            parameter.grad = None
        with subject.at_rest(), torch.enable_grad():
            module = nonfinite.first_gradient(subject.model, again)
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
    return {"backward": module or "in the loss"}


# --- the table ----------------------------------------------------------------------------------------------------


def _table(seen: Measurements, trials: Trials, wiring: Wiring) -> Iterator[Row]:
    kinds = sorted({r.report.kind.value if r.report.kind else "unknown" for r in seen.norms})
    yield Row("norms at work", f"{len(seen.norms)}" + (f" ({', '.join(kinds)})" if kinds else ""))
    for stack in wiring.stacks[-1:]:
        found = "yes" if stack.final_norm else "unknown" if stack.final_unknown else "none"
        yield Row("final norm", found, "yes, or Post-Norm blocks")
    yield from _norm_rows(seen)
    yield from _depth_rows(seen)
    yield from _attention_rows(seen)
    behind = [r for r in seen.norms if r.after_rotation]
    if behind:
        yield Row("norms of queries and keys behind the rotation", str(len(behind)), "0")
    yield from _loss_rows(seen)
    yield from _trial_rows(trials)


def _norm_rows(seen: Measurements) -> Iterator[Row]:
    errors = [r.error for r in seen.norms if r.error is not None]
    if errors:
        yield Row("norm against float64, units of rounding", number(max(errors)), "0.2 to 0.8")
    places = (("on the stream", True, "below 0.1"), ("elsewhere", False, "up to 1 in young models"))
    for where, on_stream, healthy in places:
        shares = [r.eps_share for r in seen.norms if r.eps_share is not None and r.on_stream is on_stream]
        if shares:
            yield Row(f"eps / (mean square + eps), worst norm {where}", number(max(shares)), healthy)
    gains = [r.gain for r in seen.norms if r.gain is not None]
    if gains:
        sizes = sorted(g.square().mean().sqrt().item() for g in gains)
        yield Row("gains, rms: least, median, most", ", ".join(map(number, _spread(sizes))), "about 1")
        dead = sum((g.abs() < 0.01 * g.square().mean().sqrt()).sum().item() for g in gains)
        zero = sum(int(g.numel()) for g in gains if not g.any())
        yield Row("dead entries of gains", f"{int(dead + zero)} of {sum(g.numel() for g in gains)}")
    largest = max([seen.largest, *(r.input_size for r in seen.norms)], default=0.0)
    if 0 < largest < math.inf:
        most = torch.finfo(torch.float16).max
        yield Row("largest entry of stream and norm inputs", number(largest))
        room = f"{number(most / largest)}, {number(most**0.5 / largest)}"
        yield Row("headroom of float16: entries, squares", room, "above 1")
    yield Row("types of parameters", ", ".join(seen.dtypes))


def _spread(values: list[float]) -> list[float]:
    return [values[0], values[len(values) // 2], values[-1]]


def _depth_rows(seen: Measurements) -> Iterator[Row]:
    if seen.depth:
        ends = f"{number(seen.depth[0].stream)}, {number(seen.depth[-1].after)}"
        yield Row("stream, rms: before and behind the blocks", ends, "grows 1 to 144 times")
        yield Row("what sublayers read, rms: least, most", _ends([d.read for d in seen.depth]))
        yield Row("what sublayers add, rms: least, most", _ends([d.increment for d in seen.depth]))
    steps = [step for step in seen.steps if math.isfinite(step)]
    if steps:
        yield Row("step of a block, share of the stream: least, most", _ends(steps), "0.03 to 72")
    if seen.head_spread is not None:
        name = "spread of the stream's size over tokens, last block"
        yield Row(name, number(seen.head_spread), "below 0.03 where it meets the head")


def _ends(values: list[float]) -> str:
    return f"{number(min(values))}, {number(max(values))}"


def _attention_rows(seen: Measurements) -> Iterator[Row]:
    largest = [reading.largest for reading in seen.attention if not reading.logits.isnan().any()]
    if largest:
        healthy = "up to 59 (fresh)" if seen.fresh else "up to 16 (trained)"
        yield Row("largest attention logit", number(max(largest)), healthy)
        bounds = [bound for bound in seen.bounds if bound is not None]
        if bounds:
            yield Row("its bound |q| |k| scale", number(max(bounds)))
    if seen.entropy is not None and seen.entropy_share is not None:
        entropy = f"{number(seen.entropy)}; {seen.entropy_share:.0%}"
        yield Row("attention entropy, nats; share of even attention", entropy, "from 32%")


def _loss_rows(seen: Measurements) -> Iterator[Row]:
    if seen.loss is not None:
        yield Row(f"loss ({seen.loss_name})", f"{seen.loss:.3f}")
        if seen.vocabulary:
            above = seen.loss - math.log(seen.vocabulary)
            yield Row(f"loss above ln {seen.vocabulary}", f"{above:.2f}", "up to 1.14 at the start")
    if seen.context_share is not None:
        yield Row("share of the logits' variance that depends on tokens", number(seen.context_share), "from 0.23")
    if seen.gradient_norm is not None:
        yield Row("gradient norm", number(seen.gradient_norm))
    if seen.by_layer:
        yield Row("gradient per parameter by layer: least, most", _ends([size for _, size in seen.by_layer]))


def _trial_rows(trials: Trials) -> Iterator[Row]:
    for name, value, healthy in (
        ("later tokens change earlier logits", trials.future, "0"),
        ("other rows change logits", trials.rows, "0"),
        ("padding changes real tokens", trials.padding, "0"),
        ("first real token changes later ones", trials.first_token, "from 0.013"),
        ("shift of all positions changes logits", trials.shift, "below 4e-06"),
    ):
        if value is not None:
            yield Row(name, number(value), healthy)
    if trials.moved:
        share = sum(trials.moved.values()) / len(trials.moved)
        yield Row("entries of gains that 20 steps move", f"{share:.0%}", "100% in float32")
    if trials.gains_in_optimizer is not None:
        decayed = len(set(trials.decayed)), len(set(trials.decayed_offset))
        text = f"{decayed[0]} stored as w, {decayed[1]} stored as 1 + w, of {trials.gains_in_optimizer}"
        yield Row("gains with weight decay", text, "0 stored as w")


def _figures(seen: Measurements) -> tuple[Drawing, Drawing]:
    stream, read, added = [], [], []
    for index, depth in enumerate(seen.depth):
        of_block = [d for d in seen.depth if d.layer == depth.layer]
        place = depth.layer - 1 + of_block.index(depth) / len(of_block)
        stream.append((place, depth.stream))
        read.append((place, depth.read))
        added.append((place, depth.increment))
        if index == len(seen.depth) - 1:
            stream.append((float(depth.layer), depth.after))
    logits = [(float(reading.layer), reading.largest) for reading in seen.attention]
    bounds = [(float(a.layer), bound) for a, bound in zip(seen.attention, seen.bounds) if bound is not None]
    gradient = [(float(layer), size) for layer, size in seen.by_layer]
    return sizes(_drawn(stream), _drawn(read), _drawn(added)), gradients_and_logits(
        _drawn(gradient), _drawn(logits), _drawn(bounds)
    )


def _drawn(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(y)]
