"""How a model is wired, worked out from a trace: its norms, and its stacks of residual blocks."""

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from torch import nn

from normlab.inspection.norm_probe import NormReport, measure
from normlab.inspection.sublayers import (
    PRODUCTS,
    Norm,
    Sublayer,
    Unknown,
    is_light,
    is_normalizing,
    root,
    sublayers,
)
from normlab.inspection.trace import Call, Node, Trace, trace, users
from normlab.inspection.written_out import written_norms

# Pooling over tokens, which a final norm may stand behind, and what unrecognized norms are made of.
_REDUCTIONS = {"mean", "sum", "amax", "max", "square", "abs", "pow", "clamp_min", "clamp", "reciprocal"}
_REDUCTIONS |= {"rsqrt", "sqrt", "var", "var_mean", "std", "linalg_vector_norm", "norm"}
_UNRECOGNIZED = "something like a norm is written out and was not recognized"
_NO_STREAM = "the stream cannot be told, as the block next to it is unknown"


@dataclass(eq=False)
class Block:
    """A block of a stack: the stream before and after it, and its sublayers, or why they are unknown."""

    call: Call
    x: Node
    y: Node
    sublayers: list[Sublayer]
    unknown: str | None = None


@dataclass(eq=False)
class Stack:
    """Blocks one after the other, with the norms before and behind them, or why these cannot be told."""

    blocks: list[Block]
    embedding_norm: Norm | None = None
    final_norm: Norm | None = None
    embedding_unknown: str | None = None
    final_unknown: str | None = None


def wiring_of(model: nn.Module, *args: Any, **kwargs: Any) -> "Wiring":
    """Run the model once and work out its wiring. A model of ``transformers`` keeps no cache of keys and values."""
    return Wiring(run_of(model, *args, **kwargs))


def run_of(model: nn.Module, *args: Any, **kwargs: Any) -> Trace:
    """The run that :func:`wiring_of` looks at."""
    if hasattr(getattr(model, "config", None), "output_hidden_states"):
        taken = signature(model.forward).parameters.values()
        any_name = any(p.kind is Parameter.VAR_KEYWORD for p in taken)
        options = {"output_hidden_states": True, "use_cache": False}
        kwargs = {name: v for name, v in options.items() if any_name or name in {p.name for p in taken}} | kwargs
    return trace(model, *args, **kwargs)


class Wiring:
    """The stacks and norms of a traced model.

    Attributes:
        norms: every norm at work, in order.
        stacks: in the order in which they ran; empty if no stack of blocks was found.
    """

    def __init__(self, run: Trace):
        self.run = run
        modules = list(_norms(run.root, {}))
        self.norms = sorted(modules + written_norms(run.made, modules), key=lambda norm: norm.call.start)
        self.by_output = {norm.output: norm for norm in self.norms}
        self._norm_calls = {norm.call for norm in self.norms}
        self._containers = _container_of_each_element(run.model)
        self._blocks: dict[Call, Block] = {}
        self.stacks = self._find_stacks()
        self._users = users(run.made)
        for stack in self.stacks:
            self._add_embedding_norm(stack)
            self._add_final_norm(stack)

    # --- stacks ---------------------------------------------------------------------------------------------------

    def _find_stacks(self) -> list[Stack]:
        chains = list(self._chains_below(self.run.root))
        richness = [_richness([self._block(call) for call in chain]) for chain in chains]
        if max(richness, default=0) < 2 and self._is_block(self.run.root):
            whole = self._block(self.run.root)  # the model is a single block
            if len(whole.sublayers) > max(richness, default=0) and not _is_row_of(chains, whole):
                return [Stack([whole])]
        # Where nothing was understood, only what repeats is called a stack.
        good = [c for c, rich in zip(chains, richness) if rich] or [c for c in chains if len(c) > 1]
        stacks: list[Stack] = []
        for chain in good:
            blocks = [self._block(call) for call in chain]
            if stacks and self.root(blocks[0].x) is self.root(stacks[-1].blocks[-1].y):
                stacks[-1].blocks += blocks  # a layer used again, or a stack cut into parts
            else:
                stacks.append(Stack(blocks))
        return stacks

    def _chains_below(self, call: Call) -> Iterator[list[Call]]:
        """Chains of blocks: the innermost ones whose blocks have two sublayers or more, else the outermost ones.

        Inner blocks of one sublayer count if the outer one is nothing but a row of them.
        """
        chains = self._chains(call.children)
        in_chain = {c for chain in chains for c in chain}
        for child in call.children:
            if child not in in_chain:
                yield from self._chains_below(child)
        for chain in chains:
            inner = [list(self._chains_below(element)) for element in chain]
            rich = [c for chains in inner for c in chains if _richness([self._block(e) for e in c]) > 1]
            rows = [c for e, chains in zip(chain, inner) if _is_row_of(chains, self._block(e)) for c in chains]
            yield from rich or rows or [chain]

    def _chains(self, calls: Iterable[Call]) -> list[list[Call]]:
        """Calls of like modules, each reading what the one before it returned."""
        chains: list[list[Call]] = []
        for call in calls:
            if not self._is_block(call):
                continue
            streams = {self.root(x) for x, _ in _ends(call)}
            for chain in chains:
                if self._key(chain[-1]) == self._key(call) and self.root(_ends(chain[-1])[0][1]) in streams:
                    chain.append(call)
                    break
            else:
                chains.append([call])
        return [c for c in chains if len(c) > 1 or c[0].module in self._containers]

    def _key(self, call: Call):
        return self._containers.get(call.module, type(call.module))

    def _is_block(self, call: Call) -> bool:
        """True if the call maps a tensor to one of the same shape and has matrices of its own."""
        if not _ends(call) or call in self._norm_calls:
            return False
        return any(p.dim() > 1 for p in call.module.parameters())

    # --- norms before and behind a stack ------------------------------------------------------------------------------

    def _add_embedding_norm(self, stack: Stack) -> None:
        """The norm between the embedding and the first block; sums, scales, masks and a matrix may follow it."""
        first = stack.blocks[0]
        ends = {block.y for other in self.stacks for block in other.blocks}
        found, seen, signs = [], set[Node](), []
        waiting = [(first.x, 0)]
        while waiting:
            node, matrices = waiting.pop()
            if node in seen or (node in ends and node is not first.x):
                continue
            seen.add(node)
            norm = self.by_output.get(node)
            if norm is not None:
                found.append(norm)
            elif node not in ends:
                signs += [node] if self._is_unknown_norm(node) else []
                matrix = node.op in ("mm", "addmm")
                if is_light(node) or node.op in _REDUCTIONS or (matrix and not matrices):
                    waiting += [(parent, matrices + matrix) for parent in node.parents]
        if len(found) == 1 and not signs:
            stack.embedding_norm = found[0]
        elif found:
            stack.embedding_unknown = "several norms meet before the first block"
        elif any(self._has_tokens(sign) for sign in signs):
            stack.embedding_unknown = _UNRECOGNIZED
        elif first.unknown:
            stack.embedding_unknown = _NO_STREAM

    def _add_final_norm(self, stack: Stack) -> None:
        """The norm behind the last block: of the whole stream, else of a part of it or of its mean over tokens."""
        last = self.root(stack.blocks[-1].y)
        reached = self.lightly_reached(stack.blocks[-1].y, _REDUCTIONS)
        outside = [n for n in self.norms if not any(_inside(n, b) for other in self.stacks for b in other.blocks)]
        exact = [norm for norm in outside if self.root(norm.source) is last]
        near = [norm for norm in outside if norm.source in reached]
        if exact:
            stack.final_norm = exact[-1]
        elif len({norm.report for norm in near}) == 1:
            stack.final_norm = near[0]
        elif near:
            stack.final_unknown = "several norms stand behind the last block"
        elif any(self._is_unknown_norm(node) for node in reached):
            stack.final_unknown = _UNRECOGNIZED
        elif stack.blocks[-1].unknown:
            stack.final_unknown = _NO_STREAM

    def lightly_reached(self, node: Node, more: Collection[str] = ()) -> set[Node]:
        """What was made from the node by views, slices, sums, masks and scales, and by the operations of ``more``.

        The insides of norms and what other blocks do are left out.
        """
        seen, waiting = {node}, [node]
        while waiting:
            for user in self._users.get(waiting.pop(), ()):
                known = user in self.by_output or any(norm.covers(user) for norm in self.norms)
                foreign = any(b.call.start <= user.index < b.call.end for s in self.stacks for b in s.blocks)
                if user not in seen and not known and not foreign and (is_light(user) or user.op in more):
                    seen.add(user)
                    waiting.append(user)
        return seen

    def _is_unknown_norm(self, node: Node) -> bool:
        return node.value.numel() > 1 and is_normalizing(node) and not any(norm.covers(node) for norm in self.norms)

    def _has_tokens(self, node: Node) -> bool:
        """True if an embedding, a product or an input went into the node: not so for a table of positions."""
        return any(n.op == "embedding" or n.op in PRODUCTS for n in self.behind(node, ()))

    def root(self, node: Node) -> Node:
        return root(node, self.by_output)

    def behind(self, node: Node, stop: Collection[Node]) -> set[Node]:
        """The node and everything that it was made from, not looking behind the nodes of ``stop``."""
        seen, waiting = {node}, [node]
        while waiting:
            node = waiting.pop()
            if node not in stop:
                new = set(node.parents) - seen
                seen |= new
                waiting += new
        return seen

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _block(self, call: Call) -> Block:
        """The block, with the first pair of input and output that can be understood as its stream."""
        if call not in self._blocks:
            blocks = [self._try(call, x, y) for x, y in _ends(call)]
            self._blocks[call] = next((block for block in blocks if block.unknown is None), blocks[0])
        return self._blocks[call]

    def _try(self, call: Call, x: Node, y: Node) -> Block:
        try:
            return Block(call, x, y, sublayers(self.norms, x, y, call.start))
        except Unknown as reason:
            return Block(call, x, y, [], str(reason))


def _ends(call: Call) -> list[tuple[Node, Node]]:
    """Pairs of an input and the first output of the same shape: what may be the stream before and after a block."""
    for y in call.outputs:
        ends = [(x, y) for x in call.inputs if x.value.shape == y.value.shape and x.value.dim() > 1 and x is not y]
        if ends:
            return ends
    return []


def _inside(norm: Norm, block: Block) -> bool:
    return block.call.start <= norm.call.start < block.call.end


def _richness(blocks: list[Block]) -> int:
    """The most sublayers that any of the blocks has."""
    return max((len(b.sublayers) for b in blocks), default=0)


def _is_row_of(chains: list[list[Call]], block: Block) -> bool:
    """True if what looks like one block is a row of blocks with one sublayer each, all of one kind."""
    kinds = {sublayer.kind for sublayer in block.sublayers}
    return sum(map(len, chains)) == len(block.sublayers) > 1 and len(kinds) == 1


def _container_of_each_element(model: nn.Module) -> dict[nn.Module, nn.Module]:
    """For every module that stands in a list, sequence or dictionary of modules: which."""
    containers = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
    return {m: c for c in model.modules() if isinstance(c, containers) for m in c.children()}


def _norms(call: Call, seen: dict[nn.Module, NormReport | None]) -> Iterator[Norm]:
    """The outermost calls of norms below a call, in order; every module is measured once.

    A module that normalizes in an unknown way gives way to the norms in it.
    """
    for child in call.children:
        if _may_be_norm(child):
            if child.module not in seen:
                seen[child.module] = measure(child.module, child.inputs[0].value)
            report = seen[child.module]
            inner = [] if report is not None and report.kind is not None else list(_norms(child, seen))
            if report is not None and not inner:
                yield Norm(child, report)
            yield from inner
        else:
            yield from _norms(child, seen)


def _may_be_norm(call: Call) -> bool:
    """One tensor to one of the same shape, and only parameters with an entry per feature (or head and feature)."""
    if not call.inputs or len(call.outputs) != 1 or call.inputs[0] is call.outputs[0]:
        return False
    shape = call.outputs[0].value.shape
    if len(shape) < 2 or [n for n in call.inputs if n.value.shape == shape] != call.inputs[:1]:
        return False
    sizes = {shape[-1], math.prod(shape[-2:]), shape[1], 1}
    return all(p.numel() in sizes and p.dim() <= 2 for p in call.module.parameters())
