"""What the chapters' small language models share: the text that they read, and how they are trained."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from normlab import data, device, training
from normlab.config import TransformerConfig
from normlab.norms import NormKind
from normlab.transformer import Transformer

TOKENS = 32
BATCH = 16


@cache  # to read a play takes 30 ms, as long as a step of training
def _corpus(plays: tuple[str, ...] = ("hamlet",)) -> data.Corpus:
    return data.corpus(plays)


def model(seed: int, *, plays: Sequence[str] = ("hamlet",), **options: Any) -> Transformer:
    """A Transformer for the characters of the plays and TOKENS of them at a time.

    LayerNorm and 4 heads, unless ``options`` of :class:`normlab.config.TransformerConfig` say otherwise.
    """
    settings = {"context": TOKENS, "heads": 4, "norm": NormKind.LAYERNORM} | options
    return Transformer(TransformerConfig(vocab_size=len(_corpus(tuple(plays)).vocabulary), **settings), seed)


def train(
    model: nn.Module,
    steps: int,
    lr: float,
    seed: int,
    *,
    plays: Sequence[str] = ("hamlet",),
    batch: int = BATCH,
    tokens: int = TOKENS,
    progress: str | None = None,
    **options: Any,
) -> training.History:
    """Train a model in place on the characters of the plays, on one thread.

    A tenth of the steps warms up, a cosine ends at 0, gradients are clipped at norm 1 and nothing decays, unless
    ``options`` of :func:`normlab.training.train` say otherwise. The same seed means the same batches.
    """
    text = _corpus(tuple(plays)).train.to(device.pick())
    settings = {"warmup": steps // 10, "floor": 0.0, "clip": 1.0} | options
    with device.single_thread():
        model.to(device.pick())
        return training.train(
            model, data.sampler(text, batch, tokens), steps, lr=lr, seed=1000 + seed, progress=progress, **settings
        )


def validation_loss(model: nn.Module, plays: Sequence[str] = ("hamlet",), *, count: int = 8) -> float:
    """Loss on the held-out part of the plays, in nats per character."""
    return training.validation_loss(model, data.sampler(_corpus(tuple(plays)).val, BATCH, TOKENS), count=count)


def passages(sequences: int = BATCH, tokens: int = TOKENS, seed: int = 99) -> tuple[Tensor, Tensor]:
    """Inputs and targets [sequences, tokens] from the held-out part of *Hamlet*."""
    return data.windows(_corpus().val, sequences, tokens, torch.Generator().manual_seed(seed))


@cache  # a record of runs asks once a run
def character_entropy() -> float:
    """Entropy in nats of single characters of *Hamlet*: the loss of a model that has learned no more than how often
    each one occurs."""
    share = torch.bincount(_corpus().train).double() / len(_corpus().train)
    return torch.special.entr(share).sum().item()


def five_digits(value: Any) -> Any:
    """:func:`rounded` to the digits that a record keeps."""
    return rounded(value, 5)


def rounded(value: Any, digits: int) -> Any:
    """All floats in a nest of dicts and lists to so many significant digits."""
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v, digits) for v in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
