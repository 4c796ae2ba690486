"""What :func:`normlab.doctor` may find: names, what each means, what to try, and the chapter that explains it."""

from dataclasses import dataclass
from enum import Enum


class Severity(str, Enum):
    """How bad it is."""

    ERROR = "error"  # numbers are wrong, or something can't learn
    WARNING = "warning"  # measured outside of what healthy small models show, or a structure that is probably a slip


@dataclass(frozen=True)
class Kind:
    """A kind of finding: how bad, what to try, and the page of the book (without ending) that explains it."""

    severity: Severity
    advice: str
    chapter: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong or suspicious: ``id`` is a key of ``KINDS``, ``text`` has the measured numbers."""

    id: str
    text: str

    @property
    def severity(self) -> Severity:
        return KINDS[self.id].severity

    @property
    def advice(self) -> str:
        """What to try."""
        return KINDS[self.id].advice

    @property
    def chapter(self) -> str:
        """The page of the book, as a path without ending."""
        return KINDS[self.id].chapter

    def __str__(self) -> str:
        return f"{self.severity.value} {self.id}: {self.text} Try: {self.advice} ({self.chapter})"


_LAYERNORM, _RMSNORM = "notebooks/03_layernorm", "notebooks/04_rmsnorm"
_BATCHNORM, _PLACEMENT = "notebooks/02_batchnorm_pitfalls", "notebooks/05_placement"
_POST_LN, _ROADS, _BREAKS = (
    "notebooks/07_why_post_ln_is_hard",
    "notebooks/08_roads_after",
    "notebooks/11_when_training_breaks",
)

KINDS: dict[str, Kind] = {
    "nonfinite-forward": Kind(Severity.ERROR, "repair the module that is named; later ones only pass it on.", _BREAKS),
    "nonfinite-backward": Kind(
        Severity.ERROR,
        "look at roots and quotients in the module that is named; an eps inside of the root keeps its slope finite.",
        _BREAKS,
    ),
    "norm-overflow": Kind(
        Severity.ERROR, "compute the squares in float32 and cast back at the end of the norm.", _RMSNORM
    ),
    "norm-inexact": Kind(
        Severity.ERROR,
        "compute mean and mean square in float32, in two passes, and cast back at the end of the norm.",
        _LAYERNORM,
    ),
    "eps-too-large": Kind(Severity.WARNING, "a smaller eps, or a larger input: scale the embeddings up.", _RMSNORM),
    "eps-vanishes": Kind(
        Severity.ERROR,
        "compute the statistic in float32; an eps that float16 can hold (1e-7 or more) saves the forward pass only.",
        _RMSNORM,
    ),
    "eps-outside-root": Kind(
        Severity.WARNING, "put eps under the root: sqrt(m + eps) has a slope at 0, sqrt(m) + eps has none.", _RMSNORM
    ),
    "slope-overflows": Kind(
        Severity.WARNING,
        "compute the norm in float32; the slope at 0 is only 1 / sqrt(eps), but the way back may pass eps ** -1.5.",
        _RMSNORM,
    ),
    "gain-convention": Kind(
        Severity.ERROR,
        "compare how the checkpoint stores its gains (w or 1 + w) with how the code reads them.",
        _RMSNORM,
    ),
    "gain-dead": Kind(
        Severity.WARNING,
        "look at how this gain was initialized, loaded or decayed; in a fresh model it is 1 (stored as 1 + w: w = 0).",
        _BREAKS,
    ),
    "gain-large": Kind(
        Severity.WARNING,
        "look at how this gain was initialized or loaded; in a fresh model it is 1 (stored as 1 + w: w = 0).",
        _BREAKS,
    ),
    "gains-cannot-move": Kind(
        Severity.ERROR,
        "keep a float32 master copy of the gains, store them as 1 + w, or leave norm parameters in float32.",
        _BREAKS,
    ),
    "decay-on-gains": Kind(
        Severity.WARNING,
        "put the parameters of norms in a group of their own with weight_decay=0, chosen by the type of their module.",
        _BREAKS,
    ),
    "attention-logits": Kind(
        Severity.WARNING,
        "QK-norm, a smaller learning rate, or (in a fresh model) smaller query and key matrices.",
        _ROADS,
    ),
    "entropy-collapse": Kind(
        Severity.WARNING, "QK-norm, or smaller query and key matrices at the start; see the attention logits.", _ROADS
    ),
    "context-ignored": Kind(
        Severity.ERROR,
        "Pre-Norm or DeepNorm, a smaller learning rate with a longer warm-up, and a look at positions and masks.",
        _POST_LN,
    ),
    "norm-across-tokens": Kind(
        Severity.ERROR, "take the statistic over the features of one token only (the last axis).", _BATCHNORM
    ),
    "future-leaks": Kind(Severity.ERROR, "look at the causal mask and at whatever mixes tokens.", _BREAKS),
    "rows-leak": Kind(Severity.ERROR, "look for a sum, a mean or a sort over the rows of the batch.", _BATCHNORM),
    "padding-leaks": Kind(
        Severity.ERROR,
        "hide padded keys from every query: the type's minimum where the mask is 0 "
        "(-inf makes NaN of a row that sees nothing).",
        _BREAKS,
    ),
    "mask-hides-tokens": Kind(
        Severity.ERROR,
        "look at the sign of the mask: 1 at real tokens, and `mask.bool()` of an additive mask inverts it.",
        _BREAKS,
    ),
    "final-norm-missing": Kind(Severity.WARNING, "a norm between the last block and the head.", _PLACEMENT),
    "norm-twice": Kind(Severity.WARNING, "take one of the two norms away.", _PLACEMENT),
    "alpha-on-branch": Kind(Severity.ERROR, "DeepNorm is N(alpha x + F(x)): alpha belongs to the stream.", _PLACEMENT),
    "qk-norm-after-rope": Kind(
        Severity.WARNING, "norm queries and keys before they are turned, or share gains within each pair.", _ROADS
    ),
    "positions-not-relative": Kind(
        Severity.WARNING,
        "look at what stands between the rotation and the scores; turn queries and keys alike.",
        _ROADS,
    ),
    "loss-above-uniform": Kind(
        Severity.WARNING,
        "a smaller head: with a tied one divide the logits by sqrt(d) or draw the table with std 1/sqrt(d).",
        _PLACEMENT,
    ),
}

# Faults that a model, a batch and an optimizer do not show.
NOT_VISIBLE: tuple[tuple[str, str], ...] = (
    ("a mean of means over unequal batches", "it happens in the training loop; compare with sum of losses / tokens"),
    ("the order of casts after a port", "needs the original: compare logits with random gains; inspect names it"),
    ("gains permuted, or a bias left out", "needs the original: compare logits with random gains and biases"),
    ("a gain per head read as one over all heads", "needs the original; inspect says which of the two the model has"),
    ("writers drawn without 1/sqrt(2 L), or too large", "fresh healthy families differ more in how the stream grows"),
    ("statistics of an RMSNorm in bf16", "their error is below the rounding of the output"),
    ("decay or a learning rate that harms later", "only a run with and without tells"),
)
