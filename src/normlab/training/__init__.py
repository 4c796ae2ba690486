"""Training: a loop with a progress bar that can be stopped, resumed, and run by several processes.

A step of it is in :mod:`normlab.training.run`; schedules and parameter groups are in :mod:`normlab.optimizers`.
"""

import multiprocessing
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from normlab.arithmetic import check_count
from normlab.optimizers import OptimizerKind, Schedule, immovable, learning_rate, parameter_groups
from normlab.training import interrupt
from normlab.training.losses import IGNORED, next_token_loss, summed_loss
from normlab.training.run import Batches, History, NonFiniteError, NotSavedError, Precision, Run, Settings

__all__ = [
    "Batches",
    "History",
    "NonFiniteError",
    "NotSavedError",
    "OptimizerKind",
    "Precision",
    "Schedule",
    "learning_rate",
    "next_token_loss",
    "parameter_groups",
    "summed_loss",
    "train",
    "validation_loss",
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
    schedule: Schedule | str | None = None,
    clip: float | None = None,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.95),
    optimizer: OptimizerKind | str = OptimizerKind.ADAMW,
    precision: Precision | str = Precision.FULL,
    progress: str | None = None,
    each_step: Callable[[int, History], object] | None = None,
    checkpoint: str | Path | None = None,
    save_every: int = 100,
) -> History:
    """Train a model in place and return the losses.

    Ctrl-C ends the run after the step it is in: the model keeps its last state, the history is marked. Started by
    torchrun, every process trains on its rows of each batch, and the losses are those of a single process. (Layers
    that look across the batch, such as BatchNorm, see only the rows of their own process.) With the environment
    variable NORMLAB_SHARDED=1 each process holds only its part of the weights, also after the run (FSDP2).

    Args:
        model: maps ids [B, T] to logits [B, T, V], or features [B, ...] to logits [B, V].
        batches: called with a CPU generator, returns inputs and targets [B, T]; see :func:`normlab.data.sampler`.
            Targets of -100 do not count. A third tensor is the attention mask [B, T], 1 or True at real tokens:
            the model receives it, and targets at other places do not count.
        steps: number of updates, at least 1.
        lr: peak learning rate, above 0.
        seed: of the batches. The weights have a seed of their own, so that either can change alone.
        warmup, floor, schedule: see :func:`normlab.optimizers.learning_rate`.
        clip: largest gradient norm, None for no clipping.
        weight_decay: of matrices only; see :func:`normlab.optimizers.parameter_groups`.
        betas: of AdamW.
        optimizer: an :class:`OptimizerKind` or its string.
        precision: a :class:`Precision` or its string.
        progress: label of a progress bar with the loss; None for no bar.
        each_step: called after every update with the step and the history so far.
        checkpoint: file to write every ``save_every`` steps, at the end and after Ctrl-C. If it exists, the run
            goes on from there; on a CPU with the same number of threads its results are then the same to the last
            bit as without a break. If ``batches`` has a state beside the generator, it needs the methods
            ``state_dict`` and ``load_state_dict``. A save that fails on the way is told in a warning: the file
            of before stays whole, and the run goes on.

    Warns:
        UserWarning: parameters in half precision, mostly the gains of norms, that this learning rate is too small to
            move; see :func:`normlab.optimizers.immovable`.

    Raises:
        ValueError: a model without anything to train, a setting out of range, a precision that the device lacks, a
            batch without any target that counts, or a checkpoint that is damaged, of another version, of a run with
            other settings, another model or other data.
        NotWrittenError: an OSError; there is no room or no right to write a checkpoint. Noticed before the first step.
        NotSavedError: a NotWrittenError; the last save failed. The model is trained, the error has the ``history``.
        NonFiniteError: a FloatingPointError; the loss or a gradient became NaN or infinite. Names the step, and the
            module where it first appeared. The model is left as it was before that step.
    """
    settings = Settings(steps, lr, seed, warmup, floor, schedule, clip, weight_decay, betas, optimizer, precision)
    check_count("save_every", save_every)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"the model ({type(model).__name__}) has no parameter to train: none, or all are frozen")
    stuck = immovable(model, lr) if settings.optimizer is OptimizerKind.ADAMW else []
    run = Run(model, batches, settings)
    if run.world.rank == 0:
        _warn_of_immovable(model, lr, stuck)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and os.path.exists(path):
        run.load(path)
    history = run.history
    first = len(history.loss)
    if path is not None and first < steps:
        run.check_place(path)
    # Bars of several processes would be written over each other.
    shown = progress and run.world.rank == 0 and multiprocessing.parent_process() is None
    bar = tqdm(
        range(first, steps), desc=progress, initial=first, total=steps, disable=None if shown else True, leave=False
    )
    with bar, interrupt.deferred() as pressed:
        try:
            for step in bar:
                run.update(step)
                if each_step is not None:
                    each_step(step, history)
                if step % 20 == 0:
                    bar.set_postfix(loss=f"{history.loss[-1]:.3f}")
                stop, last = run.world.any(pressed()), step + 1 == steps
                history.interrupted = stop and not last
                if path is not None and (stop or last or (step + 1) % save_every == 0):
                    run.save(path, last=stop or last)
                if stop:
                    break
        except KeyboardInterrupt:  # from batches, from each_step, or a second Ctrl-C
            if interrupt.is_strict():
                raise
            history.interrupted = True
    return history


def _warn_of_immovable(model: nn.Module, lr: float, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"a learning rate of {lr:g} is too small to move {', '.join(names[:3])}{more}: a step is at most half the "
            f"distance to the next number of {model.get_parameter(names[0]).dtype}, and rounding undoes it. Keep the "
            "weights in float32 and train with precision='bf16', or store gains as 1 + w (convention 'gemma' or "
            "'nemotron').",
            stacklevel=3,
        )


@torch.no_grad()
def validation_loss(model: nn.Module, batches: Batches, count: int = 8, seed: int = 1234) -> float:
    """Mean loss over the targets of ``count`` batches that a seed of their own draws, in nats per token.

    The model computes in evaluation mode and is left in the modes in which it was found, whatever ``batches`` raises.

    Raises:
        ValueError: no target of any batch counts.
    """
    check_count("count", count)
    generator = torch.Generator().manual_seed(seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    losses, tokens = [], []
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for _ in range(count):
            total, number = summed_loss(model, *(t.to(device) for t in batches(generator)))
            if number:
                losses.append((total / number).item())
                tokens.append(number.item())
    finally:
        for module in training:
            module.training = True
    if not tokens:
        raise ValueError(f"no target of the {count} batches counts: all are {IGNORED} or masked")
    # Relative weights: batches of equal size weigh exactly 1, and their plain mean is not rounded once more.
    weights = [n / tokens[0] for n in tokens]
    return sum(w * loss for w, loss in zip(weights, losses)) / sum(weights)
