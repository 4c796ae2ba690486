"""The backward passes of LayerNorm and RMSNorm by hand.

With r = 1/sqrt(var + eps) (RMSNorm: of the mean square), x̂ the normalized vector and u = weight * grad:

    LayerNorm   dx = r (u - mean(u) - x̂ mean(u x̂))    dweight = sum grad x̂    dbias = sum grad
    RMSNorm     dx = r (u - x̂ mean(u x̂))              dweight = sum grad x̂

Means run over the features of a token, sums over all tokens. Both are exact for every eps, because x̂ carries the
same r: no further term is needed although mean(x̂^2) falls short of 1.
"""

import torch
from torch import Tensor

from normlab import functional
from normlab.arithmetic import affine, check, check_tensor, normalize, widen


def layer_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of :func:`normlab.functional.layer_norm` with respect to x, weight and bias.

    Args:
        grad: gradient of the loss with respect to the output, shape of x.
        x: the input [..., d].
        weight: gain [d], or None for 1.
        eps: as in the forward pass.

    Returns:
        dx in shape and dtype of x; dweight and dbias [d] in the dtype of weight, of x where that is None.

    Raises:
        TypeError, ValueError: as in :func:`normlab.functional.layer_norm`; grad is not of the shape of x.
    """
    scores, rate, scaled = _prepare(grad, x, weight, eps, center=True)
    pull = scaled.mean(-1, keepdim=True) + scores * (scaled * scores).mean(-1, keepdim=True)
    kind = x.dtype if weight is None else weight.dtype
    wide = widen(grad)
    return (rate * (scaled - pull)).to(x.dtype), _over_tokens(wide * scores).to(kind), _over_tokens(wide).to(kind)


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None = None, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Gradients of :func:`normlab.functional.rms_norm` with respect to x and weight.

    Arguments, results and errors as in :func:`layer_norm_backward`, without dbias.
    """
    scores, rate, scaled = _prepare(grad, x, weight, eps, center=False)
    pull = scores * (scaled * scores).mean(-1, keepdim=True)
    kind = x.dtype if weight is None else weight.dtype
    return (rate * (scaled - pull)).to(x.dtype), _over_tokens(widen(grad) * scores).to(kind)


class LayerNormFunction(torch.autograd.Function):
    """``LayerNormFunction.apply(x, weight, bias, eps)``: layer_norm whose gradient is ours, not autograd's.

    It keeps x and weight for the backward pass, can be differentiated twice, and wants a weight and a bias.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return functional.layer_norm(x, weight, bias, eps)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return *layer_norm_backward(grad, x, weight, ctx.eps), None


class RMSNormFunction(torch.autograd.Function):
    """``RMSNormFunction.apply(x, weight, eps)``: the same for rms_norm."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return functional.rms_norm(x, weight, eps)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return *rms_norm_backward(grad, x, weight, ctx.eps), None


def _prepare(grad: Tensor, x: Tensor, weight: Tensor | None, eps: float, center: bool) -> tuple[Tensor, Tensor, Tensor]:
    """x̂, r [..., 1] and u = weight * grad."""
    check(x, eps, weight=weight)
    check_tensor("grad", grad)
    if grad.shape != x.shape:
        raise ValueError(f"grad must have the shape {tuple(x.shape)} of x, got {tuple(grad.shape)}")
    scores, rate = normalize(widen(x), eps, center=center)
    return scores, rate, affine(widen(grad), weight, None)


def _over_tokens(x: Tensor) -> Tensor:
    return x.flatten(0, -2).sum(0) if x.dim() > 1 else x
