"""``normlab.inspect`` on small models written the way public codebases write theirs; the answer is in their lines.

Each is our own code in the manner of one: how it names, shapes, fuses and norms. What must be found stands beside it.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normlab
from normlab.attention import QKNorm
from normlab.inspection.norm_probe import Gain
from normlab.inspection.report import LastHidden
from normlab.norms import NormKind
from normlab.placement import Placement

LN, RMS = NormKind.LAYERNORM, NormKind.RMSNORM
D, H, V = 16, 2, 11


def heads(x):
    return x.unflatten(-1, (-1, D // H)).transpose(1, 2)


def causal(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def rotate(x):
    """Rotary positions in two halves, [B, H, T, d]."""
    angles = torch.arange(x.shape[-2])[:, None] / 100.0 ** (torch.arange(x.shape[-1] // 2) / 4)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Body(nn.Module):
    """Embedding, two blocks, a last norm and a head that shares the embedding's matrix."""

    def __init__(self, block, last, positions=True):
        super().__init__()
        self.wte, self.h, self.ln_f = nn.Embedding(V, D), nn.ModuleList(block() for _ in range(2)), last
        self.wpe = nn.Embedding(8, D) if positions else None
        self.lm_head = nn.Linear(D, V, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx):
        x = self.wte(idx)
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# --- nanoGPT: LayerNorm with an optional bias by F.layer_norm; minGPT: explicit softmax, an MLP in a ModuleDict ---


class LayerNormNoBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(D)), None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class NanoGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = LayerNormNoBias(), LayerNormNoBias()
        self.c_attn, self.c_proj = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D), nn.Dropout(0.1))

    def attn(self, x):
        q, k, v = map(heads, self.c_attn(x).split(D, dim=2))
        return self.c_proj(causal(q, k, v))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MinGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.c_attn, self.c_proj, self.drop = nn.Linear(D, 3 * D), nn.Linear(D, D), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, 4 * D), "c_proj": nn.Linear(4 * D, D)})
        self.mlp["dropout"] = nn.Dropout(0.1)
        m = self.mlp
        self.mlpf = lambda x: m.dropout(m.c_proj(0.5 * m.c_fc(x) * (1 + torch.tanh(m.c_fc(x)))))

    def attn(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, H, C // H).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = self.drop(F.softmax(att, dim=-1)) @ v
        return self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlpf(self.ln2(x))


# --- llama2.c: RMSNorm with _norm, complex-free rotation of pairs, SwiGLU, repeated keys ---


class RMSNorm(nn.Module):
    def __init__(self, dim=D, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self._norm(x.float()).type_as(x) * self.weight


def rotate_pairs(x):
    real, imaginary = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
    angles = torch.arange(x.shape[1])[:, None, None] / 100.0 ** (torch.arange(x.shape[-1] // 2) / 4)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], -1).flatten(3).type_as(x)


class LlamaC(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(), RMSNorm()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, n, bias=False) for n in (D, D // 2, D // 2, D))
        self.w1, self.w3, self.w2 = nn.Linear(D, 24), nn.Linear(D, 24), nn.Linear(24, D)

    def attention(self, x):
        q, k, v = (w(x).view(*x.shape[:2], -1, D // H) for w in (self.wq, self.wk, self.wv))
        q, k = rotate_pairs(q), rotate_pairs(k)
        k, v = (t[:, :, :, None, :].expand(-1, -1, -1, 2, -1).reshape(q.shape) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(D // H)
        scores = scores + torch.full(scores.shape[-2:], float("-inf")).triu(1)
        scores = F.softmax(scores.float(), dim=-1).type_as(q)
        return self.wo(torch.matmul(scores, v).transpose(1, 2).contiguous().view(x.shape))

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        x = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(x)) * self.w3(x))


# --- x-transformers: norms by F.normalize with a gain (gamma + 1), cosine queries and keys, norms in lists ---


class GammaNorm(nn.Module):
    def __init__(self, unit_offset):
        super().__init__()
        self.unit_offset, self.scale = unit_offset, D**0.5
        self.g = nn.Parameter(torch.full((D,), 1.0 - unit_offset))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * (self.g + self.unit_offset)


class XTransformers(nn.Module):
    """Layers and their norms side by side in nested lists; queries and keys have unit length and learned scales."""

    def __init__(self):
        super().__init__()
        self.token_emb, self.to_logits = nn.Embedding(V, D), nn.Linear(D, V)
        self.layers = nn.ModuleList(XLayer(kind) for kind in ("a", "f", "a", "f"))
        self.final_norm = GammaNorm(1.0)

    def forward(self, x):
        x = self.token_emb(x)
        for layer in self.layers:
            x = layer(x)
        return self.to_logits(self.final_norm(x))


class XLayer(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.norms, self.kind = nn.ModuleList([GammaNorm(1.0), None, None]), kind
        self.to_qkv, self.to_out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.q_scale, self.k_scale = nn.Parameter(torch.ones(H, 1, D // H)), nn.Parameter(torch.ones(H, 1, D // H))
        self.ff = nn.Sequential(nn.Sequential(nn.Linear(D, 32), nn.GELU()), nn.Dropout(0.0), nn.Linear(32, D))

    def forward(self, x):
        residual = x
        x = self.norms[0](x)
        if self.kind == "f":
            return self.ff(x) + residual
        q, k, v = map(heads, self.to_qkv(x).chunk(3, -1))
        q, k = F.normalize(q, dim=-1) * self.q_scale, F.normalize(k, dim=-1) * self.k_scale
        return self.to_out(causal(10 * q, k, v)) + residual


# --- litgpt: wiring by settings, an absent norm is Identity ---


class LitGPT(nn.Module):
    def __init__(self, parallel=False, shared=False, post=False):
        super().__init__()
        self.parallel, self.shared = parallel, shared
        self.norm_1 = nn.LayerNorm(D)
        self.norm_2 = None if shared else nn.LayerNorm(D)
        self.post_attention_norm = nn.LayerNorm(D) if post else nn.Identity()
        self.post_mlp_norm = nn.LayerNorm(D) if post else nn.Identity()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D))

    def attn(self, x):
        q, k, v = map(heads, self.qkv(x).split((D, D, D), -1))
        return self.proj(causal(rotate(q), rotate(k), v))

    def forward(self, x):
        x_normed = self.norm_1(x)
        attention_output = self.post_attention_norm(self.attn(x_normed))
        if self.parallel:
            if not self.shared:
                x_normed = self.norm_2(x)
            x = attention_output + x
        else:
            x = attention_output + x
            x_normed = self.norm_2(x)
        return self.post_mlp_norm(self.mlp(x_normed)) + x


# --- PaLM as in lucidrains' code: one matrix in for all, gamma with a zero buffer for the bias ---


class PaLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(D))
        self.register_buffer("beta", torch.zeros(D))
        self.fused = nn.Linear(D, D + 2 * (D // H) + 2 * 32, bias=False)
        self.attn_out, self.ff_out = nn.Linear(D, D, bias=False), nn.Linear(32, D, bias=False)

    def forward(self, x):
        h = F.layer_norm(x, x.shape[-1:], self.gamma, self.beta)
        q, k, v, ff = self.fused(h).split((D, D // H, D // H, 64), dim=-1)
        q, k = rotate(heads(q)), rotate(k[:, None])[:, 0]
        sim = torch.einsum("bhid,bjd->bhij", q, k) * (D // H) ** -0.5
        out = torch.einsum("bhij,bjd->bhid", sim.softmax(dim=-1), v).transpose(1, 2).flatten(2)
        gate, up = ff.chunk(2, dim=-1)
        return x + self.attn_out(out) + self.ff_out(F.silu(gate) * up)


# --- GPT-NeoX, OLMo 2, nanochat ---


class NeoX(nn.Module):
    """Two norms on the block's input; the fused matrix is by head, and a quarter of each head is rotated."""

    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query_key_value, self.dense = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 32), nn.Linear(32, D)

    def attention(self, x):
        qkv = self.query_key_value(x).view(*x.shape[:2], H, 3 * D // H).transpose(1, 2)
        q, k, v = qkv.chunk(3, -1)
        q, k = (torch.cat([rotate(t[..., :4]), t[..., 4:]], -1) for t in (q, k))
        return self.dense(causal(q, k, v))

    def forward(self, x):
        attention = self.attention(self.input_layernorm(x))
        mlp = self.down(F.gelu(self.up(self.post_attention_layernorm(x))))
        return mlp + attention + x


class Olmo2(nn.Module):
    """Norms of queries and keys over all heads, and of what each sublayer returns."""

    def __init__(self):
        super().__init__()
        self.q_norm, self.k_norm, self.attention_norm, self.feed_forward_norm = (RMSNorm(eps=1e-6) for _ in range(4))
        self.w_q, self.w_k, self.w_v, self.w_out = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(D, 24), nn.Linear(24, D), nn.Linear(D, 24)

    def attention(self, x):
        q, k, v = self.q_norm(self.w_q(x)), self.k_norm(self.w_k(x)), self.w_v(x)
        q, k, v = rotate(heads(q)), rotate(heads(k)), heads(v)
        return self.w_out(causal(q, k, v))

    def forward(self, x):
        h = x + self.attention_norm(self.attention(x))
        return h + self.feed_forward_norm(self.w2(F.silu(self.w1(h)) * self.w3(h)))


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class NanoChat(nn.Module):
    """Norms without parameters, of queries and keys behind the rotation; the last matrices start at zero."""

    def __init__(self):
        super().__init__()
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.c_fc, self.mlp_proj = nn.Linear(D, 4 * D, bias=False), nn.Linear(4 * D, D, bias=False)
        nn.init.zeros_(self.c_proj.weight)
        nn.init.zeros_(self.mlp_proj.weight)

    def attn(self, x):
        q, k, v = heads(self.c_q(x)), heads(self.c_k(x)), heads(self.c_v(x))
        q, k = norm(rotate(q)), norm(rotate(k))
        return self.c_proj(causal(q, k, v))

    def forward(self, x):
        x = x + self.attn(norm(x))
        return x + self.mlp_proj(F.relu(self.c_fc(norm(x))).square())


class NanoChatModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.lm_head = nn.Embedding(V, D), nn.Linear(D, V)
        self.h = nn.ModuleList(NanoChat() for _ in range(2))
        nn.init.zeros_(self.lm_head.weight)

    def forward(self, idx):
        x = norm(self.wte(idx))
        for block in self.h:
            x = block(x)
        return 15 * torch.tanh(self.lm_head(norm(x)) / 15)


# --- ViT and T5 ---


class PreNorm(nn.Module):
    def __init__(self, fn):
        super().__init__()
        self.norm, self.fn = nn.LayerNorm(D), fn

    def forward(self, x, **kwargs):
        return self.fn(self.norm(x), **kwargs)


class ViTAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv, self.to_out = nn.Linear(D, 3 * D, bias=False), nn.Sequential(nn.Linear(D, D), nn.Dropout(0.0))

    def forward(self, x):
        q, k, v = map(heads, self.to_qkv(x).chunk(3, dim=-1))
        attention = (torch.matmul(q, k.transpose(-1, -2)) * (D // H) ** -0.5).softmax(-1)
        return self.to_out(torch.matmul(attention, v).transpose(1, 2).flatten(2))


class ViT(nn.Module):
    """Patches by one convolution, a class token in front, pairs of PreNorm modules in lists, a norm in the head."""

    def __init__(self):
        super().__init__()
        self.patches, self.cls = nn.Conv2d(3, D, 4, stride=4), nn.Parameter(torch.randn(1, 1, D))
        self.positions = nn.Parameter(torch.randn(1, 5, D))
        self.layers = nn.ModuleList(ViTLayer() for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 3))

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(x[:, 0])


class ViTLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = PreNorm(ViTAttention())
        self.ff = PreNorm(nn.Sequential(nn.Linear(D, 32), nn.GELU(), nn.Linear(32, D)))

    def forward(self, x):
        x = self.attn(x) + x
        return self.ff(x) + x


class T5LayerNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.ones(D)), 1e-6

    def forward(self, x):
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return self.weight * (x / torch.sqrt(variance + self.variance_epsilon))


class T5Attention(nn.Module):
    """Unscaled, with a learned bias by distance."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.relative_attention_bias, self.layer_norm = nn.Embedding(15, H), T5LayerNorm()

    def forward(self, hidden, memory=None):
        x = self.layer_norm(hidden)
        source = x if memory is None else memory
        q, k, v = heads(self.q(x)), heads(self.k(source)), heads(self.v(source))
        distance = torch.arange(source.shape[1]) - torch.arange(x.shape[1])[:, None]
        scores = q @ k.mT + self.relative_attention_bias(distance + 7).permute(2, 0, 1)
        return hidden + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, decoder):
        super().__init__()
        self.layer = nn.ModuleList([T5Attention(), *([T5Attention()] if decoder else [])])
        self.layer_norm, self.wi, self.wo = T5LayerNorm(), nn.Linear(D, 32), nn.Linear(32, D)

    def forward(self, x, memory=None):
        x = self.layer[0](x)
        if memory is not None:
            x = self.layer[1](x, memory)
        return x + self.wo(F.relu(self.wi(self.layer_norm(x))))


class T5(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.lm_head = nn.Embedding(V, D), nn.Linear(D, V)
        self.encoder, self.decoder = (nn.ModuleList(T5Block(side) for _ in range(2)) for side in (False, True))
        self.encoder_norm, self.decoder_norm = T5LayerNorm(), T5LayerNorm()

    def forward(self, ids):
        memory, x = self.shared(ids), self.shared(ids[:, :3])
        for block in self.encoder:
            memory = block(memory)
        memory = self.encoder_norm(memory)
        for block in self.decoder:
            x = block(x, memory)
        return self.lm_head(self.decoder_norm(x) * D**-0.5)


# --- what must be found ---

LAYER, LLAMA = (LN, 1e-5, Gain.WEIGHT), (RMS, 1e-5, Gain.WEIGHT)
MODELS = {  # model, placement, norm, QK-norm and rotation, embedding norm
    "nanoGPT": (lambda: Body(NanoGPT, LayerNormNoBias()), "pre", LAYER, None, False),
    "minGPT": (lambda: Body(MinGPT, nn.LayerNorm(D)), "pre", LAYER, None, False),
    "llama2.c": (lambda: Body(LlamaC, RMSNorm(), False), "pre", LLAMA, None, False),
    "litgpt": (lambda: Body(LitGPT, nn.LayerNorm(D), False), "pre", LAYER, None, False),
    "litgpt parallel": (lambda: Body(lambda: LitGPT(True), nn.LayerNorm(D), False), "parallel", LAYER, None, False),
    "litgpt shared": (lambda: Body(lambda: LitGPT(True, True), nn.LayerNorm(D), False), "shared", LAYER, None, False),
    "litgpt post": (lambda: Body(lambda: LitGPT(post=True), nn.LayerNorm(D), False), "peri", LAYER, None, False),
    "PaLM": (lambda: Body(PaLM, nn.LayerNorm(D), False), "shared", LAYER, None, False),
    "GPT-NeoX": (lambda: Body(NeoX, nn.LayerNorm(D), False), "parallel", LAYER, None, False),
    "OLMo 2": (
        lambda: Body(Olmo2, RMSNorm(eps=1e-6), False),
        "output",
        (RMS, 1e-6, Gain.WEIGHT),
        (QKNorm.JOINT, False),
        False,
    ),
    "nanochat": (NanoChatModel, "pre", (RMS, None, Gain.NONE), (QKNorm.PER_HEAD, True), True),
    "ViT": (ViT, "pre", LAYER, None, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_decoders_and_an_image_model(name):
    make, where, kind, qk_norm, embedding_norm = MODELS[name]
    torch.manual_seed(0)
    report = normlab.inspect(make(), *([torch.randn(2, 3, 8, 8)] if name == "ViT" else []))
    (stack,) = report.stacks
    assert len(stack.blocks) == 2 and report.last_hidden is LastHidden.NOT_RETURNED
    assert len(set(stack.blocks)) == 1 and not stack.blocks[0].unknown
    assert [s.kind for s in stack.blocks[0].sublayers] == ["attention", "mlp"]
    norms = [stack.final_norm] + [stack.embedding_norm] * embedding_norm
    for sublayer in stack.blocks[0].sublayers:
        assert sublayer.placement is Placement("parallel" if where == "shared" else where)
        assert sublayer.shares_norm == (where == "shared") and not sublayer.inner_norms
        norms += [n for n in (sublayer.norm, sublayer.output_norm) if n]
    assert len(norms) == 1 + embedding_norm + (4 if where == "peri" else 2)
    found = stack.blocks[0].sublayers[0].qk_norm
    assert (found and (found.how, found.after_rope)) == qk_norm
    norms += [found.query, found.key] if found else []
    for measured in norms:
        eps = pytest.approx(torch.finfo(torch.float32).eps, rel=1e-3) if kind[1] is None else kind[1]
        assert (measured.kind, measured.eps, measured.gain) == (kind[0], eps, kind[2])
    assert (stack.embedding_norm is None) == (not embedding_norm)


def test_a_stored_vector_is_a_bias_even_if_it_is_not_learned():
    sublayer = normlab.inspect(Body(PaLM, nn.LayerNorm(D), False)).stacks[0].blocks[0].sublayers[0]
    assert sublayer.norm.bias


def test_x_transformers():
    (stack,) = normlab.inspect(XTransformers()).stacks
    assert [[s.kind for s in block.sublayers] for block in stack.blocks] == 2 * [["attention"], ["mlp"]]
    for block in stack.blocks:
        (sublayer,) = block.sublayers
        assert sublayer.placement is Placement.PRE and sublayer.norm.kind is RMS
        assert sublayer.norm.gain is Gain.OFFSET
    found = stack.blocks[0].sublayers[0].qk_norm
    assert found.how is QKNorm.PER_HEAD and found.after_rope is None
    assert stack.final_norm.kind is RMS and stack.embedding_norm is None


def test_t5():
    encoder, decoder = normlab.inspect(T5(), torch.arange(8).view(2, 4)).stacks
    assert [s.kind for s in encoder.blocks[0].sublayers] == ["attention", "mlp"]
    assert [s.kind for s in decoder.blocks[1].sublayers] == ["attention", "cross-attention", "mlp"]
    for stack in (encoder, decoder):
        sublayers = [s for block in stack.blocks for s in block.sublayers]
        assert {s.placement for s in sublayers} == {Placement.PRE}
        assert {(s.norm.kind, s.norm.eps, s.norm.gain) for s in sublayers} == {(RMS, 1e-6, Gain.WEIGHT)}
        assert stack.final_norm.kind is RMS and stack.embedding_norm is None
