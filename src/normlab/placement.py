"""Where the norm stands relative to sublayer and residual addition (knob two: where to put it).

x is the residual stream, F the sublayer, N the norm.
"""

from collections.abc import Callable
from enum import Enum

from torch import Tensor, nn


class Placement(str, Enum):
    """Wiring of a residual sublayer."""

    POST = "post"
    PRE = "pre"


def post(x: Tensor, F: Callable, N: Callable) -> Tensor:
    """N(x + F(x)): the 2017 Transformer. The norm stands on the stream itself."""
    return N(x + F(x))


def pre(x: Tensor, F: Callable, N: Callable) -> Tensor:
    """x + F(N(x)): GPT-2, Llama. The norm stands at the door of the sublayer; the stream only adds."""
    return x + F(N(x))


WIRING = {Placement.POST: post, Placement.PRE: pre}


def leaves_stream_normalized(placement: Placement | str) -> bool:
    """True if the stream itself leaves the stack normalized, so that no final norm is needed."""
    return Placement(placement) is Placement.POST


class Residual(nn.Module):
    """One residual sublayer: ``sublayer`` and ``norm`` wired as ``placement`` says.

    Extra keyword arguments of the call go to the sublayer. Input and output are the stream [B, T, d].
    """

    def __init__(self, sublayer: nn.Module, norm: nn.Module, placement: Placement | str):
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm
        self.placement = Placement(placement)

    def forward(self, x: Tensor, **context) -> Tensor:
        return WIRING[self.placement](x, lambda h: self.sublayer(h, **context), self.norm)

    def extra_repr(self) -> str:
        return f"placement={self.placement.value}"
