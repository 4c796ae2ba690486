"""Faults planted on purpose, each beside its healthy control: what chapter 11 shows and a diagnosis must find.

A function per fault, called with ``faulty`` True or False: the two models differ in the fault alone. What comes back
is in the state in which the fault is looked for: before training, after it, or after loading, as the function says.
Models have width 32 and 4 heads and read characters of *Hamlet*, 16 passages of 32 a step, on the CPU.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normlab import data, device, norms, optimizers, training
from normlab.attention import SelfAttention
from normlab.experiments import faulty_runs, small_models
from normlab.placement import Residual
from normlab.transformer import MLP, Transformer

RATE = 3e-3
BETAS = (0.9, 0.95)
Batches = Callable[[torch.Generator], Any]
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A model and what it is examined with.

    ``batch``: ids [B, T], or the arguments of a call by name. ``optimizer``: the one that trains the model, at its
    peak rate; None where the fault does not ask for one. ``loss``: on held-out text, of the model as it is; ``curve``:
    training losses, step by step.
    """

    model: nn.Module
    batch: Tensor | dict[str, Tensor]
    loss: float
    optimizer: torch.optim.Optimizer | None = None
    curve: list[float] = field(default_factory=list)


def train(
    model: nn.Module,
    steps: int,
    seed: int,
    optimizer: torch.optim.Optimizer | None = None,
    batches: Batches | None = None,
    loss: Loss = training.next_token_loss,
) -> list[float]:
    """Train in place, with AdamW without decay unless an optimizer is given; the loss of each step.

    A tenth of the steps warms up, a cosine ends at 0, gradients are clipped at 1; afterwards the optimizer has its
    peak rates again. ``loss(model, *batch)`` is called with what ``batches`` draws.
    """
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=BETAS, weight_decay=0.0)
    batches = batches or data.sampler(data.corpus().train, small_models.BATCH, small_models.TOKENS)
    peaks = [group["lr"] for group in optimizer.param_groups]
    generator = torch.Generator().manual_seed(1000 + seed)
    curve = []
    with device.single_thread():
        for step in range(steps):
            for group, peak in zip(optimizer.param_groups, peaks):
                group["lr"] = optimizers.learning_rate(step, steps, peak, warmup=steps // 10, floor=0.0)
            optimizer.zero_grad()
            value = loss(model, *batches(generator))
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            curve.append(value.item())
    for group, peak in zip(optimizer.param_groups, peaks):
        group["lr"] = peak
    return curve


def fresh(seed: int, **options: Any) -> Transformer:
    """A Pre-RMS model of 4 blocks; ``options`` of :class:`normlab.config.TransformerConfig`."""
    return small_models.model(seed, **({"layers": 4, "width": 32, "norm": "rmsnorm"} | options))


def trained(seed: int, steps: int = 300, **options: Any) -> Case:
    """A healthy model after ``steps``; a copy, so that a fault can be planted in it."""
    return copy.deepcopy(_trained(seed, steps, tuple(sorted(options.items()))))


@cache  # several faults start from the same one, or have it as their control
def _trained(seed: int, steps: int, options: tuple) -> Case:
    model = fresh(seed, **dict(options))
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


@torch.no_grad()
def held_out_loss(model: nn.Module) -> float:
    """Loss on 128 held-out passages, in nats per character; as the model is, in its own mode."""
    with device.single_thread():
        return training.next_token_loss(model, *small_models.passages(128)).item()


def examined(model: nn.Module, **rest: Any) -> Case:
    """A case with 16 held-out passages as its batch."""
    return Case(model, small_models.passages()[0], held_out_loss(model), **rest)


@cache
def lines(part: str, batch: int, longest: int) -> Batches:
    """Batches of lines of the play's part "train" or "val", cut to ``longest``: inputs, targets and mask."""
    corpus = data.corpus()
    return data.line_sampler(getattr(corpus, part), corpus.vocabulary.index("\n"), batch, longest)


@torch.no_grad()
def examined_on_lines(model: nn.Module, padded: Callable[..., tuple[Tensor, ...]], curve: list[float]) -> Case:
    """A case with 64 held-out lines as its batch."""
    inputs, targets, mask = padded(*lines("val", 64, small_models.TOKENS)(torch.Generator().manual_seed(7)))
    with device.single_thread():
        loss = training.next_token_loss(model, inputs, targets, mask).item()
    return Case(model, {"ids": inputs, "attention_mask": mask}, loss, curve=curve)


# --- numbers that do not fit -----------------------------------------------------------------------


def half_squares(faulty: bool, seed: int = 0, steps: int = 120) -> Case:
    """After training. Embeddings times 128, and RMSNorms that square in float16, whose largest number is 65504."""
    model = fresh(seed, embedding_multiplier=128.0)
    if faulty:
        faulty_runs.with_formula(model, faulty_runs.half_squares)
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


def half_overflow(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A trained model in float16; what one MLP writes is scaled beyond 65504."""
    model = trained(seed, steps).model
    if faulty:
        with torch.no_grad():
            of_kind(model, MLP)[1].down.weight.mul_(2.0**18)
    return examined(model.half())


class HalfNorm(faulty_runs.FaultyNorm):
    """RMSNorm with all of its arithmetic in the input's dtype, ε too."""


def written_in_half(x: Tensor, eps: float) -> Tensor:
    """RMSNorm whose ε has the dtype of x: in float16 1e-8 becomes 0."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.tensor(eps, dtype=x.dtype))


def eps_below_smallest(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A trained model in float16 whose padding character has a zero vector; ε = 1e-8, healthy 1e-6."""
    model = trained(seed, steps).model
    with torch.no_grad():
        model.token_embedding.weight[data.corpus().vocabulary.index("\n")] = 0.0
        model.position_embedding.weight.zero_()  # type: ignore[union-attr]  # or the stream would not be 0
    faulty_runs.with_formula(model, written_in_half, HalfNorm)
    for norm in of_kind(model, HalfNorm):
        norm.eps = 1e-8 if faulty else 1e-6
    return examined(model.half())


def eps_above_signal(faulty: bool, seed: int = 0) -> Case:
    """Before training. Embeddings times 1e-3, and an ε of 1e-5, ten times their mean square; healthy 1e-12."""
    model = fresh(seed, eps=1e-5 if faulty else 1e-12)
    with torch.no_grad():
        for table in model.embedding_tables():
            table.weight.mul_(1e-3)
    return examined(model)


def eps_outside(faulty: bool, seed: int = 0) -> Case:
    """Before training. RMSNorm x / (rms + ε) with a zero vector in the stream: its gradient there is 0 / 0."""
    model = fresh(seed, positions="rope")
    with torch.no_grad():
        model.token_embedding.weight[data.corpus().vocabulary.index("\n")] = 0.0
    if faulty:
        faulty_runs.with_formula(model, faulty_runs.eps_outside)
    return examined(model)


def bf16_gains(faulty: bool, seed: int = 0, steps: int = 150) -> Case:
    """After training at rate 1e-3. Gains of 1 in bfloat16, with neighbors 1 + 2⁻⁷ and 1 - 2⁻⁸; healthy: float32."""
    model = fresh(seed, convention="llama")
    if faulty:
        for norm in of_kind(model, norms.RMSNorm):
            norm.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, betas=BETAS, weight_decay=0.0)
    curve = train(model, steps, seed, optimizer)
    return examined(model, optimizer=optimizer, curve=curve)


def cast_order(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A model of Llama's order (round, then gain) in bfloat16; the port multiplies first."""
    model = trained(seed, steps, convention="llama").model.bfloat16()
    return examined(faulty_runs.rounding_once(model) if faulty else model)


# --- loaded or wired wrongly -----------------------------------------------------------------------


def _shifted_gains(seed: int, steps: int, by: float) -> Case:
    model = trained(seed, steps).model
    with torch.no_grad():
        for norm in of_kind(model, norms.RMSNorm):
            norm.weight.add_(by)
    return examined(model)


def plus_one_lost(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A checkpoint that stores the gain as 1 + w is read by code that multiplies by w."""
    return _shifted_gains(seed, steps, -1.0 if faulty else 0.0)


def plus_one_added(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A checkpoint that stores the gain w is read by code that multiplies by 1 + w."""
    return _shifted_gains(seed, steps, 1.0 if faulty else 0.0)


class InvertedMask(nn.Module):
    """Attention that sees the padding and nothing else: an additive mask (0 at real tokens) went through .bool()."""

    def __init__(self, attention: SelfAttention):
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **rest: Any) -> Tensor:
        if attention_mask is None:
            return self.attention(x, **rest)
        padding = ~attention_mask.bool()
        if not padding.any():
            return torch.zeros_like(x)
        return self.attention(x, attention_mask=padding, **rest)


def padded_left(inputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of lines [B, T] that was padded on the right, with its padding on the left."""
    order = mask.long().argsort(dim=1, stable=True)  # padding first, the line as it stood
    return tuple(t.gather(1, order) for t in (inputs, targets, mask))  # type: ignore[return-value]


def mask_inverted(faulty: bool, seed: int = 0, steps: int = 250) -> Case:
    """After training on lines, padded on the left, RoPE. Attention reads the mask the wrong way round."""
    model = fresh(seed, positions="rope")
    if faulty:
        for residual in of_kind(model, Residual):
            if isinstance(residual.sublayer, SelfAttention):
                residual.sublayer = InvertedMask(residual.sublayer)
    draw = lines("train", small_models.BATCH, small_models.TOKENS)
    curve = train(model, steps, seed, batches=lambda generator: padded_left(*draw(generator)))
    return examined_on_lines(model, padded_left, curve)


def no_final_norm(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After training. A Pre-Norm stack without the norm before its head."""
    if not faulty:
        return trained(seed, steps)
    model = fresh(seed, final_norm=False)
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


def norm_over_tokens(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After training. LayerNorm over [T, d] instead of over d."""
    model = fresh(seed, norm="layernorm")
    if faulty:
        faulty_runs.with_formula(model, faulty_runs.over_tokens)
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


class NormTwice(nn.Module):
    """norm(norm(x)): written once in the block, once more in the sublayer."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.first, self.second = norm, copy.deepcopy(norm)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.second(self.first(x))


def norm_twice(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After training. Every norm of the blocks stands there twice."""
    if not faulty:
        return trained(seed, steps)
    model = fresh(seed)
    for residual in of_kind(model, Residual):
        residual.norm = NormTwice(residual.norm)  # type: ignore[arg-type]
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


def dead_gain(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. All gains of one norm are 0: its sublayer receives nothing."""
    model = trained(seed, steps).model
    if faulty:
        with torch.no_grad():
            of_kind(model, Residual)[4].norm.weight.zero_()  # type: ignore[union-attr, operator]
    return examined(model)


# --- training itself -------------------------------------------------------------------------------


def runaway_logits(faulty: bool, seed: int = 0, steps: int = 200) -> Case:
    """After training at rate 0.1. Queries and keys without a norm; healthy: with QK-norm."""
    model = fresh(seed, qk_norm="none" if faulty else "per_head")
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, betas=BETAS, weight_decay=0.0)
    curve = train(model, steps, seed, optimizer)
    return examined(model, optimizer=optimizer, curve=curve)


def large_weights(faulty: bool, seed: int = 0, steps: int = 150) -> Case:
    """Before training (the curve is that of a copy). 8 blocks, all of their matrices drawn 4 times too large."""
    model = fresh(seed, layers=8)
    if faulty:
        with torch.no_grad():
            for linear in of_kind(model.blocks, nn.Linear):  # type: ignore[arg-type]
                linear.weight.mul_(4.0)
    copied = copy.deepcopy(model)
    curve = train(copied, steps, seed)
    return Case(model, small_models.passages()[0], held_out_loss(copied), curve=curve)


def post_stuck(faulty: bool, seed: int = 0, steps: int = 200) -> Case:
    """After training. 8 blocks of Post-LN at a rate of 0.003; healthy: Pre-LN."""
    model = fresh(seed, layers=8, norm="layernorm", placement="post" if faulty else "pre")
    curve = train(model, steps, seed)
    return examined(model, curve=curve)


CUTS = (4, 8, 16, 32)  # characters to which the lines of the four micro-batches are cut
MicroBatch = tuple[Tensor, Tensor, Tensor]


def micro_batches(generator: torch.Generator) -> tuple[list[MicroBatch]]:
    """Four micro-batches of four lines each, cut to unequal lengths: inputs, targets, mask."""
    return ([lines("train", 4, longest)(generator) for longest in CUTS],)


def mean_of_means(model: nn.Module, parts: Sequence[MicroBatch]) -> Tensor:
    """Gradient accumulation as it is often written: the mean of the losses of the micro-batches."""
    return torch.stack([training.next_token_loss(model, *part) for part in parts]).mean()


def mean_over_tokens(model: nn.Module, parts: Sequence[MicroBatch]) -> Tensor:
    """The loss of the whole batch: the sum over all tokens over their number."""
    sums, counts = zip(*(training.summed_loss(model, *part) for part in parts))
    return torch.stack(sums).sum() / torch.stack(counts).sum()


def unequal_means(faulty: bool, seed: int = 0, steps: int = 150) -> Case:
    """After training on micro-batches of unequal lengths, RoPE. The loss is the mean of their means."""
    model = fresh(seed, positions="rope")
    curve = train(
        model, steps, seed, batches=micro_batches, loss=mean_of_means if faulty else mean_over_tokens
    )
    return examined_on_lines(model, lambda *batch: batch, curve)


def decayed_gains(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After training with weight decay 0.1: on all parameters; healthy: not on norms and vectors."""
    model = fresh(seed)
    groups: Any = model.parameters() if faulty else optimizers.parameter_groups(model, 0.1)
    optimizer = torch.optim.AdamW(groups, RATE, betas=BETAS, weight_decay=0.1)
    curve = train(model, steps, seed, optimizer)
    return examined(model, optimizer=optimizer, curve=curve)


FAULTS: dict[str, Callable[..., Case]] = {
    "squares in float16": half_squares,
    "sum beyond float16": half_overflow,
    "ε below the smallest number": eps_below_smallest,
    "ε above the signal": eps_above_signal,
    "ε outside the root": eps_outside,
    "gains stuck in bfloat16": bf16_gains,
    "cast order": cast_order,
    "1 + w read as w": plus_one_lost,
    "w read as 1 + w": plus_one_added,
    "mask inverted": mask_inverted,
    "final norm forgotten": no_final_norm,
    "norm over tokens": norm_over_tokens,
    "norm twice": norm_twice,
    "dead gain": dead_gain,
    "attention logits run away": runaway_logits,
    "weights too large": large_weights,
    "stuck at single characters": post_stuck,
    "mean of means": unequal_means,
    "decay on gains": decayed_gains,
}
# What nobody can see in a model, a batch and an optimizer: the loop holds the fault, or only the original does.
ONLY_IN_THE_LOOP = ("mean of means",)
ONLY_AGAINST_THE_ORIGINAL = ("cast order",)


def planted(name: str, faulty: bool = True, seed: int = 0, **steps: int) -> Case:
    """The fault of that name, or its healthy control; ``steps`` of its training, None for the usual number.

    Raises ValueError for an unknown name.
    """
    if name not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, got {name!r}")
    return FAULTS[name](faulty, seed, **steps)


def of_kind(model: nn.Module, kind: type) -> list:
    """The modules of a kind, in order."""
    return [module for module in model.modules() if isinstance(module, kind)]
