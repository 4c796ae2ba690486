"""Training: schedules, parameter groups, and a loop with a progress bar."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

Batches = Callable[[torch.Generator], tuple[Tensor, Tensor]]


@dataclass
class History:
    """What a training run left behind: the loss of every step in nats per token, and its learning rate."""

    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)


def learning_rate(step: int, steps: int, peak: float, warmup: int = 0, floor: float | None = None) -> float:
    """Learning rate at ``step`` (from 0): linear warm-up to ``peak``, then constant or a cosine down to a floor.

    Args:
        warmup: the first ``warmup`` steps rise linearly; step 0 already has peak / warmup.
        floor: the cosine ends at ``floor * peak``; None keeps the rate constant.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if floor is None:
        return peak
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Optimizer groups: matrices decay, vectors (gains, biases) do not. Decided by dimension, never by name."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def train(
    model: nn.Module,
    batches: Batches,
    steps: int,
    lr: float,
    seed: int,
    *,
    warmup: int = 0,
    floor: float | None = None,
    clip: float | None = None,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.95),
    progress: str | None = None,
) -> History:
    """Train a language model in place with AdamW and return the losses.

    Args:
        model: maps ids [B, T] to logits [B, T, V].
        batches: called with a CPU generator, returns inputs and targets [B, T]; see :func:`normlab.data.sampler`.
        steps: number of updates, at least 1.
        lr: peak learning rate, above 0.
        seed: of the batches. The weights have a seed of their own, so that either can change alone.
        warmup, floor: see :func:`learning_rate`.
        clip: largest gradient norm, None for no clipping.
        weight_decay: of matrices only.
        progress: label of a progress bar with the loss; None for no bar.

    Raises:
        ValueError: steps below 1, or a learning rate that is not positive.
        FloatingPointError: the loss became NaN or infinite; names the step.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not lr > 0:
        raise ValueError(f"lr must be above 0, got {lr}")
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay), lr=lr, betas=betas)
    history = History()
    model.train()
    bar = tqdm(range(steps), desc=progress, disable=None if progress else True, leave=False)
    for step in bar:
        rate = learning_rate(step, steps, lr, warmup, floor)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = (t.to(device) for t in batches(generator))
        loss = next_token_loss(model, inputs, targets)
        value = loss.item()
        if not math.isfinite(value):
            raise FloatingPointError(f"the loss became {value} at step {step}")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        history.loss.append(value)
        history.lr.append(rate)
        if step % 20 == 0:
            bar.set_postfix(loss=f"{value:.3f}")
    return history


def next_token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of ``targets`` [B, T] under the model's logits, in nats per token."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Batches, count: int = 8, seed: int = 1234) -> float:
    """Mean loss over ``count`` batches that a seed of their own draws, in nats per token."""
    was_training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    losses = [next_token_loss(model, *(t.to(device) for t in batches(generator))).item() for _ in range(count)]
    model.train(was_training)
    return sum(losses) / count
