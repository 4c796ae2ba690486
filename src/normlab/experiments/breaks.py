"""Faults planted on purpose, each beside its healthy control: what chapter 11 shows and a diagnosis must find.

A function per fault, called with ``faulty`` True or False: the two models differ in the fault alone. What comes back
is in the state in which the fault is looked for: before training, after it, or after loading, as the function says.
Models have width 32 and 4 heads and read characters of *Hamlet*, 16 passages of 32 a step, on the CPU.
"""

import contextlib
import copy
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normlab import data, device, norms, optimizers, training
from normlab.attention import SelfAttention
from normlab.experiments import faulty_runs, small_models, tiny_transformers
from normlab.placement import Residual
from normlab.record import Recipe, grid
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
    each_step: Callable[[int], object] = lambda step: None,
) -> list[float]:
    """Train in place, with AdamW without decay unless an optimizer is given; the loss of each step.

    A tenth of the steps warms up, a cosine ends at 0, gradients are clipped at 1; afterwards the optimizer has its
    peak rates again. ``loss(model, *batch)`` is called with what ``batches`` draws, ``each_step`` after every step.
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
            each_step(step)
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


def before_training(model: nn.Module, steps: int, seed: int) -> Case:
    """A case with the model as it is; loss and curve are those of a copy after ``steps``."""
    copied = copy.deepcopy(model)
    curve = train(copied, steps, seed)
    return Case(model, small_models.passages()[0], held_out_loss(copied), curve=curve)


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


def of_kind(model: nn.Module, kind: type) -> list:
    """The modules of a kind, in order."""
    return [module for module in model.modules() if isinstance(module, kind)]


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
            mlp = of_kind(model, MLP)[1]
            mlp.up.weight.mul_(2.0**8)
            mlp.down.weight.mul_(2.0**11)
    return examined(model.half())


class HalfNorm(faulty_runs.FaultyNorm):
    """RMSNorm with all of its arithmetic in the input's dtype, ε too."""


def written_in_half(x: Tensor, eps: float) -> Tensor:
    """RMSNorm whose ε has the dtype of x: in float16 1e-8 becomes 0."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + torch.tensor(eps, dtype=x.dtype))


def eps_below_smallest(faulty: bool, seed: int = 0, steps: int = 300) -> Case:
    """After loading. A trained model in float16, ε = 1e-8, a character with a zero vector. Healthy: float32 inside."""
    model = trained(seed, steps).model
    with torch.no_grad():
        model.token_embedding.weight[data.corpus().vocabulary.index("\n")] = 0.0
        model.position_embedding.weight.zero_()  # type: ignore[union-attr]  # or the stream would not be 0
    for norm in of_kind(model, norms.RMSNorm):
        norm.eps = 1e-8
    if faulty:
        faulty_runs.with_formula(model, written_in_half, HalfNorm)
    return examined(model.half())


def eps_above_signal(faulty: bool, seed: int = 0, steps: int = 150) -> Case:
    """Before training (loss and curve: a trained copy). Embeddings times 1e-3, ε ten times their mean square, 1e-5;
    healthy: 1e-12."""
    model = fresh(seed, eps=1e-5 if faulty else 1e-12)
    with torch.no_grad():
        for table in model.embedding_tables():
            table.weight.mul_(1e-3)
    return before_training(model, steps, seed)


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
    """Before training (loss and curve: a trained copy). 8 blocks, all of their matrices drawn 4 times too large."""
    model = fresh(seed, layers=8)
    if faulty:
        with torch.no_grad():
            for linear in of_kind(model.blocks, nn.Linear):  # type: ignore[arg-type]
                linear.weight.mul_(4.0)
    return before_training(model, steps, seed)


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
# Steps of training that are enough for the one measurement; the others are planted in a model after 300 steps.
QUICK = {
    "ε above the signal": 0,
    "gains stuck in bfloat16": 50,
    "mask inverted": 60,
    "final norm forgotten": 20,
    "norm over tokens": 20,
    "norm twice": 20,
    "attention logits run away": 60,
    "weights too large": 0,
    "stuck at single characters": 80,
    "mean of means": 0,
    "decay on gains": 0,
}
# What nobody can see in a model, a batch and an optimizer.
ONLY_IN_THE_LOOP = ("mean of means",)
ONLY_AGAINST_THE_ORIGINAL = ("cast order",)
# What the doctor's finding is called, of the others.
FINDINGS = {
    "squares in float16": "norm-overflow",
    "sum beyond float16": "nonfinite-forward",
    "ε below the smallest number": "eps-vanishes",
    "ε above the signal": "eps-too-large",
    "ε outside the root": "nonfinite-backward",
    "gains stuck in bfloat16": "gains-cannot-move",
    "1 + w read as w": "gain-convention",
    "w read as 1 + w": "gain-convention",
    "mask inverted": "mask-hides-tokens",
    "final norm forgotten": "final-norm-missing",
    "norm over tokens": "norm-across-tokens",
    "norm twice": "norm-twice",
    "dead gain": "gain-dead",
    "attention logits run away": "attention-logits",
    "weights too large": "attention-logits",
    "stuck at single characters": "context-ignored",
    "decay on gains": "decay-on-gains",
}


def quick(name: str, faulty: bool = True, seed: int = 0) -> Case:
    """:func:`planted` with no more training than the one measurement needs."""
    return planted(name, faulty, seed, **({"steps": QUICK[name]} if name in QUICK else {}))


def planted(name: str, faulty: bool = True, seed: int = 0, **steps: int) -> Case:
    """The fault of that name, or its healthy control; ``steps=`` sets the length of its training.

    Raises ValueError for an unknown name.
    """
    if name not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, got {name!r}")
    return copy.deepcopy(_planted(name, faulty, seed, tuple(steps.items())))


@cache
def _planted(name: str, faulty: bool, seed: int, steps: tuple) -> Case:
    return FAULTS[name](faulty, seed, **dict(steps))


# --- one measurement for each -----------------------------------------------------------------------


def calls_of_norms(model: nn.Module, batch: Tensor | dict[str, Tensor]) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """(norm, input, output) of every call of a norm on the stream or on heads, in order."""
    found: list[tuple[nn.Module, Tensor, Tensor]] = []

    def keep(norm: nn.Module, args: tuple, output: Tensor) -> None:
        found.append((norm, args[0], output))

    norms_ = [m for m in model.modules() if optimizers.is_norm(m) and not isinstance(m, norms.Identity)]
    handles = [norm.register_forward_hook(keep) for norm in norms_]
    try:
        with torch.no_grad():
            call(model, batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def call(model: nn.Module, batch: Tensor | dict[str, Tensor]) -> Tensor:
    """Logits of a batch as a :class:`Case` has it."""
    with device.single_thread():
        return model(**batch) if isinstance(batch, dict) else model(batch)


def error_of_norms(case: Case) -> float:
    """Largest relative error of a norm against the same formula in float64 on the same input."""
    errors = []
    for norm, x, y in calls_of_norms(case.model, case.batch):
        x = x.double()
        if isinstance(norm, norms.LayerNorm):
            x = x - x.mean(-1, keepdim=True)
        wide = norm.weight.double() * faulty_runs.in_float32(x, norm.eps)  # type: ignore[operator, arg-type]
        bias = getattr(norm, "bias", None)
        wide = wide if bias is None else wide + bias
        errors.append(((y - wide).pow(2).mean() / wide.pow(2).mean()).sqrt().item())
    return max(errors)


def eps_share(case: Case) -> float:
    """ε / (mean square + ε), mean over tokens, of the norm where it is largest."""
    shares = []
    for norm, x, _ in calls_of_norms(case.model, case.batch):
        mean_square = x.double().pow(2).mean(-1)
        shares.append((norm.eps / (mean_square + norm.eps)).mean().item())  # type: ignore[operator]
    return max(shares)


def eps_as_used(case: Case) -> float:
    """The ε of the first norm in the dtype in which it is added."""
    norm = next(module for module in case.model.modules() if hasattr(module, "eps"))
    dtype = norm.weight.dtype if isinstance(norm, HalfNorm) else torch.float32  # type: ignore[union-attr]
    return torch.tensor(norm.eps, dtype=dtype).item()  # type: ignore[arg-type]


def gains(model: nn.Module) -> list[Tensor]:
    """The gains of the norms, in order."""
    found = (getattr(m, "weight", None) for m in model.modules() if optimizers.is_norm(m))
    return [weight.detach().float() for weight in found if weight is not None]


def moved_gains(case: Case) -> float:
    """Share of the entries of gains that are no longer 1."""
    return (torch.cat(gains(case.model)) != 1).float().mean().item()


def typical_gain(case: Case) -> float:
    """Median over the norms of the root mean square of their gains."""
    return torch.stack([gain.pow(2).mean().sqrt() for gain in gains(case.model)]).median().item()


def smallest_gain(case: Case) -> float:
    """Root mean square of the gains of the norm where it is smallest, over the typical one."""
    return min(gain.pow(2).mean().sqrt().item() for gain in gains(case.model)) / typical_gain(case)


def first_token_counts(case: Case) -> float:
    """Largest change of later logits, in their standard deviations, when the first real token of a line changes."""
    ids, mask = case.batch["ids"], case.batch["attention_mask"].bool()  # type: ignore[index]
    first = mask & (mask.cumsum(1) == 1)
    other = torch.where(first, (ids + 1) % len(data.corpus().vocabulary), ids)
    later = mask & ~first
    with torch.no_grad():
        before, after = (call(case.model, {"ids": i, "attention_mask": mask})[later] for i in (ids, other))
    return ((after - before).abs().max() / before.std()).item()


def spread_at_head(case: Case) -> float:
    """Standard deviation over tokens of the size of what the head reads, over its mean."""
    seen: list[Tensor] = []
    handle = case.model.head.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))  # type: ignore[union-attr, operator]
    with torch.no_grad():
        call(case.model, case.batch)
    handle.remove()
    sizes = seen[0].pow(2).mean(-1).sqrt()
    return (sizes.std() / sizes.mean()).item()


def later_tokens_count(case: Case) -> float:
    """Largest change of earlier logits, in their standard deviations, when the second half of a passage changes."""
    return faulty_runs.influence_of_later(case.model)


def norms_of_norms(case: Case) -> float:
    """How many norms receive, bit for bit, what another norm has just given out."""
    found = calls_of_norms(case.model, case.batch)
    return sum(any(torch.equal(x, y) for _, _, y in found[:i]) for i, (_, x, _) in enumerate(found))


def largest_logit(case: Case) -> float:
    """Largest attention logit, before mask and softmax."""
    found: list[float] = []

    def keep(attention: nn.Module, args: tuple, _: Tensor) -> None:
        found.append(attention.logits(args[0]).abs().max().item())  # type: ignore[operator]

    handles = [a.register_forward_hook(keep) for a in of_kind(case.model, SelfAttention)]
    with torch.no_grad():
        call(case.model, case.batch)
    for handle in handles:
        handle.remove()
    return max(found)


def context_share(case: Case) -> float:
    """Share of the variance of the centered logits that lies between positions, not between characters."""
    with torch.no_grad():
        logits = call(case.model, case.batch).double()
    centered = logits - logits.mean(-1, keepdim=True)
    alone = centered - centered.mean((0, 1), keepdim=True)
    return (alone.pow(2).sum() / centered.pow(2).sum()).item()


def difference_of_means(case: Case) -> float:
    """How far the model's training loss of a batch of unequal micro-batches lies from the loss over its tokens."""
    (parts,) = micro_batches(torch.Generator().manual_seed(7))
    with torch.no_grad():
        return abs((mean_of_means(case.model, parts) - mean_over_tokens(case.model, parts)).item())


def decaying_norms(case: Case) -> float:
    """How many parameters of norms stand in groups of the optimizer that decay."""
    of_norms = {id(p) for m in case.model.modules() if optimizers.is_norm(m) for p in m.parameters(recurse=False)}
    groups = case.optimizer.param_groups  # type: ignore[union-attr]
    return sum(id(p) in of_norms for group in groups if group["weight_decay"] > 0 for p in group["params"])


def equal_logits(case: Case, other: Case) -> float:
    """Share of the logits of two models that are equal bit for bit."""
    with torch.no_grad():
        return (call(case.model, case.batch) == call(other.model, case.batch)).float().mean().item()


READINGS: dict[str, Callable[[Case], float]] = {
    "squares in float16": error_of_norms,
    "ε below the smallest number": eps_as_used,
    "ε above the signal": eps_share,
    "gains stuck in bfloat16": moved_gains,
    "1 + w read as w": typical_gain,
    "w read as 1 + w": typical_gain,
    "mask inverted": first_token_counts,
    "final norm forgotten": spread_at_head,
    "norm over tokens": later_tokens_count,
    "norm twice": norms_of_norms,
    "dead gain": smallest_gain,
    "attention logits run away": largest_logit,
    "weights too large": largest_logit,
    "stuck at single characters": context_share,
    "decay on gains": decaying_norms,
}


def debug_report(case: Case) -> str:
    """What DebugUnderflowOverflow of ``transformers`` says in two training steps of a copy: "nothing", or what has NaN
    or infinities and the module in whose frame it says so, or why it cannot run.
    """
    with warnings.catch_warnings(action="ignore"):  # tqdm misses a widget
        from transformers.debug_utils import DebugUnderflowOverflow

    model = copy.deepcopy(case.model)
    rate = case.optimizer.param_groups[0]["lr"] if case.optimizer else RATE
    optimizer = torch.optim.AdamW(model.parameters(), rate, betas=BETAS, weight_decay=0.0)
    instrument = DebugUnderflowOverflow(model)
    ids = case.batch["ids"] if isinstance(case.batch, dict) else case.batch
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            for _ in range(2):
                logits = call(model, case.batch)
                loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    except RuntimeError as error:  # it takes the absolute value of what a module is called with; a subclass in newer torch
        if "not implemented for" not in str(error):
            raise
        return f"cannot run: {error}"
    except ValueError:  # its way to stop
        alarm = re.search(r"^(\S+ has (?:nans|infs))", said.getvalue(), re.MULTILINE)
        frames = re.findall(r"^ {10,}(\S+) (\w+)$", said.getvalue(), re.MULTILINE)
        return f"{alarm[1]}: {frames[-1][0]} ({frames[-1][1]})" if alarm and frames else said.getvalue()[:80]
    del instrument
    return "nothing"


def fresh_family(family: str, seed: int = 0) -> nn.Module:
    """A family of ``transformers`` in miniature, as it is before training."""
    with warnings.catch_warnings(action="ignore"):
        import transformers

    model, config, sizes = tiny_transformers.FAMILIES[family]
    vocabulary = {"vocab_size": len(data.corpus().vocabulary)}
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(seed)
        return getattr(transformers, model)(getattr(transformers, config)(**sizes | vocabulary)).eval()


def without_final_norm(model: nn.Module) -> nn.Module:
    """A model of :func:`fresh_family` with its final norm taken away."""
    stack = model.base_model
    name = next(name for name in ("norm", "ln_f", "final_layer_norm") if hasattr(stack, name))
    setattr(stack, name, nn.Identity())
    return model


def steps_after_a_jump(beta2: float, before: int = 5000, after: int = 60, lasts: int = 60) -> list[float]:
    """Lengths of AdamW's steps, in units of the rate, once a gradient that was 1e-3 for long is 1 for ``lasts`` steps."""
    x = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.AdamW([x], 1.0, betas=(0.9, beta2), eps=0.0, weight_decay=0.0)
    lengths = []
    for step in range(before + after):
        x.grad = torch.full((), 1.0 if before <= step < before + lasts else 1e-3, dtype=torch.float64)
        old = x.item()
        optimizer.step()
        lengths.append(abs(x.item() - old))
    return lengths[before:]


@torch.no_grad()
def stream_sizes(model: Transformer, ids: Tensor) -> list[float]:
    """Root mean square of the stream before the first block and behind each one."""
    x = model.embed(ids)
    sizes = [x.pow(2).mean().sqrt().item()]
    for block in model.blocks:
        x = block(x)
        sizes.append(x.pow(2).mean().sqrt().item())
    return sizes


def both(fault: str, seed: int) -> dict[str, Any]:
    """Losses of the faulty and the healthy model, the last training losses (mean of 20), and the one measurement."""
    cases = {"faulty": planted(fault, True, seed), "healthy": planted(fault, False, seed)}
    found: dict[str, Any] = {"loss": {name: _finite(case.loss) for name, case in cases.items()}}
    if cases["faulty"].curve:
        found["training"] = {name: _finite(sum(case.curve[-20:]) / 20) for name, case in cases.items()}
    if fault in READINGS:
        found["reading"] = {name: READINGS[fault](case) for name, case in cases.items()}
    if fault == "cast order":
        found["reading"] = {"faulty": equal_logits(*cases.values())}
    if fault == "mean of means":
        found["reading"] = {"faulty": difference_of_means(cases["faulty"])}
    return small_models.rounded(found, 5)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


RECORDS = (
    Recipe(
        "when_training_breaks",
        "loss and one measurement of small models with one planted fault each, and of their healthy controls",
        grid(seed=range(5), fault=list(FAULTS)),
        both,
    ),
)
