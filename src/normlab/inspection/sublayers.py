"""Takes a block apart into its residual sublayers, from its output back to its input.

A node belongs to the *stream* of a block if it is the block's input, or a sum, a multiple or a norm of the stream.
Whatever else is added to the stream is a branch: a sublayer F that reads the stream, perhaps through a norm, and
whose output is perhaps normed and scaled before it is added.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.norm_probe import NormReport
from normlab.inspection.trace import Call, Node

# Operations that hand their first argument through, entry by entry.
_SAME = {"view", "_unsafe_view", "_reshape_alias", "reshape", "alias", "detach", "clone", "_to_copy", "squeeze"}
_SAME |= {"unsqueeze", "expand", "transpose", "permute", "t", "lift_fresh"}
# Operations that add to, scale, mask, cut or join vectors.
_LIGHT = {"mul", "mul_", "div", "div_", "add", "add_", "sub", "sub_", "masked_fill", "masked_fill_", "native_dropout"}
_LIGHT |= {"slice", "select", "index", "index_select", "gather", "cat", "stack", "split", "split_with_sizes", "unbind"}
_LIGHT |= {"where"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "convolution", "_grouped_mm", "_scaled_mm", "_int_mm"}
_SLICES = {"slice", "select", "split", "split_with_sizes", "unbind"}
_SOFTMAX = {"_softmax", "_safe_softmax", "softmax"}
# Signs of a norm that is written out in a sublayer instead of being a module or a call of torch's functional norms.
_NORMALIZING = {"rsqrt", "sqrt", "var", "var_mean", "std", "linalg_vector_norm", "norm", "native_layer_norm"}
_NORMALIZING |= {"native_group_norm", "native_batch_norm", "_native_batch_norm_legit", "_fused_rms_norm", "reciprocal"}


class Unknown(Exception):
    """A wiring that the analysis does not know; the message says what it met."""


@dataclass(eq=False)
class Norm:
    """A norm at work: what went in, what came out, and what the module was found to compute.

    ``written``: the operations of one that is written out, empty for a module.
    """

    call: Call
    report: NormReport
    written: frozenset[Node] = frozenset()

    @property
    def source(self) -> Node:
        return self.call.inputs[0]

    @property
    def output(self) -> Node:
        return self.call.outputs[0]

    def covers(self, node: Node) -> bool:
        """True if the operation is part of the norm."""
        return node in self.written if self.written else self.call.start <= node.index < self.call.end


@dataclass(eq=False)
class Attention:
    """The scores of an attention as they enter the softmax, and the three tensors around them.

    ``norms`` are those between a projection and its query, key or value. ``after_rotation`` tells whether queries and
    keys are normed behind the rotary embedding, None where no rotation or no norm was seen. ``unknown_norm``: something
    between the projections and the softmax looks like a part of a norm that was not recognized.
    """

    logits: Node
    query: Node
    key: Node
    value: Node | None
    norms: dict[str, list[Norm]] = field(default_factory=dict)
    after_rotation: bool | None = None
    unknown_norm: bool = False

    @property
    def all_norms(self) -> list[Norm]:
        return [norm for norms in self.norms.values() for norm in norms]


@dataclass(eq=False)
class Sublayer:
    """A branch F and how it meets the stream.

    ``kind`` is "attention" (softmax of products of queries and keys), "cross-attention" (keys from another stack),
    "mlp" (every token on its own), "mixer" (tokens meet in another way) or "unknown". ``stream`` is x before it,
    ``read`` what F reads, ``output`` what F returned, ``increment`` what is added, ``after`` the stream behind it (None
    between parallel branches). The norms stand on what F reads, on what it returns, on the sum, and on the stream where
    the skip starts behind a norm. The scales multiply what F reads, what it adds and the stream; None stands for a
    learned one; ``sum_scale`` multiplies the block's last sum. ``shares_norm``: a parallel branch reads the same normed
    stream. ``region`` holds everything that went into the output. ``attention`` is None where there are several with
    different scores. ``hidden_norm``: see ``_Peeler.has_hidden_norm``.
    """

    stream: Node
    read: Node
    output: Node
    increment: Node
    after: Node | None
    input_norm: Norm | None
    output_norm: Norm | None
    post_norm: Norm | None = None
    skip_norm: Norm | None = None
    parallel: bool = False
    shares_norm: bool = False
    input_scale: float | None = 1.0
    output_scale: float | None = 1.0
    stream_scale: float | None = 1.0
    sum_scale: float | None = 1.0
    region: set[Node] = field(default_factory=set)
    inner_norms: list[Norm] = field(default_factory=list)
    attention: Attention | None = None
    kind: str = "unknown"
    hidden_norm: bool = False
    unknown_qk_norm: bool = False

    @property
    def formula(self) -> str:
        """One line like the ones of :mod:`normlab.placement`: N input norm, F sublayer, O output norm."""
        x = "N(x)" if self.skip_norm else "x"
        read = f"N({x})" if self.input_norm else x
        branch = f"F({_scaled(self.input_scale, read)})"
        branch = _scaled(self.output_scale, f"O({branch})" if self.output_norm else branch)
        line = f"{_scaled(self.stream_scale, x)} + {branch}"
        line = f"N({line})" if self.post_norm else line
        return line if self.sum_scale == 1 else _scaled(self.sum_scale, f"({line})")


def _scaled(factor: float | None, text: str) -> str:
    if factor == 1:
        return text
    return f"g * {text}" if factor is None else f"{factor:.4g} {text}"


def is_handed_through(node: Node) -> bool:
    """True for views, copies and casts."""
    return node.op in _SAME


def is_light(node: Node) -> bool:
    """True for what leaves vectors vectors: views and casts, sums, scales, masks, slices."""
    return node.op in _SAME or node.op in _LIGHT


def root(node: Node, norms: Container[Node], x: Node | None = None) -> Node:
    """The node behind views, copies and casts; outputs of ``norms`` and ``x`` are not looked behind."""
    while node.op in _SAME and node is not x and node not in norms:
        node = node.parents[0]
    return node


def sublayers(norms: list[Norm], x: Node, y: Node, start: int) -> list[Sublayer]:
    """The residual sublayers of a block in order.

    Args:
        norms: all norms at work in the model.
        x, y: the stream before and after the block.
        start: index of the block's first operation.

    Raises:
        Unknown: the block is no chain of residual sublayers of the kind described above.
    """
    return _Peeler(norms, x, y, start).sublayers()


class _Peeler:
    """Takes a block apart from its output back to its input."""

    def __init__(self, norms: list[Norm], x: Node, y: Node, start: int):
        self.norms = norms
        self.by_output = {norm.output: norm for norm in norms}
        self.start = start
        self.x, self.y = x, y
        self.depends: dict[Node, bool] = {self.x: True}
        for node in sorted(self.closure(y, lambda n: n is self.x), key=lambda n: n.index):
            if node is not self.x:
                self.depends[node] = any(self.depends.get(p, False) for p in node.parents)
        self.streams: dict[Node, bool] = {self.x: True}
        self.path: set[Node] = set()  # the streams between sublayers, as far as they are known

    def root(self, node: Node) -> Node:
        return root(node, self.by_output, self.x)

    def norm(self, node: Node) -> Norm | None:
        """The norm whose output the node is, unless the node is the block's input."""
        return None if node is self.x else self.by_output.get(node)

    def closure(self, node: Node, stop: Callable[[Node], bool], whole: bool = False) -> set[Node]:
        """The node and what it was made from in the block (or the whole run), not behind nodes that ``stop``."""
        seen, waiting = {node}, [node]
        while waiting:
            node = waiting.pop()
            if stop(node) or (node.op and node.index < self.start and not whole):
                continue
            for parent in node.parents:
                if parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return seen

    def is_stream(self, node: Node) -> bool:
        node = self.root(node)
        if node not in self.streams:
            self.streams[node] = False  # meets itself only through a write in place
            norm, (_, scaled) = self.norm(node), self.scale(node)
            if norm is not None:
                self.streams[node] = self.is_stream(norm.source)
            elif scaled is not node:
                self.streams[node] = self.is_stream(scaled)
            elif _is_sum(node):
                self.streams[node] = any(self.is_stream(p) for p in node.parents if self.depends.get(p, False))
        return self.streams[node]

    def scale(self, node: Node) -> tuple[float | None, Node]:
        """(c, v) for a multiple c * v by a number or by what parameters make (then c is None); else (1, node)."""
        factor: float | None = 1.0
        while True:
            node = self.root(node)
            if node is self.x or self.norm(node) is not None or node.op not in ("mul", "mul_", "div", "div_"):
                return factor, node
            moving = [p for p in node.parents if self.depends.get(p, False)]
            if len(moving) != 1 or (node.op.startswith("div") and moving[0] is not node.args[0]):
                return factor, node
            other = node.args[1] if moving[0] is node.args[0] else node.args[0]
            learned = self.is_learned(other)
            number = None if learned else _number(other)
            if number is None and not learned:
                return factor, node
            if number is None or factor is None:
                factor = None
            else:
                factor *= 1 / number if node.op.startswith("div") else number
            node = moving[0]

    def is_learned(self, other: Any) -> bool:
        """True for a parameter, a part of one, and whatever is computed from parameters and numbers alone."""
        if not isinstance(other, Node):
            return False
        leaves = [n.value for n in self.closure(other, lambda n: False, whole=True) if not n.parents and not n.op]
        stored = [isinstance(value, nn.Parameter) for value in leaves]
        return any(stored) and all(is_parameter or v.numel() == 1 for is_parameter, v in zip(stored, leaves))

    # --- from the output back to the input ----------------------------------------------------------------------------

    def sublayers(self) -> list[Sublayer]:
        found: list[Sublayer] = []
        if not self.depends.get(self.root(self.y), False):
            raise Unknown("the output of the block does not depend on its input")
        factor, node = self.scale(self.y)
        while node is not self.x:
            group, node = self.peel(node)
            found = group + found
        if found:
            found[-1].after, found[-1].sum_scale = self.root(self.y), factor
        for sublayer in found:
            self.describe(sublayer)
        return found

    def peel(self, node: Node) -> tuple[list[Sublayer], Node]:
        """The last sublayer (or the parallel ones) before ``node``, and the stream before it."""
        after, post = node, self.norm(node)
        if post is not None:
            node = self.root(post.source)
        branches: list[Node] = []
        while True:
            stream, branch = self.split(node)
            branches = self.summands(branch) + branches
            factor, stream = self.scale(stream)
            self.path |= {node, stream}
            candidates = [self.branch(b, stream) for b in branches]
            if None not in candidates:
                break
            if factor != 1 or stream is self.x or not _is_sum(stream):
                raise Unknown("a branch does not read the stream that it is added to, or reads more than that")
            node = stream
        group = sorted((s for s in candidates if s is not None), key=lambda s: s.output.index)
        group[-1].after = after
        skip = self.norm(stream) if post is None else None
        for sublayer in group:
            sublayer.post_norm, sublayer.skip_norm, sublayer.stream_scale = post, skip, factor
            sublayer.parallel = len(group) > 1
            sublayer.shares_norm = sum(s.input_norm is sublayer.input_norm is not None for s in group) > 1
        if skip is not None:
            stream = self.root(skip.source)
            for sublayer in group:
                sublayer.stream = stream
        return group, stream

    def split(self, node: Node) -> tuple[Node, Node]:
        """The two sides of a residual sum: the stream, and what is added to it."""
        if not _is_sum(node):
            raise Unknown(f"the stream passes through '{node.op}'")
        a, b = node.parents
        if self.is_stream(a) == self.is_stream(b):
            raise Unknown("a sum in which not exactly one side is the stream")
        return (a, b) if self.is_stream(a) else (b, a)

    def summands(self, node: Node) -> list[Node]:
        """A branch, or attention and MLP if they were added up before they met the stream."""
        total = self.root(node)
        if self.norm(total) is None and _is_sum(total) and all(self.depends.get(p, False) for p in total.parents):
            regions = [self.closure(p, self.is_stream) for p in total.parents]
            if self.are_apart(*regions) and len({not self.attentions(region) for region in regions}) == 2:
                return [part for parent in total.parents for part in self.summands(parent)]
        return [node]

    def are_apart(self, one: set[Node], other: set[Node]) -> bool:
        """True if two regions share nothing that moves but a product, of which they take different slices."""
        shared = {n for n in one & other if self.depends.get(n, False) and not self.is_stream(n)}
        cuts = [
            {n for n in region - shared if self.depends.get(n, False) and any(p in shared for p in n.parents)}
            for region in (one, other)
        ]
        if any(n.op not in _SLICES for n in cuts[0] | cuts[1]):
            return False
        places = [{n.value.data_ptr() for n in cut} for cut in cuts]
        return not places[0] & places[1]

    def joins_attention(self, output: Node) -> bool:
        """True if attention and something beside it are joined to longer vectors before the branch's last product."""
        for node in self.closure(output, self.is_stream):
            if node.op == "cat" and self.depends.get(node, False):
                moving = [p for p in node.parents if self.depends.get(p, False)]
                kinds = {not self.attentions(self.closure(p, self.is_stream)) for p in moving}
                if len(kinds) == 2:
                    return True
        return False

    def branch(self, increment: Node, stream: Node) -> Sublayer | None:
        """The branch as a sublayer on ``stream``, or None if it reads something else."""
        output_scale, output = self.scale(increment)
        output_norm = self.norm(output)
        if output_norm is not None:
            output = self.root(output_norm.source)
        if self.is_stream(output):
            raise Unknown("the stream is added to itself")

        def is_read(node: Node) -> bool:
            """True for streams between sublayers, and norms and multiples of this one, but not for sums made in F."""
            return node is self.x or node in self.path or self.is_made_from(self.root(node), stream)

        read = self.common_door(self.doors(output, self.is_stream)) or self.common_door(self.doors(output, is_read))
        if read is None:
            return None
        region = self.closure(output, lambda n: self.root(n) is read)
        input_scale, source = self.scale(read)
        input_norm = None
        if source is not stream:
            input_norm = self.norm(source)
            if input_norm is None or self.root(input_norm.source) is not stream:
                return None
        found = Sublayer(stream, read, output, increment, None, input_norm, output_norm, region=region)
        found.input_scale, found.output_scale = input_scale, output_scale
        return found

    def doors(self, output: Node, is_end: Callable[[Node], bool]) -> set[Node]:
        """What a branch reads if ``is_end`` tells where it begins."""
        region = self.closure(output, is_end)
        return {self.root(n) for n in region if self.depends.get(n, False) and is_end(n)}

    def common_door(self, doors: set[Node]) -> Node | None:
        """What a branch reads of the stream, if that is one tensor; from a norm of the stream others may be made by
        norms and scales, such as what a router reads.
        """
        for door in doors if len(doors) == 1 else [d for d in doors if self.norm(d) is not None]:
            if all(self.is_made_from(other, door) for other in doors):
                return door
        return None

    def is_made_from(self, node: Node, door: Node) -> bool:
        """True if the node is the door, or a norm or a multiple of it."""
        while node is not door:
            norm, (_, scaled) = self.norm(node), self.scale(node)
            before = self.root(norm.source) if norm is not None else scaled
            if before is node:
                return False
            node = before
        return True

    # --- what a sublayer does -----------------------------------------------------------------------------------------

    def describe(self, sublayer: Sublayer) -> None:
        """Fill in what happens inside the branch."""
        region = sublayer.region
        moving = {n for n in region if self.depends.get(n, False) and self.root(n) is not sublayer.read}
        sublayer.inner_norms = [n for n in self.norms if n.output in moving]
        found = self.attentions(region)
        if found and self.joins_attention(sublayer.output):
            raise Unknown("attention and something beside it leave through one matrix and cannot be told apart")
        if found:
            for attention in found:
                self.find_attention_norms(attention, sublayer.inner_norms)
            sublayer.kind = "attention" if self.depends.get(found[0].key, False) else "cross-attention"
            # Just one, or one for parts of the values: with the same scores.
            if all(torch.equal(a.logits.value, found[0].logits.value) for a in found):
                sublayer.attention = found[0]
                sublayer.unknown_qk_norm = found[0].unknown_norm
            else:
                sublayer.unknown_qk_norm = any(a.unknown_norm or a.all_norms for a in found)
        else:
            mixes = _mixes_tokens(sublayer)
            if mixes is False and self.meets_others(region):
                mixes = None
            sublayer.kind = "unknown" if mixes is None else "mixer" if mixes else "mlp"
        sublayer.hidden_norm = self.has_hidden_norm(sublayer)

    def attentions(self, region: set[Node]) -> list[Attention]:
        """The softmaxes in the region whose scores are products of queries and keys, in order."""
        found = []
        for softmax in sorted((n for n in region if n.op in _SOFTMAX), key=lambda n: n.index):
            logits = softmax.parents[0]
            product = self.product(logits)
            if product is None:
                continue
            query, key = product.parents[-2:]
            weighted = [n for n in region if n.op in ("bmm", "mm") and self.behind_dropout(n.parents[0]) is softmax]
            found.append(Attention(logits, query, key, weighted[0].parents[1] if weighted else None))
        return found

    def behind_dropout(self, node: Node) -> Node:
        while node.op in _SAME or node.op == "native_dropout":
            node = node.parents[0]
        return node

    def product(self, logits: Node) -> Node | None:
        """The product of queries and keys that the scores come from: scaling, capping and masking lie between.

        Keys depend on the stream; or, if there are none of these, on something from outside the block that is no
        parameter (another stack).
        """
        products = [n for n in self.closure(logits, self.ends_a_branch) if n.op in ("bmm", "baddbmm", "mm")]
        moving = [n for n in products if all(self.depends.get(p, False) for p in n.parents[-2:])]
        crossing = [n for n in products if self.depends.get(n.parents[-2], False) and self.from_outside(n.parents[-1])]
        found = moving or crossing
        return found[0] if len(found) == 1 else None

    def ends_a_branch(self, node: Node) -> bool:
        return node.op in PRODUCTS or self.is_stream(node)

    def find_attention_norms(self, attention: Attention, norms: list[Norm]) -> None:
        """Which of the norms stand between a projection and its query, key or value, and where the rotation is."""
        rotated = []
        between = self.closure(attention.logits, self.ends_a_branch)
        for end in (attention.query, attention.key):
            between |= self.closure(end, self.ends_a_branch)
        attention.unknown_norm = any(self.depends.get(n, False) and self.is_unknown_norm(n) for n in between)
        for name in ("query", "key", "value"):
            end = getattr(attention, name)
            near = set() if end is None else self.closure(end, self.ends_a_branch)
            attention.norms[name] = [norm for norm in norms if norm.output in near]
            for norm in attention.norms[name] if name != "value" else ():
                before = self.closure(norm.source, lambda n: n not in near)
                behind = near - self.closure(norm.output, lambda n: n not in near)
                rotated += [(any(map(self.is_rotation, before)), any(map(self.is_rotation, behind)))]
        if rotated and all(r == (True, False) for r in rotated):
            attention.after_rotation = True
        elif rotated and all(r == (False, True) for r in rotated):
            attention.after_rotation = False

    def is_rotation(self, node: Node) -> bool:
        """True for a sum or difference of products with cosines and sines, or a product with complex numbers."""
        if node.op in ("add", "sub", "add_", "sub_"):
            return len(node.parents) == 2 and all(self.is_turned(p) for p in node.parents)
        return node.value.is_complex() and self.is_turned(node)

    def is_turned(self, node: Node) -> bool:
        """True for a product with numbers that are no parameters and differ from position to position."""
        if node.op not in ("mul", "mul_"):
            return False
        still = [p for p in node.parents if not self.depends.get(p, False)]
        if len(still) != 1 or len(node.parents) != 2:
            return False
        rows = still[0].value.flatten(0, -2) if still[0].value.dim() > 1 else still[0].value[None]
        stored = any(isinstance(n.value, nn.Parameter) for n in self.closure(still[0], self.is_stream))
        return not stored and not torch.equal(rows, rows[:1].expand_as(rows))

    def meets_others(self, region: set[Node]) -> bool:
        """True if the stream is multiplied with what was computed before the block, parameters aside: other tokens?"""
        for node in region:
            if node.op in ("bmm", "baddbmm", "mm") and self.depends.get(node, False):
                still = [p for p in node.parents[-2:] if not self.depends.get(p, False)]
                if any(self.from_outside(p) and not self.is_learned(p) for p in still):
                    return True
        return False

    def from_outside(self, node: Node) -> bool:
        """True if something computed before the block went into the node."""
        return any(n.op and n.index < self.start for n in self.closure(node, self.is_stream))

    def has_hidden_norm(self, sublayer: Sublayer) -> bool:
        """True if the branch begins or ends with a norm, so that the placement is unclear.

        It begins with norms if all that goes into its first products passes them: a norm before a router alone does not
        count. A norm that was not recognized counts wherever it stands before the first or behind the last product.
        """
        width = sublayer.read.value.shape[-1]
        moving = {n for n in sublayer.region if self.depends.get(n, False)}
        signs = {n for n in moving if n.value.dim() and n.value.shape[-1] in (1, width) and self.is_unknown_norm(n)}
        norms = {n.output for n in sublayer.inner_norms}
        before_products = {self.x, sublayer.read}
        for node in sorted(sublayer.region, key=lambda n: n.index):
            if self.is_stream(node) or node.op not in PRODUCTS and any(p in before_products for p in node.parents):
                before_products.add(node)
        behind_products = self.vectors_behind_products(sublayer.output)
        if (signs | norms) & behind_products or signs & before_products:
            return True
        first = norms & before_products
        passed = self.closure(sublayer.output, lambda n: n in first or self.is_stream(n))
        return bool(first) and not any(self.root(n) is sublayer.read for n in passed)

    def vectors_behind_products(self, output: Node) -> set[Node]:
        """What the output was made from since the last products, without numbers per token from elsewhere, such as the
        weights of experts: what vectors are multiplied by and what does not come from them.
        """
        seen, waiting = {output}, [output]
        while waiting:
            node = waiting.pop()
            if self.ends_a_branch(node):
                continue
            parents = node.parents
            if node.op in ("mul", "mul_") and len(parents) == 2:
                vector, factor = sorted(parents, key=lambda n: n.value.numel(), reverse=True)
                ends = (self.closure(n, self.ends_a_branch) for n in (vector, factor))
                if vector.value.numel() > factor.value.numel() and not set.intersection(*ends):
                    parents = [vector]
            waiting += [parent for parent in parents if parent not in seen]
            seen |= set(parents)
        return seen

    def is_unknown_norm(self, node: Node) -> bool:
        """True for an operation that norms are made of and that is part of none of the known ones."""
        return is_normalizing(node) and not any(norm.covers(node) for norm in self.norms)


@torch.inference_mode(False)
def _mixes_tokens(sublayer: Sublayer) -> bool | None:
    """Whether the branch's output at the last or first token depends on what it reads at others.

    None if autograd can't say: no backward pass, values that are not finite, weights of zero, one token a sequence.
    """
    read, output = sublayer.read.value, sublayer.output.value
    norms = (sublayer.input_norm, sublayer.output_norm, sublayer.post_norm, sublayer.skip_norm)
    widths = {norm.report.width for norm in norms if norm is not None}
    shape, size = _tokens_first(read, widths).shape, _tokens_first(output, widths).shape[-1]
    tokens = read.numel() // shape[-1]
    if not (read.requires_grad and output.requires_grad) or tokens < 2 or tokens != output.numel() // size:
        return None
    alone = len(shape) > 2 and shape[-2] == 1 and shape[0] > 1  # [B, 1, d]: others are of other sequences
    for token in (-1, 0):
        direction = torch.zeros(tokens, size)
        direction[token].normal_(generator=torch.Generator().manual_seed(0))
        direction = direction.view(_tokens_first(output, widths).shape)
        direction = (direction if direction.shape == output.shape else direction.transpose(1, 2)).to(output)
        try:
            (gradient,) = torch.autograd.grad(output, read, direction, retain_graph=True, allow_unused=True)
        except (RuntimeError, NotImplementedError):  # an operation without a backward pass
            return None
        if gradient is None or not gradient.isfinite().all():  # None: what it reads was overwritten in place
            return None
        reached = _tokens_first(gradient, widths).flatten(0, -2).any(-1)
        if reached.sum() > reached[token]:
            return True
        if not reached[token]:
            return None
    return None if alone else False


def _tokens_first(vectors: Tensor, widths: set[int]) -> Tensor:
    """Turned to [B, T, d] if they are [B, d, T], as norms show that are as wide as the second axis but not the last."""
    second = vectors.dim() == 3 and widths == {vectors.shape[1]} and vectors.shape[1] != vectors.shape[2]
    return vectors.transpose(1, 2) if second else vectors


def is_normalizing(node: Node) -> bool:
    """True for an operation that norms are made of."""
    if node.op == "pow":
        exponent = _number(node.args[1])
        return exponent in (0.5, -0.5)
    if node.op in ("div", "div_") and len(node.parents) == 2:  # vectors by one number each
        divisor = root(node.parents[1], ())
        return bool(divisor.op) and 1 < divisor.value.numel() < node.value.numel()
    return node.op in _NORMALIZING


def _is_sum(node: Node) -> bool:
    return node.op in ("add", "add_") and len(node.parents) == 2 and node.options.get("alpha", 1) == 1


def _number(value: Any) -> float | None:
    """A Python number, or the value of a tensor with one entry that was computed from such only."""
    if isinstance(value, int | float):
        return float(value)
    if not isinstance(value, Node) or value.value.numel() != 1:
        return None
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if node.value.numel() != 1 or isinstance(node.value, nn.Parameter):
            return None
        waiting += node.parents
    return float(value.value)
