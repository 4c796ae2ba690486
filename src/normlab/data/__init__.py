"""Text that the course trains on: eight plays by Shakespeare as characters. License: NOTICE.md in this folder."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

PLAYS = {  # name: SHA-256 of the file
    "hamlet": "51784a68ab3d26d2fc89ed47dbbf8a3acec3193c555be7cd6aac4d0f7e58759f",
    "macbeth": "b6471b98b237fd98ecf897feeeb7e8a62c77699ea027fc20972d00f75595f17f",
    "othello": "1a79915ff56ecbb15be5dbd241e7b29109a90c82182e06117ac4fc40f268d392",
    "lear": "2816e22fe7796e72ca7ee714a2465889f78123cb489cd700db10042305493148",
    "romeo_and_juliet": "bf05ac091e375d0e9c165e807bdcc3d90b962efdde9d54675856c90ef5dad0a2",
    "julius_caesar": "0bc92620abefbf39fdf132a51467cf63f34b52d522b1e1e000a32bf53790a9d4",
    "midsummer_nights_dream": "51c1ac7dd667515c5275a2c0d460fe756c99720c062e39e411361f1909e549f7",
    "tempest": "836e3d85e4125432464f5e3db55427db93dafb81f9af055417aaf3048c5a3efc",
}


@dataclass(frozen=True)
class Corpus:
    """Text as character ids.

    ``vocabulary`` is the sorted string of distinct characters, ``train`` [N] and ``val`` [M] hold their ids:
    the first nine tenths of the text, and the rest.
    """

    vocabulary: str
    train: Tensor
    val: Tensor

    def decode(self, ids: Tensor) -> str:
        """Ids [T] back to text."""
        return "".join(self.vocabulary[i] for i in ids.tolist())


def load_text(plays: Sequence[str] = ("hamlet",)) -> str:
    """The text of the named plays, one after the other.

    Raises:
        ValueError: unknown name (lists the names), or a file that differs from the one this package shipped.
        FileNotFoundError: a standalone notebook carries only the play that it reads.
    """
    return "".join(_read(name) for name in plays)


def corpus(plays: Sequence[str] = ("hamlet",)) -> Corpus:
    """The named plays as a :class:`Corpus`."""
    text = load_text(plays)
    vocabulary = "".join(sorted(set(text)))
    index = {c: i for i, c in enumerate(vocabulary)}
    ids = torch.tensor([index[c] for c in text])
    cut = len(ids) * 9 // 10
    return Corpus(vocabulary, ids[:cut], ids[cut:])


def windows(ids: Tensor, batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """``batch`` random windows of ``ids`` [N] and their next tokens: inputs and targets [batch, length].

    The starts are drawn on the CPU from ``generator``, whatever device ``ids`` is on.
    """
    if len(ids) <= length:
        raise ValueError(f"a text of {len(ids)} tokens has no window of {length} tokens and their successors")
    starts = torch.randint(len(ids) - length, (batch,), generator=generator)
    rows = (starts[:, None] + torch.arange(length)).to(ids.device)
    return ids[rows], ids[rows + 1]


def sampler(ids: Tensor, batch: int, length: int) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """:func:`windows` with everything but the generator filled in: what :func:`normlab.training.train` reads."""
    return lambda generator: windows(ids, batch, length, generator)


def _read(name: str) -> str:
    if name not in PLAYS:
        raise ValueError(f"unknown play {name!r}; known plays: {', '.join(PLAYS)}")
    path = Path(__file__).with_name(f"{name}.txt")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != PLAYS[name]:
        raise ValueError(f"{path.name} is not the file that normlab shipped (its SHA-256 differs)")
    return content.decode("ascii")
