"""Runs with one fault each, for the interview round *Debug this run*: what a log shows, and what one experiment says.

Models are those of :mod:`normlab.experiments.small_models` with 4 heads on *Hamlet*, 32 characters at a time, trained
at rate 3e-3 on batches of 16 unless a fault says otherwise. Every fault has a control that differs in the fault alone.
"""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from normlab import data, device, norms, training
from normlab.attention import SelfAttention
from normlab.experiments import small_models
from normlab.placement import Residual
from normlab.record import Recipe, grid
from normlab.transformer import Transformer

RATE = 3e-3
POINTS = 10  # of a loss curve


class FaultyNorm(nn.Module):
    """A norm of the course with another formula in its place."""

    def __init__(self, norm: norms.LayerNorm | norms.RMSNorm, formula: Callable[..., Tensor]):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, getattr(norm, "bias", None), norm.eps
        self.formula = formula

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.weight * self.formula(x, self.eps)
        return y if self.bias is None else y + self.bias


def with_formula(model: nn.Module, formula: Callable[..., Tensor], kind: type[FaultyNorm] = FaultyNorm) -> nn.Module:
    """The model with ``formula(x, eps)`` in all of its norms, as modules of the ``kind``."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, norms.LayerNorm | norms.RMSNorm):
                setattr(parent, name, kind(child, formula))
    return model


def unbiased(x: Tensor, eps: float) -> Tensor:
    """LayerNorm with d − 1 in its variance."""
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + eps).sqrt()


def eps_outside(x: Tensor, eps: float) -> Tensor:
    """RMSNorm with ε added to the root instead of the mean square."""
    return x / (x.pow(2).mean(-1, keepdim=True).sqrt() + eps)


def over_tokens(x: Tensor, eps: float) -> Tensor:
    """LayerNorm over the features of all tokens of a sequence together."""
    mean, var = x.mean((-2, -1), keepdim=True), x.var((-2, -1), keepdim=True, correction=0)
    return (x - mean) / (var + eps).sqrt()


def half_squares(x: Tensor, eps: float) -> Tensor:
    """RMSNorm whose squares are taken in float16."""
    half = x.half()
    return (half * torch.rsqrt(half.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@torch.no_grad()
def loss_on_passages(model: nn.Module) -> float:
    """Loss on 16 passages, in the mode in which the model is."""
    return training.next_token_loss(model, *small_models.passages()).item()


@torch.no_grad()
def influence_of_later(model: nn.Module) -> float:
    """Largest change of earlier logits, in their standard deviations, when a passage's second half is exchanged."""
    ids, _ = small_models.passages()
    half = ids.shape[1] // 2
    other = torch.cat([ids[:, :half], ids.roll(1, 0)[:, half:]], dim=1)
    before, after = model(ids)[:, :half], model(other)[:, :half]
    return ((after - before).abs().max() / before.std()).item()


@torch.no_grad()
def relative_step(model: Transformer) -> float:
    """How far a sublayer moves the stream, mean over the sublayers: rms(y − x̂) over rms(x̂) with x̂ = x / rms(x)."""
    ids, _ = small_models.passages()
    steps: list[float] = []
    handles = []

    def keep(module: nn.Module, args: tuple, output: Tensor) -> None:
        x = args[0]
        before = x / x.pow(2).mean(-1, keepdim=True).sqrt()
        steps.append(((output - before).pow(2).mean().sqrt() / before.pow(2).mean().sqrt()).item())

    for module in model.modules():
        if isinstance(module, Residual):
            handles.append(module.register_forward_hook(keep))
    try:
        model(ids)
    finally:
        for handle in handles:
            handle.remove()
    return sum(steps) / len(steps)


def curve(history: training.History) -> list[float]:
    """The losses of a run as so many means of neighboring steps."""
    size = len(history.loss) // POINTS
    return [sum(history.loss[i * size : (i + 1) * size]) / size for i in range(POINTS)]


# --- the faults ------------------------------------------------------------------------------------


def _unbiased(seed: int) -> dict[str, Any]:
    model = small_models.model(seed, layers=2, width=8, norm="layernorm")
    x = model.embed(small_models.passages()[0]).detach()
    bad, good = (norm(x).pow(2).mean(-1) for norm in (partial(unbiased, eps=1e-5), norms.LayerNorm(8)))
    shown = {
        "width": 8,
        "mean of an output": round(unbiased(x, 1e-5).mean().abs().item(), 3),
        "mean square of an output, smallest": bad.min().item(),
        "mean square of an output, largest": bad.max().item(),
    }
    return {"shown": shown, "probe": {"faulty": bad.mean().item(), "right": good.mean().item()}}


def _eps_outside(seed: int) -> dict[str, Any]:
    found = {}
    ids, targets = small_models.passages()
    for name, formula in (("faulty", eps_outside), ("right", None)):
        model = small_models.model(seed, layers=4, width=32, norm="rmsnorm", positions="rope")
        with torch.no_grad():
            model.token_embedding.weight[data.corpus().vocabulary.index("\n")] = 0.0
        if formula is not None:
            with_formula(model, formula)
        loss = training.next_token_loss(model, ids, targets)
        loss.backward()
        rows = model.token_embedding.weight.grad
        found[name] = loss.item(), rows.isnan().any(-1).sum().item(), model.head.weight.grad.isnan().sum().item()
    loss, rows, head = found["faulty"]
    shown = {
        "loss of the first batch": loss,
        "rows of the embedding that are zero": 1,
        "rows of the embedding with a NaN gradient": rows,
        "NaN in the gradient of the head": head,
    }
    return {"shown": shown, "probe": {name: numbers[1] for name, numbers in found.items()}}


def _wrong_axis(seed: int) -> dict[str, Any]:
    curves, finals, probes, alone = {}, {}, {}, {}
    for name in ("faulty", "right"):
        model = small_models.model(seed, layers=4, width=32, norm="layernorm")
        if name == "faulty":
            with_formula(model, over_tokens)
        curves[name] = curve(small_models.train(model, 300, RATE, seed))
        finals[name], probes[name] = loss_on_passages(model), influence_of_later(model)
        alone[name] = loss_with_the_past_alone(model)
    shown = {
        "held-out loss, whole passages": finals["faulty"],
        "the same, each token with its past alone": alone["faulty"],
    }
    return {"loss": curves["faulty"], "control": curves["right"], "shown": shown, "probe": probes}


@torch.no_grad()
def loss_with_the_past_alone(model: nn.Module) -> float:
    """Loss on the passages when each prediction is made from the tokens up to it and no others."""
    ids, targets = small_models.passages()
    losses = [nn.functional.cross_entropy(model(ids[:, : t + 1])[:, -1], targets[:, t]) for t in range(ids.shape[1])]
    return torch.stack(losses).mean().item()


def _cast_order(seed: int) -> dict[str, Any]:
    model = small_models.model(seed, layers=4, width=64, norm="rmsnorm", convention="llama")
    small_models.train(model, 300, RATE, seed)
    ids, targets = small_models.passages()
    shares = {}
    for name, gains in (("faulty", "learned"), ("right", "one")):
        llama = copy.deepcopy(model)
        if gains == "one":
            _set_gains(llama, 1.0)
        llama = llama.bfloat16()
        once = rounding_once(copy.deepcopy(llama))
        with torch.no_grad():
            one, other = llama(ids), once(ids)
        equal = (one == other).double().mean().item()
        shares[name] = equal
        if name == "faulty":
            logits = [y.float().flatten(0, 1) for y in (one, other)]
            losses = [nn.functional.cross_entropy(y, targets.flatten()).item() for y in logits]
            same = (one.argmax(-1) == other.argmax(-1)).double().mean().item()
    shown = {
        "loss of the checkpoint, original code": losses[0],
        "loss of the checkpoint, our code": losses[1],
        "share of logits that are equal bit for bit": shares["faulty"],
        "share of predictions that are equal": same,
    }
    return {"shown": shown, "probe": shares}


class RoundsOnce(FaultyNorm):
    """RMSNorm that multiplies by the gain in float32 and rounds at the end, as Gemma's does."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return (self.weight.float() * self.formula(x.float(), self.eps)).to(x.dtype)


def rounding_once(model: nn.Module) -> nn.Module:
    """The model with its RMSNorms rounding once."""
    return with_formula(model, in_float32, RoundsOnce)


def in_float32(x: Tensor, eps: float) -> Tensor:
    """RMSNorm, without rounding."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@torch.no_grad()
def _set_gains(model: nn.Module, value: float) -> None:
    for module in model.modules():
        if isinstance(module, norms.RMSNorm | norms.LayerNorm):
            module.weight.fill_(value)


def _batch_statistics(seed: int) -> dict[str, Any]:
    model = small_models.model(seed, layers=2, width=64, norm="batchnorm")
    history = small_models.train(model, 300, RATE, seed)
    sizes = {"512 characters a batch": (16, 32), "32 characters a batch": (1, 32), "8 characters a batch": (1, 8)}
    found: dict[bool, list[float]] = {True: [], False: []}
    for mode in (True, False):
        for sequences, tokens in sizes.values():
            trial = copy.deepcopy(model).train(mode)
            batches = data.sampler(data.corpus().val, sequences, tokens)
            generator = torch.Generator().manual_seed(7)
            with torch.no_grad():
                losses = [training.next_token_loss(trial, *batches(generator)).item() for _ in range(64)]
            found[mode].append(sum(losses) / len(losses))
    shown = {f"held-out loss, {name}": loss for name, loss in zip(sizes, found[True])}
    return {
        "loss": curve(history),
        "shown": shown,
        "probe": {"faulty": found[True][2] - found[True][0], "right": found[False][2] - found[False][0]},
    }


@contextmanager
def inverted_masks() -> Iterator[None]:
    """Attention reads every padding mask the wrong way round."""
    right = SelfAttention.forward

    def wrong(self: SelfAttention, x: Tensor, attention_mask: Tensor | None = None, **rest: Any) -> Tensor:
        mask = None if attention_mask is None else ~attention_mask.bool()
        return right(self, x, attention_mask=mask, **rest)

    SelfAttention.forward = wrong  # type: ignore[method-assign]
    try:
        yield
    finally:
        SelfAttention.forward = right  # type: ignore[method-assign]


def _mask_inverted(seed: int) -> dict[str, Any]:
    corpus = data.corpus()
    newline = corpus.vocabulary.index("\n")
    batches = data.line_sampler(corpus.train, newline, 16, 32)
    held_out = data.line_sampler(corpus.val, newline, 64, 32)(torch.Generator().manual_seed(7))
    found: dict[str, dict[str, Any]] = {}
    for name in ("faulty", "right"):
        model = small_models.model(seed, layers=4, width=32, norm="rmsnorm", positions="rope")
        with device.single_thread(), inverted_masks() if name == "faulty" else nullcontext():
            history = training.train(model, batches, 250, lr=RATE, seed=1000 + seed, warmup=25, floor=0.0, clip=1.0)
            with torch.no_grad():
                inputs, targets, mask = held_out
                loss = training.next_token_loss(model, inputs, targets, mask).item()
                other = inputs.clone()
                other[:, 0] = inputs[:, 0].roll(1)
                before, after = (model(ids, mask)[:, 1:][mask[:, 1:]] for ids in (inputs, other))
                moved = ((after - before).abs().max() / before.std()).item()
        found[name] = {"curve": curve(history), "loss": loss, "moved": moved}
    shown = {
        "held-out loss of lines, padded on the right": found["faulty"]["loss"],
        "entropy of single characters": small_models.character_entropy(),
    }
    return {
        "loss": found["faulty"]["curve"],
        "control": found["right"]["curve"],
        "shown": shown,
        "probe": {name: found[name]["moved"] for name in found},
    }


class AlphaOnBranch(nn.Module):
    """The sublayer of a DeepNorm block with α where it does not belong: N(x + α F(x))."""

    def __init__(self, sublayer: nn.Module, alpha: float):
        super().__init__()
        self.sublayer, self.alpha = sublayer, alpha

    def forward(self, x: Tensor, **context: Any) -> Tensor:
        return self.alpha * self.sublayer(x, **context)


def _alpha_on_branch(seed: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for name in ("faulty", "right"):
        found[name] = []
        for factor in (1.0, 2.0):
            options = {"layers": 8, "width": 32, "placement": "deepnorm", "init": "deepnorm"}
            model = small_models.model(seed, **options)
            for residual in [module for module in model.modules() if isinstance(module, Residual)]:
                alpha = factor * residual.alpha
                residual.alpha = alpha
                if name == "faulty":
                    residual.alpha, residual.sublayer = 1.0, AlphaOnBranch(residual.sublayer, alpha)
            found[name].append(relative_step(model))
    shown = {
        "blocks": 8,
        "α": (2 * 8) ** 0.25,
        "how far a sublayer moves the stream, share of its size": found["faulty"][0],
    }
    return {"shown": shown, "probe": {name: steps[1] / steps[0] for name, steps in found.items()}}


def _gain_convention(seed: int) -> dict[str, Any]:
    model = small_models.model(seed, layers=4, width=32, norm="rmsnorm", convention="llama")
    history = small_models.train(model, 300, RATE, seed)
    before = loss_on_passages(model)
    size = _size_of_norm_output(model)
    for module in model.modules():
        if isinstance(module, norms.RMSNorm):
            with torch.no_grad():
                module.weight += 1.0  # what a norm of the other convention makes of the stored numbers
    loaded, wrong = loss_on_passages(model), _size_of_norm_output(model)
    again = small_models.train(model, 100, RATE, seed)
    shown = {
        "held-out loss before saving": before,
        "the same after loading": loaded,
        "the same after 100 more steps": loss_on_passages(model),
    }
    return {"loss": curve(history) + curve(again), "shown": shown, "probe": {"faulty": wrong, "right": size}}


@torch.no_grad()
def _size_of_norm_output(model: Transformer) -> float:
    """Root mean square of what the first norm gives out."""
    norm = next(module for module in model.modules() if isinstance(module, norms.RMSNorm))
    return norm(model.embed(small_models.passages()[0])).pow(2).mean().sqrt().item()


def _post_stuck(seed: int) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, placement in (("faulty", "post"), ("right", "pre")):
        model = small_models.model(seed, layers=8, width=32, norm="layernorm", placement=placement)
        history = small_models.train(model, 200, RATE, seed)
        ids, _ = small_models.passages()
        with torch.no_grad():
            logits = model(ids).double()
        centered = logits - logits.mean(-1, keepdim=True)
        alone = centered - centered.mean((0, 1), keepdim=True)
        found[name] = {"curve": curve(history), "share": (alone.pow(2).sum() / centered.pow(2).sum()).item()}
        found[name]["loss"] = loss_on_passages(model)
    shown = {
        "entropy of single characters": small_models.character_entropy(),
        "held-out loss at the end": found["faulty"]["loss"],
    }
    return {
        "loss": found["faulty"]["curve"],
        "control": found["right"]["curve"],
        "shown": shown,
        "probe": {name: found[name]["share"] for name in found},
    }


def _half_squares(seed: int) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name in ("faulty", "right"):
        model = small_models.model(seed, layers=4, width=32, norm="rmsnorm", embedding_multiplier=128.0)
        if name == "faulty":
            with_formula(model, half_squares)
        x = model.embed(small_models.passages()[0]).detach()
        first = next(module for module in model.modules() if isinstance(module, FaultyNorm | norms.RMSNorm))
        dead = (first(x).abs().amax(-1) == 0).double().mean().item()
        history = small_models.train(model, 120, RATE, seed)
        model.zero_grad()
        training.next_token_loss(model, *small_models.passages()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        bad = sum((~gradient.isfinite()).sum().item() for gradient in gradients)
        found[name] = {"curve": curve(history), "dead": dead, "loss": loss_on_passages(model), "bad": bad}
    shown = {
        "held-out loss at the end": found["faulty"]["loss"],
        "ln of the vocabulary": math.log(len(data.corpus().vocabulary)),
        "NaN or infinite entries of gradients": found["faulty"]["bad"],
    }
    return {
        "loss": found["faulty"]["curve"],
        "control": found["right"]["curve"],
        "shown": shown,
        "probe": {name: found[name]["dead"] for name in found},
    }


FAULTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "n-minus-one": _unbiased,
    "eps-outside": _eps_outside,
    "wrong-axis": _wrong_axis,
    "cast-order": _cast_order,
    "batch-statistics": _batch_statistics,
    "mask-inverted": _mask_inverted,
    "alpha-on-branch": _alpha_on_branch,
    "gain-convention": _gain_convention,
    "post-stuck": _post_stuck,
    "half-squares": _half_squares,
}


def faulty_run(fault: str, seed: int) -> dict[str, Any]:
    """What a run with the fault shows: ``loss`` and ``control``, curves of means of neighboring steps (of some faults);
    ``shown``, what is printed beside; ``probe``, the one number of the experiment for the faulty and the right code.

    Raises ValueError for an unknown fault.
    """
    if fault not in FAULTS:
        raise ValueError(f"fault must be one of {', '.join(FAULTS)}, got {fault!r}")
    with device.single_thread():
        return small_models.rounded(FAULTS[fault](seed), 4)


RECORDS = (
    Recipe(
        "faulty_runs",
        "what small runs with one fault each show, and what one experiment says of the faulty and of the right code",
        grid(fault=list(FAULTS), seed=range(3)),
        faulty_run,
    ),
)
