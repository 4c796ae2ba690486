"""What moves the weights: learning-rate schedules, and optimizers that leave norm parameters undecayed."""

import math
import re
from enum import Enum

import torch
from torch import nn

from normlab.arithmetic import HALF_TYPES, check_count, check_number


class Schedule(str, Enum):
    """What the learning rate does after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"  # straight down to the floor
    COSINE = "cosine"  # half a cosine wave down to the floor


class OptimizerKind(str, Enum):
    """How a gradient becomes an update."""

    ADAMW = "adamw"
    SGD = "sgd"  # plain: no momentum


def learning_rate(
    step: int,
    steps: int,
    peak: float,
    warmup: int = 0,
    floor: float | None = None,
    schedule: Schedule | str | None = None,
) -> float:
    """Learning rate at ``step`` (from 0): linear warm-up to ``peak``, then what the schedule says.

    Args:
        warmup: the first ``warmup`` steps rise linearly; step 0 already has peak / warmup.
        floor: the last step has ``floor * peak``; None means 0 if ``schedule`` falls.
        schedule: a :class:`Schedule` or its string; None means cosine if there is a floor, else constant.

    Raises:
        ValueError: a step before the first or after the last; unknown schedule, or a floor for a constant one; a peak
            or floor that is negative or not finite.
    """
    check_count("step", step, least=0)
    check_count("steps", steps)
    if step >= steps:
        raise ValueError(f"step must be below steps={steps} (it counts from 0), got {step}")
    check_count("warmup", warmup, least=0)
    for name, rate in (("peak", peak), ("floor", 0.0 if floor is None else floor)):
        check_number(name, rate)
        if rate < 0:
            raise ValueError(f"{name} must not be negative, got {rate}")
    if schedule is None:
        schedule = Schedule.CONSTANT if floor is None else Schedule.COSINE
    schedule = Schedule(schedule)
    if schedule is Schedule.CONSTANT and floor is not None:
        raise ValueError(f"a constant schedule has no floor, got floor={floor}")
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule is Schedule.CONSTANT:
        return peak
    floor = 0.0 if floor is None else floor
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    if schedule is Schedule.LINEAR:
        return peak * (floor + (1 - floor) * (1 - progress))
    return peak * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalization layer: its class or a base class of it is called ...Norm.

    This covers torch (LayerNorm, BatchNorm1d), normlab and transformers (LlamaRMSNorm, NemotronLayerNorm1P). How
    the module is called inside the model (``ln_1``, ``input_layernorm``) does not count.
    """
    return any(re.search(r"Norm(\d\w)?$", kind.__name__) for kind in type(module).__mro__)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two optimizer groups: matrices decay; vectors, scalars and all parameters of norm layers do not.

    Decided by the type of the owning module (:func:`is_norm`) and the dimension of the parameter, never by its name:
    lists of names such as ``LayerNorm.weight`` miss most norms of today's models. The dimension alone would miss
    norms with a gain per head and feature. Embeddings are matrices and decay. A tied parameter is listed once.

    What decay would do to a gain depends on how it is stored: Llama's gain is the weight w itself, so decay switches
    the feature off; Gemma's gain is 1 + w, so decay pulls it to 1. Both are left alone here.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    of_norms = {id(p) for m in model.modules() if is_norm(m) for p in m.parameters(recurse=False)}
    decays = [p.dim() >= 2 and id(p) not in of_norms for p in parameters]
    return [
        {"params": [p for p, yes in zip(parameters, decays) if yes], "weight_decay": weight_decay},
        {"params": [p for p, yes in zip(parameters, decays) if not yes], "weight_decay": 0.0},
    ]


def immovable(model: nn.Module, lr: float) -> list[str]:
    """Names of the half-precision parameters without weight decay that steps of length ``lr`` leave where they are.

    A step that is at most half the distance to the next number is lost in rounding. At 1 that distance is 2^-7
    upwards and 2^-8 downwards in bfloat16: a gain that is stored as w = 1 stays there at learning rates below 2^-9 =
    0.00195, and moves where it is stored as 1 + w with w = 0. A parameter is named if none of its entries can move, in
    either direction.

    The steps of AdamW are about ``lr`` long, whatever the scale of the gradients. (Gradients that grow in a particular
    way reach 1.17 lr with betas (0.9, 0.95), 7.3 lr with (0.9, 0.999).)
    """
    spared = {id(p) for p in parameter_groups(model, 0.0)[1]["params"]}
    return [
        name
        for name, p in model.named_parameters()
        if id(p) in spared and p.dtype in HALF_TYPES and _absorbs(p.detach(), lr) and _absorbs(p.detach(), -lr)
    ]


def _absorbs(value: torch.Tensor, step: float) -> bool:
    """Whether value + step is rounded back to value, in every entry."""
    return torch.equal((value.float() + step).to(value.dtype), value)


def make_optimizer(
    kind: OptimizerKind, model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    """An optimizer over :func:`parameter_groups`; SGD has no use for ``betas``."""
    groups = parameter_groups(model, weight_decay)
    if kind is OptimizerKind.SGD:
        return torch.optim.SGD(groups, lr=lr)
    return torch.optim.AdamW(groups, lr=lr, betas=betas)
