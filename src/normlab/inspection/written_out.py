"""Norms that are written out in the code of a model, instead of being a module or a call of torch's functional norms.

Such a norm is a product, or a quotient, of a vector with one number that was computed from the same vector. What goes
into it is run again on other inputs, as if it were a module, and measured like one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.norm_probe import Cast, Gain, NormReport, measure
from normlab.inspection.sublayers import Norm, is_handed_through
from normlab.inspection.trace import Call, Node, users

_LARGEST = 48  # operations; torch's own norms, taken apart, have fewer than 20
_PER_ENTRY = {"mul", "mul_", "div", "div_", "add", "add_", "sub", "sub_"}
_QUOTIENTS = {"mul", "mul_", "div", "div_"}


def written_norms(made: list[Node], known: list[Norm]) -> list[Norm]:
    """The norms among the operations of a run that are not part of the ``known`` ones."""
    return _Finder(made, known).norms()


@dataclass(frozen=True)
class _Slot:
    """The place of a tensor among those of a :class:`WrittenNorm`."""

    number: int


class WrittenNorm(nn.Module):
    """The operations between two nodes as a module; its parameters are those that they use.

    Every vector is taken to be normed on its own: an input of another number of vectors is cut into pieces of the shape
    that the operations were recorded with. Casts are left out, so that rounding can't be told.
    """

    def __init__(self, source: Node, output: Node, inside: list[Node]):
        super().__init__()
        self.shape = source.value.shape
        self.stored: dict[int, Tensor] = {}
        slots = {node: _Slot(number) for number, node in enumerate([source, *inside])}
        for node, slot in slots.items():
            if slot.number and not node.op:
                value = node.value.detach().clone()
                if isinstance(node.value, nn.Parameter):
                    self.register_parameter(str(slot.number), nn.Parameter(value, requires_grad=False))
                else:
                    self.stored[slot.number] = value
        self.steps = [
            (n.function, n.op, n.number, _with_slots(n.args, slots), _with_slots(n.options, slots), slots[n].number)
            for n in sorted(inside, key=lambda n: n.index)
            if n.function is not None
        ]
        self.result = slots[output].number

    def forward(self, x: Tensor) -> Tensor:
        width = self.shape[-1]
        if x.shape[-1] != width:
            raise ValueError(f"expected {width} features, got {x.shape[-1]}")
        rows = x.reshape(-1, width)
        count = self.shape.numel() // width
        pieces = [rows[start : start + count] for start in range(0, len(rows), count)]
        outputs = [self.piece(piece, count)[: len(piece)] for piece in pieces]
        return torch.cat(outputs).view(x.shape)

    def piece(self, rows: Tensor, count: int) -> Tensor:
        """The norm of up to ``count`` vectors [n, width]; the first one fills up what is missing."""
        padding = rows[:1].expand(count - len(rows), -1)
        values: dict[int, Any] = {0: torch.cat([rows, padding]).view(self.shape)}
        values |= {n: t.to(rows.dtype) if t.is_floating_point() else t for n, t in self.stored.items()}
        values |= {int(name): parameter for name, parameter in self.named_parameters()}
        for function, op, number, args, options, slot in self.steps:
            args, options = _with_values(args, values), _with_values(options, values)
            if op == "_to_copy":
                values[slot] = args[0]
                continue
            if op.endswith("_"):
                args = (args[0].clone(), *args[1:])
            result = function(*args, **options)
            values[slot] = result if isinstance(result, Tensor) else result[number]
        return values[self.result].reshape(count, -1)


def _with_slots(structure: Any, slots: dict[Node, _Slot]) -> Any:
    return _replaced(structure, Node, slots.__getitem__)


def _with_values(structure: Any, values: dict[int, Tensor]) -> Any:
    return _replaced(structure, _Slot, lambda slot: values[slot.number])


def _replaced(structure: Any, kind: type, new: Callable[[Any], Any]) -> Any:
    """The nest of tuples and dictionaries with everything of a kind replaced."""
    if isinstance(structure, kind):
        return new(structure)
    if isinstance(structure, tuple):
        return tuple(_replaced(item, kind, new) for item in structure)
    if isinstance(structure, dict):
        return {key: _replaced(item, kind, new) for key, item in structure.items()}
    return structure


class _Finder:
    def __init__(self, made: list[Node], known: list[Norm]):
        spans = [(norm.call.start, norm.call.end) for norm in known]
        self.outputs = {norm.output for norm in known}
        self.made = [n for n in made if not any(start <= n.index < end for start, end in spans)]
        self.users = users(made)

    def norms(self) -> list[Norm]:
        found: list[Norm] = []
        taken: set[Node] = set()
        for node in self.made:
            if node in taken:
                continue
            best = self.norm_at(node)
            if best is not None:
                source, output, inside, report = best
                taken |= set(inside)
                start = min(n.index for n in inside if n.op)
                call = Call(WrittenNorm(source, output, inside), start, [source], [output], output.index + 1)
                found.append(Norm(call, report, frozenset(inside)))
        return found

    def norm_at(self, node: Node) -> tuple[Node, Node, list[Node], NormReport] | None:
        """The norm whose division is ``node``: of those that fit best, the one that reaches furthest."""
        best: tuple[Node, Node, list[Node], NormReport] | None = None
        best_fit = (False, 0, False, False)
        for value, divisor in _quotients(node):
            for source in self.sources(value, divisor):
                for output, vectors in self.outputs_of(node):
                    inside = self.between(source, output)
                    report = None if inside is None else _measured(source, output, inside)
                    if inside is not None and report is not None:
                        whole = report.groups == 1
                        fit = (report.kind is not None, vectors, report.gain is not Gain.UNKNOWN, whole)
                        if fit >= best_fit:
                            best, best_fit = (source, output, inside, report), fit
        return best

    def sources(self, value: Node, divisor: Node) -> Iterator[Node]:
        """Nodes behind ``value`` that the divisor was made from as well, the nearest first."""
        behind = self.ancestors(divisor)
        node = value
        while True:
            if node in behind:
                yield node
            if node in self.outputs or not (is_handed_through(node) or node.op in _PER_ENTRY):
                return
            full = [p for p in node.parents if p.value.shape == node.value.shape or is_handed_through(node)]
            if len(full) != 1 or full[0].value.numel() != node.value.numel():
                return
            node = full[0]

    def ancestors(self, node: Node) -> set[Node]:
        seen, waiting = {node}, [node]
        while waiting and len(seen) < _LARGEST:
            for parent in waiting.pop(0).parents:
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return seen

    def outputs_of(self, node: Node) -> Iterator[tuple[Node, int]]:
        """The node, and it behind gains, biases and numbers, with the count of vectors among these."""
        vectors = 0
        yield node, vectors
        while len(self.users.get(node, [])) == 1:
            (user,) = self.users[node]
            if user.value.numel() != node.value.numel():
                return
            if user.op in _PER_ENTRY:
                if not user.parents or (user.op.startswith("div") and user.parents[0] is not node):
                    return
                vectors += any(p is not node and p.value.numel() > 1 for p in user.parents)
                yield user, vectors
            elif not is_handed_through(user):
                return
            node = user

    def between(self, source: Node, output: Node) -> list[Node] | None:
        """What was computed between the two and what it took; None if that is more than vectors of parameters."""
        width = source.value.shape[-1]
        seen, waiting = {output}, [output]
        while waiting:
            node = waiting.pop()
            if not node.op and not _is_vector(node.value, width):
                return None
            if node.op and node.function is None:
                return None
            for parent in node.parents:
                if parent is not source and parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
            if len(seen) > _LARGEST:
                return None
        return list(seen)


def _quotients(node: Node) -> Iterator[tuple[Node, Node]]:
    """(vectors, one number for each of them) where the node is their product or quotient."""
    if node.op not in _QUOTIENTS or len(node.parents) != 2 or node.value.dim() < 2:
        return
    if not node.value.is_floating_point() or node.value.shape[-1] < 2:
        return
    first, second = node.parents
    for value, divisor in [(first, second), (second, first)][: 1 if node.op.startswith("div") else 2]:
        number = divisor
        while is_handed_through(number):
            number = number.parents[0]
        if value.value.shape == node.value.shape and number.value.numel() < node.value.numel() and number.op:
            yield value, divisor


def _are_as_many(one: Tensor, other: Tensor) -> bool:
    """True for as many vectors of the same width."""
    return one.shape[-1:] == other.shape[-1:] and one.numel() == other.numel()


def _is_vector(value: Tensor, width: int) -> bool:
    """A stored number, or gains: an entry per feature (or head and feature)."""
    if value.numel() == 1:
        return True
    return isinstance(value, nn.Parameter) and value.shape[-1] == width and value.dim() <= 3


def _measured(source: Node, output: Node, inside: list[Node]) -> NormReport | None:
    """What the operations compute, if that is a norm of every vector on its own."""
    if source.value.dim() < 2 or source.value.shape[-1] < 2 or not _are_as_many(source.value, output.value):
        return None
    report = measure(WrittenNorm(source, output, inside), source.value)
    if report is None or report.across_tokens:
        return None
    return replace(report, module="written out", cast=None if report.cast is None else Cast.UNKNOWN)
