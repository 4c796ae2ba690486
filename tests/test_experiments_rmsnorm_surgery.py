"""Chapter 4's surgery on models: the same logits on every configuration that allows it, a reason on every other one.

Which configurations allow it is said here a second time, from the formulas of the placements.
"""

import itertools
import random
from collections import Counter

import pytest
import torch
from draw import randomize

from normlab.experiments import rmsnorm as rms
from normlab.norms import RMSNorm
from normlab.transformer import Transformer, TransformerConfig

WIDTH, LAYERS, VOCAB = 12, 2, 13
PLACEMENTS = ["pre", "peri", "output", "post", "deepnorm", "parallel", "hybrid", "none"]
CHOICES = {
    "placement": [*PLACEMENTS, ("post", "pre"), ("pre", "peri")],
    "convention": ["default", "default", "bare", "other"],
    "sublayers": [("attention", "mlp"), ("attention", "mlp"), ("mlp", "attention", "mlp"), ("attention",), ("mlp",)],
    "mlp": ["plain", "gated"],
    "tied_head": [False, True],
    "embedding_norm": [False, False, True],
    "head_transform": [False, False, False, True],
    "final_norm": [None, None, True, False],
    "qk_norm": ["none", "none", "per_head", "joint"],
    "qk_norm_after_rope": [False, True],
    "positions": ["learned", "rope", "none"],
    "parallel_shared_norm": [False, True],
    "output_scale": ["none", "inverse_sqrt_layer"],
    "attention_bias": [False, True],
    "mlp_bias": [False, True],
    "head_bias": [False, True],
    "segments": [0, 2],
    "embedding_multiplier": [None, 3.5],
    "kv_heads": [1, 2],
    "head_dim": [4, 6],
    "causal": [False, True],
    "windows": [None, (2, None)],
    "attention_softcap": [None, 5.0],
    "logit_softcap": [None, 4.0],
    "eps": [None, 1e-30, 0.1],
    "activation": ["gelu", "silu"],
}
OTHER = {"layernorm": ["torch", "nemotron", "no_bias"], "rmsnorm": ["llama", "gemma", "olmo2", "t5"]}
PRE_LIKE = {"pre", "parallel"}  # every norm stands at the door of a sublayer


def plain(**options):
    return TransformerConfig(VOCAB, 8, LAYERS, WIDTH, heads=2, **options)


def configs(norm, count, seed=0):
    """``count`` configurations drawn at random, as dictionaries."""
    rng = random.Random(seed)
    while count:
        options = {name: rng.choice(values) for name, values in CHOICES.items()}
        if options["convention"] == "other":
            options["convention"] = rng.choice(OTHER.get(norm, ["default"]))
        if norm not in OTHER:
            options["convention"] = "default"
        try:
            config = plain(norm=norm, **options)
        except ValueError:  # an output scale where a norm stands on the stream
            continue
        count -= 1
        yield config


def randomized(config, seed=0, gains=True, shifts=True):
    """Without ``gains`` those of the norms stay equal, but not 1; without ``shifts`` theirs stay 0."""
    model = randomize(Transformer(config, seed).double(), seed, matrices=True)
    with torch.no_grad():
        for norm in (m for m in model.modules() if hasattr(m, "eps")):
            for name, p in norm.named_parameters():
                if not (gains if name == "weight" else shifts):
                    p.fill_(1.2 if name == "weight" else 0.0)
    return model


def logits(model):
    """Of real tokens: what stands at padded places is not promised."""
    generator = torch.Generator().manual_seed(9)
    ids = torch.randint(0, VOCAB, (3, 7), generator=generator)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[0, 5:] = mask[1, :2] = False
    segments = (ids % 2) if model.config.segments else None
    with torch.no_grad():
        whole, padded = (model(ids, m, segment_ids=segments) for m in (None, mask))
    return torch.cat([whole.flatten(0, 1), padded[mask]])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9 * b.abs().max().item())


def outcomes(surgery, models, possible):
    """How often it worked and how often not; AssertionError where logits differ or a refusal was not due."""
    counts = Counter()
    for model in models:
        before = {k: v.clone() for k, v in model.state_dict().items()}
        allowed = possible(model.config)
        try:
            new = surgery(model)
        except ValueError as reason:
            assert not allowed, (str(reason), model.config)
            assert any(word in str(reason) for word in ("placement", "norm", "head")), reason
        else:
            assert allowed, model.config
            close(logits(new), logits(model))
            assert new.config.tied_head is False and new.training == model.training
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
        counts[allowed] += 1
    return counts


# --- rotation -------------------------------------------------------------------------------------------------------


def no_norm_writes_to_the_stream(config):
    attention_only = "mlp" not in config.sublayers
    quiet = PRE_LIKE | {"none"} | ({"hybrid"} if attention_only else set())
    return not config.embedding_norm and all(p.value in quiet for p in config.placements)


def rotatable(config):
    return config.convention.value == "bare" or no_norm_writes_to_the_stream(config)


def test_rotation_of_any_rms_norm_model_or_a_reason():
    """With random gains it works where no norm writes to the stream, or where there are no gains."""
    Q = rms.rotation(WIDTH)
    models = [randomized(config, i) for i, config in enumerate(configs("rmsnorm", 150))]
    counts = outcomes(lambda m: rms.rotated(m, Q), models, rotatable)
    assert min(counts[True], counts[False]) > 30, counts


@pytest.mark.parametrize("norm", ["rmsnorm", "scalenorm", "identity"])
def test_equal_gains_let_every_rotation_through(norm):
    Q = rms.rotation(WIDTH, seed=3)
    models = [randomized(config, i, gains=False) for i, config in enumerate(configs(norm, 60, seed=1))]
    assert outcomes(lambda m: rms.rotated(m, Q), models, lambda config: True)[True] == 60


def test_permutations_turn_any_gains_into_gains():
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))
    P = torch.eye(WIDTH, dtype=torch.float64)[order] * torch.tensor([1.0, -1.0]).repeat(WIDTH // 2)[:, None]
    models = [randomized(config, i) for i, config in enumerate(configs("rmsnorm", 60, seed=2))]
    assert outcomes(lambda m: rms.rotated(m, P), models, lambda config: True)[True] == 60


@pytest.mark.parametrize("norm", ["layernorm", "batchnorm", "groupnorm", "powernorm", "dyt"])
def test_other_norms_let_no_rotation_through(norm):
    model = Transformer(plain(norm=norm))
    with pytest.raises(ValueError, match=r"blocks.0.residuals.0.norm \(placement=pre\) lets no rotation through"):
        rms.rotated(model, rms.rotation(WIDTH))


def test_partial_rms_norm_lets_no_rotation_through():
    model = Transformer(plain())
    model.final_norm = RMSNorm(WIDTH, fraction=0.5)
    with pytest.raises(ValueError, match="final_norm lets no rotation through"):
        rms.rotated(model, rms.rotation(WIDTH))


@pytest.mark.parametrize("Q", [torch.eye(WIDTH + 1), torch.ones(WIDTH), 2 * torch.eye(WIDTH), torch.ones(WIDTH, WIDTH)])
def test_what_is_no_rotation_is_refused(Q):
    with pytest.raises(ValueError, match=r"Q must be an orthogonal matrix of shape \(12, 12\)"):
        rms.rotated(Transformer(plain()), Q)


# --- LayerNorm to RMSNorm -------------------------------------------------------------------------------------------


def convertible(config, equal=False):
    """Whether every mean that RMSNorm would see can be taken out. ``equal``: gains are equal, shifts 0."""
    bare = config.convention.value == "bare"
    equal, no_shift = equal or bare, bare or equal or config.convention.value == "no_bias"
    if config.head_transform:
        return False
    hybrid = any(p.value == "hybrid" for p in config.placements)  # which norms queries, keys and values
    if "attention" in config.sublayers and (config.qk_norm.value != "none" or hybrid):
        if not no_shift or (config.qk_norm_after_rope and config.positions.value == "rope"):
            return False
    stream_is_normed = config.embedding_norm  # and nothing was added since
    if config.embedding_norm and not equal:
        return False
    for placement, kind in itertools.product(config.placements, config.sublayers):
        match placement.value, kind:
            case ("pre" | "parallel", _):
                stream_is_normed = False
            case ("peri", _):
                if not equal:
                    return False
                stream_is_normed = False
            case ("post" | "deepnorm", _):
                if not (stream_is_normed and equal):
                    return False
            case ("hybrid", "mlp"):
                if not equal:
                    return False
                stream_is_normed = False
            case ("hybrid", "attention") | ("output" | "none", _):
                if not stream_is_normed or (placement.value == "output" and not equal):
                    return False
                stream_is_normed = False
    return config.final_norm or stream_is_normed


def test_conversion_of_any_layer_norm_model_or_a_reason():
    models = [randomized(config, i) for i, config in enumerate(configs("layernorm", 250, seed=3))]
    counts = outcomes(rms.to_rmsnorm, models, convertible)
    assert min(counts[True], counts[False]) > 30, counts


def test_conversion_where_gains_are_equal_and_shifts_zero():
    models = [randomized(c, i, gains=False, shifts=False) for i, c in enumerate(configs("layernorm", 150, seed=4))]
    counts = outcomes(rms.to_rmsnorm, models, lambda config: convertible(config, equal=True))
    assert min(counts[True], counts[False]) > 30, counts


@pytest.mark.parametrize("placement", ["post", "deepnorm", "peri"])
def test_equal_shifts_of_norms_that_write_to_the_stream(placement):
    """They are a mean and nothing else; bare readers still get it."""
    model = Transformer(plain(norm="layernorm", placement=placement, embedding_norm=True))
    with torch.no_grad():
        for name, p in model.double().named_parameters():
            if "norm" in name and name.endswith("bias"):
                p += 0.7
    new = rms.to_rmsnorm(model)
    close(logits(new), logits(model))


def test_converted_models_have_no_layer_norm_and_can_be_rotated():
    for i, config in enumerate(configs("layernorm", 60, seed=5)):
        if convertible(config) and no_norm_writes_to_the_stream(config):
            model = randomized(config, i)
            new = rms.to_rmsnorm(model)
            kinds = {type(m) for m in new.modules() if hasattr(m, "eps")}
            assert kinds <= {RMSNorm} and new.config.norm.value == "rmsnorm"
            close(logits(rms.rotated(new, rms.rotation(WIDTH))), logits(model))


@pytest.mark.parametrize("norm", ["rmsnorm", "batchnorm", "identity"])
def test_only_layer_norm_models_are_converted(norm):
    with pytest.raises(ValueError, match=f"norm=layernorm.*got norm={norm}"):
        rms.to_rmsnorm(Transformer(plain(norm=norm)))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"placement": "post"}, r"residuals.0.sublayer.query \(placement=post\) reads the stream without a norm"),
        ({"placement": "output"}, r"\(placement=output\) reads the stream without a norm"),
        ({"placement": "none"}, r"\(placement=none\) reads the stream without a norm"),
        ({"placement": "hybrid", "convention": "no_bias"}, r"\(placement=hybrid\) reads the stream without a norm"),
        ({"placement": "peri"}, r"output_norm \(placement=peri\) writes to the stream, and its gains differ"),
        ({"embedding_norm": True}, "embedding_norm writes to the stream, and its gains differ"),
        ({"final_norm": False}, "head reads the stream without a norm"),
        ({"head_transform": True}, "head_transform=True.*activation"),
        ({"qk_norm": "joint"}, r"query_norm \(placement=pre\) has shifts"),
        (
            {"qk_norm": "joint", "qk_norm_after_rope": True, "positions": "rope", "convention": "no_bias"},
            r"query_norm \(placement=pre\) stands behind the rotation",
        ),
    ],
)
def test_reasons_name_the_place(options, reason):
    model = randomized(plain(norm="layernorm", **options))
    with pytest.raises(ValueError, match=reason):
        rms.to_rmsnorm(model)


def test_an_eps_of_zero_stays_zero():
    model = Transformer(plain(norm="layernorm", eps=0.0))
    assert rms.to_rmsnorm(model).config.eps == 0.0
