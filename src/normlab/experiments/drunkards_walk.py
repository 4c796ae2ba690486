"""Chapter 1: where does the scale of the residual stream go?"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlab import data, device, functional, probes, training
from normlab.experiments import small_models
from normlab.norms import NormKind
from normlab.record import Recipe, grid
from normlab.transformer import Init, Transformer, TransformerConfig

# --- the walk -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """Distance from the start after 0, 1, ... steps: root mean square and mean [steps + 1], and some paths."""

    rms: Tensor
    mean: Tensor
    paths: Tensor


def coin_walk(walkers: int = 10_000, steps: int = 100, seed: int = 0, paths: int = 60) -> Walk:
    """Walkers on a line who toss a fair coin at every step: one step forward, or one back."""
    generator = torch.Generator().manual_seed(seed)
    tosses = 2 * torch.randint(2, (walkers, steps), generator=generator) - 1
    place = torch.cat([torch.zeros(walkers, 1), tosses.cumsum(1)], 1).double()
    return Walk(place.square().mean(0).sqrt(), place.abs().mean(0), place[:paths])


def exact_mean_distance(steps: int) -> float:
    """Expected distance of the coin walk after an even number of steps n: n * C(n, n/2) / 2^n."""
    return steps * math.comb(steps, steps // 2) / 2**steps


# --- synthetic streams: when the square-root law holds, and each way in which it fails --------------------------


@dataclass(frozen=True)
class Rule:
    """How the increments of a synthetic stream are made, and the size that this predicts.

    ``increment(x, fresh, shared, n, steps)`` returns r for step n = 1 .. steps from the stream x [vectors, d],
    fresh noise [vectors, d] and one fixed direction [1, d]; noise and direction have mean square 1. ``mean_square(steps)`` is the
    predicted mean square of the stream after the last step; before the first it is 1.
    """

    name: str
    increment: Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
    mean_square: Callable[[int], float]


def leaning(rho: float) -> Callable[..., Tensor]:
    """Increments of mean square 1 whose correlation with the stream is rho."""
    return lambda x, fresh, shared, n, steps: rho * functional.rms_norm(x, eps=0.0) + (1 - rho**2) ** 0.5 * fresh


def leaning_mean_square(rho: float) -> Callable[[int], float]:
    """What :func:`leaning` predicts: each step adds 1 + 2 rho s to the mean square s^2."""

    def mean_square(steps: int) -> float:
        s = 1.0
        for _ in range(steps):
            s += 1 + 2 * rho * s**0.5
        return s

    return mean_square


RULES = (
    Rule("independent", lambda x, fresh, shared, n, steps: fresh, lambda steps: 1 + steps),
    Rule("scaled by 1/√steps", lambda x, fresh, shared, n, steps: fresh / steps**0.5, lambda steps: 2.0),
    Rule("correlation −0.2 with the stream", leaning(-0.2), leaning_mean_square(-0.2)),
    Rule("correlation +0.2 with the stream", leaning(0.2), leaning_mean_square(0.2)),
    Rule(
        "growing: Var r = 1 + step/10",
        lambda x, fresh, shared, n, steps: (1 + n / 10) ** 0.5 * fresh,
        lambda steps: 1 + steps + steps * (steps + 1) / 20,
    ),
    Rule("mean 0.3", lambda x, fresh, shared, n, steps: fresh + 0.3, lambda steps: 1 + steps + (0.3 * steps) ** 2),
    Rule(
        "30 % in one shared direction",
        lambda x, fresh, shared, n, steps: 0.7**0.5 * fresh + 0.3**0.5 * shared,
        lambda steps: 1 + 0.7 * steps + 0.3 * steps**2,
    ),
)


def synthetic_stream(rule: Rule, steps: int, seed: int, vectors: int = 32, width: int = 512) -> tuple[Tensor, Tensor]:
    """Size (root mean square) and standard deviation over the features after 0, 1, ... steps, [steps + 1] each."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    x, shared = normal(vectors), functional.layer_norm(normal(1), eps=0.0)
    sizes, stds = [probes.size(x)], [probes.variance(x) ** 0.5]
    for n in range(1, steps + 1):
        x = x + rule.increment(x, normal(vectors), shared, n, steps)
        sizes.append(probes.size(x))
        stds.append(probes.variance(x) ** 0.5)
    return torch.tensor(sizes), torch.tensor(stds)


@dataclass(frozen=True)
class Growth:
    """By what factor a stream is larger after 80 steps than after 12: predicted, and measured for each seed."""

    rule: Rule
    predicted: float
    size_ratios: list[float]
    std_ratios: list[float]


def synthetic_growth(rule: Rule, seeds: Sequence[int], shallow: int = 12, deep: int = 80) -> Growth:
    """Compare a stream of ``deep`` steps with one of ``shallow`` steps."""
    sizes, stds = [], []
    with device.single_thread():
        for seed in seeds:
            short, long = (synthetic_stream(rule, steps, seed) for steps in (shallow, deep))
            sizes.append((long[0][-1] / short[0][-1]).item())
            stds.append((long[1][-1] / short[1][-1]).item())
    return Growth(rule, (rule.mean_square(deep) / rule.mean_square(shallow)) ** 0.5, sizes, stds)


# --- stacks at initialization -----------------------------------------------------------------------------------


def reading(tokens: int, sequences: int, seed: int = 99) -> tuple[Tensor, int]:
    """Token ids [sequences, tokens] from the held-out part of Hamlet, and the size of the vocabulary."""
    corpus = data.corpus(["hamlet"])
    generator = torch.Generator().manual_seed(seed)
    return data.windows(corpus.val, sequences, tokens, generator)[0], len(corpus.vocabulary)


def fresh_stack(layers: int, seed: int, *, width: int = 128, tokens: int = 64, **options) -> Transformer:
    """A Pre-LN Transformer at initialization in float64: Xavier and 4 heads unless ``options`` say otherwise."""
    settings = {"width": width, "heads": 4, "norm": NormKind.LAYERNORM, "context": tokens, **options}
    return Transformer(TransformerConfig(vocab_size=reading(tokens, 1)[1], layers=layers, **settings), seed).double()


def read_stack(model: Transformer, *, tokens: int = 64, sequences: int = 4) -> list[probes.SublayerReading]:
    """What every sublayer of the model sees and does while it reads passages of Hamlet."""
    with device.single_thread():
        return probes.readings(model, reading(tokens, sequences)[0])


@dataclass(frozen=True)
class Stack:
    """A kind of stack whose growth from 12 to 80 blocks the chapter compares with the square-root law."""

    name: str
    options: dict
    tokens: int = 64


STACKS = (
    Stack("MLP only", {"sublayers": ("mlp",)}),
    Stack("attention only, 1 token", {"sublayers": ("attention",)}, tokens=1),
    Stack("attention + MLP", {}),
    Stack("attention only", {"sublayers": ("attention",)}),
    Stack("attention + MLP, N(0, 0.02)", {"init": Init.GPT2}),
    Stack("… and 1/√(2L) on the writers", {"init": Init.GPT2_SCALED}),
)
STACKS_BY_NAME = {stack.name: stack for stack in STACKS}


def stack_growth(stack: str, seed: int, width: int = 128, shallow: int = 12, deep: int = 80) -> dict[str, float]:
    """Growth of the stream's std from ``shallow`` to ``deep`` blocks (two networks), in float64.

    Returns:
        ``measured``: std after the deep stack over std after the shallow one.
        ``law``: the same ratio if Var r stayed at its value in the first block and no covariance arose.
        ``increments``: Var r of the last block over Var r of the first, in the deep stack.
        ``attention``: attention's part of the last block's Var r.
        ``covariance``: covariance share of the growth, in the deep stack.
    """
    kind = STACKS_BY_NAME[stack]
    end, law = {}, {}
    for layers in (shallow, deep):
        model = fresh_stack(layers, seed, width=width, tokens=kind.tokens, **kind.options)
        account = probes.variance_account(read_stack(model, tokens=kind.tokens, sequences=256 // kind.tokens))
        per_block = len(account) // layers
        first = sum(s.increment for s in account[:per_block])
        end[layers] = account[-1].after ** 0.5
        law[layers] = (account[0].before + layers * first) ** 0.5
    last = sum(s.increment for s in account[-per_block:])
    return {
        "measured": end[deep] / end[shallow],
        "law": law[deep] / law[shallow],
        "increments": last / first,
        "attention": sum(s.increment for s in account[-per_block:] if s.kind == "attention") / last,
        "covariance": probes.covariance_share(account),
    }


@dataclass(frozen=True)
class AttentionByDepth:
    """A fresh stack, block by block: what attention and MLP write, and how alike the tokens are that they read.

    ``all_tokens``, ``first_token`` and ``mlp`` are variances of increments; the first token of a passage sees only
    itself. ``alike`` is the mean cosine of two tokens of a passage in the stream before the block.
    ``swapped``: variance of what attention writes if the first block's is given the last block's input, and the last
    block's the first one's.
    """

    all_tokens: list[float]
    first_token: list[float]
    mlp: list[float]
    alike: list[float]
    swapped: tuple[float, float]


def attention_by_depth(seed: int, layers: int = 80) -> AttentionByDepth:
    """Read a fresh stack (Xavier, width 128, passages of 64 characters), and exchange the inputs of two attentions."""
    model = fresh_stack(layers, seed)
    readings = read_stack(model)
    attention, mlp = ([r for r in readings if r.kind == kind] for kind in ("attention", "mlp"))
    first, last = (model.blocks[i].residuals[0].sublayer for i in (0, -1))
    with torch.no_grad(), device.single_thread():
        swapped = first(attention[-1].sublayer_input), last(attention[0].sublayer_input)
    return AttentionByDepth(
        [probes.variance(r.increment) for r in attention],
        [probes.variance(r.increment[:, :1]) for r in attention],
        [probes.variance(r.increment) for r in mlp],
        [probes.token_cosine(r.stream) for r in attention],
        (probes.variance(swapped[0]), probes.variance(swapped[1])),
    )


def growth_within(width: int, init: Init | str, seed: int = 0, layers: int = 12) -> dict[str, float]:
    """Sizes in one stack at initialization.

    Returns:
        ``start``: of the stream before the first block.
        ``written``: of what the first block adds, attention and MLP together.
        ``growth``: of the stream after the last block, over ``start``.
    """
    readings = read_stack(fresh_stack(layers, seed, width=width, init=Init(init)))
    start = probes.size(readings[0].stream)
    return {
        "start": start,
        "written": probes.size(readings[0].increment + readings[1].increment),
        "growth": probes.size(readings[-1].stream_after) / start,
    }


# --- what scale does to gradients and updates -------------------------------------------------------------------


ROLES = {  # of weights, by the ends of their names: the first two make the stream
    "embeddings": ("embedding",),
    "writers: attention out, MLP down": (".out", ".down"),
    "readers: query, key, value, MLP up": (".query", ".key", ".value", ".up"),
    "head, behind the final norm": ("head",),
}


def gradients_when_the_stream_doubles(seed: int = 0) -> dict[str, float]:
    """Factor by which gradients change when embeddings and writers are doubled, and so the whole stream.

    At eps = 0 every norm hands on the same vectors as before, and so the model computes the same function.
    """
    model = fresh_stack(6, seed, eps=0.0)
    inputs, targets = data.windows(data.corpus().val, 4, 64, torch.Generator().manual_seed(99))
    groups: dict[str, list[Tensor]] = {role: [] for role in ROLES}
    for name, parameter in model.named_parameters():
        for role, endings in ROLES.items():
            if name.removesuffix(".weight").endswith(endings):
                groups[role].append(parameter)

    def gradient_norms() -> list[float]:
        model.zero_grad()
        training.next_token_loss(model, inputs, targets).backward()
        return [
            torch.cat([w.grad.flatten() for w in weights if w.grad is not None]).norm().item()
            for weights in groups.values()
        ]

    with device.single_thread():
        before = gradient_norms()
        with torch.no_grad():
            for role in list(ROLES)[:2]:
                for weight in groups[role]:
                    weight.mul_(2)
        return {role: after / b for role, after, b in zip(groups, gradient_norms(), before)}


def first_update(scale: float, optimizer: str, seed: int = 0, lr: float = 0.01) -> tuple[float, float]:
    """Size of the first update of W when loss = <c, LayerNorm(scale * W h)>: absolute, and relative to scale * W.

    ``optimizer`` is "sgd" or "adam". Float64, eps = 0 in the norm.
    """
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((32, 16), (16, 64), (32, 64))]
    W, h, c = torch.nn.Parameter(scale * draw[0]), draw[1], draw[2]
    step = torch.optim.SGD([W], lr=lr) if optimizer == "sgd" else torch.optim.Adam([W], lr=lr, eps=1e-30)
    before = W.detach().clone()
    (c.T * functional.layer_norm((W @ h).T, eps=0.0)).sum().backward()
    step.step()
    change = probes.size(W.detach() - before)
    return change, change / probes.size(before)


# --- trained streams --------------------------------------------------------------------------------------------

TOKENS, BATCH = small_models.TOKENS, small_models.BATCH
SETTINGS = {"layers": 12, "width": 48, "steps": 600, "lr": 3e-3}
VARIANTS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "no final norm": {"final_norm": False},
    "scaled init": {"init": Init.GPT2_SCALED},
}


def small_model(variant: str, seed: int, layers: int = 12, width: int = 48) -> Transformer:
    """The chapter's trained model: Pre-LN, 4 heads, GELU, characters of Hamlet; see VARIANTS."""
    return small_models.model(seed, layers=layers, width=width, **VARIANTS[variant])


def train_small_model(
    variant: str, seed: int, layers: int = 12, width: int = 48, steps: int = 600, lr: float = 3e-3, progress: str | None = None
) -> dict:
    """Train it as :func:`normlab.experiments.small_models.train` does; "before" and "after" describe its stream.

    See :func:`describe` for the result.
    """
    model = small_model(variant, seed, layers, width)
    with device.single_thread():
        before = describe(model)
        small_models.train(model, steps, lr, seed, progress=progress)
        return {"before": before, "after": describe(model)}


def describe(model: Transformer) -> dict:
    """Sizes and variance account of a model's stream on held-out text, measured in float64 on the CPU.

    Lists have one entry per sublayer; ``stream`` and ``variance`` have one more, the state before the first.
    """
    model = copy.deepcopy(model).cpu().double()
    corpus = data.corpus()
    records = read_stack(model, tokens=TOKENS, sequences=BATCH)
    account = probes.variance_account(records)
    token_sizes = [r.sublayer_input.square().mean(-1).sqrt() for r in records]
    return {
        "stream": [probes.size(records[0].stream), *(probes.size(r.stream_after) for r in records)],
        "input": [probes.size(r.sublayer_input) for r in records],
        "input_min": [t.min().item() for t in token_sizes],
        "input_max": [t.max().item() for t in token_sizes],
        "variance": [account[0].before, *(s.after for s in account)],
        "increment": [s.increment for s in account],
        "twice_covariance": [s.twice_covariance for s in account],
        "covariance_share": probes.covariance_share(account),
        "validation_loss": training.validation_loss(model, data.sampler(corpus.val, BATCH, TOKENS)),
    }


def if_independent(description: dict) -> float:
    """By what factor the stream would have grown if the same increments had no covariance with it."""
    start = description["variance"][0]
    return ((start + sum(description["increment"])) / start) ** 0.5


# --- records ----------------------------------------------------------------------------------------------------


RECORDS = (
    Recipe(
        "stacks_at_init",
        "growth of the stream's std from 12 to 80 blocks at initialization, six kinds of stack, float64",
        [
            {"stack": stack.name, "seed": seed, "width": 128, "shallow": 12, "deep": 80}
            for stack in STACKS
            for seed in range(10)
        ],
        lambda **setting: small_models.five_digits(stack_growth(**setting)),
    ),
    Recipe(
        "growth_by_width",
        "a fresh stack of 12 blocks with N(0, 0.02), and with scaled writers: sizes by width, float64",
        grid(width=(48, 128, 512), init=(Init.GPT2.value, Init.GPT2_SCALED.value), seed=range(5), layers=(12,)),
        lambda **setting: small_models.five_digits(growth_within(**setting)),
    ),
    Recipe(
        "trained_streams",
        "streams of small Pre-LN models before and after training on Hamlet, float32, one thread",
        [{"variant": variant, "seed": seed, **SETTINGS} for variant in VARIANTS for seed in range(5)],
        lambda **setting: small_models.five_digits(train_small_model(**setting, progress=f"{setting['variant']} {setting['seed']}")),
        larger=grid(variant=list(VARIANTS), seed=range(5), layers=[48], width=[256], steps=[3000], lr=[1e-3]),
    ),
)
