"""Where the norm stands relative to sublayer and residual addition (knob two: where to put it).

x is the residual stream, F the sublayer, N a norm before it or on the stream, O a norm on what it returns.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial

from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]


class Placement(str, Enum):
    """Wiring of a residual sublayer; ``WIRING`` has the line of each."""

    POST = "post"
    PRE = "pre"
    PERI = "peri"
    OUTPUT = "output"
    DEEPNORM = "deepnorm"
    PARALLEL = "parallel"
    HYBRID = "hybrid"
    NONE = "none"


def post(x: Tensor, F: Map, N: Map) -> Tensor:
    """N(x + F(x)): the 2017 Transformer, BERT. The norm stands on the stream itself."""
    return N(x + F(x))


def pre(x: Tensor, F: Map, N: Map) -> Tensor:
    """x + F(N(x)): GPT-2, Llama. The norm stands at the door of the sublayer; the stream only adds."""
    return x + F(N(x))


def peri(x: Tensor, F: Map, N: Map, O: Map) -> Tensor:
    """x + O(F(N(x))): Peri-LN (arXiv:2502.02732), Gemma 2. The block form of Sandwich-LN (arXiv:2105.13290)."""
    return x + O(F(N(x)))


def output(x: Tensor, F: Map, O: Map) -> Tensor:
    """x + O(F(x)): OLMo 2 (arXiv:2501.00656). The sublayer reads the bare stream; what it returns is normed."""
    return x + O(F(x))


def deepnorm(x: Tensor, F: Map, N: Map, alpha: float) -> Tensor:
    """N(alpha x + F(x)): DeepNet (arXiv:2203.00555). Post-Norm with the stream, not the branch, turned up."""
    return N(alpha * x + F(x))


def parallel(x: Tensor, F: Map, h: Tensor) -> Tensor:
    """x + F(h), h = N(block input): GPT-J, GPT-NeoX, Cohere.

    Both sublayers of a block read the block input, so that the block computes x + A(N(x)) + M(N(x)); the norm is
    one for both or one for each. Increments arrive one after the other: for the second sublayer, x already holds
    the first one's.
    """
    return x + F(h)


def hybrid(x: Tensor, F: Map, N: Map) -> Tensor:
    """F(N(x)) + N(x): the MLP of HybridNorm (arXiv:2503.04598); the skip starts behind the norm.

    For its attention N is the identity: there the norms stand on queries, keys and values.
    """
    h = N(x)
    return F(h) + h


def none(x: Tensor, F: Map) -> Tensor:
    """x + F(x): no norm in the block; depth is kept in check by the initialization (T-Fixup).

    Like every stack whose stream leaves un-normalized, this one gets a final norm unless told not to.
    """
    return x + F(x)


WIRING: dict[Placement, Callable[..., Tensor]] = {
    Placement.POST: post,
    Placement.PRE: pre,
    Placement.PERI: peri,
    Placement.OUTPUT: output,
    Placement.DEEPNORM: deepnorm,
    Placement.PARALLEL: parallel,
    Placement.HYBRID: hybrid,
    Placement.NONE: none,
}

# A norm N that the wiring cannot do without, and a norm O on what the sublayer returns.
WITH_NORM = (Placement.POST, Placement.PRE, Placement.PERI, Placement.DEEPNORM, Placement.HYBRID)
WITH_OUTPUT_NORM = (Placement.PERI, Placement.OUTPUT)


def leaves_stream_normalized(placement: Placement | str) -> bool:
    """True if the stream itself leaves the sublayer normalized, so that a stack needs no final norm."""
    return Placement(placement) in (Placement.POST, Placement.DEEPNORM)


def deepnorm_single(layers: int) -> tuple[float, float]:
    """(alpha, beta) of DeepNorm for a stack on its own, encoder-only or decoder-only, of ``layers`` blocks.

        alpha = (2 L)^(1/4),  beta = (8 L)^(-1/4);  their product is 1/sqrt(2) at every depth

    alpha multiplies the stream in every sublayer. beta multiplies, at initialization only, the gain of the MLP
    matrices and of attention's value and output projections, not of query and key.

    Source: Wang et al. 2022, arXiv:2203.00555.
    """
    _check_layers(layers=layers)
    return (2 * layers) ** 0.25, (8 * layers) ** -0.25


def deepnorm_encoder_decoder(
    encoder_layers: int, decoder_layers: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(alpha, beta) of the encoder and (alpha, beta) of the decoder, for N encoder and M decoder blocks.

        encoder: alpha = 0.81 (N^4 M)^(1/16),  beta = 0.87 (N^4 M)^(-1/16)
        decoder: alpha = (3 M)^(1/4),          beta = (12 M)^(-1/4)

    These are the paper's constants. The authors' later library torchscale starts the encoder with 1.15 in the
    place of 0.87.

    Source: Wang et al. 2022, arXiv:2203.00555.
    """
    _check_layers(encoder_layers=encoder_layers, decoder_layers=decoder_layers)
    mixed = (encoder_layers**4 * decoder_layers) ** (1 / 16)
    return (0.81 * mixed, 0.87 / mixed), ((3 * decoder_layers) ** 0.25, (12 * decoder_layers) ** -0.25)


def tfixup_gain(layers: int, constant: float = 9.0) -> float:
    """Initial gain (constant * L)^(-1/4) of the matrices that T-Fixup scales down, in a stack of L blocks.

    The exponent -1/4 comes from the paper's argument: a branch multiplies two scaled matrices, and the squares of
    the L branches must sum to a constant. The constants that were published belong to the two halves of an
    encoder-decoder: 9 for the decoder, 0.67 L^(-1/4) for the encoder (as ``constant``: 0.67^-4 = 4.96). For a
    decoder-only stack there is none; the default is the decoder's, the more cautious of the two.

    Source: Huang et al. 2020, ICML, "Improving Transformer Optimization Through Better Initialization".
    """
    _check_layers(layers=layers)
    if not constant > 0:
        raise ValueError(f"constant must be above 0, got {constant}")
    return (constant * layers) ** -0.25


def _check_layers(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def apply_norm(norm: nn.Module | None, x: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """scale * norm(x) of x [B, T, d], or scale * x without a norm; ``mask`` [B, T] is for norms that mix tokens."""
    if norm is not None:
        x = norm(x) if mask is None else norm(x, mask)
    return x if scale == 1.0 else scale * x


class Residual(nn.Module):
    """One residual sublayer: ``sublayer`` and its norms wired as ``placement`` says.

    Forward hooks on the module see the stream before (first input) and after (output), hooks on ``sublayer`` see
    what it was given and what it returned. With PERI and OUTPUT the stream grows by ``output_norm`` of that. With
    PARALLEL the stream before a block's second sublayer holds the first one's increment already, though the sublayer
    does not see it. With HYBRID the MLP adds to its own input, not to the stream.

    Args:
        sublayer: maps [B, T, d] to [B, T, d].
        norm: on the sublayer's input, or for POST and DEEPNORM on the stream; None where the placement has none.
        placement: a :class:`Placement` or its string.
        output_norm: on what the sublayer returns, for PERI and OUTPUT.
        alpha: weight of the stream in DEEPNORM.
        norm_scale: factor on the output of every norm; see ``output_scale`` of
            :class:`normlab.transformer.TransformerConfig`.

    Raises:
        ValueError: unknown placement, or one of the norms that it needs is missing.
    """

    def __init__(
        self,
        sublayer: nn.Module,
        norm: nn.Module | None,
        placement: Placement | str,
        *,
        output_norm: nn.Module | None = None,
        alpha: float = 1.0,
        norm_scale: float = 1.0,
    ):
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm
        self.output_norm = output_norm
        self.placement = Placement(placement)
        self.alpha = alpha
        self.norm_scale = norm_scale
        for name, given, needed in (("norm", norm, WITH_NORM), ("output_norm", output_norm, WITH_OUTPUT_NORM)):
            if given is None and self.placement in needed:
                raise ValueError(f"placement {self.placement.value} needs {name}, got None")

    def forward(self, x: Tensor, normed: Tensor | None = None, **context) -> Tensor:
        """Stream x [B, T, d] -> stream [B, T, d]. Extra keyword arguments go to the sublayer.

        ``normed`` [B, T, d] is for PARALLEL: the block input behind its norm. Without it, x goes through ``norm``.
        """
        mask, scale = context.get("attention_mask"), self.norm_scale
        F = partial(self.sublayer, **context)
        N = partial(apply_norm, self.norm, mask=mask, scale=scale)
        O = partial(apply_norm, self.output_norm, mask=mask, scale=scale)
        match self.placement:
            case Placement.POST:
                return post(x, F, N)
            case Placement.PRE:
                return pre(x, F, N)
            case Placement.PERI:
                return peri(x, F, N, O)
            case Placement.OUTPUT:
                return output(x, F, O)
            case Placement.DEEPNORM:
                return deepnorm(x, F, N, self.alpha)
            case Placement.PARALLEL:
                return parallel(x, F, N(x) if normed is None else normed)
            case Placement.HYBRID:
                return hybrid(x, F, N)
            case Placement.NONE:
                return none(x, F)

    def extra_repr(self) -> str:
        return f"placement={self.placement.value}"
