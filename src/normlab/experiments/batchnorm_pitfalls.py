"""Chapter 2: why not the norm that vision already had?"""

import inspect
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normlab import data, device, functional, norms, training
from normlab.experiments import small_models
from normlab.experiments.draws import normal  # noqa: F401  (the chapter draws with it)
from normlab.norms import NormKind
from normlab.record import Recipe, grid
from normlab.transformer import Transformer, TransformerConfig

# --- digits: a deep MLP without a norm, with one, and with noise behind it ----------------------------------------

DEPTH, WIDTH = 8, 64
SHIFT, SCALE, JITTER = 0.5, 0.25, 0.1  # of the noise: our own choice


class NoisyBatchNorm(norms.BatchNorm):
    """BatchNorm whose output is disturbed in training: y = scale * BatchNorm(x) + shift + jitter.

    Every training step draws a new shift in ±SHIFT and a new scale in 1 ± SCALE for each feature, the same for the
    whole batch, and a jitter in ±JITTER for each number. The noise of a step is a function of ``seed`` and of
    ``num_batches_tracked``, so that a step can be looked at again. Evaluation is without noise.
    """

    def __init__(self, width: int, seed: int):
        super().__init__(width)
        self.seed = seed

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        step = int(self.num_batches_tracked)
        y = super().forward(x, mask)
        if not self.training:
            return y
        generator = torch.Generator().manual_seed(1_000_000 * self.seed + step)

        def uniform(shape: Sequence[int]) -> Tensor:
            return (2 * torch.rand(*shape, generator=generator) - 1).to(y)

        shift, scale = SHIFT * uniform(y.shape[-1:]), 1 + SCALE * uniform(y.shape[-1:])
        return scale * y + shift + JITTER * uniform(y.shape)


class Start(str, Enum):
    """Standard deviation of the initial weights of a :class:`DigitsMLP`."""

    XAVIER = "xavier"  # sqrt(2 / (fan_in + fan_out)): in 8 layers of GELU most of the signal is lost
    FAN_IN = "fan-in"  # sqrt(2 / fan_in): it is not


# What is compared. A norm makes up for the scale of the weights before it; without one it has to fit the activation.
DIGIT_KINDS = {
    "none": {"norm": "none", "start": "xavier"},
    "none, wide start": {"norm": "none", "start": "fan-in"},
    "batchnorm": {"norm": "batchnorm", "start": "xavier"},
    "noisy batchnorm": {"norm": "noisy batchnorm", "start": "xavier"},
    "layernorm": {"norm": "layernorm", "start": "xavier"},
}
DIGIT_RATES = (0.03, 0.1, 0.3, 1.0)


class DigitsMLP(nn.Module):
    """Standardized pixels [B, 64] -> logits [B, 10]: ``depth`` times linear, norm, GELU, and a linear head."""

    def __init__(self, norm: str, seed: int, start: Start | str = Start.XAVIER, depth: int = DEPTH, width: int = WIDTH):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width if i else 64, width) for i in range(depth))
        self.norms = nn.ModuleList(self._norm(norm, width, seed, i) for i in range(depth))
        self.head = nn.Linear(width, 10)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for linear in (*self.linears, self.head):
                fans = sum(linear.weight.shape) if Start(start) is Start.XAVIER else linear.in_features
                std = (2 / fans) ** 0.5
                linear.weight.copy_(std * torch.randn(linear.weight.shape, generator=generator, dtype=torch.float64))
                linear.bias.zero_()

    @staticmethod
    def _norm(norm: str, width: int, seed: int, layer: int) -> nn.Module:
        if norm == "noisy batchnorm":
            return NoisyBatchNorm(width, seed=100 * seed + layer)
        return norms.make_norm("identity" if norm == "none" else norm, width)

    def forward(self, x: Tensor) -> Tensor:
        for h in self.hidden(x):
            x = h
        return self.head(nn.functional.gelu(x))

    def hidden(self, x: Tensor) -> list[Tensor]:
        """What goes into the nonlinearity of each layer, [B, width]."""
        states: list[Tensor] = []
        for linear, norm in zip(self.linears, self.norms):
            x = linear(nn.functional.gelu(x) if states else x)
            x = norm(x)
            states.append(x)
        return states


def standardized_digits() -> data.Digits:
    """The digits with one mean and one standard deviation taken out of all pixels."""
    images = data.digits()
    mean, std = images.train.mean(), images.train.std()
    return data.Digits((images.train - mean) / std, images.train_labels, (images.val - mean) / std, images.val_labels)


def train_digits(
    norm: str,
    lr: float,
    seed: int,
    steps: int = 300,
    start: Start | str = Start.XAVIER,
    look_around: bool = True,
    progress: str | None = None,
) -> dict:
    """Train a :class:`DigitsMLP` with plain SGD on batches of 64, in float32 on one CPU thread.

    Returns:
        ``loss``: of the training batches, one number a step (shorter if it became NaN or infinite).
        ``final``: mean of the last 20; None if the run ended early.
        ``accuracy``: on held-out digits, in evaluation mode.
        ``shift``: how far the mean of a feature moves in 10 steps on fixed pixels, averaged over features, layers and
        time, in training mode; None if the run ended early.
        ``relative_shift``: the same, each layer in units of its own spread (root of the mean variance of its features).
        ``early``, ``late``: the smoothness measures of :func:`along_the_gradient`, means over the probed steps of the
        first and of the last third; None without ``look_around``.
    """
    images = standardized_digits()
    model = DigitsMLP(norm, seed, start)
    batches = data.rows(images.train, images.train_labels, 64)
    probes: dict[str, list[dict[str, float]]] = {"early": [], "late": []}
    seen: list[tuple[Tensor, Tensor]] = []

    def look(step: int, history: training.History) -> None:
        if step % 10 == 9:
            seen.append(feature_moments(model, images.train[:256]))
        third = "early" if step < steps // 3 else "late" if step >= 2 * steps // 3 else None
        if look_around and third and step % 20 == 10:
            batch = batches(torch.Generator().manual_seed(7_000_000 + step))
            probes[third].append(along_the_gradient(model, *batch))

    with device.single_thread():
        try:
            history = training.train(
                model, batches, steps, lr=lr, seed=1000 + seed, optimizer="sgd", each_step=look, progress=progress
            )
        except training.NonFiniteError as error:
            history = error.history
        model.eval()
        with torch.no_grad():
            right = model(images.val).argmax(-1) == images.val_labels
    finished = len(history.loss) == steps
    moves = [(b - a).abs().mean(1) for (a, _), (b, _) in zip(seen, seen[1:])]  # [depth] each
    relative = [move / spread for move, (_, spread) in zip(moves, seen)]
    return {
        "loss": history.loss,
        "final": sum(history.loss[-20:]) / 20 if finished else None,
        "accuracy": right.double().mean().item(),
        "shift": torch.stack(moves).mean().item() if finished else None,
        "relative_shift": torch.stack(relative).mean().item() if finished else None,
        **{third: _mean_of(values) if finished and values else None for third, values in probes.items()},
    }


def _mean_of(measures: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(m[name] for m in measures) / len(measures) for name in measures[0]}


def _with_buffers(model: nn.Module, method: Callable[[], Any]) -> Any:
    """Call ``method`` and put the model's buffers (running statistics) back afterwards."""
    before = [b.clone() for b in model.buffers()]
    try:
        return method()
    finally:
        for buffer, old in zip(model.buffers(), before):
            buffer.copy_(old)


@torch.no_grad()
def feature_moments(model: DigitsMLP, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of every hidden feature over fixed pixels [depth, width], and the spread of every layer [depth].

    The spread is the root of the variance over the pixels, averaged over the features. The model as it is now; buffers
    stay.
    """
    hidden = _with_buffers(model, lambda: torch.stack(model.hidden(pixels)))
    return hidden.mean(1), hidden.var(1, correction=0).mean(1).sqrt()


def spread_at_start(kind: str, seed: int) -> list[float]:
    """Spread of every hidden layer of a network of DIGIT_KINDS before training, on 256 digits."""
    return feature_moments(DigitsMLP(seed=seed, **DIGIT_KINDS[kind]), standardized_digits().train[:256])[1].tolist()


STEP_SIZES = tuple(0.02 * n for n in (1, 2, 5, 10, 15, 20))  # up to 0.4


def along_the_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Walk from the weights w against the gradient g: how much do loss and gradient change on w - t g, t up to 0.4?

    Returns:
        ``loss_range``: largest minus smallest loss.
        ``gradient_change``: largest ||g(w - t g) - g(w)||.
        ``gradient``: ||g(w)||.
        ``lipschitz``: largest ||g(w - t g) - g(w)|| / ||t g||, the "effective smoothness" on this line.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    start = [w.detach().clone() for w in weights]

    def measure() -> tuple[float, Tensor]:
        loss = _with_buffers(model, lambda: training.next_token_loss(model, inputs, targets))
        return loss.item(), torch.cat([g.flatten() for g in torch.autograd.grad(loss, weights)]).double()

    first_loss, g = measure()
    losses, changes, ratios = [first_loss], [], []
    for t in STEP_SIZES:
        with torch.no_grad():
            offset = 0
            for w, w0 in zip(weights, start):
                step = g[offset : offset + w.numel()].view_as(w)
                w.copy_(w0 - t * step)
                offset += w.numel()
        loss, there = measure()
        losses.append(loss)
        changes.append((there - g).norm().item())
        ratios.append(changes[-1] / (t * g.norm().item()))
    with torch.no_grad():
        for w, w0 in zip(weights, start):
            w.copy_(w0)
    return {
        "loss_range": max(losses) - min(losses),
        "gradient_change": max(changes),
        "gradient": g.norm().item(),
        "lipschitz": max(ratios),
    }


# --- a language model with BatchNorm ---------------------------------------------------------------------------

TOKENS = small_models.TOKENS
EVALUATION = ((1, 2), (1, 4), (1, 8), (1, 32), (4, 32), (16, 32))  # sequences x tokens of an evaluation batch


def language_model(norm: NormKind | str, seed: int, vocabulary: int, tokens: int = TOKENS) -> Transformer:
    """A Pre-Norm Transformer: 2 blocks of width 64, 4 heads, GELU."""
    config = TransformerConfig(vocab_size=vocabulary, context=tokens, layers=2, width=64, heads=4, norm=norm)
    return Transformer(config, seed)


@torch.no_grad()
def loss_by_statistics(model: nn.Module, batches: training.Batches, count: int) -> tuple[float, float]:
    """Mean loss over ``count`` batches with running statistics (evaluation mode) and with those of each batch."""
    place = next(model.parameters()).device
    losses = {}
    for mode in (False, True):
        model.train(mode)
        generator = torch.Generator().manual_seed(1234)
        total = 0.0
        for _ in range(count):
            inputs, targets = (t.to(place) for t in batches(generator))
            total += _with_buffers(model, lambda: training.next_token_loss(model, inputs, targets)).item()
        losses[mode] = total / count
    model.eval()
    return losses[False], losses[True]


def train_language_model(
    norm: str,
    batch: int,
    seed: int,
    steps: int = 300,
    lr: float = 3e-3,
    evaluate_small: bool = True,
    progress: str | None = None,
) -> dict:
    """Train it as :func:`normlab.experiments.small_models.train` does, with ``batch`` sequences of 32 characters a step.

    Returns:
        ``evaluation``: held-out loss in evaluation mode, on batches of 16 sequences.
        ``gap``: held-out loss in evaluation mode minus the one with the statistics of the batch, at the training size.
        ``small``: held-out loss with the statistics of the batch minus evaluation mode, for every size of EVALUATION;
        empty without ``evaluate_small``.
    """
    corpus = data.corpus()
    model = language_model(norm, seed, len(corpus.vocabulary))
    with device.single_thread():
        small_models.train(model, steps, lr, seed, batch=batch, progress=progress)
        evaluation = training.validation_loss(model, data.sampler(corpus.val, 16, TOKENS), count=16)
        running, own = loss_by_statistics(model, data.sampler(corpus.val, batch, TOKENS), count=128 // batch)
        small = []
        for sequences, tokens in EVALUATION if evaluate_small else ():
            count = min(128, max(8, 4096 // (sequences * tokens)))
            a, b = loss_by_statistics(model, data.sampler(corpus.val, sequences, tokens), count)
            small.append(b - a)
    return {"evaluation": evaluation, "gap": running - own, "small": small}


# --- cheating: tokens that nobody can predict --------------------------------------------------------------------

CHEAT_VOCABULARY = 8


def train_on_noise(norm: str, tokens: int, seed: int, steps: int = 600, progress: str | None = None) -> dict:
    """Train on independent uniform tokens, one sequence of ``tokens`` a step: no causal model can beat log 8.

    Returns:
        ``training``: mean training loss of the last fifth, minus log 8.
        ``evaluation``: loss in evaluation mode on fresh sequences, minus log 8.
    """
    entropy = math.log(CHEAT_VOCABULARY)

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        ids = torch.randint(CHEAT_VOCABULARY, (1, tokens + 1), generator=generator)
        return ids[:, :-1], ids[:, 1:]

    model = language_model(norm, seed, CHEAT_VOCABULARY, tokens)
    with device.single_thread():
        history = training.train(model, batches, steps, lr=3e-3, seed=1000 + seed, warmup=50, clip=1.0, progress=progress)
        fifth = history.loss[-steps // 5 :]
        evaluation = training.validation_loss(model, batches, count=100)
    return {"training": sum(fifth) / len(fifth) - entropy, "evaluation": evaluation - entropy}


# --- padding ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """Lines of text as vectors: x [B, T, d] in float64, zeros at padding, and mask [B, T], True at real tokens."""

    x: Tensor
    mask: Tensor

    @property
    def real(self) -> Tensor:
        """The real tokens [n, d]."""
        return self.x[self.mask]


def embedded_lines(seed: int = 0, lines: int = 32, width: int = 64) -> Lines:
    """Random lines of Hamlet, one random vector for each character, zeros behind the shorter ones.

    ``seed`` chooses the lines; the vectors are always the same.
    """
    batches, vocabulary = _lines_of_hamlet(lines)
    ids, _, mask = batches(torch.Generator().manual_seed(seed))
    vectors = torch.Generator().manual_seed(4242)
    table = torch.randn(vocabulary, width, generator=vectors, dtype=torch.float64)
    return Lines(table[ids] * mask[..., None], mask)


@cache
def _lines_of_hamlet(lines: int) -> tuple[Callable, int]:
    """A sampler of lines, and the size of the vocabulary."""
    corpus = data.corpus()
    return data.line_sampler(corpus.train, corpus.vocabulary.index("\n"), lines, longest=60), len(corpus.vocabulary)


def repad(lines: Lines, extra: int, content: float = 0.0) -> Lines:
    """The same lines with ``extra`` more positions of padding, and ``content`` in all of it."""
    B, _, d = lines.x.shape
    x = torch.cat([lines.x, lines.x.new_zeros(B, extra, d)], 1)
    mask = torch.cat([lines.mask, lines.mask.new_zeros(B, extra)], 1)
    return Lines(torch.where(mask[..., None], x, content), mask)


def with_zeros(tokens: Tensor, zeros: int) -> Lines:
    """One line of tokens [n, d] with ``zeros`` positions of padding behind."""
    n, d = tokens.shape
    x = torch.cat([tokens, tokens.new_zeros(zeros, d)])
    return Lines(x[None], (torch.arange(n + zeros) < n)[None])


def padded_moments(mean: Tensor | float, var: Tensor | float, q: float) -> tuple:
    """Mean and variance of a feature when only a share q of the positions is real and the rest is zero."""
    return q * mean, q * var + q * (1 - q) * mean**2


# --- what one token does to another -----------------------------------------------------------------------------


def influence(model: Transformer, ids: Tensor, position: int, mask: Tensor | None = None) -> Tensor:
    """||d logit / d embedding||, [B, T], of the logit of the next token at ``position`` of sequence 0.

    The model is used as it is, in training or in evaluation mode; its buffers stay.
    """
    x = model.embed(ids).detach().requires_grad_()

    def logits() -> Tensor:
        h = x
        for block in model.blocks:
            h = block(h, attention_mask=mask)
        h = model.final_norm(h) if mask is None else model.final_norm(h, mask)
        return model.head(h)

    logit = _with_buffers(model, logits)[0, position, ids[0, position + 1]]
    return torch.autograd.grad(logit, x)[0].norm(dim=-1)


def reading(tokens: int, sequences: int, seed: int = 99) -> Tensor:
    """Token ids [sequences, tokens] from the held-out part of Hamlet."""
    return small_models.passages(sequences, tokens, seed)[0]


def fresh_language_model(norm: NormKind | str, seed: int = 0) -> Transformer:
    """:func:`language_model` for Hamlet at initialization, in float64."""
    return language_model(norm, seed, len(data.corpus().vocabulary)).double()


def moved(norm: nn.Module, before: Tensor, after: Tensor, where: tuple) -> float:
    """Largest change of norm(x)[where] when x goes from ``before`` to ``after``; buffers stay."""
    with torch.no_grad():
        y, z = (_with_buffers(norm, lambda x=x: norm(x)) for x in (before, after))
    return (y[where] - z[where]).abs().max().item()


# --- statistics that fluctuate ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fluctuation:
    """How batch variances fluctuate: their relative standard deviation over batches, averaged over features.

    ``expected`` is the value for ``n`` independent samples of the same data, sqrt((kurtosis - 1) / n).
    """

    name: str
    measured: float
    expected: float


def fluctuation(name: str, pool: Tensor, batches: Tensor) -> Fluctuation:
    """Compare batches [batches, n, d] with the data they come from, pool [N, d]."""
    centered = pool - pool.mean(0)
    var = centered.square().mean(0)
    kurtosis = centered.pow(4).mean(0) / var.square()
    expected = ((kurtosis - 1) / batches.shape[1]).sqrt().mean().item()
    return Fluctuation(name, (batches.var(1, correction=0) / var).std(0).mean().item(), expected)


def fluctuations(n: int = 128, count: int = 400, width: int = 64, seed: int = 0) -> list[Fluctuation]:
    """Batches of ``n`` samples of images and of text, drawn one by one or together."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    def shuffled(pool: Tensor) -> Tensor:
        return pool[torch.randint(len(pool), (count, n), generator=generator)]

    def together(pool: Tensor) -> Tensor:
        starts = torch.randint(len(pool) - n, (count, 1), generator=generator)
        return pool[starts + torch.arange(n)]

    images = data.digits()
    pixels = images.train.double()
    gray = pixels.reshape(-1, 1)  # one channel, as a convolution sees it: the pixels of an image after each other
    pixels = pixels[:, pixels.std(0) > 0.1]
    by_class = torch.stack([c[torch.randint(len(c), (n,), generator=generator)] for c in _classes(pixels, images) * 40])
    zipf = draw(1000)[data.zipf(1000, 100_000, seed=seed)]
    words = _words(draw)
    topics = _topics(draw, 10, generator)
    by_topic = torch.stack([t[torch.randint(len(t), (n,), generator=generator)] for t in topics for _ in range(40)])
    vectors = draw(100_000)
    return [
        fluctuation("normal vectors", vectors, shuffled(vectors)),
        fluctuation("digits, shuffled", pixels, shuffled(pixels)),
        fluctuation("digits, one class a batch", pixels, by_class),
        fluctuation("gray values, shuffled", gray, shuffled(gray)),
        fluctuation("gray values, image by image", gray, together(gray)),
        fluctuation("Zipf tokens, independent", zipf, shuffled(zipf)),
        fluctuation("words of Hamlet, shuffled", words, shuffled(words)),
        fluctuation("words of Hamlet, one passage", words, together(words)),
        fluctuation("ten topics, mixed", torch.cat(topics), shuffled(torch.cat(topics))),
        fluctuation("ten topics, one a batch", torch.cat(topics), by_topic),
    ]


def _classes(pixels: Tensor, images: data.Digits) -> list[Tensor]:
    return [pixels[images.train_labels == digit] for digit in range(10)]


def _words(draw: Callable[[int], Tensor]) -> Tensor:
    """The words of Hamlet in order, one random vector for each different word."""
    text = data.load_text().lower().split()
    ids = {word: i for i, word in enumerate(dict.fromkeys(text))}
    return draw(len(ids))[torch.tensor([ids[word] for word in text])]


def _topics(draw: Callable[[int], Tensor], count: int, generator: torch.Generator) -> list[Tensor]:
    """Token vectors of ``count`` topics: each uses 30 of 300 words, all equally often."""
    table = draw(30 * count)
    return [table[30 * t + torch.randint(30, (10_000,), generator=generator)] for t in range(count)]


# --- accumulation and synchronization -----------------------------------------------------------------------------


def gradient_in_parts(norm: nn.Module, x: Tensor, rows: Sequence[int]) -> Tensor:
    """Gradient of a linear map in front of ``norm``: x [B, d] comes in parts of ``rows`` rows, whose losses (means over
    their rows) are averaged."""
    generator = torch.Generator().manual_seed(5)
    W, c = (torch.randn(x.shape[-1], x.shape[-1], generator=generator, dtype=x.dtype) for _ in range(2))
    W.requires_grad_()
    for part in x.split(list(rows)):
        y = norm(part @ W)
        ((y @ c).tanh().sum(-1).mean() / len(rows)).backward()
    return W.grad


def combined_moments(parts: Sequence[functional.Moments]) -> functional.Moments:
    """Moments of several batches together: what synchronized BatchNorm computes from what each device sends."""
    count = sum(p.count for p in parts)
    mean = sum(p.count / count * p.mean for p in parts)
    var = sum(p.count / count * (p.var + (p.mean - mean).square()) for p in parts)
    return functional.Moments(mean, var, count)


def exchanges_of_sync_batchnorm() -> dict[str, list[str]]:
    """Which collective operations torch's SyncBatchNorm calls in its forward and in its backward pass."""
    from torch.nn.modules._functions import SyncBatchNorm

    def called(method: Callable) -> list[str]:
        code = inspect.getsource(method)
        return sorted(set(re.findall(r"\.(all_gather|all_reduce|broadcast|reduce_scatter)\w*\(", code)))

    return {"forward": called(SyncBatchNorm.forward), "backward": called(SyncBatchNorm.backward)}


# --- helpers of the chapter ---------------------------------------------------------------------------------------


def within(value: float, known: Sequence[float]) -> bool:
    """Whether a run agrees with those of a record: at most three standard deviations outside their range."""
    slack = 3 * statistics.stdev(known)
    return min(known) - slack < value < max(known) + slack


# --- records ----------------------------------------------------------------------------------------------------


def _record_digits(**setting) -> dict:
    """:func:`train_digits` with the loss averaged over every ten steps, and only at the rate that the chapter draws."""
    result = train_digits(**setting)
    losses = result["loss"] if setting["lr"] == 0.1 else []
    tens = [sum(losses[i : i + 10]) / 10 for i in range(0, len(losses) - 9, 10)]
    return small_models.rounded({**result, "loss": [loss for loss in tens if math.isfinite(loss)]}, 4)


RECORDS = (
    Recipe(
        "noisy_batchnorm",
        "digits, MLP of 8 hidden layers of 64 (GELU), plain SGD: no norm with two starts, BatchNorm, BatchNorm and noise, "
        "LayerNorm",
        [{**kind, **at} for kind in DIGIT_KINDS.values() for at in grid(lr=DIGIT_RATES, seed=range(5), steps=(300,))],
        _record_digits,
    ),
    Recipe(
        "batchnorm_on_noise",
        "two blocks of width 64 trained on independent uniform tokens, one sequence a step: loss minus log 8",
        [
            {"norm": norm, "tokens": tokens, "seed": seed, "steps": steps}
            for norm, tokens, steps in (
                ("batchnorm", 4, 600),
                ("batchnorm", 16, 600),
                ("batchnorm", 64, 600),
                ("batchnorm", 64, 3000),
                ("layernorm", 16, 600),
            )
            for seed in range(5)
        ],
        lambda **setting: small_models.rounded(train_on_noise(**setting), 4),
    ),
    Recipe(
        "batchnorm_language_model",
        "two blocks of width 64 trained on Hamlet, 32 characters a sequence: running statistics against the batch's own",
        [
            {"norm": norm, "batch": batch, "seed": seed, "steps": 300, "evaluate_small": norm == "batchnorm" and batch == 16}
            for norm, batch in (("batchnorm", 1), ("batchnorm", 4), ("batchnorm", 16), ("layernorm", 1), ("layernorm", 16))
            for seed in range(5)
        ],
        lambda **setting: small_models.rounded(train_language_model(**setting), 4),
    ),
)
