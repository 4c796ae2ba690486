"""``normlab.inspect`` on models as people write them: the right answer stands in each model's few lines of code."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import normlab
from normlab.attention import QKNorm
from normlab.inspection.norm_probe import Cast, Gain
from normlab.norms import NormKind
from normlab.placement import Placement

LN, RMS, SCALE = NormKind.LAYERNORM, NormKind.RMSNORM, NormKind.SCALENORM
PRE, POST, PERI, OUTPUT, NONE = (Placement(p) for p in ("pre", "post", "peri", "output", "none"))


def rms(x, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def standardized(x):
    return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def by_einsum(x):
    x = x.flatten(0, -2)
    return x / (torch.einsum("nd,nd->n", x, x) / x.shape[-1] + 1e-5).sqrt()[:, None]


def in_place(x):
    return x.clone().mul_(torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def by_power(x):
    return x * (x.square().mean(-1, keepdim=True) + 1e-6) ** torch.tensor(-0.5)


NORMS = {  # the norm of x with a stored w, and what it is
    "rms": (lambda x, w: rms(x), RMS, Gain.NONE, 1e-6),
    "rms w": (lambda x, w: w * rms(x), RMS, Gain.WEIGHT, 1e-6),
    "rms 1 + w": (lambda x, w: (1 + w) * rms(x, 1e-5), RMS, Gain.OFFSET, 1e-5),
    "rms exp w": (lambda x, w: rms(x) * w.exp(), RMS, Gain.NONE, 1e-6),
    "float": (lambda x, w: (rms(x.float()) * w.float()).type_as(x), RMS, Gain.WEIGHT, 1e-6),
    "tensor power": (lambda x, w: by_power(x), RMS, Gain.NONE, 1e-6),
    "in place": (lambda x, w: in_place(x), RMS, Gain.NONE, 1e-6),
    "einsum": (lambda x, w: by_einsum(x).view(x.shape), RMS, Gain.NONE, 1e-5),
    "layer": (lambda x, w: standardized(x), LN, Gain.NONE, 1e-5),
    "layer w": (lambda x, w: standardized(x) * w + w, LN, Gain.UNKNOWN, 1e-5),
    "normalize": (lambda x, w: F.normalize(x, dim=-1), SCALE, Gain.NONE, 1e-12),
    "normalize w": (lambda x, w: w * x.shape[-1] ** 0.5 * F.normalize(x, dim=-1), RMS, Gain.UNKNOWN, None),
    "l1": (lambda x, w: x / x.abs().mean(-1, keepdim=True), None, Gain.UNKNOWN, None),
    "max": (lambda x, w: x / x.abs().amax(-1, keepdim=True), None, Gain.UNKNOWN, None),
}


class Attention(nn.Module):
    """Causal attention with two heads; ``normed`` acts on queries and keys, per head or on both heads together."""

    def __init__(self, normed=lambda x, w: x, joint=False):
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.normed, self.joint = normed, joint
        self.w = nn.ParameterList(nn.Parameter(torch.rand(16 if joint else 8) + 0.5) for _ in range(2))

    def heads(self, x):
        return x.unflatten(-1, (2, 8)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.joint:
            q, k = self.normed(q, self.w[0]), self.normed(k, self.w[1])
        q, k, v = map(self.heads, (q, k, v))
        if not self.joint:
            q, k = self.normed(q, self.w[0]), self.normed(k, self.w[1])
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def feed_forward():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


class Block(nn.Module):
    """x + attention(x), then ``wire(x, mlp, w)``."""

    def __init__(self, wire=lambda x, f, w: x + f(x), attention=Attention):
        super().__init__()
        self.attention, self.mlp, self.wire = attention(), feed_forward(), wire
        self.w = nn.Parameter(torch.rand(16) + 0.5)

    def forward(self, x):
        x = x + self.attention(x)
        return self.wire(x, self.mlp, self.w)


class Decoder(nn.Module):
    """Ids, embedding, two blocks, ``close(x, w)``, head."""

    def __init__(self, block=Block, open=lambda x, w: x, close=lambda x, w: x):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.w, self.open, self.close = nn.Parameter(torch.rand(16) + 0.5), open, close

    def forward(self, ids):
        x = self.open(self.embedding(ids), self.w)
        for block in self.blocks:
            x = block(x)
        return self.head(self.close(x, self.w))


def stack_of(model, *inputs):
    (stack,) = normlab.inspect(model, *inputs).stacks
    return stack


def sublayers_of(model, *inputs):
    stack = stack_of(model, *inputs)
    assert len(set(stack.blocks)) == 1 and not stack.blocks[0].unknown
    return stack.blocks[0].sublayers


def check(norm, name):
    _, kind, gain, eps = NORMS[name]
    assert norm.kind is kind
    if kind is not None and name not in ("rms exp w", "layer w", "normalize w"):
        assert norm.gain is gain and norm.cast is (None if gain is Gain.NONE else Cast.UNKNOWN)
        assert norm.eps == pytest.approx(eps)


# --- norms without a module -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_queries_and_keys_normed_in_line(name, joint):
    attention, mlp = sublayers_of(Decoder(lambda: Block(attention=lambda: Attention(NORMS[name][0], joint))))
    assert attention.qk_norm.how is (QKNorm.JOINT if joint else QKNorm.PER_HEAD)
    for norm in (attention.qk_norm.query, attention.qk_norm.key):
        check(norm, name)
    assert mlp.qk_norm is None and not mlp.inner_norms and attention.placement is NONE


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("placement", [PRE, POST, PERI, OUTPUT])
def test_placements_of_norms_in_line(name, placement):
    norm = NORMS[name][0]
    wires = {
        PRE: lambda x, f, w: x + f(norm(x, w)),
        POST: lambda x, f, w: norm(x + f(x), w),
        PERI: lambda x, f, w: x + norm(f(norm(x, w)), w),
        OUTPUT: lambda x, f, w: x + norm(f(x), w),
    }
    mlp = sublayers_of(Decoder(lambda: Block(wires[placement])))[1]
    assert mlp.placement is placement and mlp.kind == "mlp"
    for found in filter(None, (mlp.norm, mlp.output_norm)):
        check(found, name)


class CosineAttention(nn.Module):
    """The products of queries and keys are divided by both lengths, so that no vector is normed."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        lengths = q.norm(dim=-1, keepdim=True) * k.norm(dim=-1)[:, None]
        return (10 * (q @ k.transpose(1, 2)) / lengths).softmax(-1) @ v


def test_normed_products_of_queries_and_keys_are_unknown_not_none():
    model = Decoder(lambda: Block(attention=CosineAttention))
    attention = sublayers_of(model)[0]
    assert attention.kind == "attention" and attention.unknown_qk_norm
    assert "QK-norm unknown" in str(normlab.inspect(model)) and "no QK-norm" not in str(normlab.inspect(model))


def test_what_looks_like_a_norm_and_is_none():
    """Weights that sum to one, gates and cosines of positions divide or multiply vectors by one number each too."""

    def wire(x, f, w):
        gate = x.mean(-1, keepdim=True).sigmoid()
        weights = x.relu() / x.relu().sum(-1, keepdim=True)
        return x + f[2](gate * f[1](f[0](weights)))

    mlp = sublayers_of(Decoder(lambda: Block(wire)))[1]
    assert not mlp.inner_norms and mlp.norm is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_norms_in_line_in_other_types(dtype):
    model = Decoder(lambda: Block(lambda x, f, w: x + f(NORMS["float"][0](x, w)))).to(dtype)
    mlp = sublayers_of(model)[1]
    check(mlp.norm, "float")


# --- norms before and behind the blocks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "close",
    [
        lambda x, w: w * rms(x),
        lambda x, w: w * rms(x[:, -1]),
        lambda x, w: w * rms(x.mean(1)),
        lambda x, w: 2 * (w * rms(x)) + 1,
        lambda x, w: F.rms_norm(x[:, -1:], (16,), w, 1e-6),
        lambda x, w: F.rms_norm(x.mean(1), (16,), w, 1e-6) * 3 + 1,
        lambda x, w: F.rms_norm(x * 0.5, (16,), w, 1e-6),
    ],
)
def test_final_norms(close):
    stack = stack_of(Decoder(close=close))
    assert (stack.final_norm.kind, stack.final_norm.eps) == (RMS, pytest.approx(1e-6)) and not stack.final_unknown
    assert stack.embedding_norm is None and stack.embedding_unknown is None


@pytest.mark.parametrize(
    "open",
    [
        lambda x, w: w * rms(x),
        lambda x, w: 4 * (w * rms(x)) + torch.arange(16.0),
        lambda x, w: F.rms_norm(x, (16,), w, 1e-6) * torch.tensor([[1.0, 1.0, 1.0, 0.0]])[..., None],
        lambda x, w: F.rms_norm(x, (16,), w, 1e-6).masked_fill(torch.tensor([0, 0, 0, 1]).bool()[:, None], 0.0),
        lambda x, w: torch.cat([torch.ones_like(x[:, :1]), F.rms_norm(x, (16,), w, 1e-6)], 1),
        lambda x, w: F.rms_norm(x, (16,), w, 1e-6) @ w.outer(w) + w,
    ],
)
def test_embedding_norms(open):
    stack = stack_of(Decoder(open=open))
    assert (stack.embedding_norm.kind, stack.embedding_norm.eps) == (RMS, pytest.approx(1e-6))
    assert stack.final_norm is None and stack.final_unknown is None


def across_positions(x, w):
    """A norm over positions and features together: no norm of a vector."""
    return x / (x.square().mean((-2, -1), keepdim=True) + 1e-6).sqrt()


def test_a_norm_that_is_not_recognized_is_unknown_not_none():
    model = Decoder(open=across_positions, close=across_positions)
    stack = stack_of(model)
    assert stack.embedding_norm is stack.final_norm is None
    assert "not recognized" in stack.embedding_unknown and "not recognized" in stack.final_unknown
    text = str(normlab.inspect(model))
    assert "embedding norm: unknown: something like a norm" in text and "final norm: unknown: something" in text


def test_two_norms_before_the_first_block_are_not_one():
    stack = stack_of(Decoder(open=lambda x, w: rms(x) + standardized(x)))
    assert stack.embedding_norm is None and "several norms" in stack.embedding_unknown


def test_positions_and_scales_are_no_norm():
    def open(x, w):
        places = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(16.0) / 16)
        return x * torch.tensor(16.0).sqrt() + (places * (1 / (1 + w.square()))).sin()

    stack = stack_of(Decoder(open=open, close=lambda x, w: 2 * x.mean(1)))
    assert stack.embedding_norm is stack.final_norm is stack.embedding_unknown is stack.final_unknown is None


class Returns(Decoder):
    """What the decoder computes before its head, returned in the ways of published models."""

    def __init__(self, how):
        super().__init__()
        self.how, self.norm = how, nn.LayerNorm(16)

    def forward(self, ids):
        states = [self.embedding(ids)]
        for block in self.blocks:
            states.append(block(states[-1]))
        last = self.norm(states[-1])
        if self.how == "logits":
            return self.head(last)
        if self.how == "last normed":
            return {"last_hidden_state": last, "hidden_states": tuple(states[:-1]) + (last,)}
        if self.how == "last token":
            return last[:, -1]
        if self.how == "stream":
            return {"logits": self.head(last), "hidden_states": tuple(states)}
        if self.how == "one more":  # the normed state is appended to the others, as Mamba in transformers does
            return {"logits": self.head(last), "hidden_states": (*states, last)}
        return {"last_hidden_state": last, "hidden_states": tuple(states)}


def test_what_is_returned():
    hows = ("logits", "last normed", "last token", "stream", "one more", "both")
    found = {how: normlab.inspect(Returns(how)).last_hidden.name for how in hows}
    assert found == {
        "logits": "NOT_RETURNED",
        "last normed": "NORMED",
        "last token": "NORMED",
        "stream": "STREAM",
        "one more": "NORMED",
        "both": "BOTH",
    }


# --- models that write ------------------------------------------------------------------------------------------------


class Writer(nn.Module):
    """A block that keeps what it computes: in buffers, in attributes, in a list and in a dictionary."""

    def __init__(self):
        super().__init__()
        self.attention, self.mlp = Attention(), feed_forward()
        self.register_buffer("cache", torch.zeros(2, 8, 16))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("shared", self.cache)
        self.register_buffer("last", None)
        self.keys, self.same = torch.ones(1), self.cache
        self.states, self.seen = [torch.ones(2)], {"mean": torch.ones(3)}

    def forward(self, x):
        x = x + self.attention(x)
        self.cache[:, : x.shape[1]] = x
        self.calls += 1
        self.last, self.new = x, x
        self.keys = torch.cat([self.keys, x.flatten()])
        self.states.append(x)
        self.states[0].add_(1)
        self.seen["mean"] = x.mean()
        assert self.same is self.cache is self.shared
        return x + self.mlp(F.rms_norm(x, (16,)))


@pytest.mark.parametrize("train", [False, True])
def test_a_model_that_writes_is_left_as_it_was(train):
    model = Decoder(Writer).train(train)
    writer = model.blocks[0]
    twin = copy.deepcopy(model)
    cache, keys, states = writer.cache, writer.keys, writer.states
    mlp = sublayers_of(model)[1]
    assert mlp.placement is PRE
    assert writer.cache is cache is writer.shared is writer.same and writer.keys is keys and writer.states is states
    for mine, others in zip(model.modules(), twin.modules(), strict=True):
        assert vars(mine).keys() == vars(others).keys()
        for (name, buffer), (_, other) in zip(mine.named_buffers(), others.named_buffers(), strict=True):
            assert torch.equal(buffer, other) and not buffer.requires_grad, name
    assert writer.last is None and len(writer.states) == 1 and torch.equal(writer.states[0], torch.ones(2))
    assert torch.equal(writer.seen["mean"], torch.ones(3)) and not hasattr(writer, "new")
    copy.deepcopy(model)
    ids = torch.arange(8).view(2, 4)
    assert torch.equal(model(ids), twin(ids))


class Cache:
    """A cache of one's own, which refers to itself and to a module."""

    def __init__(self, owner):
        self.keys, self.layers, self.length = torch.zeros(2, 8, 16), [torch.ones(2)], 0
        self.me, self.owner, self.more = self, owner, {"inner": Nested()}


class Nested:
    def __init__(self):
        self.values = torch.zeros(3)


class Caching(Block):
    def __init__(self):
        super().__init__()
        self.cache, self.settings = Cache(self), Nested

    def forward(self, x):
        self.cache.keys[:, : x.shape[1]] = x
        self.cache.me.layers.append(x)
        self.cache.length += x.shape[1]
        self.cache.more["inner"].values += x.mean()
        assert self.cache.me is self.cache and self.cache.owner is self
        return super().forward(x)


def test_a_cache_of_the_models_own_is_left_as_it_was():
    model = Decoder(Caching)
    caches = [block.cache for block in model.blocks]
    normlab.inspect(model)
    for block, cache in zip(model.blocks, caches):
        assert block.cache is cache and cache.me is cache and cache.owner is block
        assert not cache.keys.any() and not cache.keys.requires_grad and cache.length == 0
        assert len(cache.layers) == 1 and torch.equal(cache.more["inner"].values, torch.zeros(3))
    copy.deepcopy(model)


class Rescaled(Block):
    """Changes its own parameters at the first run in evaluation mode, in all the ways that there are."""

    def forward(self, x):
        with torch.no_grad():
            self.mlp[0].weight.div_(2)
            self.mlp[0].weight[0] = 5.0
            self.mlp[2].weight.data.mul_(3)
            self.attention.out.weight.data = self.attention.out.weight.data + 1
            torch.nn.init.ones_(self.w)
        self.mlp[2].bias = nn.Parameter(torch.ones(16))
        return super().forward(x)


@pytest.mark.parametrize("frozen", [False, True])
def test_parameters_that_a_run_writes_are_left_as_they_were(frozen):
    model = Decoder(Rescaled).requires_grad_(not frozen)
    tied = model.blocks[1].mlp[0].weight = model.blocks[0].mlp[0].weight
    before = {name: (p, p.detach().clone(), p.data_ptr()) for name, p in model.named_parameters()}
    normlab.inspect(model)
    after = dict(model.named_parameters())
    assert before.keys() == after.keys() and model.blocks[1].mlp[0].weight is tied
    for name, (parameter, value, place) in before.items():
        assert after[name] is parameter and torch.equal(parameter, value) and parameter.data_ptr() == place, name


def test_a_model_that_fails_is_left_as_it_was():
    class Fails(Writer):
        def forward(self, x):
            super().forward(x)
            raise RuntimeError("after writing")

    model = Decoder(Fails)
    with pytest.raises(RuntimeError, match="after writing"):
        normlab.inspect(model, torch.arange(8).view(2, 4))
    assert not model.blocks[0].cache.any() and len(model.blocks[0].states) == 1
    copy.deepcopy(model)


# --- scales -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale, shown",
    [
        (lambda w: w, "g * "),
        (lambda w: w[0], "g * "),
        (lambda w: w[:1].exp(), "g * "),
        (lambda w: w.exp(), "g * "),
        (lambda w: w.sum() * torch.tensor(2.0), "g * "),
        (lambda w: torch.tensor(0.5), "0.5 "),
        (lambda w: torch.tensor(4.0).rsqrt(), "0.5 "),
        (lambda w: torch.tensor([0.5, 2.0])[:1].sqrt() ** 2, None),
    ],
)
def test_scales_that_are_learned_and_scales_that_are_fixed(scale, shown):
    """A learned factor on the stream makes no DeepNorm; a part of a table of numbers is left inside F."""
    added = sublayers_of(Decoder(lambda: Block(lambda x, f, w: x + scale(w) * f(x))))[1]
    assert added.formula == f"x + {shown or ''}F(x)"
    if shown is None:
        return
    skipped = sublayers_of(Decoder(lambda: Block(lambda x, f, w: F.layer_norm(scale(w) * x + f(x), (16,)))))[1]
    assert skipped.formula == f"N({shown}x + F(x))"
    assert skipped.placement is (None if shown == "g * " else Placement.DEEPNORM)


def test_a_factor_made_from_the_input_is_no_fixed_number():
    class Gate(Block):
        def forward(self, x, factor):
            x = x + self.attention(x)
            return x + factor * self.mlp(x)

    class Gated(Decoder):
        def forward(self, ids):
            x = self.embedding(ids)
            factor = x.mean().sigmoid()
            for block in self.blocks:
                x = block(x, factor)
            return self.head(x)

    assert sublayers_of(Gated(Gate))[1].formula == "x + F(x)"


# --- attention and MLP side by side -----------------------------------------------------------------------------------


class Fused(nn.Module):
    """Attention and MLP in parallel, both out of one matrix (GPT-J's wiring, PaLM's projection); ``joined``: ViT-22B's
    way out, through one matrix as well."""

    def __init__(self, cut="split", joined=False):
        super().__init__()
        self.inward, self.cut, self.joined = nn.Linear(16, 48 + 32), cut, joined
        self.out, self.down = nn.Linear(16, 16), nn.Linear(32, 16)
        self.both = nn.Linear(48, 16)
        self.w = nn.Parameter(torch.ones(16))

    def forward(self, x):
        h = self.inward(F.rms_norm(x, (16,), self.w))
        if self.cut == "split":
            qkv, up = h.split([48, 32], -1)
        else:
            qkv, up = h[..., :48], h[..., 48:]
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in qkv.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        if self.joined:
            return x + self.both(torch.cat([mixed, F.gelu(up)], -1))
        return x + (self.out(mixed) + self.down(F.gelu(up)))


@pytest.mark.parametrize("cut", ["split", "slice"])
def test_a_fused_parallel_block_has_both_of_its_sublayers(cut):
    sublayers = sublayers_of(Decoder(lambda: Fused(cut)))
    assert [(s.kind, s.placement, s.shares_norm) for s in sublayers] == [
        ("attention", Placement.PARALLEL, True),
        ("mlp", Placement.PARALLEL, True),
    ]


def test_one_matrix_out_of_attention_and_mlp_is_unknown():
    for block in stack_of(Decoder(lambda: Fused(joined=True))).blocks:
        assert block.sublayers == () and "leave through one matrix" in block.unknown


class Local(nn.Module):
    """Attention with a convolution of the values beside it (as in CSWin): one sublayer."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.near = nn.Linear(16, 48), nn.Linear(16, 16), nn.Conv1d(16, 16, 3, padding=1, groups=16)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + (self.out(mixed) + self.near(v.transpose(1, 2)).transpose(1, 2))


class Cut(Local):
    """The same with the values cut out twice."""

    def forward(self, x):
        h = self.qkv(x)
        q, k, v = h.chunk(3, -1)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return x + (self.out(mixed) + self.near(h[..., 32:].transpose(1, 2)).transpose(1, 2))


@pytest.mark.parametrize("block", [Local, Cut])
def test_a_branch_that_reads_the_values_is_no_sublayer_of_its_own(block):
    (attention,) = sublayers_of(Decoder(block))
    assert (attention.kind, attention.placement) == ("attention", NONE)


# --- stacks -----------------------------------------------------------------------------------------------------------


def pre_block():
    return Block(lambda x, f, w: x + f(F.layer_norm(x, (16,), w)))


class Shared(nn.Module):
    """ALBERT's loop: a group that holds a list of layers is called again and again."""

    def __init__(self):
        super().__init__()
        self.embedding, self.groups, self.norm = nn.Embedding(11, 16), nn.ModuleList([Group()]), nn.LayerNorm(16)

    def forward(self, ids):
        x = self.embedding(ids)
        for _ in range(3):
            x = self.groups[0](x)
        return self.norm(x)


class Group(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([pre_block()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_shared_layer_is_one_stack():
    stack = stack_of(Shared())
    assert len(stack.blocks) == 3 and len(set(stack.blocks)) == 1 and stack.final_norm.kind is LN
    assert [s.placement for s in stack.blocks[0].sublayers] == [NONE, PRE]


def test_stacks_in_a_stack_are_one():
    halves = [nn.Sequential(pre_block(), pre_block()) for _ in range(2)]
    stack = stack_of(nn.Sequential(nn.Embedding(11, 16), *halves, nn.RMSNorm(16)))
    assert len(stack.blocks) == 4 and len(set(stack.blocks)) == 1
    assert stack.final_norm.kind is RMS and stack.embedding_norm is None


def test_stacks_with_a_norm_between_them_are_two():
    halves = [nn.Sequential(pre_block(), pre_block()) for _ in range(2)]
    model = nn.Sequential(halves[0], nn.LayerNorm(16), halves[1], nn.RMSNorm(16))
    first, second = normlab.inspect(model, torch.randn(2, 4, 16)).stacks
    assert (len(first.blocks), first.final_norm.kind) == (2, LN) and first.embedding_norm is None
    assert (len(second.blocks), second.final_norm.kind, second.embedding_norm.kind) == (2, RMS, LN)


class One(nn.Module):
    def __init__(self, sublayer):
        super().__init__()
        self.norm, self.sublayer = nn.LayerNorm(16), sublayer

    def forward(self, x):
        return x + self.sublayer(self.norm(x))


@pytest.mark.parametrize("make, kind", [(feed_forward, "mlp"), (Attention, "attention")])
def test_blocks_of_one_sublayer_stay_blocks(make, kind):
    rows = [nn.Sequential(*(One(make()) for _ in range(3))) for _ in range(2)]
    for model, count in ((rows[0], 3), (nn.Sequential(*rows), 6), (nn.Sequential(nn.Embedding(11, 16), *rows), 6)):
        inputs = () if isinstance(model[0], nn.Embedding) else (torch.randn(2, 4, 16),)
        stack = stack_of(model, *inputs)
        assert [[(s.kind, s.placement) for s in b.sublayers] for b in stack.blocks] == count * [[(kind, PRE)]]


def test_a_block_of_two_residual_modules_stays_a_block():
    (block,) = stack_of(nn.Sequential(One(Attention()), One(feed_forward())), torch.randn(2, 4, 16)).blocks
    assert [s.kind for s in block.sublayers] == ["attention", "mlp"]


def test_blocks_that_are_run_without_their_hooks():
    """``block.forward(x)`` instead of ``block(x)``, as in SqueezeBERT of transformers."""

    class Direct(Decoder):
        def forward(self, ids):
            x = self.embedding(ids)
            for block in self.blocks:
                x = block.forward(x)
            return self.head(x)

    direct = Direct(pre_block)
    direct.blocks[1].forward = direct.blocks[1].forward  # an attribute of its own, which must stay
    before = dict(vars(direct.blocks[1]))
    assert normlab.inspect(direct).stacks == normlab.inspect(Decoder(pre_block)).stacks
    assert vars(direct.blocks[1]) == before and "forward" not in vars(direct.blocks[0])


def test_next_to_a_block_that_is_unknown_nothing_is_no_answer():
    """The stream of such a block is not known, so neither is what stands before or behind it."""
    model = Decoder(lambda: Block(lambda x, f, w: torch.maximum(x, f(x))))
    stack = stack_of(model)
    assert all(block.unknown for block in stack.blocks)
    assert stack.embedding_norm is stack.final_norm is None
    assert "cannot be told" in stack.embedding_unknown and "cannot be told" in stack.final_unknown


def test_streams_brought_to_one_size_are_unknown_not_none():
    """Gemma 3n's way: several streams, stacked, of which the later ones are given the size of the first."""

    def open(x, w):
        other = x * w
        size = x.square().mean(-1, keepdim=True).sqrt() / other.square().mean(-1, keepdim=True).clamp_min(1e-5).sqrt()
        return torch.stack([x, other * size]).sum(0)

    stack = stack_of(Decoder(pre_block, open=open))
    assert stack.embedding_norm is None and stack.embedding_unknown


# --- norms inside a sublayer ------------------------------------------------------------------------------------------


class GatedNorm(nn.Module):
    """A norm module with two inputs: the gate is multiplied before or behind the norm."""

    def __init__(self, width, first):
        super().__init__()
        self.weight, self.first = nn.Parameter(torch.rand(width) + 0.5), first

    def forward(self, x, gate):
        if self.first:
            return self.weight * rms(x * F.silu(gate), 1e-5)
        return self.weight * rms(x, 1e-5) * F.silu(gate)


class GatedMLP(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = GatedNorm(32, first)

    def forward(self, x):
        return self.down(self.norm(self.up(x), self.gate(x)))


@pytest.mark.parametrize("first", [False, True])
def test_a_gated_norm_inside_a_sublayer_is_mentioned(first):
    mlp = sublayers_of(Decoder(lambda: One(GatedMLP(first))))[0]
    (norm,) = mlp.inner_norms
    assert mlp.placement is PRE and norm.eps == pytest.approx(1e-5)
    assert (norm.kind, norm.width, norm.gain) == (RMS, 32, Gain.WEIGHT)


class GroupedNorm(nn.Module):
    """Statistics per group of features, one gain for all of them, as in Mamba 2."""

    def __init__(self, width, groups):
        super().__init__()
        self.weight, self.groups = nn.Parameter(torch.rand(width) + 0.5), groups

    def forward(self, x, gate):
        x = (x * F.silu(gate)).unflatten(-1, (self.groups, -1))
        return self.weight * rms(x, 1e-5).flatten(-2)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_norm_in_groups_keeps_its_gain(groups):
    def sublayer():
        mlp = GatedMLP(True)
        mlp.norm = GroupedNorm(32, groups)
        return mlp

    (norm,) = sublayers_of(Decoder(lambda: One(sublayer())))[0].inner_norms
    assert (norm.kind, norm.width, norm.groups, norm.gain) == (RMS, 32, groups, Gain.WEIGHT)
    assert norm.eps == pytest.approx(1e-5)


class Routed(nn.Module):
    """Two experts; what the router reads is normed, its weights are made to sum to one."""

    def __init__(self, norm):
        super().__init__()
        self.norm, self.router = norm, nn.Linear(16, 2)
        self.experts = nn.ModuleList(feed_forward() for _ in range(2))

    def forward(self, x):
        weights = self.router(self.norm(x)).sigmoid()
        weights = weights / weights.sum(-1, keepdim=True)
        return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


@pytest.mark.parametrize("norm", [nn.LayerNorm(16), Function(rms), Function(lambda x: F.rms_norm(x, (16,)))])
def test_a_norm_before_the_router_alone_leaves_the_placement_clear(norm):
    mlp = sublayers_of(Decoder(lambda: One(Routed(norm))))[0]
    assert mlp.placement is PRE and not mlp.hidden_norm and len(mlp.inner_norms) == 1 and mlp.kind == "mlp"


class Chosen(Routed):
    """The chosen experts' weights are divided by their own length, of whatever kind, behind the experts' matrices."""

    def __init__(self, order):
        super().__init__(nn.Identity())
        self.order = order

    def forward(self, x):
        weights = self.router(x).softmax(-1)
        weights = weights / torch.norm(weights, p=self.order, dim=-1, keepdim=True)
        return sum(expert(x) * weights[..., i, None] for i, expert in enumerate(self.experts))


@pytest.mark.parametrize("order", [1, 2])
def test_normed_weights_of_experts_are_no_norm_of_the_output(order):
    mlp = sublayers_of(Decoder(lambda: One(Chosen(order))))[0]
    assert mlp.placement is PRE and not mlp.hidden_norm and mlp.kind == "mlp"


def test_experts_that_read_a_norm_while_the_router_reads_the_stream_are_unknown():
    """Neither Pre-Norm nor none: F reads the stream with and without a norm."""
    wire = lambda x, f, w: x + x.mean(-1, keepdim=True).sigmoid() * f(F.rms_norm(x, (16,), w))  # noqa: E731
    for block in stack_of(Decoder(lambda: Block(wire))).blocks:
        assert block.sublayers == () and "reads more than that" in block.unknown


@pytest.mark.parametrize("before", [torch.cos, lambda x: x * x.roll(1, -1)])
def test_norms_before_every_product_make_the_placement_unclear(before):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
            self.norms = nn.ModuleList([nn.LayerNorm(16), nn.RMSNorm(16)])

        def forward(self, x):
            x = before(x)
            return self.a(self.norms[0](x)) * self.b(self.norms[1](x))

    mlp = sublayers_of(Decoder(lambda: One(Split())))[0]
    assert mlp.placement is None and mlp.hidden_norm


# --- what a sublayer does ---------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """A state space model: h <- a h + B x, y = C h, read from left to right or from right to left."""

    def __init__(self, backwards=False, zero=False):
        super().__init__()
        self.inward, self.out, self.decay = nn.Linear(16, 8), nn.Linear(8, 16), nn.Parameter(torch.rand(8))
        self.backwards = backwards
        if zero:
            nn.init.zeros_(self.out.weight)

    def forward(self, x):
        x = self.inward(x.flip(1) if self.backwards else x)
        state, states = torch.zeros_like(x[:, 0]), []
        for token in x.unbind(1):
            state = self.decay.sigmoid() * state + token
            states.append(state)
        y = self.out(torch.stack(states, 1))
        return y.flip(1) if self.backwards else y


def kind_of(sublayer, x):
    (block,) = stack_of(nn.ModuleList([One(sublayer)])[0], x).blocks
    return block.sublayers[0].kind


@pytest.mark.parametrize("backwards", [False, True])
def test_a_state_space_model_is_a_mixer_or_unknown_however_short_the_input(backwards):
    found = [kind_of(Recurrent(backwards), torch.randn(2, tokens, 16)) for tokens in (1, 2, 5)]
    assert found == ["unknown", "mixer", "mixer"]


def test_mlps_are_recognized_in_every_layout():
    assert kind_of(feed_forward(), torch.randn(2, 5, 16)) == kind_of(feed_forward(), torch.randn(1, 5, 16)) == "mlp"
    assert kind_of(feed_forward(), torch.randn(5, 16)) == "mlp"
    assert kind_of(feed_forward(), torch.randn(2, 1, 16)) == "unknown"


def test_weights_of_zero_and_nan_hide_nothing_and_stay():
    assert kind_of(Recurrent(zero=True), torch.randn(2, 5, 16)) == "mixer"
    mlp = feed_forward()
    nn.init.zeros_(mlp[2].weight)
    assert kind_of(mlp, torch.randn(2, 5, 16)) == "mlp" and not mlp[2].weight.any()
    for value in (float("nan"), float("inf")):
        mlp = feed_forward()
        with torch.no_grad():
            mlp[0].weight[3, 2] = value
        before = mlp[0].weight.clone()
        assert kind_of(mlp, torch.randn(2, 5, 16)) == "mlp"
        assert torch.equal(mlp[0].weight.nan_to_num(7, 8), before.nan_to_num(7, 8))


def test_numbers_that_are_no_weights_may_still_hide_what_a_sublayer_does():
    for number in (0.0, float("nan")):
        mlp = nn.Sequential(nn.Linear(16, 16), Function(lambda x: x * number), nn.Linear(16, 16))  # noqa: B023
        assert kind_of(mlp, torch.randn(2, 5, 16)) == "unknown"


class NoBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.tanh()


def test_without_a_backward_pass_what_a_sublayer_does_is_unknown():
    sublayer = nn.Sequential(nn.Linear(16, 16), Function(NoBackward.apply), nn.Linear(16, 16))
    assert kind_of(sublayer, torch.randn(2, 5, 16)) == "unknown"


class Shift(nn.Module):
    """Mixes each token with the one before it by a learned weight per feature, as RWKV does: sums inside F."""

    def __init__(self):
        super().__init__()
        self.w, self.up, self.gate, self.down = nn.Parameter(torch.rand(16)), *(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        before = F.pad(x, (0, 0, 1, -1))
        mixed = x * self.w + before * (1 - self.w)
        return self.gate(x * self.w.square() + before).sigmoid() * self.down(self.up(mixed).relu().square())


def test_sums_inside_a_sublayer_are_no_stream():
    shifted, mlp = sublayers_of(Decoder(lambda: nn.Sequential(One(Shift()), One(feed_forward()))))
    assert (shifted.kind, shifted.formula, shifted.placement) == ("mixer", "x + F(N(x))", PRE)
    assert (mlp.kind, mlp.formula) == ("mlp", "x + F(N(x))")


class ChannelsFirst(nn.Module):
    """A stream [B, d, T]: matrices are convolutions, and the norm turns the axes."""

    def __init__(self, size):
        super().__init__()
        self.inward, self.out = nn.Conv1d(16, 32, 1), nn.Conv1d(32, 16, size, padding="same")
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm((x + self.out(self.inward(x).relu())).transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("size, kind", [(1, "mlp"), (3, "mixer")])
def test_features_may_stand_second(size, kind):
    stack = stack_of(nn.Sequential(*(ChannelsFirst(size) for _ in range(3))), torch.randn(2, 16, 5))
    for block in stack.blocks:
        assert [(s.kind, s.placement) for s in block.sublayers] == [(kind, POST)]


class Differential(nn.Module):
    """The difference of two attentions; ``apart``: each has queries and keys of its own, normed or not."""

    def __init__(self, apart, normed=lambda x: x):
        super().__init__()
        self.qkv, self.out, self.apart, self.normed = nn.Linear(16, 48), nn.Linear(8, 16), apart, normed

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = self.normed(q), self.normed(k)
        if not self.apart:
            q, k = q[:, :1], k[:, :1]
        (q1, q2), (k1, k2), (v1, v2) = ((t[:, 0], t[:, -1]) for t in (q, k, v))
        first, second = F.scaled_dot_product_attention(q1, k1, v1), F.scaled_dot_product_attention(q2, k2, v2)
        return self.out(first - 0.5 * second)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_two_attentions_in_one_sublayer_are_attention(apart, normed):
    model = Decoder(lambda: One(Differential(apart, rms if normed else lambda x: x)))
    (found,) = sublayers_of(model)
    assert (found.kind, found.placement) == ("attention", PRE)
    if normed and apart:
        assert found.unknown_qk_norm and "no QK-norm" not in str(normlab.inspect(model))
    else:
        assert (found.qk_norm is not None) == normed and not found.unknown_qk_norm


class Pooled(nn.Module):
    """Attention of a stream to what a longer one was, by content and by position (Funnel's way): two products."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, longer, places):
        scores = self.q(x) @ self.k(longer).mT + self.q(x + 1) @ self.k(places).mT
        return x + self.out(scores.softmax(-1) @ self.v(longer))


class LinearMemory(Pooled):
    """No softmax: the stream is multiplied with a matrix that another stream has made."""

    def forward(self, x, longer, places):
        return x + self.out(self.q(x) @ (self.k(longer).mT @ self.v(longer)))


@pytest.mark.parametrize("block", [Pooled, LinearMemory])
def test_what_meets_another_stream_is_no_mlp(block):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.blocks = nn.Embedding(11, 16), nn.ModuleList(block() for _ in range(2))

        def forward(self, ids):
            longer = self.embedding(ids)
            x, places = longer[:, ::2] + longer[:, 1::2], longer.flip(1).cos()
            for block in self.blocks:
                x = block(x, longer, places)
            return x

    (stack,) = normlab.inspect(Model()).stacks
    assert {s.kind for b in stack.blocks for s in b.sublayers} <= {"unknown", "cross-attention"}


# --- what stops a run, and what must not ------------------------------------------------------------------------------


class Checkpointed(Decoder):
    """Activation checkpointing, imported as most code does, and in evaluation mode too."""

    def __init__(self, reentrant):
        super().__init__(pre_block)
        self.reentrant = reentrant

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_nothing(reentrant):
    model = Checkpointed(reentrant)
    assert normlab.inspect(model).stacks == normlab.inspect(Decoder(pre_block)).stacks
    ids = torch.arange(8).view(2, 4)
    calls = []
    model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    model(ids).sum().backward()
    assert len(calls) == 2  # it is switched on again: the backward pass runs the block once more


def test_weights_without_numbers_are_named():
    with torch.device("meta"):
        model = Decoder()
    with pytest.raises(ValueError, match="w of Decoder is on the meta device"):
        normlab.inspect(model)


def test_inference_mode():
    with torch.inference_mode():
        model = Decoder(pre_block)
    with pytest.raises(ValueError, match=r"w of Decoder was made in torch.inference_mode\(\)"):
        normlab.inspect(model)
    model, block = Decoder(pre_block), pre_block()
    expected = normlab.inspect(model)
    with torch.inference_mode():
        assert normlab.inspect(model) == expected
        assert normlab.inspect(block, torch.randn(2, 4, 16)).stacks[0].blocks == expected.stacks[0].blocks[:1]


def test_a_model_that_fails_by_itself_says_how():
    class Fails(Decoder):
        def forward(self, ids):
            raise KeyError("no such expert")

    message = "Fails failed on a tensor torch.int64 .* KeyError: 'no such expert'"
    with pytest.raises(ValueError, match=message) as raised:
        normlab.inspect(Fails())
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(KeyError, match="no such expert"):
        normlab.inspect(Fails(), torch.arange(8).view(2, 4))
