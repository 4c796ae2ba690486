"""``normlab.doctor(model, batch)``: is something wrong with the norms of a model, and with what they should keep in
bounds? One batch, a few passes, no training."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.findings import Finding
from normlab.inspection.diagnosis_drawings import Drawing


@dataclass(frozen=True)
class Row:
    """A measured number, as text, beside what healthy small models show ("" where that says nothing)."""

    name: str
    value: str
    healthy: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What :func:`doctor` found; print it, or let a notebook show it.

    Attributes:
        model: name of its class.
        findings: the worst first; empty if nothing was found.
        table: what was measured.
        figures: two drawings: sizes over depth, and gradients and attention logits over depth.
        not_measured: (what, why) for each measurement that could not be made here.
        not_visible: (fault, why) for faults that a model, a batch and an optimizer do not show.
    """

    model: str
    findings: tuple[Finding, ...]
    table: tuple[Row, ...]
    figures: tuple[Drawing, ...]
    not_measured: tuple[tuple[str, str], ...]
    not_visible: tuple[tuple[str, str], ...]

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the findings, keys of :data:`normlab.inspection.findings.KINDS`."""
        return tuple(dict.fromkeys(finding.id for finding in self.findings))


def doctor(
    model: nn.Module,
    batch: Tensor | Mapping[str, Any],
    loss: Callable[[Any, Mapping[str, Any]], Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> Diagnosis:
    """Measure what goes wrong with norms, on one batch.

    Args:
        model: a Transformer of this package, of ``transformers``, or the reader's own.
        batch: ids [B, T], or a dictionary of arguments for the model's call.
        loss: ``loss(output, batch)``, a scalar, with what the model returned and the dictionary of its arguments. None:
            the ``loss`` that the model returned if there is one, else next-token cross-entropy.
        optimizer: for what only it shows; it is not stepped.
    """
    raise NotImplementedError
