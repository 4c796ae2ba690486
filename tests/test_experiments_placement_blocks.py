"""Chapter 5's block: weights move from other libraries without loss, and the exercise tells right from wrong."""

import pytest
import torch
import torch.nn.functional as F
from draw import normal
from torch import nn

from normlab.experiments.placement import blocks

X = normal(2, 7, blocks.WIDTH)


def test_a_llama_block_of_transformers_is_that_of_normlab():
    """Two independent references of the exercise: the library's weights in ours give the library's output."""
    pytest.importorskip("transformers")
    weights, theirs = blocks.llama_block(X)
    our_weights, _ = blocks.llama_of_normlab(X)
    assert weights.keys() == our_weights.keys()
    torch.testing.assert_close(blocks.output_of(Llama, weights, X), theirs, rtol=0, atol=2e-6)


def test_the_exercise_knows_a_right_block():
    weights, expected = blocks.llama_of_normlab(X)
    torch.testing.assert_close(blocks.output_of(Llama, weights, X), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fault", ["post", "no_rotation", "gelu", "gate_up", "not_causal", "neighbors"])
def test_the_exercise_knows_a_wrong_one(fault):
    weights, expected = blocks.llama_of_normlab(X)
    wrong = type("Wrong", (Llama,), {"fault": fault})
    assert (blocks.output_of(wrong, weights, X) - expected).abs().max() > 1e-2


def test_a_blank_class_is_no_answer():
    assert blocks.output_of(Blank, *blocks.llama_of_normlab(X)[:1], X) is ...


def test_other_names_and_shapes_are_named():
    weights, _ = blocks.llama_of_normlab(X)
    with pytest.raises(ValueError, match=r"norm2\.weight"):
        blocks.load(Llama(32, 2, 88), {name: w for name, w in weights.items() if name != "norm2.weight"})
    with pytest.raises(ValueError, match=r"gate\.weight must have shape \(88, 32\)"):
        blocks.load(Llama(32, 2, 90), weights)


def test_torch_weights_are_split_in_order():
    layer = blocks.randomize(nn.TransformerEncoderLayer(32, 2, 128, dropout=0.0))
    weights = blocks.from_torch(layer)
    q, k, v = F.linear(X, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)
    for name, value in (("query", q), ("key", k), ("value", v)):
        torch.testing.assert_close(F.linear(X, weights[f"{name}.weight"], weights[f"{name}.bias"]), value)
    assert len(weights) == 16 and torch.equal(weights["up.bias"], layer.linear1.bias)


class Blank(nn.Module):
    def __init__(self, d, heads, hidden):
        super().__init__()

    def forward(self, x): ...


class Llama(nn.Module):
    """Written out once more, with faults to plant."""

    fault = ""

    def __init__(self, d, heads, hidden):
        super().__init__()
        self.heads = heads
        for name in ("query", "key", "value", "out"):
            setattr(self, name, nn.Linear(d, d, bias=False))
        self.gate, self.up, self.down = nn.Linear(d, hidden, False), nn.Linear(d, hidden, False), nn.Linear(hidden, d, False)
        self.norm1, self.norm2 = nn.RMSNorm(d, eps=1e-6), nn.RMSNorm(d, eps=1e-6)

    def rotate(self, x):
        if self.fault == "no_rotation":
            return x
        n = x.shape[-1]
        angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, n, 2).double() / n)
        a, b = (x[..., ::2], x[..., 1::2]) if self.fault == "neighbors" else x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def attention(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, is_causal=self.fault != "not_causal")
        return self.out(y.transpose(1, 2).flatten(2))

    def mlp(self, x):
        act = F.gelu if self.fault == "gelu" else F.silu
        gate, up = (self.up, self.gate) if self.fault == "gate_up" else (self.gate, self.up)
        return self.down(act(gate(x)) * up(x))

    def forward(self, x):
        if self.fault == "post":
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
