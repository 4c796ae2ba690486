"""``normlab.inspection.report`` against the census: what published code does, whatever its names say."""

import subprocess
import sys
from dataclasses import dataclass, fields, is_dataclass, replace

import pytest
import torch
from draw import normal
from tiny_models import scramble, tiny
from torch import nn
from torch.nn import functional as F

import normlab
from normlab import families
from normlab.attention import QKNorm
from normlab.inspection.norm_probe import Cast, Gain, NormReport
from normlab.inspection.report import LastHidden
from normlab.norms import Convention, NormKind
from normlab.placement import Placement
from normlab.transformer import Transformer, TransformerConfig

LN, RMS = NormKind.LAYERNORM, NormKind.RMSNORM
POST, PRE, PERI, OUTPUT, PARALLEL = (
    Placement(p) for p in ("post", "pre", "peri", "output", "parallel")
)
PER_HEAD, JOINT = QKNorm.PER_HEAD, QKNorm.JOINT


@dataclass(frozen=True)
class Row:
    """A line of the census: what the published code of a family does, with the defaults of its configuration."""

    placement: Placement
    kind: NormKind
    eps: float
    gain: Gain = Gain.WEIGHT
    bias: bool = False
    cast: Cast | None = Cast.BEFORE_GAIN
    qk_norm: tuple[QKNorm, bool] | None = None  # how, and whether behind the rotation
    embedding_norm: bool = False
    shares_norm: bool = False


LAYER = {"bias": True, "cast": Cast.ONCE}
CENSUS = {
    "GPT-2": Row(PRE, LN, 1e-5, **LAYER),
    "BERT": Row(POST, LN, 1e-12, **LAYER, embedding_norm=True),
    "Llama": Row(PRE, RMS, 1e-6),
    "Mistral": Row(PRE, RMS, 1e-6),
    "Qwen 3": Row(PRE, RMS, 1e-6, qk_norm=(PER_HEAD, False)),
    "Gemma 2": Row(PERI, RMS, 1e-6, Gain.OFFSET, cast=Cast.ONCE),
    "Gemma 3": Row(PERI, RMS, 1e-6, Gain.OFFSET, cast=Cast.ONCE, qk_norm=(PER_HEAD, False)),
    "OLMo": Row(PRE, LN, 1e-5, Gain.NONE, cast=None),
    "OLMo 2": Row(OUTPUT, RMS, 1e-5, cast=Cast.ONCE, qk_norm=(JOINT, False)),
    "GPT-NeoX": Row(PARALLEL, LN, 1e-5, **LAYER),
    "GPT-NeoX sequential": Row(PRE, LN, 1e-5, **LAYER),
    "Cohere": Row(PARALLEL, LN, 1e-5, cast=Cast.ONCE, qk_norm=(PER_HEAD, False), shares_norm=True),
    "Nemotron": Row(PRE, LN, 1e-5, Gain.OFFSET, bias=True, cast=Cast.OFFSET_FIRST),
    "nanochat": Row(PRE, RMS, 1e-6, Gain.NONE, cast=None, qk_norm=(PER_HEAD, True), embedding_norm=True),
    "GLM-4": Row(PERI, RMS, 1.5625e-7),
    "EXAONE 4": Row(OUTPUT, RMS, 1e-5, qk_norm=(PER_HEAD, False)),
    "OPT": Row(PRE, LN, 1e-5, **LAYER),
    "OPT post": Row(POST, LN, 1e-5, **LAYER),
    "StableLM": Row(PRE, LN, 1e-5, **LAYER, qk_norm=(PER_HEAD, False)),
    "BitNet": Row(PRE, RMS, 1e-5),
    "Granite": Row(PRE, RMS, 1e-6),
}
NAMED_IN_THE_BRIEF = ("GPT-2", "BERT", "Llama", "Qwen 3", "Gemma 2", "OLMo 2", "GPT-NeoX", "Cohere")


def check(norm, row):
    assert (norm.kind, norm.eps, norm.gain, norm.bias, norm.cast) == (row.kind, row.eps, row.gain, row.bias, row.cast)


@pytest.mark.parametrize("family", CENSUS)
def test_census(family):
    row, report = CENSUS[family], normlab.inspect(tiny(family))
    (stack,) = report.stacks
    assert len(stack.blocks) == 2
    for block in stack.blocks:
        assert block.unknown is None and [s.kind for s in block.sublayers] == ["attention", "mlp"]
        for sublayer in block.sublayers:
            assert sublayer.placement is row.placement and sublayer.shares_norm == row.shares_norm
            for norm, wanted in ((sublayer.norm, PERI), (sublayer.output_norm, PERI)):
                assert norm is not None or row.placement is not wanted
            for norm in filter(None, (sublayer.norm, sublayer.output_norm)):
                assert norm.width == 32
                check(norm, row)
        check_qk_norm(family, block.sublayers[0].qk_norm, row)
        assert block.sublayers[1].qk_norm is None
    assert (stack.embedding_norm is not None) == row.embedding_norm
    assert (stack.final_norm is None) == (row.placement is POST)
    assert report.last_hidden is (LastHidden.STREAM if row.placement is POST else LastHidden.NORMED)
    for norm in filter(None, (stack.embedding_norm, stack.final_norm)):
        check(norm, row)


def check_qk_norm(family, found, row):
    if row.qk_norm is None:
        assert found is None
        return
    assert (found.how, found.after_rope) == row.qk_norm and found.value is None
    head_dim = 16 if family in ("Qwen 3", "Gemma 3", "EXAONE 4") else 8
    assert (found.query.width, found.key.width) == ((32, 16) if found.how is JOINT else (head_dim, head_dim))
    for norm in (found.query, found.key):
        check(norm, replace(row, bias=False) if family == "StableLM" else row)


def test_what_the_census_line_does_not_hold():
    sublayers = [normlab.inspect(tiny(f)).stacks[0].blocks[0].sublayers for f in ("Granite", "BitNet", "Mamba")]
    granite, bitnet, (mamba,) = sublayers
    assert [s.formula for s in granite] == 2 * ["x + 0.22 F(N(x))"]
    assert [[n.width for n in s.inner_norms] for s in bitnet] == [[32], [48]]
    assert (mamba.kind, mamba.placement) == ("mixer", PRE)


def test_encoder_and_decoder():
    encoder, decoder = normlab.inspect(tiny("T5")).stacks
    assert [s.kind for s in encoder.blocks[0].sublayers] == ["attention", "mlp"]
    assert [s.kind for s in decoder.blocks[1].sublayers] == ["attention", "cross-attention", "mlp"]
    for stack in (encoder, decoder):
        assert all(s.placement is PRE and s.norm == stack.final_norm for b in stack.blocks for s in b.sublayers)
        assert stack.final_norm.convention is Convention.LLAMA  # T5 rounds as Llama does when all is in half precision


# --- names lie --------------------------------------------------------------------------------------------------------


def without_names(found):
    """The report with the names of classes left out."""
    if isinstance(found, tuple):
        return tuple(map(without_names, found))
    if not is_dataclass(found):
        return found
    found = replace(found, **{f.name: without_names(getattr(found, f.name)) for f in fields(found)})
    return replace(found, module="") if isinstance(found, NormReport) else found


@pytest.mark.parametrize("family", NAMED_IN_THE_BRIEF)
def test_names_play_no_part(family):
    """Every submodule under its neighbor's name, RMSNorms in classes called LayerNorm and all else called RMSNorm."""
    honest, lying = tiny(family), scramble(tiny(family))
    ids = torch.arange(12).view(2, 6)
    assert torch.equal(honest(ids).logits, lying(ids).logits)
    assert {n for n, _ in honest.named_parameters()} != {n for n, _ in lying.named_parameters()}
    expected, found = (without_names(normlab.inspect(m).stacks) for m in (honest, lying))
    assert found == expected


class Lying(nn.Module):
    """x + MLP(norm(x)), called an attention with a norm behind it."""

    def __init__(self, post=False):
        super().__init__()
        self.post = post
        self.self_attention = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.mlp = nn.MultiheadAttention(8, 2, batch_first=True)
        self.post_attention_rmsnorm = nn.LayerNorm(8)
        self.input_layernorm = nn.RMSNorm(8, eps=1e-6)

    def forward(self, x):
        h = self.post_attention_rmsnorm(x)
        x = x + self.mlp(h, h, h, need_weights=False)[0]
        if self.post:
            return self.input_layernorm(x + self.self_attention(x))
        return x + self.self_attention(self.input_layernorm(x))


@pytest.mark.parametrize("post", [False, True])
def test_a_block_that_lies(post):
    report = normlab.inspect(nn.Sequential(*(Lying(post) for _ in range(3))))
    assert len(report.stacks[0].blocks) == 3
    first, second = report.stacks[0].blocks[1].sublayers
    assert (first.kind, first.placement, first.norm.kind) == ("attention", PRE, LN)
    assert (second.kind, second.placement, second.norm.kind) == ("mlp", POST if post else PRE, RMS)


# --- our own Transformer ----------------------------------------------------------------------------------------------


def ours(**options):
    settings = {"vocab_size": 9, "context": 12, "layers": 3, "width": 16, "heads": 2, **options}
    return Transformer(TransformerConfig(**settings))


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm", "batchnorm", "scalenorm", "dyt"])
@pytest.mark.parametrize("placement", Placement)
def test_all_placements(placement, norm):
    report = normlab.inspect(ours(placement=placement, norm=norm))
    for block in report.stacks[0].blocks:
        assert [(s.kind, s.placement) for s in block.sublayers] == [("attention", placement), ("mlp", placement)]
        norms = {n.kind.value for s in block.sublayers for n in (s.norm, s.output_norm) if n}
        assert norms == (set() if placement is Placement.NONE else {norm})
    assert (report.stacks[0].final_norm is None) == (placement in (POST, Placement.DEEPNORM))
    assert report.last_hidden is LastHidden.NOT_RETURNED


def test_deepnorm_and_layernorm_scaling_show_their_factors():
    deepnorm = normlab.inspect(ours(placement="deepnorm", layers=8)).stacks[0].blocks
    assert {s.formula for b in deepnorm for s in b.sublayers} == {"N(2 x + F(x))"}
    scaled = normlab.inspect(ours(output_scale="inverse_sqrt_layer", layers=4)).stacks[0].blocks
    assert [b.sublayers[0].formula for b in scaled[::3]] == ["x + F(N(x))", "x + F(0.5 N(x))"]
    assert all(s.placement is PRE for b in scaled for s in b.sublayers)


def test_hybrid_norms_queries_keys_and_values():
    attention, mlp = normlab.inspect(ours(placement="hybrid")).stacks[0].blocks[0].sublayers
    assert (attention.formula, mlp.formula) == ("x + F(x)", "N(x) + F(N(x))")
    assert attention.qk_norm.how is PER_HEAD and attention.qk_norm.value == attention.qk_norm.query


def test_a_mixed_stack():
    placements = (POST, PRE, PARALLEL)
    report = normlab.inspect(ours(placement=placements, parallel_shared_norm=False))
    assert tuple(b.sublayers[0].placement for b in report.stacks[0].blocks) == placements
    assert not report.stacks[0].blocks[2].sublayers[0].shares_norm


@pytest.mark.parametrize("how", ["per_head", "joint"])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_qk_norm(how, after, fraction):
    options = {"positions": "rope", "rope_fraction": fraction, "qk_norm_after_rope": after, "heads": 4, "kv_heads": 2}
    found = normlab.inspect(ours(qk_norm=how, **options)).stacks[0].blocks[0].sublayers[0].qk_norm
    assert (found.how, found.after_rope) == (QKNorm(how), after)


def test_no_rotation_no_verdict_on_it():
    assert normlab.inspect(ours(qk_norm="joint")).stacks[0].blocks[0].sublayers[0].qk_norm.after_rope is None


@pytest.mark.parametrize("sublayers", [("mlp",), ("attention",), ("mlp", "attention"), ("attention", "mlp", "mlp")])
@pytest.mark.parametrize("layers", [1, 3])
def test_other_blocks_and_stacks_of_one(sublayers, layers):
    blocks = normlab.inspect(ours(sublayers=sublayers, layers=layers)).stacks[0].blocks
    assert [tuple(s.kind for s in b.sublayers) for b in blocks] == layers * [sublayers]


REBUILT = ("GPT-2", "BERT", "Llama", "Mistral", "Qwen 3", "Gemma 2", "Gemma 3", "OLMo 2")
REBUILT += ("GPT-NeoX", "GPT-NeoX sequential")


@pytest.mark.parametrize("family", REBUILT)
def test_a_family_rebuilt_is_wired_like_the_original(family):
    theirs = tiny(family)
    rebuilt = families.from_transformers(theirs)
    assert without_names(normlab.inspect(rebuilt).stacks) == without_names(normlab.inspect(theirs).stacks)


# --- torch's Transformer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_encoder(norm_first, batch_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, norm_first=norm_first, batch_first=batch_first)
    bare = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    normed = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(16), enable_nested_tensor=False)
    for model, hidden in ((layer, LastHidden.STREAM), (bare, LastHidden.STREAM), (normed, LastHidden.NORMED)):
        report = normlab.inspect(model)
        assert report.last_hidden is hidden and len(report.stacks[0].blocks) == (1 if model is layer else 3)
        for block in report.stacks[0].blocks:
            expected = PRE if norm_first else POST
            assert [(s.kind, s.placement) for s in block.sublayers] == [("attention", expected), ("mlp", expected)]


def test_torch_transformer_has_a_final_norm_behind_a_post_norm_stack():
    x = normal(2, 4, 16, dtype=torch.float32)
    report = normlab.inspect(nn.Transformer(16, 2, 2, 2, 32, batch_first=True), x, x)
    for stack in report.stacks:
        assert all(s.placement is POST for b in stack.blocks for s in b.sublayers) and stack.final_norm is not None
    assert [s.kind for s in report.stacks[1].blocks[0].sublayers] == ["attention", "cross-attention", "mlp"]


# --- the reader's own -------------------------------------------------------------------------------------------------


class Custom(nn.Module):
    """A block around ``wire(x, mlp, weight)``; attention comes first, on the bare stream."""

    def __init__(self, wire):
        super().__init__()
        self.wire = wire
        self.mixing = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        x = x + self.mixing(x, x, x, need_weights=False)[0]
        return self.wire(x, self.mlp, self.weight)


def custom(wire):
    report = normlab.inspect(nn.Sequential(*(Custom(wire) for _ in range(2))))
    (stack,) = report.stacks
    assert stack.blocks[0] == stack.blocks[1]
    return stack.blocks[0]


def test_functional_norms_count_as_norms():
    mlp = custom(lambda x, f, w: x + f(F.rms_norm(x, (8,), w, 1e-5))).sublayers[1]
    assert (mlp.placement, mlp.norm.kind, mlp.norm.eps, mlp.norm.gain) == (PRE, RMS, 1e-5, Gain.WEIGHT)
    mlp = custom(lambda x, f, w: F.layer_norm(x + f(x), [8])).sublayers[1]
    assert (mlp.placement, mlp.norm.kind, mlp.norm.gain, mlp.norm.bias) == (POST, LN, Gain.NONE, False)
    mlp = custom(lambda x, f, w: x + f(F.layer_norm(x, (8,), weight=1 + w))).sublayers[1]
    assert mlp.norm.gain is Gain.UNKNOWN


def by_hand(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def test_a_norm_of_something_else_than_the_stream_makes_the_placement_unknown():
    mlp = custom(lambda x, f, w: x + f(F.rms_norm(x.tanh() + x.roll(1, 1), (8,)))).sublayers[1]
    assert mlp.placement is None and mlp.hidden_norm and mlp.inner_norms[0].kind is RMS


def test_a_norm_deep_inside_a_sublayer_does_not():
    def normed_inside(x, f, w):
        return x + f[2](by_hand(f[1](f[0](x))))

    mlp = custom(normed_inside).sublayers[1]
    assert mlp.placement is Placement.NONE and not mlp.hidden_norm and [n.kind for n in mlp.inner_norms] == [RMS]


@pytest.mark.parametrize(
    "wire, formula",
    [
        (lambda x, f, w: x + 0.5 * f(x), "x + 0.5 F(x)"),
        (lambda x, f, w: x + w * f(x), "x + g * F(x)"),
        (lambda x, f, w: f(2 * x).add_(x), "x + F(2 x)"),
        (lambda x, f, w: x.add_(f(F.rms_norm(x, (8,))) / 4), "x + 0.25 F(N(x))"),
        (lambda x, f, w: x.reshape(-1, 8).clone().view(x.shape) + f(x.reshape(-1, 8)).view_as(x), "x + F(x)"),
    ],
)
def test_scales_views_and_writes_in_place(wire, formula):
    mlp = custom(wire).sublayers[1]
    placement = PRE if "N" in formula else Placement.NONE
    assert (mlp.kind, mlp.placement, mlp.formula) == ("mlp", placement, formula)


def test_a_stream_that_grows_in_place_from_a_frozen_table():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mlps = nn.Embedding(5, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, ids):
            x = self.table(ids)
            for mlp in self.mlps:
                x += mlp(F.rms_norm(x, (8,)))
            return x

    report = normlab.inspect(Model().requires_grad_(False))
    assert report.stacks == ()  # there is no module that could be a block


def test_where_the_stream_was_overwritten_autograd_cannot_tell_what_a_sublayer_does():
    mlp = custom(lambda x, f, w: x.add_(f(x))).sublayers[1]
    assert (mlp.kind, mlp.placement, mlp.formula) == ("unknown", Placement.NONE, "x + F(x)")


@pytest.mark.parametrize(
    "wire, reason",
    [
        (lambda x, f, w: torch.maximum(x, f(x)), "the stream passes through 'maximum'"),
        (lambda x, f, w: x + f(x) + x, "not exactly one side"),
        (lambda x, f, w: (x + f(x)).tanh(), "the stream passes through 'tanh'"),
        (lambda x, f, w: f(x), "the stream passes through 'addmm'"),
        (lambda x, f, w: x + f(x) * f(by_hand(x)).sigmoid() + f(x + f(x)), "a branch does not read"),
    ],
)
def test_unknown_wirings_are_unknown(wire, reason):
    block = custom(wire)
    assert block.sublayers == () and reason in block.unknown


class Experts(nn.Module):
    """Each token goes to one of two experts; one more is shared by all."""

    def __init__(self):
        super().__init__()
        self.router, self.shared = nn.Linear(8, 2), nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weight, chosen = self.router(tokens).softmax(-1).max(-1)
        y = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            where = (chosen == number).nonzero()[:, 0]
            y.index_add_(0, where, weight[where, None] * expert(tokens[where]))
        return y.view_as(x) + self.shared(x)


class LowRank(nn.Module):
    """A block with a low-rank update beside the attention's output matrix, and experts as its MLP."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.experts = Experts()

    def forward(self, mask, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + (self.out(mixed) + self.up(self.down(mixed)))
        return x + self.experts(self.norms[1](x))


class Caller(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(LowRank() for _ in range(2))

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1]).tril().bool()
        for block in self.blocks:
            x = block(mask, x)
        return x


def test_low_rank_updates_and_experts_are_parts_of_one_sublayer():
    (stack,) = normlab.inspect(Caller(), normal(3, 5, 8, dtype=torch.float32)).stacks
    for block in stack.blocks:
        assert [(s.kind, s.placement, s.formula) for s in block.sublayers] == [
            ("attention", PRE, "x + F(N(x))"),
            ("mlp", PRE, "x + F(N(x))"),
        ]


def test_the_stream_need_not_come_first():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.cross, self.mlp = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)
            self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))

        def forward(self, memory, x):
            x = x + self.cross(self.norms[0](x), memory, memory, need_weights=False)[0]
            return x + self.mlp(self.norms[1](x)).relu()

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(8, 8)
            self.layers = nn.ModuleList(Block() for _ in range(3))

        def forward(self, x):
            memory = self.encoder(x)
            for layer in self.layers:
                x = layer(memory, x)
            return x

    (stack,) = normlab.inspect(Decoder()).stacks
    for block in stack.blocks:
        assert [(s.kind, s.placement) for s in block.sublayers] == [("cross-attention", PRE), ("mlp", PRE)]


def test_one_block_used_many_times():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True, norm_first=True)

        def forward(self, x):
            for _ in range(4):
                x = self.layer(x)
            return x

    (stack,) = normlab.inspect(Shared()).stacks
    assert len(stack.blocks) == 4 and {s.placement for b in stack.blocks for s in b.sublayers} == {PRE}


def test_a_stream_scaled_in_a_way_without_a_name():
    mlp = custom(lambda x, f, w: 0.5 * x + f(x)).sublayers[1]
    assert mlp.placement is None and mlp.formula == "0.5 x + F(x)"
    for wire, formula in (
        (lambda x, f, w: 0.5 * (x + f(x)), "0.5 (x + F(x))"),
        (lambda x, f, w: w * (x + f(F.layer_norm(x, (8,)))), "g * (x + F(N(x)))"),
        (lambda x, f, w: F.layer_norm(x + f(x), (8,)).div_(2), "0.5 (N(x + F(x)))"),
    ):
        mlp = custom(wire).sublayers[1]
        assert mlp.placement is None and mlp.formula == formula
    mlp = custom(lambda x, f, w: torch.ones(1) * (x + f(x))).sublayers[1]
    assert mlp.placement is Placement.NONE and mlp.formula == "x + F(x)"


def test_no_stack_at_all():
    report = normlab.inspect(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    assert report.stacks == () and "structure unknown" in str(report)
    assert report.last_hidden is LastHidden.UNKNOWN


@pytest.mark.parametrize("family", ["Llama", "BERT", "OLMo 2"])
def test_frozen_weights_and_half_precision(family):
    """All is found, what a sublayer does included, which takes autograd."""
    model = tiny(family).bfloat16().requires_grad_(False)
    assert normlab.inspect(model) == normlab.inspect(tiny(family))


def test_the_model_is_left_as_it_was():
    model = ours(norm="batchnorm")
    model.blocks[1].eval()
    modes = [m.training for m in model.modules()]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    normlab.inspect(model)
    assert modes == [m.training for m in model.modules()]
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_what_it_cannot_call():
    with pytest.raises(ValueError, match=r"Sequential failed on .* shape \(2, 4, 3\).*channels.* pass one"):
        normlab.inspect(nn.Sequential(nn.Conv2d(3, 4, 3)))
    with pytest.raises(ValueError, match="pass an input"):
        normlab.inspect(nn.ReLU())
    with pytest.raises(RuntimeError):  # an input that was given fails with the model's own words
        normlab.inspect(nn.Linear(3, 4), torch.ones(2, 5))


def test_text():
    assert str(normlab.inspect(tiny("Cohere"))).splitlines() == [
        "CohereForCausalLM",
        "  embedding norm: none",
        "  blocks 1 to 2",
        "    attention: x + F(N(x)), parallel; N = [1] (shared); "
        "QK-norm per head, before the rotation, query [2], key [2]",
        "    mlp: x + F(N(x)), parallel; N = [1] (shared)",
        "  final norm: [1]",
        "  last hidden state: returned behind the final norm",
        "  [1] layernorm over 32 features, eps 1e-05, gain w, no bias, rounds once, at the end (CohereLayerNorm)",
        "  [2] layernorm over 8 features, eps 1e-05, gain w, no bias, rounds once, at the end (CohereLayerNorm)",
    ]


def test_it_is_lazy_and_does_without_transformers():
    code = (
        "import sys, normlab; assert 'torch' not in sys.modules\n"
        "import torch; layer = torch.nn.TransformerEncoderLayer(8, 2, 8)\n"
        "print(normlab.inspect(layer).stacks[0].blocks[0].sublayers[0].placement.value)\n"
        "from normlab import inspect\n"
        "print(normlab.inspect(layer) == inspect(layer), 'transformers' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == ["post", "True", "False"], result.stderr
