"""Drill: causal attention with normalized queries and keys."""

import torch

from normlab.drills.checking import Drill, Mistake, Probe, normal


def qk_norm_attention(q, k, v, q_weight, k_weight, rope, eps):
    def norm(x, weight):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    q, k = rope(norm(q, q_weight)), rope(norm(k, k_weight))
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    causal = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    return scores.masked_fill(~causal, float("-inf")).softmax(-1) @ v


def rope(x):
    # Rotate the pairs (i, i + d/2) of x [..., T, d] by angles that grow with the position.
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 100.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def arguments(batch: int, heads: int, tokens: int, width: int, seed: int, eps: float, size: float = 2.0):
    q, k, v = (normal(batch, heads, tokens, width, seed=seed + i, mean=0.3, std=size) for i in range(3))
    return (
        q,
        k,
        v,
        normal(width, seed=seed + 3, mean=0.5, std=1.0),
        normal(width, seed=seed + 4, mean=0.7, std=1.0),
        rope,
        eps,
    )


DRILL = Drill(
    solution=qk_norm_attention,
    task="Write causal attention with QK-norm as in Qwen3: RMSNorm of each head's queries and keys over head_dim, with "
    "gains q_weight and k_weight [head_dim], before the rotation. q, k and v are [B, heads, T, head_dim]; rope is a "
    "function [..., T, head_dim] to the same shape. Scores are divided by sqrt(head_dim). Return [B, heads, T, "
    "head_dim].",
    minutes=8,
    why="It joins attention from memory with the question of what a norm on queries and keys bounds.",
    hints=(
        "Which axis does the norm of one head run over?",
        "Norm, then rotation, then scores, then mask, then softmax.",
        "v keeps its size.",
    ),
    probes={
        "random": Probe("random queries, keys and gains", lambda: arguments(2, 3, 5, 4, seed=1, eps=1e-6)),
        "square": Probe(
            "batch, heads, tokens and head_dim all of size 4", lambda: arguments(4, 4, 4, 4, seed=11, eps=1e-6)
        ),
        "big_eps": Probe("eps = 0.5 and small entries", lambda: arguments(1, 2, 6, 8, seed=21, eps=0.5, size=0.5)),
    },
    mistakes=(
        Mistake(
            "after_rope",
            "random",
            {"rope(norm(q, q_weight)), rope(norm(k, k_weight))": "norm(rope(q), q_weight), norm(rope(k), k_weight)"},
            "You normalize after the rotation: the gains then scale rotated features.",
            "Normalize first, then rotate.",
            "HunYuan",
        ),
        Mistake(
            "v_too",
            "random",
            {"@ v": "@ norm(v, 1.0)"},
            "You normalize v as well.",
            "Leave v alone: QK-norm bounds logits, and v is in none.",
            "Gemma 3n and Gemma 4, which norm v without a gain",
        ),
        Mistake(
            "q_only",
            "random",
            {"rope(norm(k, k_weight))": "rope(k)"},
            "Keys are not normalized.",
            "Normalize both; otherwise scores grow with the keys.",
        ),
        Mistake(
            "k_only",
            "random",
            {"rope(norm(q, q_weight))": "rope(q)"},
            "Queries are not normalized.",
            "Normalize both.",
        ),
        Mistake(
            "all_heads",
            "random",
            {"mean(-1, keepdim=True)": "mean((1, -1), keepdim=True)"},
            "You take one root mean square over all heads.",
            "Per-head QK-norm reduces over head_dim alone.",
            "OLMo 2, whose gain also spans all heads",
            story="vLLM normalized Llama 4 across heads; per head its score on MMLU-Pro rose from 0.686 to 0.715 "
            "(#16311).",
        ),
        Mistake(
            "no_scale",
            "random",
            {" / q.shape[-1] ** 0.5": ""},
            "The division by sqrt(head_dim) is missing.",
            "Keep it: with gains of 1 the vectors have length sqrt(head_dim), so products reach head_dim.",
        ),
        Mistake(
            "scale_linear",
            "random",
            {"q.shape[-1] ** 0.5": "q.shape[-1]"},
            "You divide by head_dim.",
            "Divide by its square root.",
        ),
        Mistake(
            "l2",
            "random",
            {".mean(-1": ".sum(-1"},
            "You divide by the Euclidean length.",
            "RMSNorm divides by the root mean square; a unit-length QK-norm would need a scale of its own.",
        ),
        Mistake(
            "layer_norm",
            "random",
            {
                "x.square().mean(-1, keepdim=True)": "x.var(-1, keepdim=True, correction=0)",
                "return x *": "return (x - x.mean(-1, keepdim=True)) *",
            },
            "You use LayerNorm on queries and keys.",
            "The task asks for RMSNorm.",
            "models whose QK-norm is LayerNorm, such as ViT-22B",
        ),
        Mistake(
            "norm_scores",
            "random",
            {
                "rope(norm(q, q_weight)), rope(norm(k, k_weight))": "rope(q * q_weight), rope(k * k_weight)",
                "q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5": "norm(q @ k.transpose(-2, -1), 1.0)",
            },
            "You normalize the rows of scores.",
            "Normalize queries and keys.",
        ),
        Mistake(
            "gains_swapped",
            "random",
            {"norm(q, q_weight)": "norm(q, k_weight)", "norm(k, k_weight)": "norm(k, q_weight)"},
            "q_weight and k_weight are swapped.",
            "Each has its own; the rotation stands between them.",
        ),
        Mistake(
            "no_gain",
            "random",
            {"+ eps) * weight": "+ eps)"},
            "The gains are not applied.",
            "Multiply the normalized queries and keys by their gains.",
        ),
        Mistake(
            "seq_axis",
            "random",
            {"mean(-1, keepdim=True)": "mean(-2, keepdim=True)"},
            "You reduce over the tokens: a query's size depends on later ones.",
            "Reduce over head_dim.",
        ),
        Mistake(
            "not_causal",
            "random",
            {'.masked_fill(~causal, float("-inf"))': ""},
            "There is no causal mask.",
            "Hide later keys before the softmax.",
        ),
        Mistake(
            "mask_flipped",
            "random",
            {".tril()": ".triu()"},
            "The mask hides earlier keys.",
            "A query sees its own position and earlier ones.",
        ),
        Mistake(
            "mask_strict",
            "random",
            {".tril()": ".tril(-1)"},
            "A token does not see itself; the first one sees nothing and becomes NaN.",
            "Keep the diagonal.",
        ),
        Mistake(
            "no_rope",
            "random",
            {"rope(norm(q, q_weight)), rope(norm(k, k_weight))": "norm(q, q_weight), norm(k, k_weight)"},
            "You never rotate.",
            "Apply rope to the normalized queries and keys.",
        ),
        Mistake(
            "softmax_axis",
            "random",
            {".softmax(-1)": ".softmax(-2)"},
            "The softmax runs over queries.",
            "It runs over keys, the last axis of the scores.",
        ),
        Mistake(
            "eps_outside",
            "big_eps",
            {
                "torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)": (
                    "1 / (x.square().mean(-1, keepdim=True).sqrt() + eps)"
                )
            },
            "You add eps to the root mean square.",
            "eps stands inside the root.",
        ),
        Mistake(
            "no_eps",
            "big_eps",
            {" + eps": ""},
            "The eps that is given is not used.",
            "Add it inside the root.",
        ),
    ),
    dtypes="random",
    gradients="random",
)
