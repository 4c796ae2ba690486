"""Chapter 3: what does LayerNorm do to one token, to the gradients that pass it, and to the weights in front of it?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import torch
from torch import Tensor, nn

from normlab import data, device, functional
from normlab.conventions import Convention
from normlab.experiments import drunkards_walk as walk
from normlab.experiments import small_models
from normlab.norms import LayerNorm
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.transformer import Transformer


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64, the same on every machine."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def plain(number: float) -> str:
    """The number as people write it: 1e-5, not 1e-05."""
    return f"{number:g}".replace("e-0", "e-").replace("-", "−" if number < 0 else "-")


# --- one token --------------------------------------------------------------------------------------------------

TOKEN = torch.tensor([2.1, 3.9, 0.6, 5.2, 2.8, 1.4, 4.4, 3.1, 0.2, 2.5, 6.3, 1.9], dtype=torch.float64)
GAIN = torch.tensor([1.6, 0.5, 1.0, 0.3, 1.9, 1.2, 0.7, 1.4, 0.9, 2.0, 0.6, 1.1], dtype=torch.float64)
BIAS = torch.tensor([0.4, -0.3, 0.0, 0.6, 0.1, -0.8, 0.2, 0.5, 0.9, -0.2, -0.5, 0.3], dtype=torch.float64)


def tokens_with_offsets(tokens: int, width: int = 64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [tokens, width] with a mean (variance 1) and a spread (uniform from 0.5 to 2) of their own, and both."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(tokens, 1, generator=generator, dtype=torch.float64)
    spread = 0.5 + 1.5 * torch.rand(tokens, 1, generator=generator, dtype=torch.float64)
    scores = functional.layer_norm(torch.randn(tokens, width, generator=generator, dtype=torch.float64), eps=0.0)
    return mean + spread * scores, mean, spread


def best_restoration(x: Tensor, bias: bool = True) -> float:
    """How much of x [tokens, d] no shared gain (and bias) can restore from LayerNorm(x), as a share of its size.

    For every feature, gain and bias are the least-squares solution over all tokens.
    """
    scores = functional.layer_norm(x, eps=0.0)
    columns = [scores.T[..., None], torch.ones_like(scores).T[..., None]] if bias else [scores.T[..., None]]
    design = torch.cat(columns, -1)  # [d, tokens, 1 or 2]
    target = x.T[..., None]
    # gelsd copes with a design of fewer rows than columns
    fit = design @ torch.linalg.lstsq(design, target, driver="gelsd").solution
    return ((fit - target).square().mean() / target.square().mean()).sqrt().item()


def predicted_restoration(bias: bool = True) -> float:
    """The limit of :func:`best_restoration` for many tokens of :func:`tokens_with_offsets`: the best gain is the mean
    spread, the best bias the mean of the means; what varies from token to token is lost."""
    spread_variance, spread_mean_square = 1.5**2 / 12, 1.25**2 + 1.5**2 / 12
    return math.sqrt((1 + spread_variance) / (1 + spread_mean_square))


# --- the Jacobian -----------------------------------------------------------------------------------------------


def jacobian(x: Tensor, eps: float) -> Tensor:
    """Jacobian [d, d] of LayerNorm without gain at one vector x [d], by autograd."""
    return torch.autograd.functional.jacobian(lambda v: functional.layer_norm(v, eps=eps), x)


def closed_form_jacobian(x: Tensor, eps: float) -> Tensor:
    """The same by formula: r (I - 1 1^T / d - x̂ x̂^T / d) with r = 1 / sqrt(var + eps)."""
    d = len(x)
    scores = functional.layer_norm(x, eps=eps)
    rate = (x.var(correction=0) + eps).rsqrt()
    return rate * (torch.eye(d, dtype=x.dtype) - torch.ones(d, d, dtype=x.dtype) / d - torch.outer(scores, scores) / d)


# --- the matrix in front of the norm ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Upstream:
    """loss(W) = <c, LayerNorm(W h)> with W [32, 16], h [16, 64 tokens] and a fixed random c."""

    eps: float = 0.0
    seed: int = 0

    def __post_init__(self):
        draws = (normal(*shape, seed=100 * self.seed + i) for i, shape in enumerate(((32, 16), (16, 64), (64, 32))))
        for name, value in zip(("W", "h", "c"), draws):
            object.__setattr__(self, name, value)

    def output(self, W: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        """What the norm returns, [tokens, 32]; ``bias`` [32, 1] stands between W and the norm."""
        return functional.layer_norm((W @ self.h + bias).T, eps=self.eps)

    def gradient(self, W: Tensor) -> Tensor:
        W = W.clone().requires_grad_()
        (self.c * self.output(W)).sum().backward()
        return W.grad


def gradient_factor(alpha: float, eps: float, seed: int = 0) -> float:
    """How many times larger the gradient gets when W is multiplied by alpha."""
    at = Upstream(eps, seed)
    return (at.gradient(alpha * at.W).norm() / at.gradient(at.W).norm()).item()


# --- training behind a norm: the length of W ----------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How W is updated: an optimizer of torch and its options."""

    name: str
    optimizer: Callable[..., torch.optim.Optimizer]
    options: dict


RULES = (
    Rule("SGD", torch.optim.SGD, {"lr": 0.1}),
    Rule("SGD, decay", torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.04}),
    Rule("Adam", torch.optim.Adam, {"lr": 0.01, "eps": 1e-12}),
    Rule("AdamW, decay", torch.optim.AdamW, {"lr": 0.01, "eps": 1e-12, "weight_decay": 0.5}),
)


@dataclass(frozen=True)
class Course:
    """What became of W over the steps: length before each step and at the end, turn (radians) and lean of each step.

    ``lean`` is the cosine between the step and W before it. ``loss`` is that of each batch.
    """

    length: list[float]
    turn: list[float]
    lean: list[float]
    loss: list[float]


def train_behind_norm(rule: Rule, steps: int = 800, seed: int = 0, scale: float = 0.1, eps: float = 0.0) -> Course:
    """A student y = V LayerNorm(W h) learns from noisy answers of a teacher of the same form; only W is trained.

    W is [32, 16] and starts as ``scale`` times standard normal numbers, V [8, 32] is fixed, batches have 32 fresh
    inputs. Float64, one thread.
    """
    W = nn.Parameter(scale * normal(32, 16, seed=10 * seed + 1))
    V, teacher = normal(8, 32, seed=10 * seed + 2) / 32**0.5, normal(32, 16, seed=10 * seed + 3)
    generator = torch.Generator().manual_seed(10 * seed + 4)
    optimizer = rule.optimizer([W], **rule.options)
    length, turn, lean, losses = [W.detach().norm().item()], [], [], []

    def answer(matrix: Tensor, h: Tensor) -> Tensor:
        return functional.layer_norm(h @ matrix.T, eps=eps) @ V.T

    with device.single_thread():
        for _ in range(steps):
            h = torch.randn(32, 16, generator=generator, dtype=torch.float64)
            noise = torch.randn(32, 8, generator=generator, dtype=torch.float64)
            loss = (answer(W, h) - answer(teacher, h) - noise).square().mean()
            optimizer.zero_grad()
            loss.backward()
            before = W.detach().clone()
            optimizer.step()
            after = W.detach()
            step = after - before
            length.append(after.norm().item())
            turn.append(_angle(before, after))
            lean.append((step * before).sum().item() / (step.norm() * before.norm()).item())
            losses.append(loss.item())
    return Course(length, turn, lean, losses)


def _angle(a: Tensor, b: Tensor) -> float:
    """Angle between two matrices; by its half, because the cosine of a small angle has lost it."""
    a, b = a / a.norm(), b / b.norm()
    return 2 * math.asin(min(1.0, ((a - b).norm() / 2).item()))


# --- does the norm forgive a bad scale? ---------------------------------------------------------------------------

SCALES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SCALE_RATE = 0.2  # learning rate of the runs that vary the scale
LEARNING_RATES = (0.01, 0.1, 0.5, 1.0, 10.0)


def digits_accuracy(norm: bool, scale: float, lr: float, seed: int, steps: int = 400) -> dict:
    """Classify 8 x 8 digits with 64 → 64 → 64 → 10, GELU, plain SGD, batches of 64; the norm stands behind the second
    matrix, whose initial weights are multiplied by ``scale``. Float64, one thread."""
    generator = torch.Generator().manual_seed(1000 + seed)
    digits = data.digits(seed)
    layers = [nn.Linear(64, 64), nn.Linear(64, 64, bias=False), nn.Linear(64, 10)]
    for i, layer in enumerate(layers):
        layer.double()
        layer.weight.data = normal(*layer.weight.shape, seed=10 * seed + i) / 64**0.5
        if layer.bias is not None:
            layer.bias.data.zero_()
    layers[1].weight.data *= scale
    middle = LayerNorm(64, convention=Convention.BARE) if norm else nn.Identity()
    model = nn.Sequential(layers[0], nn.GELU(), layers[1], middle, nn.GELU(), layers[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    start = layers[1].weight.detach().norm().item()
    with device.single_thread():
        for _ in range(steps):
            rows = torch.randint(len(digits.train), (64,), generator=generator)
            loss = nn.functional.cross_entropy(model(digits.train[rows].double()), digits.train_labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        guesses = model(digits.val.double()).argmax(-1)
    return {
        "accuracy": (guesses == digits.val_labels).double().mean().item(),
        "length_start": start,
        "length_end": layers[1].weight.detach().norm().item(),
    }


# --- where the immunity ends --------------------------------------------------------------------------------------


def change_of_logits(placement: Placement | str, factor: float, which: str, seed: int = 0, **options) -> float:
    """Relative change (Euclidean) of the logits of a 4-block stack when weights are multiplied by ``factor``.

    ``which``: "one writer" (MLP down of the second block), "one reader" (its up), or "whole stream" (embeddings and
    all writers). ``options`` are those of the config.
    """
    model = walk.fresh_stack(4, seed, placement=placement, **options)
    ids = walk.reading(64, 4)[0]
    mlp = model.blocks[1].residuals[1].sublayer
    whole = [w for name, w in model.named_parameters() if name.endswith((".out.weight", ".down.weight")) or "embedding" in name]
    chosen = {"one writer": [mlp.down.weight], "one reader": [mlp.up.weight], "whole stream": whole}[which]
    with torch.no_grad(), device.single_thread():
        before = model(ids)
        for weight in chosen:
            weight.mul_(factor)
        after = model(ids)
    return ((after - before).norm() / before.norm()).item()


# --- what gains and biases learn ----------------------------------------------------------------------------------

GAINS = {"layers": 4, "width": 64, "steps": 600, "lr": 3e-3}


def train_with_gains(
    parameters: str, seed: int, layers: int = 4, width: int = 64, steps: int = 600, lr: float = 3e-3, progress: str | None = None
) -> Transformer:
    """A small Pre-LN model after training on characters of Hamlet, in float64 on the CPU.

    ``parameters``: "gain and bias", or "none" (LayerNorm without either). Adam without decay, a tenth of the steps
    warms up, a cosine ends at 0, gradients are clipped at norm 1; float32, one thread.
    """
    convention = Convention.BARE if parameters == "none" else Convention.DEFAULT
    model = small_models.model(seed, layers=layers, width=width, convention=convention)
    small_models.train(model, steps, lr, seed, progress=progress)
    return model.cpu().double()


@torch.no_grad()
def learned(model: Transformer) -> dict:
    """Validation loss, and per norm (in order, the final norm last; empty if norms have no parameters):

    ``mean``, ``std``, ``min``, ``max`` of the gains, ``bias`` the size of the bias, and ``with_size`` the correlation
    over features between the gain and the size of that feature in the normalized stream of held-out text.
    """
    result: dict = {"validation_loss": small_models.validation_loss(model)}
    norms = [residual.norm for block in model.blocks for residual in block.residuals] + [model.final_norm]
    if norms[0].weight is None:
        return result
    records = walk.read_stack(model, tokens=small_models.TOKENS, sequences=small_models.BATCH)
    streams = [r.stream for r in records] + [records[-1].stream_after]
    gains = [norm.weight for norm in norms]
    sizes = [functional.layer_norm(x).square().mean((0, 1)).sqrt() for x in streams]
    return result | {
        "mean": [g.mean().item() for g in gains],
        "std": [g.std().item() for g in gains],
        "min": [g.min().item() for g in gains],
        "max": [g.max().item() for g in gains],
        "bias": [norm.bias.square().mean().sqrt().item() for norm in norms],
        "with_size": [torch.corrcoef(torch.stack([g, s]))[0, 1].item() for g, s in zip(gains, sizes)],
    }


# --- eps in published code ----------------------------------------------------------------------------------------


def eps_in_configs(folder: Path | None = None) -> dict:
    """Default values of eps in the model configurations of the installed transformers library, read and not run.

    Counted are annotated fields whose name ends with eps or epsilon; those of batch and group norms are left out.
    """
    import ast
    import importlib.metadata
    from collections import Counter

    if folder is None:
        found = util.find_spec("transformers")
        if found is None or found.origin is None:
            raise ModuleNotFoundError("the transformers library is not installed")
        folder = Path(found.origin).parent / "models"
    values: Counter[float] = Counter()
    for path in sorted(folder.glob("*/configuration_*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
                continue
            name = node.target.id
            if not name.endswith(("norm_eps", "norm_epsilon")) or "batch" in name or "group" in name:
                continue
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, float):
                values[node.value.value] += 1
    return {
        "transformers": importlib.metadata.version("transformers"),
        "counts": {f"{value:g}": count for value, count in values.most_common()},
    }


# --- records ------------------------------------------------------------------------------------------------------


def _four_digits(value):
    if isinstance(value, dict):
        return {k: _four_digits(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_four_digits(v) for v in value]
    return float(f"{value:.4g}")


RECORDS = (
    Recipe(
        "learned_gains",
        "gains and biases of small Pre-LN models after training on Hamlet, float32, one thread",
        [{"parameters": p, "seed": seed, **GAINS} for p in ("gain and bias", "none") for seed in range(5)],
        lambda parameters, seed, **options: _four_digits(
            learned(train_with_gains(parameters, seed, progress=f"{parameters} {seed}", **options))
        ),
    ),
    Recipe(
        "digits_with_norm",
        "accuracy on digits against the initial scale of one matrix and against the learning rate, with and without LayerNorm",
        grid(norm=[True, False], scale=SCALES, lr=[SCALE_RATE], seed=range(5))
        + grid(norm=[True, False], scale=[1.0], lr=LEARNING_RATES, seed=range(5)),
        lambda **setting: _four_digits(digits_accuracy(**setting)),
    ),
    Recipe("eps_in_configs", "default eps of the model configurations in transformers", [{}], eps_in_configs),
)
