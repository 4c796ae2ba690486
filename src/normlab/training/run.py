"""One training run: its settings, its steps, what it leaves behind. The loop is :func:`normlab.training.train`."""

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab import files
from normlab.device import supports_autocast
from normlab.optimizers import OptimizerKind, Schedule, learning_rate, make_optimizer
from normlab.training import checkpoint, distributed, nonfinite
from normlab.training.losses import IGNORED, summed_loss

Batch = tuple[Tensor, ...]
Batches = Callable[[torch.Generator], Batch]


class Precision(str, Enum):
    """In what precision the forward pass computes; weights and optimizer keep their own."""

    FULL = "full"  # that of the weights
    BF16 = "bf16"  # autocast
    FP16 = "fp16"  # autocast, and a loss scaled so that small gradients do not become 0


_AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True)
class Settings:
    """All numbers that decide what a training run does; see :func:`normlab.training.train`."""

    steps: int
    lr: float
    seed: int
    warmup: int = 0
    floor: float | None = None
    schedule: Schedule | str | None = None
    clip: float | None = None
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    optimizer: OptimizerKind | str = OptimizerKind.ADAMW
    precision: Precision | str = Precision.FULL

    def __post_init__(self):
        # Numbers of numpy or torch become Python's: a checkpoint with others in it could be written but not read.
        for name in ("steps", "lr", "seed", "warmup", "floor", "clip", "weight_decay"):
            object.__setattr__(self, name, _plain(getattr(self, name)))
        object.__setattr__(self, "betas", tuple(_plain(beta) for beta in self.betas))
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if not (value is None and name == "clip") and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        for name in ("warmup", "floor", "weight_decay"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        # Strings are welcome; from here on they are enum members, or the enum has named the bad value.
        object.__setattr__(self, "optimizer", OptimizerKind(self.optimizer))
        object.__setattr__(self, "precision", Precision(self.precision))
        self.rate(0)

    def rate(self, step: int) -> float:
        """Learning rate at ``step``."""
        return learning_rate(step, self.steps, self.lr, self.warmup, self.floor, self.schedule)


@dataclass
class History:
    """What a training run left behind, a number per step.

    ``loss`` in nats per token, ``lr`` the learning rate, ``gradient_norm`` the norm of all gradients before clipping.
    ``interrupted``: Ctrl-C ended the run before its last step.
    """

    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    interrupted: bool = False


class NonFiniteError(FloatingPointError):
    """The loss or a gradient became NaN or infinite; ``history`` holds the steps before."""

    def __init__(self, message: str, history: History):
        super().__init__(message)
        self.history = history


class NotSavedError(files.NotWrittenError):
    """The last checkpoint of a run could not be written; the model is trained, ``history`` holds its steps."""

    history: History


# A process that looks for it alone would wait for weights that the others do not send.
NOT_LOOKED_FOR = "not looked for, since the weights are spread over the processes (run without NORMLAB_SHARDED to see)"


class Run:
    """The moving parts of a training run, which are what a checkpoint has to hold.

    ``module`` is the model; ``model`` is the same, wrapped where several processes train it.
    """

    def __init__(self, model: nn.Module, batches: Batches, settings: Settings):
        parameter = next(model.parameters())
        self.module, self.batches, self.settings, self.device = model, batches, settings, parameter.device
        self.autocast = _autocast(Precision(settings.precision), parameter)
        self.world = distributed.join(self.device)
        self.model = self.world.wrap(model)
        kind = OptimizerKind(settings.optimizer)
        self.optimizer = make_optimizer(kind, model, settings.lr, settings.weight_decay, settings.betas)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision is Precision.FP16)
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.history = History()
        model.train()

    def update(self, step: int) -> None:
        """Draw a batch, take one step and write it into the history."""
        rate = self.settings.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        batch = self.draw()
        with self.autocast():
            total, count = summed_loss(self.model, *batch)
        everywhere = self.world.sum(count)
        loss = total / everywhere  # this process's part of the mean over the targets of all processes
        value = self.world.sum(loss.detach()).item()
        if not math.isfinite(value):
            raise self.loss_error(step, value, batch) if everywhere else self.no_target(step)
        self.optimizer.zero_grad(set_to_none=True)
        # DistributedDataParallel averages over the processes; their parts have to add up.
        self.scaler.scale(loss * self.world.size).backward()
        norm = self.clip()
        if not math.isfinite(norm) and not self.scaler.get_scale() > 1:  # a larger scale may be the culprit itself
            raise self.gradient_error(step, norm, batch)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.history.loss.append(value)
        self.history.lr.append(rate)
        self.history.gradient_norm.append(norm)

    def draw(self) -> Batch:
        """The next batch: this process's rows, on the device of the model."""
        self.before_draw = self.data_state()
        self.drawn = self.batches(self.generator)
        return tuple(t.to(self.device) for t in self.world.share(self.drawn))

    def clip(self) -> float:
        """Clip the gradients; returns their norm before."""
        self.scaler.unscale_(self.optimizer)
        largest = math.inf if self.settings.clip is None else self.settings.clip  # infinity multiplies by exactly 1
        return self.world.value(nn.utils.clip_grad_norm_(self.module.parameters(), largest))

    # --- when something is not finite -------------------------------------------------------------------------------

    def no_target(self, step: int) -> ValueError:
        """Nothing to learn from, in any process."""
        return ValueError(f"no target of the batch of step {step} counts: all are {IGNORED} or masked")

    def loss_error(self, step: int, value: float, batch: Batch) -> NonFiniteError:
        """The loss of a step is NaN or infinite: where in the forward pass did it begin?"""
        where: str | None = "the inputs of the batch"
        if self.world.sharded:
            where = NOT_LOOKED_FOR
        elif nonfinite.is_finite(batch[0]):
            where = nonfinite.first_output(self.module, lambda: self.own_loss(batch))
        return self.error(f"the loss became {value} at step {step}", where or "the loss itself")

    def gradient_error(self, step: int, norm: float, batch: Batch) -> NonFiniteError:
        """The gradients of a step are NaN or infinite: where in the backward pass did it begin?"""
        if self.world.sharded:
            where: str | None = NOT_LOOKED_FOR
        else:
            where = nonfinite.first_gradient(self.module, lambda: self.own_loss(batch))
        return self.error(f"the norm of the gradients became {norm} at step {step}", where or "the sum of squares")

    def own_loss(self, batch: Batch) -> Tensor:
        """The loss of this process alone, so that looking for the culprit needs no other."""
        with self.autocast():
            return summed_loss(self.module, *batch)[0]

    def error(self, what: str, where: str) -> NonFiniteError:
        """The two joined to a message, with the history so far."""
        process = f" (as process {self.world.rank} of {self.world.size} sees it)" if self.world.size > 1 else ""
        return NonFiniteError(f"{what}; the first that is not finite{process}: {where}", self.history)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def identity(self) -> dict:
        """What must not differ between a run and its continuation."""
        numbers = {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self.settings).items()}
        world = {"processes": self.world.size} | ({"sharded": True} if self.world.sharded else {})
        return numbers | world | checkpoint.model_settings(self.module)

    def data_state(self) -> dict:
        """Where the data stand: the generator, and what the batches say of themselves."""
        own = self.batches.state_dict() if hasattr(self.batches, "state_dict") else {}
        return {"generator": self.generator.get_state(), "batches": copy.deepcopy(own)}

    def check_place(self, path: Path) -> None:
        """Refuse a place that cannot be written, or batches whose state could not be read again."""
        checkpoint.check_readable("what batches.state_dict() returns", self.data_state()["batches"])
        copies = 3 if self.settings.optimizer is OptimizerKind.ADAMW else 1  # two moments for each weight
        size = sum(p.nbytes * (copies if p.requires_grad else 1) for p in self.module.parameters())
        self.in_first(lambda: files.check_writable(path, size))

    def save(self, path: Path, last: bool) -> None:
        """Write everything. If that fails the run may go on and try again later, but not from its ``last`` save."""
        model, optimizer = self.world.state(self.module, self.optimizer)
        state = {
            "settings": self.identity(),
            "history": {k: v for k, v in asdict(self.history).items() if k != "interrupted"},
            "model": model,
            "optimizer": optimizer,
            "scaler": self.scaler.state_dict(),
            "before_draw": self.before_draw,
            "drawn": checkpoint.digest(self.drawn),
            "random": self.world.gather(checkpoint.random_state(self.device)),
        }
        try:
            self.in_first(lambda: checkpoint.save(path, state))
        except files.NotWrittenError as problem:
            if last:
                error = NotSavedError(problem.errno, problem.strerror, problem.filename)
                error.history = self.history
                raise error from problem
            if self.world.rank == 0:
                done = len(self.history.loss)
                warnings.warn(f"{problem}. The run goes on after step {done}, the next save tries again", stacklevel=3)

    def in_first(self, write: Callable[[], None]) -> None:
        """Let the first process write; the others wait for it, and fail where it fails."""
        problem = None
        if self.world.rank == 0:
            try:
                write()
            except files.NotWrittenError as error:
                problem = error
        problem = self.world.gather(problem)[0]
        if problem is not None:
            raise problem

    def load(self, path: Path) -> None:
        """Go on from where :meth:`save` was called."""
        state = checkpoint.load(path, self.identity())
        try:
            history = History(**state["history"])
            generator, batches = (state["before_draw"][name] for name in ("generator", "batches"))
        except (KeyError, TypeError) as problem:
            raise checkpoint.unusable(path, f"it is of another version of normlab: {problem}") from None
        # The last batch is drawn once more: this leaves the generator where it was, and shows whether it is the same
        # data.
        self.generator.set_state(generator)
        if hasattr(self.batches, "load_state_dict"):
            self.batches.load_state_dict(batches)
        self.draw()
        if checkpoint.digest(self.drawn) != state["drawn"]:
            raise ValueError(
                f"{path} belongs to a run on other data: batch {len(history.loss) - 1} drawn again is another one"
            )
        self.world.load_state(self.module, self.optimizer, (state["model"], state["optimizer"]))
        self.scaler.load_state_dict(state["scaler"])
        self.history = history
        checkpoint.restore_random_state(state["random"][self.world.rank], self.device)


def _plain(number: Any) -> Any:
    return number.item() if hasattr(number, "item") else number


def _autocast(precision: Precision, parameter: Tensor) -> Callable[[], AbstractContextManager]:
    if precision is Precision.FULL:
        return nullcontext
    dtype, device = _AUTOCAST[precision], parameter.device
    if parameter.dtype is not torch.float32:
        raise ValueError(f"precision {precision.value!r} needs float32 weights, got {parameter.dtype}")
    if not supports_autocast(device, dtype):
        raise ValueError(f"precision {precision.value!r} needs a device that computes in {dtype}, got {device}")
    return lambda: torch.autocast(device.type, dtype=dtype)
