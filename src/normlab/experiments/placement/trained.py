"""Chapter 5, training: which placement trains where, what it ends with, and what became of the stream."""

import copy
import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from normlab import device, fast, probes, training
from normlab.attention import QKNorm
from normlab.config import Init, OutputScale
from normlab.data import PLAYS
from normlab.experiments import small_models
from normlab.inspection import observe
from normlab.norms import NormKind
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.record import paired_interval as corrected_interval  # noqa: F401  (what the chapter calls it)
from normlab.transformer import Transformer

# --- who trains where: depth, learning rate, warm-up ----------------------------------------------------------------

STACKS: dict[str, dict[str, Any]] = {
    "Post-LN": {"placement": Placement.POST},
    "Pre-LN": {"placement": Placement.PRE},
    "DeepNorm": {"placement": Placement.DEEPNORM, "init": Init.DEEPNORM},
    "T-Fixup-like": {"placement": Placement.NONE, "init": Init.TFIXUP, "final_norm": False},
    "Post-LN, N(0, 0.02)": {"placement": Placement.POST, "init": Init.GPT2},
    "Pre-LN without final norm": {"placement": Placement.PRE, "final_norm": False},
}
PLATEAU = 0.05  # nats below the entropy of single characters


def stack(name: str, layers: int, seed: int, width: int = 32) -> Transformer:
    """One of STACKS: LayerNorm, GELU, heads of 16 features, Xavier unless the stack says otherwise."""
    return small_models.model(seed, layers=layers, width=width, heads=width // 16, **STACKS[name])


def train_stack(
    name: str, layers: int, lr: float, warmup: int, seed: int, width: int = 32, steps: int = 300, progress: str | None = None
) -> tuple[list[float], dict]:
    """Train a stack with AdamW (0.9, 0.98) at a rate that stays constant after a linear warm-up, without clipping.

    Returns:
        The training loss of each step, and what a record keeps: ``first`` of these losses, the mean of the ``last`` 20,
        and ``validation``; the latter two are None if loss or gradient stopped being finite.
    """
    model = stack(name, layers, seed, width)
    options = {"warmup": warmup, "floor": None, "clip": None, "betas": (0.9, 0.98)}
    with device.single_thread(), fast.enabled():
        try:
            history = small_models.train(model, steps, lr, seed, progress=progress, **options)
        except training.NonFiniteError as error:
            return error.history.loss, {"first": error.history.loss[0], "last": None, "validation": None}
        validation = small_models.validation_loss(model)
    return history.loss, {"first": history.loss[0], "last": sum(history.loss[-20:]) / 20, "validation": validation}


def failed(result: dict) -> bool:
    """Whether a run ended on the plateau, where a model knows only how frequent each character is, or blew up."""
    return result["validation"] is None or result["validation"] > small_models.character_entropy() - PLATEAU


@dataclass(frozen=True)
class Cell:
    """The runs with one depth, learning rate and warm-up: how many there are, how many failed, validation losses."""

    runs: int
    failed: int
    median: float
    low: float
    high: float


def cells(record: dict) -> dict[tuple[int, float, int], Cell]:
    """A record of train_stack by (layers, learning rate, warm-up). A run that blew up counts as an infinite loss."""
    groups: dict[tuple[int, float, int], list[dict]] = {}
    for run in record["runs"]:
        setting = run["setting"]
        groups.setdefault((setting["layers"], setting["lr"], setting["warmup"]), []).append(run["result"])
    return {key: _cell(results) for key, results in groups.items()}


def _cell(results: list[dict]) -> Cell:
    losses = [math.inf if r["validation"] is None else r["validation"] for r in results]
    return Cell(len(results), sum(map(failed, results)), median(losses), min(losses), max(losses))


def _stack_record(name: str, slug: str, layers: Iterable[int], lr: Iterable[float], warmup: Iterable[int]) -> Recipe:
    def settings(layers, lr, warmup, **more):
        sizes = {"width": [32], "steps": [300]} | {k: [v] for k, v in more.items()}
        return grid(name=[name], layers=layers, lr=lr, warmup=warmup, seed=range(5), **sizes)

    return Recipe(
        f"warmup_{slug}",
        f"{name} by depth, learning rate and warm-up: AdamW, constant rate, 300 steps on Hamlet, float32, one thread",
        settings(layers, lr, warmup),
        lambda **setting: small_models.five_digits(train_stack(**setting)[1]),
        larger=settings((6, 12, 24, 48, 96), (3e-4, 1e-3, 3e-3), (0, 1000), width=256, steps=3000),
    )


# --- the trained stream: the price of Pre-Norm, and the roads after it ------------------------------------------------

ROADS: dict[str, dict[str, Any]] = {
    "Pre-LN": {"placement": Placement.PRE},
    "Post-LN": {"placement": Placement.POST},
    "Pre-LN without final norm": {"placement": Placement.PRE, "final_norm": False},
    "Pre-LN, 1/√(2L) weights": {"placement": Placement.PRE, "init": Init.GPT2_SCALED},
    "LayerNorm Scaling": {"placement": Placement.PRE, "output_scale": OutputScale.INVERSE_SQRT_LAYER},
    "Mix-LN": {"placement": (Placement.POST, Placement.PRE)},  # a quarter of the blocks, and the rest
    "DeepNorm": {"placement": Placement.DEEPNORM, "init": Init.DEEPNORM},
    "Peri-LN": {"placement": Placement.PERI},
    "output norm": {"placement": Placement.OUTPUT},
    "output norm + QK-norm": {"placement": Placement.OUTPUT, "qk_norm": QKNorm.JOINT},
    "HybridNorm": {"placement": Placement.HYBRID},
    "DyT": {"placement": Placement.PRE, "norm": NormKind.DYT},
}


def road(name: str, seed: int, layers: int = 12, width: int = 48) -> Transformer:
    """One of ROADS: LayerNorm, GELU, 4 heads, Xavier unless the road says otherwise."""
    options = ROADS[name]
    return small_models.model(seed, layers=layers, width=width, **options | {"placement": _by_block(options, layers)})


def train_road(
    name: str,
    seed: int,
    layers: int = 12,
    width: int = 48,
    steps: int = 600,
    lr: float = 3e-3,
    progress: str | None = None,
) -> tuple[Transformer, dict]:
    """Train it as :func:`normlab.experiments.small_models.train` does; the model, and :func:`describe` before and after."""
    model = road(name, seed, layers, width)
    with device.single_thread():
        before = describe(model)
        with fast.enabled():
            small_models.train(model, steps, lr, seed, progress=progress)
        model.cpu()
        return model, {"before": before, "after": describe(model)}


@torch.no_grad()
def describe(model: Transformer) -> dict:
    """What a model's stream is like on held-out passages, in float64.

    Returns:
        ``validation``: loss in nats.
        ``stream``: root mean square before the first sublayer and after each, 2 L + 1 numbers.
        ``share``: norm(r) / norm(x) of every sublayer's increment, 2 L numbers.
        ``change``, ``cosine``: of every block's output against its input, see :func:`normlab.probes.block_steps`.
        ``skip``: by how much the loss rises when a block is skipped, in nats.
    """
    validation = small_models.validation_loss(model)
    model = copy.deepcopy(model).double()
    ids, targets = small_models.passages(2 * small_models.BATCH)
    records = probes.readings(model, ids[: small_models.BATCH])
    steps = probes.block_steps(records)
    whole, skip = training.next_token_loss(model, ids, targets).item(), []
    for block in model.blocks:
        with probes.skipped(list(block.residuals)):
            skip.append(training.next_token_loss(model, ids, targets).item() - whole)
    return {
        "validation": validation,
        "stream": [probes.size(records[0].stream), *(probes.size(r.stream_after) for r in records)],
        "share": [probes.relative_size(r.increment, r.stream) for r in records],
        "change": [step.change for step in steps],
        "cosine": [step.cosine for step in steps],
        "skip": skip,
    }


# --- every road with its authors' initial weights, each at its own best rate ---------------------------------------------
#
# Fixed before the first run: these twelve, these three rates, five seeds, 300 steps. Initial weights:
# * Xavier, or what DeepNorm's authors prescribe;
# * normal, for authors who draw with a standard deviation of 0.02 at widths from 768 (BERT) to 4096 (OLMo 2; the LLaMA of
#   LayerNorm Scaling and Mix-LN lies between) and for Peri-LN, whose authors' choice we do not know. 0.02 times the root of
#   such a width is 0.55 to 1.28; in a narrow model 0.02 would be another choice. So 1/sqrt(2.5 d), which is 0.02 at d = 1000
#   and 0.63 times 1/sqrt(d) at every width: our translation;
# * Megatron: the same, writers to the stream divided by sqrt(2 L). HybridNorm's authors prescribe both formulas and this one
#   for their own placement (arXiv:2503.04598v4, section 5.4).
# DyT starts at alpha = 0.5, its authors' value outside language models, in which they tune it.

GRIDDED: dict[str, dict[str, Any]] = {
    "Pre-LN, Xavier": {"placement": Placement.PRE},
    "Pre-LN, normal": {"placement": Placement.PRE, "init": Init.GPT2},
    "Pre-LN, Megatron": {"placement": Placement.PRE, "init": Init.GPT2_SCALED},
    "no final norm, Xavier": {"placement": Placement.PRE, "final_norm": False},
    "Post-LN, normal": {"placement": Placement.POST, "init": Init.GPT2},
    "DeepNorm": {"placement": Placement.DEEPNORM, "init": Init.DEEPNORM},
    "Mix-LN, normal": {"placement": (Placement.POST, Placement.PRE), "init": Init.GPT2},
    "HybridNorm, Megatron": {"placement": Placement.HYBRID, "init": Init.GPT2_SCALED},
    "Peri-LN, normal": {"placement": Placement.PERI, "init": Init.GPT2},
    "OLMo 2, normal": {"placement": Placement.OUTPUT, "qk_norm": QKNorm.JOINT, "init": Init.GPT2},
    "LayerNorm Scaling, normal": {
        "placement": Placement.PRE,
        "output_scale": OutputScale.INVERSE_SQRT_LAYER,
        "init": Init.GPT2,
    },
    "DyT, Xavier": {"placement": Placement.PRE, "norm": NormKind.DYT},
}
GRID_RATES = (3e-3, 8e-3, 1.6e-2)


def normal_std(width: int) -> float:
    """Standard deviation 1/sqrt(2.5 d) of initial weights, 0.02 at d = 1000."""
    return (2.5 * width) ** -0.5


def gridded(name: str, seed: int, layers: int = 12, width: int = 48) -> Transformer:
    """One of GRIDDED: LayerNorm, GELU, 4 heads."""
    options = dict(GRIDDED[name])
    model = small_models.model(seed, layers=layers, width=width, **options | {"placement": _by_block(options, layers)})
    if options.get("init") in (Init.GPT2, Init.GPT2_SCALED):
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 2:
                    p *= normal_std(width) / 0.02
    return model


def _by_block(options: dict[str, Any], layers: int) -> Any:
    """The placement; of a pair, the first in a quarter of the blocks and the second in the rest."""
    placement = options["placement"]
    if not isinstance(placement, tuple):
        return placement
    return (placement[0],) * (layers // 4) + (placement[1],) * (layers - layers // 4)


def train_gridded(
    name: str, lr: float, seed: int, layers: int = 12, width: int = 48, steps: int = 300, progress: str | None = None
) -> dict:
    """Train one of GRIDDED as :func:`train_road` does.

    Returns:
        Of :func:`describe`, after training: ``validation`` (None if loss or gradient stopped being finite), ``growth`` of the
        stream from the first sublayer's input to the end, and ``change``, ``cosine``, ``skip`` of the first and the last block.
    """
    model = gridded(name, seed, layers, width)
    with device.single_thread():
        try:
            with fast.enabled():
                small_models.train(model, steps, lr, seed, progress=progress)
        except training.NonFiniteError:
            return {"validation": None}
        after = describe(model.cpu())
    ends = {key: [after[key][0], after[key][-1]] for key in ("change", "cosine", "skip")}
    return {"validation": after["validation"], "growth": after["stream"][-1] / after["stream"][0], **ends}


def _gridded_record(slug: str, names: Iterable[str]) -> Recipe:
    sizes = {"name": names, "seed": range(5)}
    return Recipe(
        f"roads_by_rate_{slug}",
        "placements with their authors' initial weights at three rates: 12 blocks, 300 steps on Hamlet, float32, one thread",
        grid(lr=GRID_RATES, layers=[12], width=[48], steps=[300], **sizes),
        lambda **setting: small_models.five_digits(train_gridded(**setting)),
        larger=grid(lr=[3e-4, 1e-3, 3e-3], layers=[24], width=[256], steps=[5000], **sizes),
    )


# --- where does the loss end? ------------------------------------------------------------------------------------------

TUNED: dict[str, dict[str, Any]] = {
    "Post-LN, N(0, 0.02)": {"placement": Placement.POST, "init": Init.GPT2},
    "Pre-LN, N(0, 0.02)": {"placement": Placement.PRE, "init": Init.GPT2},
    "Pre-LN, Xavier": {"placement": Placement.PRE},
    "DeepNorm": {"placement": Placement.DEEPNORM, "init": Init.DEEPNORM},
}


def final_quality(
    name: str, lr: float, seed: int, layers: int = 6, width: int = 48, steps: int = 2000, progress: str | None = None
) -> dict:
    """Validation loss of one of TUNED after a longer run on all eight plays, as ``small_models.train`` trains.

    About a million characters, each seen about once. None where loss or gradient stopped being finite.
    """
    model = small_models.model(seed, plays=tuple(PLAYS), layers=layers, width=width, **TUNED[name])
    with device.single_thread(), fast.enabled():
        try:
            small_models.train(model, steps, lr, seed, plays=tuple(PLAYS), progress=progress)
        except training.NonFiniteError:
            return {"validation": None}
        return {"validation": small_models.validation_loss(model, tuple(PLAYS), count=32)}


def _quality_record(slug: str, names: Iterable[str]) -> Recipe:
    sizes = {"name": names, "seed": range(5), "layers": [6]}
    return Recipe(
        slug,
        "validation loss after 2000 steps on eight plays at three rates: 6 blocks, float32, one thread",
        grid(lr=[4e-3, 8e-3, 1.6e-2], width=[48], steps=[2000], **sizes),
        lambda **setting: small_models.five_digits(final_quality(**setting)),
        larger=grid(lr=[5e-4, 1e-3, 2e-3], width=[256], steps=[10_000], **sizes),
    )


# --- attention logits ---------------------------------------------------------------------------------------------------


def logit_growth(
    qk_norm: str, lr: float, seed: int, layers: int = 3, width: int = 64, steps: int = 300, progress: str | None = None
) -> dict:
    """Train a Pre-RMSNorm model with or without QK-norm (per head) at a constant rate after 20 steps of warm-up.

    Returns:
        ``validation``: loss in nats.
        ``logit``: largest attention logit on held-out passages, before and after training.
        ``entropy``: of the most focused layer's attention, before and after.
        ``spike``: the largest rise of the training loss, a mean of 5 steps, above its lowest value before.
    """
    model = small_models.model(seed, layers=layers, width=width, heads=2, norm=NormKind.RMSNORM, qk_norm=qk_norm)
    with device.single_thread(), fast.enabled():
        before = _attention(model)
        history = small_models.train(model, steps, lr, seed, progress=progress, warmup=20, floor=None, clip=None)
        model.cpu()
        after = _attention(model)
        validation = small_models.validation_loss(model)
    return {
        "validation": validation,
        "logit": [before[0], after[0]],
        "entropy": [before[1], after[1]],
        "spike": spike(history.loss),
    }


def _attention(model: Transformer) -> tuple[float, float]:
    """The largest logit, and the lowest entropy of a layer."""
    records = observe.attention(model, small_models.passages()[0])
    return max(r.largest for r in records), min(r.entropy for r in records)


def spike(loss: list[float], window: int = 5) -> float:
    """The largest rise of a moving average above its lowest value so far.

    Raises:
        ValueError: fewer losses than the window has.
    """
    if len(loss) < window:
        raise ValueError(f"a moving average over {window} steps needs as many losses, got {len(loss)}")
    means = [sum(loss[i : i + window]) / window for i in range(len(loss) - window + 1)]
    lowest, rise = means[0], 0.0
    for mean in means:
        lowest = min(lowest, mean)
        rise = max(rise, mean - lowest)
    return rise


# --- records --------------------------------------------------------------------------------------------------------------

DEPTHS = (6, 12, 24)
RATES = (1e-3, 3e-3, 8e-3)
WARMUPS = (0, 100)

RECORDS = (
    _stack_record("Post-LN", "post", (4, 6, 8, 12, 24), (3e-4, *RATES), WARMUPS),
    _stack_record("Pre-LN", "pre", DEPTHS, RATES, WARMUPS),
    _stack_record("DeepNorm", "deepnorm", DEPTHS, RATES, WARMUPS),
    _stack_record("Pre-LN without final norm", "no_final_norm", (6, 24), RATES, (0,)),
    _stack_record("T-Fixup-like", "tfixup", DEPTHS, RATES, (0,)),
    _stack_record("Post-LN, N(0, 0.02)", "post_small_init", DEPTHS, RATES, (0,)),
    Recipe(
        "placement_streams",
        "streams of Pre-Norm, Post-Norm and the roads after them, before and after training: 12 blocks, 600 steps on "
        "Hamlet at one rate, float32, one thread",
        grid(name=list(ROADS), seed=range(5), layers=[12], width=[48], steps=[600], lr=[3e-3]),
        lambda **setting: small_models.five_digits(train_road(**setting)[1]),
        larger=grid(name=list(ROADS), seed=range(5), layers=[24], width=[256], steps=[5000], lr=[1e-3]),
    ),
    *(_gridded_record(slug, list(GRIDDED)[i : i + 4]) for slug, i in (("pre", 0), ("post", 4), ("output", 8))),
    _quality_record("final_quality_post", ("Post-LN, N(0, 0.02)", "DeepNorm")),
    _quality_record("final_quality_pre", ("Pre-LN, N(0, 0.02)", "Pre-LN, Xavier")),
    Recipe(
        "logit_growth",
        "attention logits with and without QK-norm at four constant rates: 3 blocks, 300 steps on Hamlet, float32, "
        "one thread",
        grid(qk_norm=["none", "per_head"], lr=[3e-3, 1e-2, 3e-2, 1e-1], seed=range(5)),
        lambda **setting: small_models.five_digits(logit_growth(**setting)),
        larger=grid(qk_norm=["none", "per_head"], lr=[3e-3, 1e-2, 3e-2], seed=range(5), width=[512], steps=[3000]),
    ),
)
