"""Look inside any model: streams, attention logits, gradients, and what each block is worth.

The model is a Transformer of this package, one of ``transformers``, or the reader's own; its wiring is found by
:mod:`normlab.inspection.wiring`. It runs in the mode (training or evaluation) that it is in. Blocks are counted from 1;
those of several stacks (an encoder and a decoder) are counted on.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.sublayers import Attention, Sublayer
from normlab.inspection.trace import Node, tensors
from normlab.inspection.wiring import Block, Wiring, wiring_of
from normlab.probes import SublayerReading
from normlab.training.losses import next_token_loss


def readings(
    model: nn.Module, ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any
) -> list[SublayerReading]:
    """Run the model and return one reading per residual sublayer, in order.

    ``kind`` of a reading is "attention", "cross-attention", "mlp", "mixer" (tokens meet in another way) or "unknown".

    Args:
        ids: [B, T], or input vectors for a model without embedding.
        attention_mask: [B, T], 1 or True at real tokens, None if all are.
        inputs: more arguments of the model's call.

    Raises:
        ValueError: no stack of residual blocks was recognized, or a block is wired in an unknown way.
    """
    return [
        SublayerReading(layer, sublayer.kind, **{name: t.detach().cpu().double() for name, t in seen.items()})
        for layer, block in _blocks(_observe(model, ids, attention_mask, inputs))
        for sublayer, seen in sublayer_streams(block)
    ]


def _observe(model: nn.Module, ids: Tensor, attention_mask: Tensor | None, inputs: dict[str, Any]) -> Wiring:
    return wiring_of(model, ids, **({} if attention_mask is None else {"attention_mask": attention_mask}), **inputs)


def _blocks(wiring: Wiring) -> Iterator[tuple[int, Block]]:
    """All blocks with their numbers. Raises ValueError if there are none, or one that is not understood."""
    blocks = [block for stack in wiring.stacks for block in stack.blocks]
    if not blocks:
        raise ValueError(f"no stack of residual blocks was recognized in {type(wiring.run.model).__name__}")
    for layer, block in enumerate(blocks, start=1):
        if block.unknown:
            raise ValueError(f"block {layer} is not understood: {block.unknown}")
        yield layer, block


def sublayer_streams(block: Block) -> Iterator[tuple[Sublayer, dict[str, Tensor]]]:
    """The tensors of every sublayer's reading; streams between parallel branches are added up here."""
    stream: Tensor | None = None
    for sublayer in block.sublayers:
        before = sublayer.stream.value if stream is None else stream
        increment = sublayer.increment.value
        after = before + increment if sublayer.after is None else sublayer.after.value
        yield sublayer, {
            "stream": before,
            "sublayer_input": sublayer.read.value,
            "increment": increment,
            "stream_after": after,
        }
        stream = after if sublayer.after is None else None


@dataclass(frozen=True)
class AttentionReading:
    """The attention logits of one sublayer as they enter the softmax, float64 on the CPU.

    ``logits`` [B, H, T, T] (query, key): scaled, capped, with biases; -inf where a query may not look, and in all rows
    of padding.
    """

    layer: int
    logits: Tensor

    @property
    def largest(self) -> float:
        """The largest logit that any query sees."""
        return self.logits.max().item()

    @property
    def head_entropy(self) -> Tensor:
        """Entropy of the attention weights in nats, averaged over the queries of each head [H]."""
        rows = self.logits.isfinite().any(-1)
        logits = self.logits.masked_fill(~rows[..., None], 0.0)
        entropy = torch.special.entr(logits.softmax(-1)).sum(-1)
        return (entropy * rows).sum((0, 2)) / rows.sum((0, 2))

    @property
    def entropy(self) -> float:
        """The same averaged over heads: 0 for one-hot attention, log n for attention spread over n tokens."""
        return self.head_entropy.mean().item()


def attention(
    model: nn.Module, ids: Tensor, attention_mask: Tensor | None = None, **inputs: Any
) -> list[AttentionReading]:
    """The logits of every attention sublayer; arguments and errors as in :func:`readings`."""
    found = []
    for layer, block in _blocks(_observe(model, ids, attention_mask, inputs)):
        for sublayer in block.sublayers:
            if sublayer.attention is not None:
                found.append(attention_reading(layer, sublayer.attention, attention_mask))
    return found


def attention_reading(layer: int, attention: Attention, attention_mask: Tensor | None = None) -> AttentionReading:
    """The logits of one attention, with -inf at what is hidden."""
    logits = attention.logits.value.detach().cpu()
    # Some models hide keys by adding the most negative number.
    logits = logits.masked_fill(logits <= torch.finfo(logits.dtype).min / 2, float("-inf")).double()
    if attention_mask is not None and attention_mask.shape[-1] == logits.shape[-2]:
        logits = logits.masked_fill(~attention_mask.cpu().bool()[:, None, :, None], float("-inf"))
    return AttentionReading(layer, logits)


@dataclass(frozen=True)
class GradientReading:
    """The gradient with respect to all parameters of one kind in one block.

    ``layer`` is 0 before the first block and L + 1 behind the last. ``kind`` is "norm" (gains and biases of norms,
    wherever they stand), "embedding", "head", a kind of sublayer as in :func:`readings`, or "unknown" for parameters that
    the run did not use. ``norm`` is the Euclidean norm of the gradient, ``size`` its root mean square per parameter.
    """

    layer: int
    kind: str
    parameters: int
    norm: float

    @property
    def size(self) -> float:
        return self.norm / self.parameters**0.5


def gradients(
    model: nn.Module, ids: Tensor, targets: Tensor, attention_mask: Tensor | None = None, **inputs: Any
) -> list[GradientReading]:
    """Gradients of the mean cross-entropy of ``targets`` [B, T] per block and kind of parameter.

    ``.grad`` is left alone. A matrix used as embedding and as head counts as embedding.

    Args:
        targets: [B, T]; -100 where there is none. Places that ``attention_mask`` hides do not count either.

    Raises:
        ValueError: as in :func:`readings`.
    """
    with torch.enable_grad():
        wiring = _observe(model, ids, attention_mask, inputs)
        loss = next_token_loss(_Function(lambda *_, **__: wiring.run.output), ids, targets, attention_mask)
        parameters = [p for p in model.parameters() if p.requires_grad]
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    owners = parameter_owners(wiring)
    count: dict[tuple[int, str], int] = {}
    square: dict[tuple[int, str], float] = {}
    for parameter, slope in zip(parameters, slopes, strict=True):
        owner = owners.get(parameter, (-1, "unknown"))
        count[owner] = count.get(owner, 0) + parameter.numel()
        square[owner] = square.get(owner, 0.0) + (0.0 if slope is None else slope.double().square().sum().item())
    return [GradientReading(*owner, count[owner], square[owner] ** 0.5) for owner in sorted(count)]


class _Function(nn.Module):
    """Calls a function, for code that wants a module."""

    def __init__(self, function: Callable):
        super().__init__()
        self.forward = function


def parameter_owners(wiring: Wiring) -> dict[nn.Parameter, tuple[int, str]]:
    """Layer and kind of every parameter that the run used, by where it was used; see :class:`GradientReading`."""
    blocks = dict(_blocks(wiring))
    last = len(blocks) + 1
    owners: dict[nn.Parameter, tuple[int, str]] = {}

    def assign(nodes: Iterable[Node], layer: int, kind: str) -> None:
        for node in nodes:
            if isinstance(node.value, nn.Parameter):
                owners.setdefault(node.value, (layer, kind))

    for norm in wiring.norms:
        inside = [layer for layer, block in blocks.items() if block.call.start <= norm.call.start < block.call.end]
        layer = inside[0] if inside else 0 if norm.call.start < blocks[1].call.start else last
        assign(wiring.behind(norm.output, stop={norm.source}), layer, "norm")
    ends = {block.y for block in blocks.values()}
    for stack in wiring.stacks:
        assign(wiring.behind(stack.blocks[0].x, stop=ends), 0, "embedding")
    for layer, block in blocks.items():
        for sublayer in block.sublayers:
            assign(sublayer.region, layer, sublayer.kind)
    for tensor in tensors(wiring.run.output):
        node = wiring.run.node(tensor)
        if node is not None:
            assign(wiring.behind(node, stop=ends), last, "head")
    return owners


@torch.no_grad()
def skip_effects(
    model: nn.Module, ids: Tensor, targets: Tensor, attention_mask: Tensor | None = None, **inputs: Any
) -> list[float]:
    """By how much the loss rises, in nats per token, when a block hands its input through: one number per block.

    Arguments and errors as in :func:`gradients`.
    """
    called = _Function(partial(model, **inputs))
    blocks = [block for _, block in _blocks(_observe(model, ids, attention_mask, inputs))]
    whole = next_token_loss(called, ids, targets, attention_mask).item()
    effects = []
    for block in blocks:
        with handed_through(block.call.module, block.call.inputs.index(block.x)):
            effects.append(next_token_loss(called, ids, targets, attention_mask).item() - whole)
    return effects


@contextmanager
def handed_through(block: nn.Module, position: int = 0) -> Iterator[None]:
    """Within the context, a block of any model returns the stream that it was given, in place of the one it made.

    Args:
        position: of the stream among the floating-point tensors that the block is called with.
    """

    def replace(_, args, kwargs, output):
        stream = tensors((args, kwargs))[position]
        return stream if isinstance(output, Tensor) else (stream, *output[1:])

    handle = block.register_forward_hook(replace, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
