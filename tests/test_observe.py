"""Probes of any model, against what ``transformers`` itself returns, against hooks on our own model, and by hand."""

from dataclasses import dataclass

import pytest
import torch
from draw import normal
from tiny_models import VOCABULARY, ids, tiny
from torch import nn

from normlab import probes
from normlab.inspection import observe
from normlab.placement import Placement
from normlab.training.losses import next_token_loss
from normlab.transformer import Transformer, TransformerConfig

FAMILIES = ("GPT-2", "BERT", "Llama", "Qwen 3", "Gemma 2", "OLMo 2", "GPT-NeoX", "Cohere")
IDS = ids()
MASK = torch.ones_like(IDS)
MASK[1, 4:] = 0


def ours(**options):
    settings = {"vocab_size": VOCABULARY, "context": 12, "layers": 3, "width": 16, "heads": 2, **options}
    return Transformer(TransformerConfig(**settings), seed=3).double()


def close(actual, expected):
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-5)


# --- records ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", Placement)
def test_what_the_trace_sees_is_what_hooks_on_our_model_see(placement):
    net = ours(placement=placement, norm="layernorm")
    by_hooks, by_trace = probes.readings(net, IDS, MASK), observe.readings(net, IDS, MASK)
    assert [(r.layer, r.kind) for r in by_hooks] == [(l, k) for l in (1, 2, 3) for k in ("attention", "mlp")]
    for ours_, theirs in zip(by_hooks, by_trace, strict=True):
        assert (ours_.layer, ours_.kind) == (theirs.layer, theirs.kind)
        for name in ("stream", "sublayer_input", "increment", "stream_after"):
            close(getattr(theirs, name), getattr(ours_, name))


def test_scaled_norms_of_our_model():
    net = ours(placement="peri", output_scale="inverse_sqrt_layer")
    for a, b in zip(probes.readings(net, IDS), observe.readings(net, IDS), strict=True):
        close(b.increment, a.increment)
        close(a.stream + a.increment, a.stream_after)


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_the_hidden_states_of_transformers(family):
    model = tiny(family)
    records = observe.readings(model, IDS, MASK)
    with torch.no_grad():
        hidden = model(IDS, attention_mask=MASK, output_hidden_states=True).hidden_states
    assert [(r.layer, r.kind) for r in records] == [(l, k) for l in (1, 2) for k in ("attention", "mlp")]
    close(records[0].stream, hidden[0])
    close(records[2].stream, hidden[1])
    if family == "BERT":
        close(records[-1].stream_after, hidden[-1])
    else:  # the last hidden state is normed: recompute it
        close(final_norm(family, model)(records[-1].stream_after.float()), hidden[-1])


def final_norm(family, model):
    return {"GPT-2": lambda: model.transformer.ln_f, "GPT-NeoX": lambda: model.gpt_neox.final_layer_norm}.get(
        family, lambda: model.model.norm
    )()


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_add_up(family):
    records = observe.readings(tiny(family), IDS)
    for r in records:
        if family == "BERT":
            assert not torch.allclose(r.stream + r.increment, r.stream_after, atol=1e-2)
        else:
            close(r.stream + r.increment, r.stream_after)
    for earlier, later in zip(records, records[1:]):
        close(later.stream, earlier.stream_after)
    if family != "BERT":
        assert max(s.error for s in probes.variance_account(records)) < 1e-5


def test_sublayer_inputs_and_increments_by_hand():
    model = tiny("Gemma 2")
    first, second = observe.readings(model, IDS)[:2]
    layer = model.model.layers[0]
    close(first.sublayer_input, layer.input_layernorm(first.stream.float()))
    close(second.increment, layer.post_feedforward_layernorm(layer.mlp(second.sublayer_input.float())))
    cohere = observe.readings(tiny("Cohere"), IDS)
    assert torch.equal(cohere[0].sublayer_input, cohere[1].sublayer_input)


def test_encoder_and_decoder_are_counted_on():
    records = observe.readings(tiny("T5"), IDS, decoder_input_ids=IDS)
    assert [r.layer for r in records] == [1, 1, 2, 2, 3, 3, 3, 4, 4, 4]
    assert [r.kind for r in records[-3:]] == ["attention", "cross-attention", "mlp"]


def test_models_without_embedding():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    x = normal(2, 5, 16, dtype=torch.float32)
    first, second = observe.readings(layer, x)
    close(first.stream_after, layer.norm1(x + layer._sa_block(x, None, None)))
    close(second.stream_after, layer(x))


def test_what_is_not_understood_is_refused():
    with pytest.raises(ValueError, match="no stack of residual blocks was recognized in Linear"):
        observe.readings(nn.Linear(3, 3), torch.ones(2, 3))

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(8, 8)

        def forward(self, x):
            return torch.maximum(x, self.f(x))

    with pytest.raises(ValueError, match="block 1 is not understood: the stream passes through 'maximum'"):
        observe.readings(nn.Sequential(Gated(), Gated()), torch.ones(2, 3, 8))


# --- attention --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_give_the_attentions_of_transformers(family):
    model = tiny(family, attn_implementation="eager")
    with torch.no_grad():
        expected = model(IDS, attention_mask=MASK, output_attentions=True).attentions
    # The default implementation, except where it leaves out Gemma 2's soft cap, as in transformers before 5.21.
    default = {} if family != "Gemma 2" else {"attn_implementation": "eager"}
    records = observe.attention(tiny(family, **default), IDS, MASK)
    assert [r.layer for r in records] == [1, 2]
    real = MASK.bool()
    for r, weights in zip(records, expected, strict=True):
        close(r.logits.softmax(-1).transpose(1, 2)[real], weights.transpose(1, 2)[real])
        assert (r.logits[1, :, 4:] == -torch.inf).all() and (r.logits[1, :, :, 4:] == -torch.inf).all()
        assert r.largest == r.logits.max() < 1e4
        entropy = torch.special.entr(weights.double()).sum(-1).transpose(1, 2)[real]  # [real tokens, heads]
        close(r.head_entropy, entropy.mean(0))
        assert r.entropy == pytest.approx(entropy.mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"attention_softcap": 0.7}, {"qk_norm": "joint", "kv_heads": 1}, {"windows": (2, None, 3)}]
)
def test_logits_of_our_model(options):
    net = ours(**options)
    found = observe.attention(net, IDS)
    for r, before, block in zip(found, probes.readings(net, IDS)[::2], net.blocks, strict=True):
        expected = block.residuals[0].sublayer.logits(before.sublayer_input)
        visible = r.logits > -torch.inf
        close(r.logits[visible], expected[visible])
        window = (options.get("windows") or (None,) * 3)[r.layer - 1] or 7
        assert visible.sum((0, 1, 3)).tolist() == [4 * min(i + 1, window) for i in range(7)]


def test_entropy_of_even_and_of_one_hot_attention():
    visible = torch.ones(7, 7).tril().bool()
    even = observe.AttentionReading(1, torch.zeros(2, 3, 7, 7).masked_fill(~visible, -torch.inf).double())
    counts = torch.arange(1.0, 8.0).double()
    assert even.entropy == pytest.approx(counts.log().mean().item())
    sharp = observe.AttentionReading(1, torch.diag(torch.full((7,), 1e4)).expand(2, 3, 7, 7).double())
    assert sharp.entropy == pytest.approx(0) and sharp.largest == 1e4


# --- gradients --------------------------------------------------------------------------------------------------------


def expected_gradients(model, targets, owner):
    """Norms by (layer, kind), from .grad and a classification by name."""
    next_token_loss(model, IDS, targets, MASK).backward()
    square = {}
    for name, parameter in model.named_parameters():
        key = owner(name)
        square[key] = square.get(key, 0.0) + parameter.grad.double().square().sum().item()
    model.zero_grad(set_to_none=True)
    return {key: value**0.5 for key, value in square.items()}


def of_llama(name):
    if "embed_tokens" in name or "lm_head" in name:
        return (0, "embedding") if "embed" in name else (3, "head")
    layer = int(name.split("layers.")[1][0]) + 1 if "layers." in name else 3
    kind = "norm" if "norm" in name else "attention" if "attn" in name else "mlp"
    return layer, kind


def of_ours(name):
    if "embedding" in name or name.startswith("head"):
        return (4, "head") if name.startswith("head") else (0, "embedding")
    layer = int(name.split(".")[1]) + 1 if name.startswith("blocks") else 4
    kind = "norm" if "norm" in name else "attention" if ".residuals.0." in name else "mlp"
    return layer, kind


@pytest.mark.parametrize(
    "model, owner", [("Llama", of_llama), ("Qwen 3", of_llama), ("Gemma 2", of_llama), (None, of_ours)]
)
def test_gradients_by_layer_and_kind(model, owner):
    net = tiny(model, tie_word_embeddings=False) if model else ours(placement="peri", qk_norm="per_head")
    targets = ids(seed=1)
    expected = expected_gradients(net, targets, owner)
    found = {(g.layer, g.kind): g for g in observe.gradients(net, IDS, targets, MASK)}
    assert list(found) == sorted(expected)
    assert {key: g.norm for key, g in found.items()} == pytest.approx(expected, rel=1e-4)
    assert sum(g.parameters for g in found.values()) == sum(p.numel() for p in net.parameters())
    assert all(g.size == g.norm / g.parameters**0.5 for g in found.values())
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_has_an_owner(family):
    found = observe.gradients(tiny(family), IDS, ids(seed=1))
    kinds = {"norm", "embedding", "attention", "mlp"}
    known = [g for g in found if g.layer >= 0]
    assert kinds <= {g.kind for g in known} and {g.layer for g in known} <= {0, 1, 2, 3}
    # BERT's pooler and next-sentence head are not part of BertForMaskedLM; all else is used.
    assert [g for g in found if g.layer < 0] == []


def test_tied_and_unused_matrices():
    net = ours(tied_head=True)
    net.unused = nn.Linear(2, 2, bias=False).double()
    found = {(g.layer, g.kind): g for g in observe.gradients(net, IDS, ids(seed=1))}
    assert (4, "head") not in found and found[-1, "unknown"].norm == 0 and found[-1, "unknown"].parameters == 4


def test_frozen_parameters_are_left_out():
    net = ours()
    net.token_embedding.requires_grad_(False)
    found = {(g.layer, g.kind): g for g in observe.gradients(net, IDS, ids(seed=1))}
    assert found[0, "embedding"].parameters == net.position_embedding.weight.numel()


# --- skipping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_skipping_a_block_is_removing_it(family):
    targets = ids(seed=1)
    effects = observe.skip_effects(tiny(family), IDS, targets, MASK)
    for layer in (0, 1):
        model = tiny(family)
        model.config.use_cache = False  # it counts layers
        layers = next(m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
        with torch.no_grad():
            whole = next_token_loss(model, IDS, targets, MASK).item()
            del layers[layer]
            without = next_token_loss(model, IDS, targets, MASK).item()
        assert effects[layer] == pytest.approx(without - whole, abs=1e-5)
        assert abs(effects[layer]) > 1e-4


@pytest.mark.parametrize("placement", ["pre", "post", "parallel"])
def test_skipping_blocks_of_our_model(placement):
    net, targets = ours(placement=placement), ids(seed=1)
    with torch.no_grad():
        whole = next_token_loss(net, IDS, targets).item()
        for block, effect in zip(net.blocks, observe.skip_effects(net, IDS, targets), strict=True):
            with probes.skipped(block.residuals):
                assert effect == pytest.approx(next_token_loss(net, IDS, targets).item() - whole, abs=1e-12)
        assert next_token_loss(net, IDS, targets).item() == whole


def test_blocks_that_return_more_than_the_stream():
    class Pair(nn.Module):
        def forward(self, scale, x):
            return 2 * x, scale

    block, x = Pair(), torch.ones(3)
    with observe.handed_through(block, position=1):
        stream, rest = block(torch.zeros(1), x)
    assert stream is x and rest.item() == 0 and torch.equal(block(torch.zeros(1), x)[0], 2 * x)


def test_outputs_of_any_shape():
    @dataclass
    class Output:
        logits: torch.Tensor
        rest: tuple

    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, inputs, **kwargs):
            return Output(self.net(inputs, **kwargs), ({"more": None},))

    net, targets = ours(), ids(seed=1)
    assert observe.skip_effects(Wrapped(net), IDS, targets) == observe.skip_effects(net, IDS, targets)
    assert observe.gradients(Wrapped(net), IDS, targets) == observe.gradients(net, IDS, targets)
