"""What moves the weights: learning-rate schedules, and optimizers that leave norm parameters undecayed."""

import math
import re
from enum import Enum

import torch
from torch import nn


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
        ValueError: unknown schedule, or a floor for a constant one.
    """
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


def make_optimizer(
    kind: OptimizerKind, model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    """An optimizer over :func:`parameter_groups`; SGD has no use for ``betas``."""
    groups = parameter_groups(model, weight_decay)
    if kind is OptimizerKind.SGD:
        return torch.optim.SGD(groups, lr=lr)
    return torch.optim.AdamW(groups, lr=lr, betas=betas)
