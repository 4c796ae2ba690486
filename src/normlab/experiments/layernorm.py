"""Chapter 3: what does LayerNorm do to one token, to the gradients that pass it, and to the weights in front of it?"""

import ast
import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import torch
from torch import Tensor, nn

from normlab import data, device, functional, training
from normlab.conventions import Convention
from normlab.experiments import drunkards_walk as walk
from normlab.experiments import small_models
from normlab.experiments.draws import normal
from normlab.norms import LayerNorm
from normlab.placement import Placement
from normlab.record import Recipe, grid
from normlab.record import paired_interval as corrected_interval  # noqa: F401  (what the chapter calls it)
from normlab.transformer import MLP, Transformer


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


def used_statistics(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the spread [...] of each position with which y = (x - mean) / spread was made, [..., d] both.

    Found from y alone, whatever the axes over which a norm took them.

    Raises:
        ValueError: y is no shifted and scaled x, position by position.
    """
    spread = x.std(-1, keepdim=True) / y.std(-1, keepdim=True)
    mean = x - spread * y
    if mean.std(-1).max() > 1e-9:
        raise ValueError("y is not x, shifted and scaled by one mean and one spread for each position")
    return mean[..., 0], spread[..., 0]


def gpt2_final_norm(width: int) -> nn.Module:
    """The final norm of a small, fresh GPT-2 of the transformers library."""
    with torch.random.fork_rng(), warnings.catch_warnings(action="ignore"):  # tqdm misses widgets that nobody asked for
        import transformers as hf

        config = hf.GPT2Config(vocab_size=2, n_embd=width, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
        return hf.GPT2Model(config).ln_f


# --- the Jacobian -----------------------------------------------------------------------------------------------


def jacobian(x: Tensor, eps: float, gain: Tensor | None = None) -> Tensor:
    """Jacobian [d, d] of LayerNorm at one vector x [d], by autograd."""
    return torch.autograd.functional.jacobian(lambda v: functional.layer_norm(v, gain, eps=eps), x)


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


def tilt(factor: float, seed: int, eps: float = 1e-5) -> float:
    """Cosine of ``factor`` W and the gradient there: 0 at eps = 0."""
    at = Upstream(eps, seed)
    W = factor * at.W
    return torch.cosine_similarity(W.flatten(), at.gradient(W).flatten(), dim=0).item()


def one_step(factor: float, length: float = 5.0, gradient: float = 2.0, lr: float = 0.5) -> tuple[float, float]:
    """One step of plain SGD from ``factor`` W, where W has this length and its gradient that one.

    Returns:
        The length after the step, and the tangent of the angle by which the step has turned the matrix.
    """
    at = Upstream(eps=0.0)
    W = length * at.W / at.W.norm()
    loss_scale = gradient / at.gradient(W).norm()  # the loss is homogeneous in c
    before = factor * W
    after = before - lr * loss_scale * at.gradient(before)
    return after.norm().item(), math.tan(_angle(before, after))


def linear_map(function: Callable[[Tensor], Tensor], width: int) -> tuple[Tensor, Tensor]:
    """Matrix and constant of an affine function of one vector [width], read off by evaluating and differentiating it."""
    zero = torch.zeros(width, dtype=torch.float64)
    return torch.autograd.functional.jacobian(function, zero), function(zero)


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

    ``lean`` is the cosine between the step, decay included, and W before it. ``loss`` is that of each batch.
    """

    length: list[float]
    turn: list[float]
    lean: list[float]
    loss: list[float]


def train_behind_norm(
    rule: Rule, steps: int = 800, seed: int = 0, scale: float = 0.1, eps: float = 0.0, loss_scale: float = 1.0
) -> Course:
    """A student y = V LayerNorm(W h) learns from noisy answers of a teacher of the same form; only W is trained.

    W is [32, 16] and starts as ``scale`` times standard normal numbers, V [8, 32] is fixed, batches have 32 fresh
    inputs, the mean squared error is multiplied by ``loss_scale``. Float64, one thread.
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
            loss = loss_scale * (answer(W, h) - answer(teacher, h) - noise).square().mean()
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


# --- what momentum makes of the balance ---------------------------------------------------------------------------

MOMENTA = (0.0, 0.5, 0.9)
VARIANTS = {
    "plain": {},
    "start × 0.3": {"scale": 0.03},
    "start × 3": {"scale": 0.3},
    "loss × 0.01": {"loss_scale": 0.01},
    "loss × 100": {"loss_scale": 100.0},
}
TURN_SETTINGS = [  # learning rate, decay, steps; the first of each four with all variants, the last without decay
    {"optimizer": optimizer, "lr": lr, "decay": decay, "steps": steps}
    for optimizer, choices in (
        ("SGD", ((0.1, 0.04, 1600), (0.1, 0.01, 4000), (0.025, 0.04, 4000), (0.1, 0.0, 1600))),
        ("AdamW", ((0.01, 0.5, 1600), (0.01, 0.125, 4000), (0.0025, 0.5, 4000), (0.01, 0.0, 1600))),
    )
    for lr, decay, steps in choices
]


def momentum_rule(optimizer: str, momentum: float, lr: float, decay: float) -> Rule:
    """SGD (momentum and decay as torch has them, decay inside the gradient) or AdamW with beta1 = momentum."""
    if optimizer == "SGD":
        return Rule("SGD", torch.optim.SGD, {"lr": lr, "weight_decay": decay, "momentum": momentum})
    return Rule("AdamW", torch.optim.AdamW, {"lr": lr, "weight_decay": decay, "betas": (momentum, 0.999), "eps": 1e-12})


def predicted_turn(optimizer: str, momentum: float, lr: float, decay: float) -> float:
    """Turn per step at which growth and decay of a matrix in front of a norm balance.

    sqrt(2 lr decay) times sqrt((1 - b)/(1 + b)) under AdamW with beta1 = b, times sqrt(1/(1 + a)) under SGD with
    torch's momentum a. For fresh gradients that are independent and stand at a right angle to W.

    Source: Kosson, Messmer and Jaggi 2024, arXiv:2305.17212.
    """
    share = (1 - momentum) / (1 + momentum) if optimizer == "AdamW" else 1 / (1 + momentum)
    return math.sqrt(2 * lr * decay * share)


def turns(optimizer: str, lr: float, decay: float, steps: int, seed: int, variants: bool) -> dict:
    """What a matrix in front of a norm does in the last quarter of the steps, {momentum: {variant: values}}.

    ``turn`` and ``lean`` are means over those steps (lean: cosine of the step, decay included, and W), ``length`` is
    W's at the end, ``shorter`` counts over all steps those that made W shorter.
    """
    result: dict[str, dict] = {}
    for momentum in MOMENTA:
        rule = momentum_rule(optimizer, momentum, lr, decay)
        for name, options in VARIANTS.items() if variants else [("plain", {})]:
            course = train_behind_norm(rule, steps, seed, **options)
            last = steps // 4
            result.setdefault(f"{momentum:g}", {})[name] = {
                "turn": sum(course.turn[-last:]) / last,
                "lean": sum(course.lean[-last:]) / last,
                "length": course.length[-1],
                "shorter": sum(after < before for before, after in zip(course.length, course.length[1:])),
            }
    return result


def turn_quotients(record: dict) -> dict[tuple[str, float], list[float]]:
    """Measured over predicted turn of all runs with decay, by optimizer and momentum; ``record`` holds :func:`turns`."""
    found: dict[tuple[str, float], list[float]] = {}
    for optimizer, momentum, setting, variants in _turn_runs(record):
        if setting["decay"]:
            predicted = predicted_turn(optimizer, momentum, setting["lr"], setting["decay"])
            found.setdefault((optimizer, momentum), []).extend(v["turn"] / predicted for v in variants.values())
    return found


def effect_of_loss_scale(record: dict) -> list[float]:
    """By which share the turn changes when the loss is multiplied by 0.01 or by 100, in every run that tried it."""
    return [
        v["turn"] / variants["plain"]["turn"] - 1
        for *_, variants in _turn_runs(record)
        for name, v in variants.items()
        if name.startswith("loss")
    ]


def measured_leans(record: dict) -> dict[tuple[str, float], list[tuple[float, float, int]]]:
    """Of all runs without decay, by optimizer and momentum b: the lean, turn · b / (1 - b), which predicts it, and how
    many steps made W shorter."""
    found: dict[tuple[str, float], list] = {}
    for optimizer, momentum, setting, variants in _turn_runs(record):
        if not setting["decay"]:
            run = variants["plain"]
            predicted = run["turn"] * momentum / (1 - momentum)
            found.setdefault((optimizer, momentum), []).append((run["lean"], predicted, run["shorter"]))
    return found


def _turn_runs(record: dict) -> Iterator[tuple[str, float, dict, dict]]:
    for run in record["runs"]:
        for momentum, variants in run["result"].items():
            yield run["setting"]["optimizer"], float(momentum), run["setting"], variants


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

    ``which``: "one writer" (MLP down of the second block), "one reader" (its up), "values" (attention's value matrix
    there), or "whole stream" (embeddings and all writers). ``options`` are those of the config.
    """
    model = walk.fresh_stack(4, seed, placement=placement, **options)
    ids = walk.reading(64, 4)[0]
    attention, mlp = (residual.sublayer for residual in model.blocks[1].residuals)
    choices = {"one writer": [mlp.down.weight], "one reader": [mlp.up.weight], "values": [attention.value.weight]}
    choices["whole stream"] = stream_writers(model)
    with torch.no_grad(), device.single_thread():
        before = model(ids)
        for weight in choices[which]:
            weight.mul_(factor)
        after = model(ids)
    return ((after - before).norm() / before.norm()).item()


def changes_one_by_one(placement: Placement | str, factor: float, seed: int = 0, **options) -> dict[str, float]:
    """As :func:`change_of_logits`, for each matrix of the stack alone, embeddings and head included, by its name."""
    model = walk.fresh_stack(4, seed, placement=placement, **options)
    ids = walk.reading(64, 4)[0]
    changes = {}
    with torch.no_grad(), device.single_thread():
        before = model(ids)
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                kept = weight.clone()
                weight.mul_(factor)
                changes[name] = ((model(ids) - before).norm() / before.norm()).item()
                weight.copy_(kept)
    return changes


def stream_writers(model: Transformer) -> list[nn.Parameter]:
    """What writes to the stream of a stack without biases: embeddings, outputs of attention, second MLP matrices."""
    sublayers = [residual.sublayer for block in model.blocks for residual in block.residuals]
    matrices = [s.down if isinstance(s, MLP) else s.out for s in sublayers]
    return [m.weight for m in (*model.embedding_tables(), *matrices)]


def right_angles(seed: int, eps: float = 0.0, layers: int = 4) -> dict[str, float]:
    """Cosine between weights and gradient of the loss on held-out text, for a fresh Pre-LN stack.

    ``joint``: for the one long vector of :func:`stream_writers`; ``largest``: the largest size among its matrices.
    """
    model = walk.fresh_stack(layers, seed, placement=Placement.PRE, eps=eps)
    ids, targets = small_models.passages(4, 64)
    with device.single_thread():
        training.next_token_loss(model, ids, targets).backward()
    weights = stream_writers(model)

    def cosine(chosen: list[nn.Parameter]) -> float:
        w, g = (torch.cat([t.flatten() for t in tensors]) for tensors in (chosen, [w.grad for w in chosen]))
        return (w @ g / (w.norm() * g.norm())).item()

    return {"joint": cosine(weights), "largest": max(abs(cosine([w])) for w in weights)}


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
    norms = norms_of(model)
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


@torch.no_grad()
def worth_of_gains(model: Transformer, count: int = 64) -> dict[str, float]:
    """Validation loss of the trained model as it is, and by how much it rises when its gains or biases are replaced.

    "mean": every gain becomes the mean of its norm; "one": every gain becomes 1; "shuffled": the gains of each norm
    change places; "no bias": every bias becomes 0. Nothing is trained again.
    """
    generator = torch.Generator().manual_seed(0)
    changes: dict[str, Callable] = {
        "mean": lambda n: n.weight.fill_(n.weight.mean()),
        "one": lambda n: n.weight.fill_(1),
        "shuffled": lambda n: n.weight.copy_(n.weight[torch.randperm(len(n.weight), generator=generator)]),
        "no bias": lambda n: n.bias.zero_(),
    }
    loss = small_models.validation_loss(model, count=count)
    rises = {}
    for name, change in changes.items():
        changed = copy.deepcopy(model)
        for norm in norms_of(changed):
            change(norm)
        rises[name] = small_models.validation_loss(changed, count=count) - loss
    return {"loss": loss} | rises


def norms_of(model: Transformer) -> list[nn.Module]:
    """The norms of a Pre-LN stack in order, the final norm last."""
    return [*(residual.norm for block in model.blocks for residual in block.residuals), model.final_norm]


# --- a backward pass that treats the statistics as constants -------------------------------------------------------

CUTS = {"nothing": (), "the mean": ("mean",), "the spread": ("spread",), "both": ("mean", "spread")}
DETACH_RATES = (1e-3, 3e-3, 1e-2, 3e-2)
DETACH = {"layers": 4, "width": 48, "steps": 300}


class DetachedNorm(nn.Module):
    """LayerNorm without gain and bias in whose backward pass the mean, the spread or both count as constants.

    Forward it is LayerNorm whatever is cut. Source: Xu et al. 2019, arXiv:1911.07013, who call the one that cuts both
    DetachNorm.
    """

    def __init__(self, cut: Sequence[str] = (), eps: float = 1e-5):
        super().__init__()
        self.cut, self.eps = tuple(cut), eps

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        spread = (x.var(-1, correction=0, keepdim=True) + self.eps).sqrt()
        if "mean" in self.cut:
            mean = mean.detach()
        if "spread" in self.cut:
            spread = spread.detach()
        return (x - mean) / spread


def train_detached(
    placement: str, cut: str, lr: float, seed: int, layers: int = 4, width: int = 48, steps: int = 300
) -> dict:
    """Validation loss of a small stack trained on Hamlet with :class:`DetachedNorm` everywhere.

    Training as in :func:`train_with_gains`; the same seed means the same weights and batches whatever is cut.
    """
    model = small_models.model(seed, layers=layers, width=width, placement=placement, convention=Convention.BARE)
    for block in model.blocks:
        for residual in block.residuals:
            residual.norm = DetachedNorm(CUTS[cut])
    if isinstance(model.final_norm, LayerNorm):  # Post-LN has none
        model.final_norm = DetachedNorm(CUTS[cut])
    small_models.train(model, steps, lr, seed, progress=f"{placement}, {cut} {seed}")
    return {"loss": small_models.validation_loss(model.cpu(), count=32)}


# --- eps in published code ----------------------------------------------------------------------------------------


def eps_in_configs(folder: Path | None = None) -> dict:
    """Default values of eps in the model configurations of the installed transformers library, read and not run.

    Counted are annotated fields whose name ends with eps or epsilon; those of batch and group norms are left out.
    """
    import importlib.metadata
    from collections import Counter

    paths = sorted((folder or _models_folder()).glob("*/configuration_*.py"))
    values = Counter(value for path in paths for value in _eps_fields(path))
    return {
        "transformers": importlib.metadata.version("transformers"),
        "counts": {f"{value:g}": count for value, count in values.most_common()},
    }


def default_eps(model: str, folder: Path | None = None) -> list[float]:
    """The values that :func:`eps_in_configs` counts in the configuration of one model, such as "bert"."""
    return list(_eps_fields((folder or _models_folder()) / model / f"configuration_{model}.py"))


def _models_folder() -> Path:
    found = util.find_spec("transformers")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the transformers library is not installed")
    return Path(found.origin).parent / "models"


def _eps_fields(path: Path) -> Iterator[float]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        name = node.target.id
        if not name.endswith(("norm_eps", "norm_epsilon")) or "batch" in name or "group" in name:
            continue
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, float):
            yield node.value.value


# --- records ------------------------------------------------------------------------------------------------------


def _worth(seed: int, **options) -> dict:
    return worth_of_gains(train_with_gains("gain and bias", seed, progress=f"seed {seed}", **options))


RECORDS = (
    Recipe(
        "learned_gains",
        "gains and biases of small Pre-LN models after training on Hamlet, float32, one thread",
        [{"parameters": p, "seed": seed, **GAINS} for p in ("gain and bias", "none") for seed in range(5)],
        lambda parameters, seed, **options: small_models.rounded(
            learned(train_with_gains(parameters, seed, progress=f"{parameters} {seed}", **options)), 4
        ),
    ),
    Recipe(
        "digits_with_norm",
        "accuracy on digits against the initial scale of one matrix and against the learning rate, with and without LayerNorm",
        grid(norm=[True, False], scale=SCALES, lr=[SCALE_RATE], seed=range(5))
        + grid(norm=[True, False], scale=[1.0], lr=LEARNING_RATES, seed=range(5)),
        lambda **setting: small_models.rounded(digits_accuracy(**setting), 4),
    ),
    Recipe(
        "turns_under_decay",
        "turn, lean and length of a matrix in front of a LayerNorm under SGD and AdamW, "
        "with and without momentum and decay",
        [
            {**setting, "seed": seed, "variants": setting["steps"] == 1600 and setting["decay"] > 0}
            for setting in TURN_SETTINGS
            for seed in range(5)
        ],
        lambda **setting: small_models.five_digits(turns(**setting)),
    ),
    Recipe(
        "worth_of_gains",
        "what the gains and biases of trained small Pre-LN models are worth: validation loss after replacing them",
        [{"seed": seed, **GAINS} for seed in range(5)],
        lambda **setting: small_models.five_digits(_worth(**setting)),
    ),
    Recipe(
        "detached_norms",
        "validation loss of small stacks whose norms treat mean, spread or both as constants in the backward pass",
        [
            {**setting, **DETACH}
            for setting in grid(placement=["pre", "post"], lr=DETACH_RATES, cut=CUTS, seed=range(5))
        ],
        lambda **setting: small_models.five_digits(train_detached(**setting)),
    ),
    Recipe("eps_in_configs", "default eps of the model configurations in transformers", [{}], eps_in_configs),
)
