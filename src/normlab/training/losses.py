"""The loss: cross-entropy over the targets that count."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normlab.arithmetic import check_mask

IGNORED = -100  # a target that does not count, as in torch


def summed_loss(
    model: nn.Module, inputs: Tensor, targets: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats summed over the targets that count, and their number, as scalar tensors.

    Args:
        model: returns logits [..., V], or an object with such ``logits`` (as transformers' models do).
        targets: [...]; those of -100 do not count.
        mask: attention mask of the shape of targets, 1 or True at real tokens; the model receives it, and targets
            at other places do not count. A model that gets None is called without.

    Logits at places that do not count have no influence, on gradients either, not even NaN.

    Raises:
        TypeError, ValueError: a mask that is none, as in :func:`normlab.arithmetic.check_mask`.
    """
    if mask is None:
        output = model(inputs)
    else:
        real = check_mask("mask", mask, targets.shape)
        output = model(inputs, attention_mask=mask)
        targets = targets.masked_fill(~real, IGNORED)
    logits = getattr(output, "logits", output)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    ignored = targets == IGNORED
    logits = logits.masked_fill(ignored[..., None], 0.0)  # the backward pass would make NaN of 0 * NaN there
    total = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, (~ignored).sum()


def next_token_loss(model: nn.Module, inputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean cross-entropy of the ``targets`` that count under the model's logits, in nats; see :func:`summed_loss`.

    NaN if no target counts.
    """
    total, count = summed_loss(model, inputs, targets, mask)
    return total / count
