"""Multi-head causal self-attention."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(d_head) + mask) V, each position seeing itself and the real tokens before it.

    The four projections are kept apart (query, key, value, out), so that an initializer can treat them apart.

    Args:
        width: features of the stream, divisible by heads.
        heads: number of attention heads.

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be divisible by heads, got width={width}, heads={heads}")
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d]; attention_mask [B, T], 1 or True at real tokens, None if all are real.

        A position that may see no token at all (left padding) gets a zero mixture, with finite gradients.
        """
        B, T, d = x.shape
        q, k, v = (
            p(x).view(B, T, self.heads, d // self.heads).transpose(1, 2) for p in (self.query, self.key, self.value)
        )
        if attention_mask is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
            visible = causal & attention_mask.bool()[:, None, None, :]  # [B, 1, T, T]
            blind = ~visible.any(-1, keepdim=True)
            # A softmax over nothing is NaN: let blind positions see everything, then discard what they saw.
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible | blind)
            mixed = mixed.masked_fill(blind, 0.0)
        return self.out(mixed.transpose(1, 2).reshape(B, T, d))
