"""Multi-head self-attention: masks, grouped heads, rotary positions, and norms on queries and keys."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normlab.arithmetic import check_count, check_mask, check_number, fill_padding
from normlab.norms import Identity, RMSNorm


class QKNorm(str, Enum):
    """Whether queries and keys are normed, and over what."""

    NONE = "none"
    PER_HEAD = "per_head"  # each head on its own, one gain [head_dim] for all heads: Qwen3, Gemma 3
    JOINT = "joint"  # the whole projection, so that heads share one scale: OLMo 2


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (RoPE): pairs of features turn by an angle that grows with the position.

    Features i and i + n/2 of the first n = ``features`` of a head are one pair; at position m it turns by
    m * base^(-2 i / n). Scores then depend on distances only, and norms do not change. The rest stays as it is.

    Args:
        features: n, even.
        base: wavelengths run from 2 pi to nearly 2 pi * base.
        angles: dtype in which angles are computed. Published code uses float32, in which an angle at position 2000 is
            off by up to 1e-4; a model that was trained so must be run so to give the same logits.

    Source: Su et al. 2021, arXiv:2104.09864, with the pairs of GPT-NeoX and Llama (theirs are neighbors).
    """

    features: int
    base: float = 10000.0
    angles: torch.dtype = torch.float64

    def __post_init__(self):
        if self.features < 2 or self.features % 2:
            raise ValueError(f"rotary features must be even and at least 2, got {self.features}")
        check_number("rotary base", self.base, above=0)

    def __call__(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Turn x [B, T, heads, head_dim] to the positions [T] or [B, T]; half types are turned in float32."""
        wide = torch.float32 if x.device.type == "mps" else self.angles
        pair = torch.arange(0, self.features, 2, dtype=wide, device=x.device)
        frequency = 1.0 / self.base ** (pair / self.features)
        angle = position_ids.to(x.device, wide)[..., None, None] * frequency
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)  # [T, 1, n/2] or [B, T, 1, n/2]
        turning, rest = x[..., : self.features], x[..., self.features :]
        a, b = turning.to(dtype).chunk(2, -1)
        return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), rest], -1)


def visibility(
    tokens: int,
    *,
    causal: bool = True,
    window: int | None = None,
    attention_mask: Tensor | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Which keys each query may see: bool [1, 1, T, T] (query, key), or [B, 1, T, T] with a mask.

    Args:
        causal: only keys at or before the query.
        window: only keys less than ``window`` positions away, so that a causal row sees ``window`` keys, its own
            included.
        attention_mask: [B, T], 1 or True at real tokens; keys at other positions are hidden from every query.

    Raises:
        TypeError, ValueError: a mask that is none, as in :func:`normlab.arithmetic.check_mask`.
    """
    if attention_mask is not None:
        attention_mask = check_mask("attention_mask", attention_mask, ("B", tokens))
    return _visible(tokens, causal, window, attention_mask, device)


def _visible(
    tokens: int, causal: bool, window: int | None, real: Tensor | None, device: torch.device | None
) -> Tensor:
    """:func:`visibility` with a mask that has been checked."""
    position = torch.arange(tokens, device=device)
    distance = position[:, None] - position  # query minus key
    visible = distance >= (0 if causal else -tokens)  # without causal: all
    if window is not None:
        visible = visible & (distance.abs() < window)
    if real is None:
        return visible[None, None]
    return visible & real[:, None, None, :]


class SelfAttention(nn.Module):
    """softmax(scale * Q K^T + mask) V, with everything that the families of :mod:`normlab.families` add to it.

    The four projections are kept apart (query, key, value, out), so that an initializer can treat them apart.
    Order of operations on queries and keys: projection, norm, rotation (or rotation, norm), scale, soft-cap, mask.

    Args:
        width: features d of the stream.
        heads: number of query heads.
        kv_heads: number of key and value heads, each shared by heads / kv_heads query heads. None: as many as heads.
        head_dim: features per head. None: width / heads.
        causal: False lets every position see every other (an encoder).
        bias: of the four projections.
        qk_norm: see :class:`QKNorm`.
        value_norm: values are normed like queries and keys (HybridNorm).
        make_norm: builds a norm from a width, for ``qk_norm`` and ``value_norm``.
        rotary: turns queries and keys by their position; None for no rotation.
        norm_after_rotary: norm queries and keys behind the rotation instead of before it.
        scale: of the scores. None: head_dim^(-1/2).
        softcap: scores s become softcap * tanh(s / softcap); None for no cap.
        window: how many positions a row sees, see :func:`visibility`; None for no limit.

    Raises:
        TypeError: a size that is no integer, a scale or cap that is no number.
        ValueError: heads do not divide width (without head_dim), kv_heads does not divide heads, a number that must be
            positive is not, or one that must be finite is not.

    Source: Vaswani et al. 2017, arXiv:1706.03762; grouped heads: Ainslie et al. 2023, arXiv:2305.13245; QK-norm:
    Henry et al. 2020, arXiv:2010.04245; soft-cap: Gemma 2, arXiv:2408.00118.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = True,
        bias: bool = False,
        qk_norm: QKNorm | str = QKNorm.NONE,
        value_norm: bool = False,
        make_norm: Callable[[int], nn.Module] = RMSNorm,
        rotary: Rotary | None = None,
        norm_after_rotary: bool = False,
        scale: float | None = None,
        softcap: float | None = None,
        window: int | None = None,
    ):
        super().__init__()
        for name, size in (("width", width), ("heads", heads), ("head_dim", head_dim), ("window", window)):
            if size is not None:
                check_count(name, size)
        if scale is not None:
            check_number("scale", scale)
        if softcap is not None:
            check_number("softcap", softcap, above=0)
        if head_dim is None and width % heads:
            raise ValueError(f"width must be divisible by heads, got width={width}, heads={heads}")
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_dim = width // heads if head_dim is None else head_dim
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise ValueError(f"heads must be divisible by kv_heads, got heads={heads}, kv_heads={kv_heads}")
        if rotary is not None and rotary.features > self.head_dim:
            raise ValueError(f"rotary features must not exceed head_dim={self.head_dim}, got {rotary.features}")
        self.causal, self.window = causal, window
        self.rotary, self.norm_after_rotary = rotary, norm_after_rotary
        self.scale, self.softcap = scale, softcap
        self.qk_norm = QKNorm(qk_norm)
        self.query = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.key = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.value = nn.Linear(width, self.kv_heads * self.head_dim, bias=bias)
        self.out = nn.Linear(heads * self.head_dim, width, bias=bias)
        joint, has_norm = self.qk_norm is QKNorm.JOINT, self.qk_norm is not QKNorm.NONE
        query_size = self.head_dim * (heads if joint else 1)
        key_size = self.head_dim * (self.kv_heads if joint else 1)
        self.query_norm = make_norm(query_size) if has_norm else Identity()
        self.key_norm = make_norm(key_size) if has_norm else Identity()
        self.value_norm = make_norm(key_size) if value_norm else Identity()

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """x [B, T, d] -> [B, T, d].

        A position that may see no token at all (left padding) returns zero, with finite gradients. What x holds at
        padded places has no influence, not even NaN.

        Args:
            attention_mask: [B, T], 1 or True at real tokens, None if all are real.
            position_ids: [T] or [B, T], for the rotation; None means 0, 1, 2, ...

        Raises:
            TypeError, ValueError: a mask that is none, as in :func:`normlab.arithmetic.check_mask`; x of other than
                three axes.
        """
        q, k, v = self.heads_of(x, attention_mask, position_ids)
        window = self.window if self.window is not None and self.window < x.shape[1] else None
        if attention_mask is None and window is None and self.softcap is None:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)
            return self.out(mixed.transpose(1, 2).flatten(2))
        real = None if attention_mask is None else attention_mask.bool()
        visible = _visible(x.shape[1], self.causal, window, real, x.device)
        # A softmax over nothing is NaN: let blind positions see everything, then discard what they saw.
        blind = ~visible.any(-1, keepdim=True)  # [B, 1, T, 1]
        visible = visible | blind
        if self.softcap is None:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=self.scale)
        else:
            scores = self._scores(q, k).masked_fill(~visible, float("-inf"))
            weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
            mixed = weights.to(v.dtype) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)).masked_fill(blind[:, 0], 0.0)

    def heads_of(
        self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of x [B, T, d] as they meet, each [B, heads, T, head_dim]; shared ones repeated."""
        if x.dim() != 3:
            raise ValueError(f"x must have shape [B, T, d], got {tuple(x.shape)}")
        if attention_mask is not None:
            attention_mask = check_mask("attention_mask", attention_mask, x.shape[:2])
            x = fill_padding(x, attention_mask)

        def place(x: Tensor, norm: nn.Module) -> Tensor:
            if self.rotary is None:
                return self._norm(norm, x, attention_mask)
            positions = torch.arange(x.shape[1], device=x.device) if position_ids is None else position_ids
            if self.norm_after_rotary:
                return self._norm(norm, self.rotary(x, positions), attention_mask)
            return self.rotary(self._norm(norm, x, attention_mask), positions)

        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)) for p in (self.query, self.key, self.value))
        q, k, v = place(q, self.query_norm), place(k, self.key_norm), self._norm(self.value_norm, v, attention_mask)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        group = self.heads // self.kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return q, k, v

    def logits(self, x: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None) -> Tensor:
        """Scores of x [B, T, d] before mask and softmax, [B, heads, T, T] (query, key): scaled and soft-capped.

        ``attention_mask`` matters only to QK-norms whose statistics cross tokens.
        """
        q, k, _ = self.heads_of(x, attention_mask, position_ids)
        return self._scores(q, k)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        scores = scale * (q @ k.transpose(-1, -2))
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)

    def _norm(self, norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
        """Norm heads x [B, T, heads, head_dim], one by one or jointly; mask [B, T]."""
        heads = x.flatten(2) if self.qk_norm is QKNorm.JOINT else x
        if mask is not None and heads is x:
            mask = mask[..., None].expand(x.shape[:-1])
        y = norm(heads) if mask is None else norm(heads, mask)
        return y.unflatten(-1, x.shape[2:]) if heads is not x else y

    def extra_repr(self) -> str:
        return f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}, causal={self.causal}"
