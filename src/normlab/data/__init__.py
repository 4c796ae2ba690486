"""What the course trains on: eight plays by Shakespeare as characters, and what :mod:`normlab.data.generated` makes.

Licenses: NOTICE.md in this folder.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from normlab.data.generated import Digits, copying, counting, digits, rows, zipf, zipf_entropy

__all__ = [
    "PLAYS",
    "Corpus",
    "Digits",
    "copying",
    "corpus",
    "counting",
    "digits",
    "line_sampler",
    "load_text",
    "rows",
    "sampler",
    "windows",
    "zipf",
    "zipf_entropy",
]

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


def line_sampler(
    ids: Tensor, newline: int, batch: int, longest: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor, Tensor]]:
    """Batches of random lines of ``ids`` [N], cut to ``longest`` tokens and padded on the right.

    A line ends with the token ``newline``, which is its last target; empty lines are left out. The batches are
    inputs (padded with 0), targets (with -100) and the mask of real tokens, [batch, T] with T of the longest line.

    Raises:
        ValueError: no line has a token beside its end.
    """
    ends = (ids == newline).nonzero().flatten().tolist()
    pieces = [ids[start + 1 : end + 1] for start, end in zip([-1, *ends], ends) if end - start > 1]
    if not pieces:
        raise ValueError(f"no line: {len(ids)} tokens, {len(ends)} of them the end of a line ({newline})")

    def batches(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.randint(len(pieces), (batch,), generator=generator).tolist()
        lines = [pieces[i][: longest + 1] for i in chosen]
        inputs = pad_sequence([line[:-1] for line in lines], batch_first=True)
        targets = pad_sequence([line[1:] for line in lines], batch_first=True, padding_value=-100)
        return inputs, targets, targets != -100

    return batches


def _read(name: str) -> str:
    if name not in PLAYS:
        raise ValueError(f"unknown play {name!r}; known plays: {', '.join(PLAYS)}")
    path = Path(__file__).with_name(f"{name}.txt")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != PLAYS[name]:
        raise ValueError(f"{path.name} is not the file that normlab shipped (its SHA-256 differs)")
    return content.decode("ascii")
