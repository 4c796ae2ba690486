"""Chapter 5, before training: which wirings return their input; gradients, streams and logits against depth."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn

from normlab import device, probes
from normlab.attention import SelfAttention
from normlab.config import Init
from normlab.experiments import small_models
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.training import losses
from normlab.transformer import Transformer

STACKS: dict[str, dict[str, Any]] = {
    "Post": {"placement": Placement.POST},
    "Pre": {"placement": Placement.PRE},
    "Pre, 1/√(2L) weights": {"placement": Placement.PRE, "init": Init.GPT2_SCALED},
    "Pre, no final norm": {"placement": Placement.PRE, "final_norm": False},
    "Peri": {"placement": Placement.PERI},
    "DeepNorm": {"placement": Placement.DEEPNORM, "init": Init.DEEPNORM},
    "output norm": {"placement": Placement.OUTPUT},
    "no norm": {"placement": Placement.NONE, "final_norm": False},
}
DEPTHS = (2, 4, 8, 16, 32, 64)
WIDTH = 32


def stack(layers: int = 2, seed: int = 0, width: int = WIDTH, **options: Any) -> Transformer:
    """A model in float64: LayerNorm, GELU, heads of 16 features, Xavier unless the options say otherwise."""
    return small_models.model(seed, layers=layers, width=width, **{"heads": width // 16} | options).double()


# --- wiring -----------------------------------------------------------------------------------------------------------


def run(model: Transformer, x: Tensor) -> Tensor:
    """The stream x [B, T, d] behind the last block, before the final norm."""
    for block in model.blocks:
        x = block(x)
    return x


def writer(sublayer: nn.Module) -> nn.Linear:
    """The last matrix of a sublayer, the one that writes to the stream."""
    return sublayer.out if isinstance(sublayer, SelfAttention) else sublayer.down  # type: ignore[return-value]


def close_branches(model: Transformer) -> Transformer:
    """Set what every sublayer returns to zero: F = 0. Norms behind it stay."""
    for block in model.blocks:
        for residual in block.residuals:
            nn.init.zeros_(writer(residual.sublayer).weight)
    return model


def randomize_norms(model: Transformer, seed: int = 1) -> Transformer:
    """Gains in [0.5, 1.5], biases in [-0.5, 0.5]: at gain 1 and bias 0 mistakes stay hidden."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                noise = torch.rand(p.shape, generator=generator, dtype=torch.float64) - 0.5
                p.copy_(noise if name.endswith("bias") else 1 + noise)
    return model


@contextmanager
def stream_only(model: Transformer) -> Iterator[None]:
    """Within the block, sublayers pass no gradient to the stream that they read; values stay, and so do the gradients of
    their own weights. What is left is the path past all sublayers."""
    sublayers = [residual.sublayer for block in model.blocks for residual in block.residuals]
    handles = [s.register_forward_pre_hook(lambda _, inputs: tuple(x.detach() for x in inputs)) for s in sublayers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def pullback(model: Transformer, x: Tensor, slope: Tensor, detach: bool = False) -> Tensor:
    """``slope``, the gradient at the end of the stack, carried back to its start x [B, T, d].

    ``detach`` lets it take the path past all sublayers only; see :func:`stream_only`.
    """
    x = x.detach().requires_grad_()
    with stream_only(model) if detach else nullcontext():
        return torch.autograd.grad(run(model, x), x, slope)[0]


def arriving(v: float, alpha: float = 1.0, norms: int = 24, width: int = 1024) -> float:
    """Share of a gradient that comes back through ``norms`` sublayers N(alpha x + r), past all branches.

    The increments r have variance v, are drawn without regard to the stream x, and stand still for the gradient.
    A blank (``...``) in an exercise stays a blank.
    """
    if ... in (v, alpha):
        return ...  # type: ignore[return-value]
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(64, width, generator=generator, dtype=torch.float64)
    start, slope = draw().requires_grad_(), draw()
    y = start
    for _ in range(norms):
        y = nn.functional.layer_norm(alpha * y + v**0.5 * draw(), (width,))
    return (torch.autograd.grad(y, start, slope)[0].norm() / slope.norm()).item()


def increment_variances(model: Transformer, ids: Tensor) -> list[float]:
    """Variance of every sublayer's increment relative to the stream's before it."""
    return [probes.variance(r.increment) / probes.variance(r.stream) for r in probes.readings(model, ids)]


# --- one model at initialization ---------------------------------------------------------------------------------------


def gradients(model: Transformer, ids: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Euclidean norm of the loss gradient block by block: of the second MLP matrix ("down") and the "query" matrix."""
    matrices = {
        "down": [block.residuals[1].sublayer.down.weight for block in model.blocks],
        "query": [block.residuals[0].sublayer.query.weight for block in model.blocks],
    }
    loss = losses.next_token_loss(model, ids, targets)
    slopes = torch.autograd.grad(loss, [w for ws in matrices.values() for w in ws])
    norms = [g.norm().item() for g in slopes]
    return {"down": norms[: len(model.blocks)], "query": norms[len(model.blocks) :]}


def profile(model: Transformer, ids: Tensor, targets: Tensor) -> dict[str, list[float]]:
    """Block by block: ``stream`` size behind it, ``share`` norm(r) / norm(x) of what its MLP adds r to (in DeepNorm:
    alpha x), ``cosine`` between its input and its output, and the two :func:`gradients`."""
    records = probes.readings(model, ids)
    mlps = [r for r in records if r.kind == "mlp"]
    weights = [b.residuals[1].alpha if b.placement is Placement.DEEPNORM else 1.0 for b in model.blocks]
    return {
        "stream": [probes.size(r.stream_after) for r in mlps],
        "share": [probes.relative_size(r.increment, w * r.stream) for r, w in zip(mlps, weights)],
        "cosine": [step.cosine for step in probes.block_steps(records)],
        **gradients(model, ids, targets),
    }


def at_init(name: str, layers: int, seed: int, width: int = WIDTH) -> dict[str, float]:
    """One of STACKS on 8 passages of 32 characters, before training.

    Returns:
        ``down``, ``first``, ``spread``: gradient of the last and the first MLP's second matrix, largest over smallest;
        ``query``, ``query_first``: gradient of the last and the first query matrix;
        ``stream``: its size at the end; ``share``: of the last MLP; ``alike``: cosine between tokens at the end;
        ``logits``: their standard deviation; ``loss`` in nats.
    """
    with device.single_thread():
        model = stack(layers, seed, width, **STACKS[name])
        ids, targets = small_models.passages(8)
        p = profile(model, ids, targets)
        with torch.no_grad():
            logits, end = model(ids), run(model, model.embed(ids))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    return {
        "down": p["down"][-1],
        "first": p["down"][0],
        "spread": max(p["down"]) / min(p["down"]),
        "query": p["query"][-1],
        "query_first": p["query"][0],
        "stream": p["stream"][-1],
        "share": p["share"][-1],
        "alike": probes.token_cosine(end),
        "logits": logits.std(correction=0).item(),
        "loss": loss,
    }


def by_depth(name: str, seed: int, width: int = WIDTH) -> dict[str, list[float]]:
    """:func:`at_init` at all DEPTHS (without norm not at 64, where gradients overflow), a list for each quantity."""
    found = [at_init(name, layers, seed, width) for layers in (DEPTHS[:-1] if name == "no norm" else DEPTHS)]
    return {key: [f[key] for f in found] for key in found[0]}


def stream_gradients(name: str, layers: int, seeds: int = 5) -> Tensor:
    """The "down" of :func:`profiles` [seeds, L] if the gradient took the path past all sublayers only."""
    ids, targets = small_models.passages(8)
    rows = []
    with device.single_thread():
        for seed in range(seeds):
            model = stack(layers, seed, **STACKS[name])
            with stream_only(model):
                weights = [block.residuals[1].sublayer.down.weight for block in model.blocks]
                slopes = torch.autograd.grad(losses.next_token_loss(model, ids, targets), weights)
            rows.append([g.norm().item() for g in slopes])
    return torch.tensor(rows, dtype=torch.float64)


def profiles(name: str, layers: int, seeds: int = 5, **options: Any) -> dict[str, Tensor]:
    """:func:`profile` of one of STACKS for several seeds, each [seeds, L]."""
    ids, targets = small_models.passages(8)
    with device.single_thread():
        runs = [profile(stack(layers, s, **STACKS[name] | options), ids, targets) for s in range(seeds)]
    return {key: torch.tensor([r[key] for r in runs], dtype=torch.float64) for key in runs[0]}


# --- over seeds --------------------------------------------------------------------------------------------------------


def slope(depths: Sequence[float], values: Sequence[float]) -> float:
    """Exponent p of values ∝ depths^p by least squares on logarithms; fewer values belong to the last depths."""
    x = torch.tensor(depths[-len(values) :], dtype=torch.float64).log()
    y = torch.tensor(values, dtype=torch.float64).log()
    return ((x - x.mean()) @ (y - y.mean()) / (x - x.mean()).square().sum()).item()


def slopes(runs: Sequence[dict], key: str, start: int = 0) -> tuple[float, float]:
    """Mean and sample standard deviation over seeds of the exponent of ``key``, from depth DEPTHS[start] on."""
    found = [slope(DEPTHS, run[key][start:]) for run in runs]
    return fmean(found), stdev(found)


def layer_slopes(gradients: Tensor) -> tuple[float, float]:
    """The same for the exponent of gradients [seeds, L] in the number of the layer, inside one model."""
    layers = range(1, gradients.shape[1] + 1)
    found = [slope(layers, row) for row in gradients.tolist()]
    return fmean(found), stdev(found)


def typical(runs: Sequence[dict], key: str) -> list[float]:
    """Geometric mean over seeds, depth by depth; of ``alike`` the ordinary one."""
    columns = zip(*(run[key] for run in runs))
    return [fmean(c) if key == "alike" else math.exp(fmean(map(math.log, c))) for c in columns]


RECORDS = (
    Recipe(
        "placement_at_init",
        "gradients, streams and logits of stacks before training: width 32, 2 to 64 blocks, LayerNorm, GELU, eight "
        "passages of 32 characters of Hamlet, float64, one thread",
        grid(name=list(STACKS), seed=range(8), width=[WIDTH]),
        lambda **setting: small_models.five_digits(by_depth(**setting)),
        larger=grid(name=list(STACKS), seed=range(8), width=[256]),
    ),
)
