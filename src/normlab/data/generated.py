"""Data with a known best result, made here; and scikit-learn's digits. Licenses: NOTICE.md in this folder.

All random numbers are drawn so that a seed means the same data on every machine.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def zipf(vocabulary: int, length: int, seed: int, exponent: float = 1.0) -> Tensor:
    """``length`` independent tokens [length], with the frequencies of words: P(id) ~ 1 / (id + 1)^exponent.

    Nothing can be learned but the frequencies: the best loss is :func:`zipf_entropy`.
    """
    borders = _zipf_probabilities(vocabulary, exponent).cumsum(0)[:-1]
    generator = torch.Generator().manual_seed(seed)
    return torch.searchsorted(borders, torch.rand(length, generator=generator, dtype=torch.float64), right=True)


def zipf_entropy(vocabulary: int, exponent: float = 1.0) -> float:
    """Entropy in nats of one token of :func:`zipf`."""
    return torch.special.entr(_zipf_probabilities(vocabulary, exponent)).sum().item()


def counting(modulus: int, length: int) -> Tensor:
    """The text 0 1 2 ... modulus - 1 0 1 ..., [length]: each token tells the next, so the best loss is 0."""
    return torch.arange(length) % modulus


def copying(vocabulary: int, length: int, batch: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Batches of a task that needs attention: random tokens, a separator, and the same tokens again.

    The tokens are 0 ... vocabulary - 1, the separator is ``vocabulary``; inputs and targets are
    [batch, 2 * length]. Only the repetition counts (the other targets are -100): its best loss is 0, and log of
    ``vocabulary`` without looking back.
    """

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(vocabulary, (batch, length), generator=generator)
        inputs = torch.cat([tokens, torch.full((batch, 1), vocabulary), tokens[:, :-1]], 1)
        targets = torch.cat([torch.full((batch, length), -100), tokens], 1)
        return inputs, targets

    return batches


@dataclass(frozen=True)
class Digits:
    """Handwritten digits: pixels [N, 64] between 0 and 1 in float32, and labels [N] from 0 to 9."""

    train: Tensor
    train_labels: Tensor
    val: Tensor
    val_labels: Tensor


def digits(seed: int = 0) -> Digits:
    """The 1797 images of 8 x 8 pixels that scikit-learn carries, in an order set by ``seed``; a fifth for validation.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    pixels, labels = torch.tensor(pixels, dtype=torch.float32)[order] / 16, torch.tensor(labels)[order]
    cut = len(labels) * 4 // 5
    return Digits(pixels[:cut], labels[:cut], pixels[cut:], labels[cut:])


def rows(inputs: Tensor, targets: Tensor, batch: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Batches of ``batch`` different random rows of ``inputs`` [N, ...] and ``targets`` [N].

    Raises:
        ValueError: fewer than ``batch`` rows.
    """
    if batch > len(inputs):
        raise ValueError(f"a batch of {batch} different rows cannot be drawn from {len(inputs)}")

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(len(inputs), generator=generator)[:batch].to(inputs.device)
        return inputs[chosen], targets[chosen]

    return batches


def _zipf_probabilities(vocabulary: int, exponent: float) -> Tensor:
    weights = torch.tensor([math.pow(rank, -exponent) for rank in range(1, vocabulary + 1)], dtype=torch.float64)
    return weights / weights.sum()
