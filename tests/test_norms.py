"""Norm modules: torch's conventions, those of real models to the last bit, and the inputs that break wrappers."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from draw import normal
from torch import nn
from wrong_masks import WRONG_MASKS

from normlab import conventions, fast, functional
from normlab.norms import (
    BatchNorm,
    Convention,
    GroupNorm,
    LayerNorm,
    NormKind,
    PowerNorm,
    RMSNorm,
    ScaleNorm,
    make_norm,
)

HALF = (torch.float16, torch.bfloat16)


def randomize(module, seed=1):
    """Gains of 1 and shifts of 0 hide mistakes."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
    return module


def close(ours, theirs, tolerance=1e-12):
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


# --- make_norm -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(NormKind))
def test_every_kind_is_built_from_enum_and_string_and_takes_a_mask(kind):
    x, mask = normal(2, 5, 6, dtype=torch.float32), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    for norm in (make_norm(kind, 6), make_norm(kind.value, 6, eps=1e-3)):
        assert norm(x).shape == norm(x, mask).shape == x.shape


def test_default_eps():
    for kind in NormKind:
        if kind not in (NormKind.DYT, NormKind.IDENTITY):
            assert make_norm(kind, 4).eps == (1e-5 if kind is NormKind.LAYERNORM else 1e-6)
            assert make_norm(kind, 4, eps=0.5).eps == 0.5


@pytest.mark.parametrize(
    "kind, options, error, words",
    [
        (
            "layer",
            {},
            ValueError,
            f"'layer'.*{', '.join(kind.value for kind in NormKind)}",
        ),
        ("rmsnorm", {"width": 0}, ValueError, "width.*0"),
        (
            "rmsnorm",
            {"convention": "nemotron"},
            ValueError,
            "'nemotron'.*rmsnorm.*default, llama, gemma, olmo2, t5, bare",
        ),
        (
            "layernorm",
            {"convention": Convention.LLAMA},
            ValueError,
            "'llama'.*layernorm.*default, nemotron, no_bias, bare",
        ),
        ("batchnorm", {"convention": "gemma"}, ValueError, "'gemma'.*batchnorm.*known: default$"),
        ("identity", {"convention": "gemma"}, ValueError, "'gemma'.*identity"),
        ("rmsnorm", {"groups": 2}, TypeError, "groups"),
        ("identity", {"groups": 2}, TypeError, "groups"),
        ("groupnorm", {"groups": 4}, ValueError, "groups=4, width=6"),
        ("groupnorm", {"over": "batch"}, ValueError, "batch"),
    ],
)
def test_wrong_settings_get_a_clear_error(kind, options, error, words):
    with pytest.raises(error, match=words):
        make_norm(kind, **{"width": 6, **options})


@pytest.mark.parametrize("kind", list(NormKind))
def test_widths_and_eps_are_checked_at_construction(kind):
    for width, error in ((0, ValueError), (-3, ValueError), (4.0, TypeError), ("4", TypeError), (None, TypeError)):
        with pytest.raises(error, match=f"width must be .*got {width!r}"):
            make_norm(kind, width)
    for eps, error in ((-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("1e-5", TypeError)):
        with pytest.raises(error, match=f"eps must be .*got {eps!r}"):
            make_norm(kind, 4, eps=eps)
    assert make_norm(kind, np.int64(4), eps=np.float32(0.5))(torch.ones(2, 4)).shape == (2, 4)


@pytest.mark.parametrize("cls", [LayerNorm, RMSNorm, BatchNorm, GroupNorm, PowerNorm, ScaleNorm])
@pytest.mark.parametrize("eps, error", [(None, TypeError), (-1, ValueError), (math.nan, ValueError), (1j, TypeError)])
def test_classes_check_eps_themselves(cls, eps, error):
    """torch's RMSNorm takes None for "the smallest of the dtype"; here eps is a number."""
    with pytest.raises(error, match="eps must be"):
        cls(4, eps)
    with pytest.raises(TypeError, match="width must be an integer"):
        cls((4,))


@pytest.mark.parametrize(
    "kind, options, error, words",
    [
        ("rmsnorm", {"fraction": 0.0}, ValueError, r"fraction must lie in \(0, 1\].*fraction=0.0"),
        ("rmsnorm", {"fraction": 0.5, "convention": "llama"}, ValueError, "fraction=0.5 under 'llama'"),
        ("rmsnorm", {"fraction": math.nan}, ValueError, "fraction must be finite, got nan"),
        ("rmsnorm", {"fraction": None}, TypeError, "fraction must be a number, got None"),
        ("batchnorm", {"momentum": 1.1}, ValueError, r"momentum must lie in \[0, 1\], got 1.1"),
        ("batchnorm", {"momentum": math.nan}, ValueError, "momentum must be finite, got nan"),
        ("batchnorm", {"momentum": "0.1"}, TypeError, "momentum must be a number, got '0.1'"),
        ("groupnorm", {"groups": 2.0}, TypeError, "groups must be an integer, got 2.0"),
        ("groupnorm", {"groups": 0}, ValueError, "groups must be at least 1, got 0"),
        ("powernorm", {"alpha_fwd": -0.1}, ValueError, r"alpha_fwd must lie in \[0, 1\], got -0.1"),
        ("powernorm", {"alpha_bkw": math.inf}, ValueError, "alpha_bkw must be finite, got inf"),
        ("powernorm", {"warmup": -1}, ValueError, "warmup must be at least 0, got -1"),
        ("powernorm", {"group_scaling": 4}, ValueError, "group_scaling must divide the width, got 4 and width=6"),
        ("powernorm", {"group_scaling": True}, TypeError, "group_scaling must be an integer, got True"),
        ("dyt", {"alpha": math.inf}, ValueError, "alpha must be finite, got inf"),
        ("dyt", {"alpha": None}, TypeError, "alpha must be a number, got None"),
    ],
)
def test_other_numbers_are_checked_at_construction(kind, options, error, words):
    with pytest.raises(error, match=words):
        make_norm(kind, 6, **options)


@pytest.mark.parametrize(
    "kind, options",
    [(kind, {}) for kind in NormKind if kind is not NormKind.IDENTITY]
    + [("layernorm", {"convention": "bare"}), ("rmsnorm", {"convention": "bare"}), ("rmsnorm", {"fraction": 0.5})]
    + [("groupnorm", {"over": "tokens"}), ("powernorm", {"group_scaling": 1})],
)
@pytest.mark.parametrize("fast_path", [True, False])
def test_another_width_is_refused(kind, options, fast_path):
    """With or without parameters whose shapes would tell."""
    if fast_path and "fraction" in options:
        pytest.skip("partial RMSNorm has no fast path")
    with fast.enabled(fast_path):
        for norm in (make_norm(kind, 4, **options), make_norm(kind, 4, **options).eval()):
            assert norm(torch.ones(2, 3, 4)).shape == (2, 3, 4)
            for shape in ((2, 3, 5), (2, 4, 1)):
                with pytest.raises(ValueError, match=rf"4.*{shape[-1]}|{shape[-1]}.*4"):
                    norm(torch.ones(shape))
            with pytest.raises(TypeError, match="x must be a torch.Tensor, got list"):
                norm([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("kind", list(NormKind))
def test_modules_can_be_copied_and_stored(kind):
    norm, x = randomize(make_norm(kind, 6)), normal(4, 6, seed=1, dtype=torch.float32)
    norm(x)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        assert torch.equal(twin.eval()(x), copy.deepcopy(norm).eval()(x))


@pytest.mark.parametrize("kind", list(NormKind))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
def test_the_result_has_the_dtype_of_x(kind, dtype):
    """Whatever the dtype of the parameters."""
    x = normal(3, 4, 6, seed=2, dtype=dtype)
    for norm in (randomize(make_norm(kind, 6)), randomize(make_norm(kind, 6)).to(dtype)):
        for mode in (True, False):
            y = norm.train(mode)(x)
            assert y.dtype == dtype and y.isfinite().all()


@pytest.mark.parametrize(
    "kind, known",
    [("layernorm", conventions.LAYER_NORM_CONVENTIONS), ("rmsnorm", conventions.RMS_NORM_CONVENTIONS)],
)
def test_fresh_layers_agree_under_every_convention(kind, known):
    """Whatever is stored at the start, the gain is 1 and the shift 0."""
    x = normal(2, 9, 6, seed=3, mean=0.5, dtype=torch.float32)
    for convention in known:
        norm = make_norm(kind, 6, convention=convention)
        close(norm(x), getattr(functional, "layer_norm" if kind == "layernorm" else "rms_norm")(x, eps=norm.eps), 1e-6)
        if convention in ("gemma", "nemotron"):
            assert norm.weight.abs().max() == 0


def test_a_fresh_scale_norm_is_rms_norm():
    x = normal(2, 9, 6, seed=3, mean=0.5, dtype=torch.float32)
    close(make_norm("scalenorm", 6)(x), make_norm("rmsnorm", 6, eps=0.0)(x), 1e-6)


# --- the conventions of real models, against their own classes ------------------------------------------------------


@pytest.fixture(scope="module")
def published():
    """Convention -> the published class of (width, eps), each in one of the models that use it."""
    pytest.importorskip("transformers")
    from transformers.models.cohere.modeling_cohere import CohereLayerNorm
    from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.nanochat.modeling_nanochat import NanoChatRMSNorm
    from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
    from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
    from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    return {
        "Llama": ("rmsnorm", "llama", LlamaRMSNorm),
        "Qwen3": ("rmsnorm", "llama", Qwen3RMSNorm),
        "Gemma2": ("rmsnorm", "gemma", Gemma2RMSNorm),
        "Gemma3": ("rmsnorm", "gemma", Gemma3RMSNorm),
        "Olmo2": ("rmsnorm", "olmo2", Olmo2RMSNorm),
        "T5": ("rmsnorm", "t5", T5LayerNorm),
        "NanoChat": ("rmsnorm", "bare", lambda width, eps: NanoChatRMSNorm(eps)),
        "GPT2": ("layernorm", "torch", nn.LayerNorm),
        "Nemotron": ("layernorm", "nemotron", NemotronLayerNorm1P),
        "Cohere": ("layernorm", "no_bias", CohereLayerNorm),
        "Olmo": ("layernorm", "bare", lambda width, eps: OlmoLayerNorm(width)),
    }


MODELS = ("Llama", "Qwen3", "Gemma2", "Gemma3", "Olmo2", "T5", "NanoChat", "GPT2", "Nemotron", "Cohere", "Olmo")


def pair(published, model, width, eps):
    kind, convention, their_class = published[model]
    theirs = randomize(their_class(width, eps=eps), seed=width)
    ours = make_norm(kind, width, eps=1e-5 if model == "Olmo" else eps, convention=convention)  # theirs is fixed
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("x_dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("w_dtype", [torch.float32, *HALF])
def test_bit_exact_with_the_published_class(published, model, x_dtype, w_dtype):
    """For every mix of input and gain types that the published code accepts; gradients agree up to rounding."""
    if model in ("GPT2", "Nemotron") and w_dtype not in (x_dtype, torch.float32):
        pytest.skip("torch's kernel refuses this mix; see the next test")
    for width, eps, mean in ((7, 1e-6, 0.0), (64, 1e-5, 2.0), (300, 1e-3, -1.0)):
        ours, theirs = (norm.to(w_dtype) for norm in pair(published, model, width, eps))
        x = normal(3, 40, width, seed=width, dtype=x_dtype, mean=mean).requires_grad_()
        with fast.enabled(False):
            mine, yours = ours(x), theirs(x)
        assert mine.dtype == yours.dtype and torch.equal(mine, yours)
        coarsest = max(torch.finfo(t).eps for t in (x_dtype, mine.dtype))
        close(ours(x), yours, max(2 * coarsest, 2e-6))  # the fast path
        g = normal(3, 40, width, seed=9, dtype=mine.dtype)
        tolerance = 4 * torch.finfo(x_dtype).eps
        close(torch.autograd.grad(mine, x, g)[0], torch.autograd.grad(yours, x, g)[0], tolerance)


@pytest.mark.parametrize("x_dtype, w_dtype", [(torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16)])
def test_nemotron_takes_dtypes_that_torchs_kernel_refuses(published, x_dtype, w_dtype):
    ours, _ = (norm.to(w_dtype) for norm in pair(published, "Nemotron", 16, 1e-5))
    x = normal(3, 16, seed=16, dtype=x_dtype)
    gain = (ours.weight + 1).float()  # 1 + w is rounded as it is stored
    assert torch.equal(ours(x), F.layer_norm(x.float(), (16,), gain, ours.bias.float(), 1e-5).to(x_dtype))


@pytest.mark.parametrize("model", MODELS)
def test_conventions_keep_float64_where_the_published_class_narrows_it(published, model):
    ours, theirs = (norm.double() for norm in pair(published, model, 48, 1e-6))
    x = normal(5, 48, seed=4, mean=1.0)
    gain = 1.0 if ours.weight is None else ours.weight + (ours.convention.value in ("gemma", "nemotron"))
    plain = F.layer_norm if model in ("GPT2", "Nemotron", "Cohere", "Olmo") else F.rms_norm
    exact = plain(x, (48,), eps=ours.eps)
    exact = exact * gain + (0 if getattr(ours, "bias", None) is None else ours.bias)
    close(ours(x), exact, 1e-13)
    close(theirs(x), exact, 2e-6)


def test_where_the_rounding_happens():
    """bfloat16 [3, 1, 1, 5] has root mean square 3; values worked out with exact fractions (eps is negligible)."""
    x, gain = torch.tensor([3.0, 1, 1, 5], dtype=torch.bfloat16), torch.full((4,), 1.015625, dtype=torch.bfloat16)
    late = [1.015625, 0.337890625, 0.337890625, 1.6953125]
    assert functional.rms_norm(x, gain, convention="llama").tolist() == [1.015625, 0.33984375, 0.33984375, 1.6875]
    assert functional.rms_norm(x, gain, convention="olmo2").tolist() == late
    assert functional.rms_norm(x, gain).tolist() == late
    stored = torch.full((4,), 7.96875, dtype=torch.bfloat16)  # 1 + w = 8.96875 needs more digits than bfloat16 has
    assert functional.rms_norm(x, stored, convention="gemma").tolist() == [8.9375, 2.984375, 2.984375, 14.9375]
    assert functional.rms_norm(x, 1 + stored, convention="olmo2").tolist() == [9, 3, 3, 15]


def test_nemotron_stores_the_gain_minus_one(published):
    """Ours starts at 0, gain 1. The published class starts its stored weight at 1: a fresh model has gain 2."""
    x = normal(4, 32, seed=5, dtype=torch.float32)
    _, _, theirs = published["Nemotron"]
    close(theirs(32)(x), 2 * make_norm("layernorm", 32, convention="nemotron")(x), 1e-6)


@pytest.mark.parametrize("x_dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("w_dtype", [torch.float64, torch.float32, *HALF])
def test_dtype_table_of_the_conventions(x_dtype, w_dtype):
    x, w = normal(2, 8, seed=6, dtype=x_dtype), normal(8, seed=7, dtype=w_dtype)
    wider = torch.promote_types(x_dtype, w_dtype)
    for convention in (Convention.DEFAULT, Convention.GEMMA, Convention.OLMO2):
        assert functional.rms_norm(x, w, convention=convention).dtype == x_dtype
    assert functional.rms_norm(x, w, convention=Convention.LLAMA).dtype == wider
    scores = torch.promote_types(x_dtype, torch.float32) if w_dtype not in HALF else w_dtype
    assert functional.rms_norm(x, w, convention=Convention.T5).dtype == torch.promote_types(scores, w_dtype)
    assert functional.rms_norm(x, convention=Convention.BARE).dtype == x_dtype
    assert functional.layer_norm(x, w, convention=Convention.NO_BIAS).dtype == x_dtype
    assert functional.layer_norm(x, convention=Convention.BARE).dtype == x_dtype


def test_published_arithmetic_overflows_where_the_plain_formula_does_not():
    """The price of bit-exactness: above about 1e19/sqrt(d) the conventions return zeros, as the models would."""
    x = torch.full((4,), 1e20)
    assert functional.rms_norm(x).tolist() == [1, 1, 1, 1]
    assert functional.rms_norm(x, convention="llama").tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x, w: functional.rms_norm(x, w, convention="bare"), "'bare' has no weight"),
        (lambda x, w: functional.layer_norm(x, w, convention="bare"), "'bare' has no weight"),
        (lambda x, w: functional.layer_norm(x, None, w, convention="bare"), "'bare' has no bias"),
        (lambda x, w: functional.layer_norm(x, w, w, convention="no_bias"), "'no_bias' has no bias"),
        (lambda x, w: functional.rms_norm(x, w, convention="mistral"), "'mistral' is not known for rmsnorm"),
        (lambda x, w: functional.rms_norm(x, w, convention="llama", fraction=0.5), "fraction=0.5 under 'llama'"),
        (lambda x, w: functional.rms_norm(x, w, fraction=0.0), "fraction=0.0"),
        (lambda x, w: functional.rms_norm(x, w, fraction=1.5), "fraction=1.5"),
    ],
)
def test_what_a_convention_does_not_have_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(torch.ones(2, 4), torch.ones(4))


# --- partial RMSNorm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "width, fraction, used", [(16, 0.0625, 1), (10, 0.25, 3), (100, 0.07, 7), (30, 0.1, 3), (5, 1.0, 5)]
)
def test_partial_rms_norm_reads_the_first_features(width, fraction, used):
    """ceil(p d), in exact arithmetic: 0.07 * 100 is 7.000000000000001 in floating point."""
    norm = randomize(make_norm("rmsnorm", width, eps=1e-3, fraction=fraction)).double()
    x = normal(6, width, seed=8)
    close(norm(x), norm.weight * x / (x[:, :used].square().mean(-1, keepdim=True) + 1e-3).sqrt())


# --- BatchNorm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.1, 0.0, 0.7, 1.0, None])
@pytest.mark.parametrize("shape", [(5, 6), (2, 3, 6), (1, 4, 6)])
def test_batch_norm_keeps_statistics_as_torch_does(momentum, shape):
    ours = randomize(BatchNorm(6, eps=1e-3, momentum=momentum)).double()
    theirs = nn.BatchNorm1d(6, eps=1e-3, momentum=momentum).double()
    theirs.load_state_dict(ours.state_dict())
    for seed in range(4):
        x = normal(*shape, seed=seed, mean=seed, std=1 + seed)
        rows = x.flatten(0, -2).requires_grad_()
        twin = x.clone().requires_grad_()
        y, y_theirs = ours(twin), theirs(rows)
        close(y.flatten(0, -2), y_theirs)
        g = normal(*y.shape, seed=9)
        for mine, yours in zip(
            torch.autograd.grad(y, (twin, ours.weight, ours.bias), g),
            torch.autograd.grad(y_theirs, (rows, theirs.weight, theirs.bias), g.flatten(0, -2)),
            strict=True,
        ):
            close(mine.flatten(), yours.flatten())
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value)
    close(ours.eval()(x).flatten(0, -2), theirs.eval()(rows))


def test_batch_norm_by_hand():
    x = torch.tensor([[1.0], [2], [3], [4]])
    norm = BatchNorm(1, eps=1e-12)
    close(norm(x), torch.tensor([[-3.0], [-1], [1], [3]]) / 5**0.5, 1e-6)
    close(norm.running_mean, torch.tensor([0.25]), 1e-7)
    close(norm.running_var, torch.tensor([0.9 + 0.1 * 5 / 3]), 1e-6)  # the unbiased 5/3, not 5/4
    close(norm.eval()(x), torch.tensor([[0.7262], [1.6944], [2.6627], [3.6309]]), 1e-4)
    cumulative = BatchNorm(1, momentum=None)
    cumulative(x), cumulative(x + 4)
    close(cumulative.running_mean, torch.tensor([4.5]))
    close(cumulative.running_var, torch.tensor([5 / 3]), 1e-6)
    frozen = BatchNorm(1, momentum=0.0)
    frozen(x)
    assert (frozen.running_mean.item(), frozen.running_var.item()) == (0, 1)
    newest = BatchNorm(1, eps=1e-12, momentum=1.0)
    train = newest(x)
    close(newest.eval()(x) / train, torch.full((4, 1), 0.75**0.5), 1e-6)


def test_batch_norm_needs_two_tokens_to_train():
    norm = BatchNorm(3)
    with pytest.raises(ValueError, match=r"two real tokens.*got 1 in \(1, 3\)"):
        norm(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"two real tokens.*got 1 in \(2, 2, 3\)"):
        norm(torch.ones(2, 2, 3), torch.tensor([[1, 0], [0, 0]]))
    with pytest.raises(ValueError, match="two real tokens.*got 0"):
        norm(torch.ones(0, 2, 3), torch.zeros(0, 2))
    with pytest.raises(ValueError, match="two real tokens.*got 1"):
        functional.batch_moments(torch.ones(1, 3))
    assert norm.num_batches_tracked == 0 and norm.running_mean.abs().max() == 0
    assert norm(torch.ones(1, 5, 3)).shape == (1, 5, 3)
    assert norm.eval()(torch.ones(1, 3)).isfinite().all()
    with pytest.raises(ValueError):
        nn.BatchNorm1d(3)(torch.ones(1, 3))


def test_batch_norm_reads_features_last():
    """torch reads (N, C, L) and would take the middle axis of (N, L, C) for features, silently when L equals C."""
    x = torch.arange(18.0).reshape(2, 3, 3)
    norm = BatchNorm(3)
    y = norm(x)
    close(norm.running_mean, 0.1 * torch.tensor([7.5, 8.5, 9.5]), 1e-6)
    right, wrong = nn.BatchNorm1d(3, eps=1e-6), nn.BatchNorm1d(3, eps=1e-6)
    close(y, right(x.mT).mT, 1e-6)
    assert 0.9 < (wrong(x) - y).abs().max() < 0.92
    close(wrong.running_mean, 0.1 * torch.tensor([5.5, 8.5, 11.5]), 1e-6)
    with pytest.raises(ValueError, match=r"weight .*\(5,\).*\(3,\)"):
        norm(torch.ones(2, 3, 5))


@pytest.mark.parametrize("pads", [0, 2, 50])
@pytest.mark.parametrize("content", [0.0, 7.0, 1e4, float("nan")])
def test_padding_stays_out_of_the_batch_statistics(pads, content):
    x = torch.full((2, 3 + pads, 1), content)
    x[0, :3, 0] = torch.tensor([2.0, 4, 6])
    x[1, 0, 0] = 8
    mask = torch.zeros(2, 3 + pads, dtype=torch.bool)
    mask[0, :3] = mask[1, 0] = True
    norm = BatchNorm(1, momentum=1.0)
    y = norm(x, mask)
    close(y[mask].flatten(), torch.tensor([-3.0, -1, 1, 3]) / 5**0.5, 1e-6)
    close(norm.running_mean, torch.tensor([5.0]))
    close(norm.running_var, torch.tensor([20 / 3]), 1e-6)
    assert y[~mask].abs().sum() == 0


def test_what_padding_does_without_a_mask():
    x = torch.tensor([[[2.0], [4], [6]], [[8], [0], [0]]])
    moments = functional.batch_moments(x)
    close(moments.mean, torch.tensor([10 / 3]), 1e-6)
    close(moments.var, torch.tensor([80 / 9]), 1e-6)


def test_statistics_of_huge_values_fit():
    """2000 squares of 1e18 sum to more than float32 has; their mean fits."""
    x = 1e18 * normal(2000, 3, seed=32, dtype=torch.float32).sign()
    moments, square = functional.batch_moments(x), functional.mean_square(x)
    close(moments.mean, x.double().mean(0).float(), 1e-5)
    close(moments.var, x.double().var(0, correction=0).float(), 1e-5)
    close(square, torch.full((3,), 1e36), 1e-5)


def test_accumulating_gradients_is_not_a_large_batch():
    """Eight rows at once or as two times four: the same gradient with LayerNorm, another with BatchNorm."""
    x, target = normal(8, 4, seed=10), normal(8, 4, seed=11)
    gaps = {}
    for kind in ("layernorm", "batchnorm"):
        torch.manual_seed(0)
        linear, norm = nn.Linear(4, 4).double(), make_norm(kind, 4).double()
        grads = []
        for size in (8, 4):
            linear.zero_grad()
            for rows, wanted in zip(x.split(size), target.split(size), strict=True):
                (F.mse_loss(norm(linear(rows)), wanted) * size / 8).backward()
            grads.append(linear.weight.grad.clone())
        gaps[kind] = (grads[0] - grads[1]).abs().max().item()
    assert gaps["layernorm"] < 1e-14 and gaps["batchnorm"] > 1e-2
    assert norm.num_batches_tracked == 3  # one batch of eight, then two of four


# --- GroupNorm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm_over_tokens_is_that_of_torch(groups):
    ours = randomize(GroupNorm(6, eps=1e-3, groups=groups, over="tokens")).double()
    theirs = nn.GroupNorm(groups, 6, eps=1e-3).double()
    theirs.load_state_dict(ours.state_dict())
    x = normal(3, 5, 6, seed=12, mean=2.0)
    close(ours(x), theirs(x.mT).mT)
    image = normal(2, 4, 3, 6, seed=13)
    close(ours(image), theirs(image.movedim(-1, 1)).movedim(1, -1))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm_over_features_treats_tokens_alone(groups):
    ours = randomize(GroupNorm(6, eps=1e-3, groups=groups)).double()
    x = normal(3, 5, 6, seed=14, mean=2.0)
    by_token = F.group_norm(x.flatten(0, 1), groups, ours.weight, ours.bias, 1e-3)
    close(ours(x).flatten(0, 1), by_token)
    close(GroupNorm(6, groups=1).double()(x), functional.layer_norm(x, eps=1e-6))
    if groups == 6:
        close(ours(x), ours.bias.expand_as(x))  # one feature a group: nothing is left


def test_one_group_is_layer_norm_only_over_the_same_axes():
    image = torch.arange(8.0).reshape(1, 2, 2, 2)  # [N, C, H, W]
    one_group = GroupNorm(2, eps=1e-5, over="tokens")(image.movedim(1, -1)).movedim(-1, 1)
    expected = (torch.arange(8.0) - 3.5) / 5.25**0.5
    close(one_group.flatten(), expected, 1e-5)
    close(one_group, nn.GroupNorm(1, 2)(image), 1e-6)
    close(one_group, nn.LayerNorm((2, 2, 2))(image), 1e-6)
    over_channels = GroupNorm(2, eps=1e-5)(image.movedim(1, -1))
    close(over_channels, torch.tensor([-1.0, 1]).expand(1, 2, 2, 2) * (1 + 1e-5 / 4) ** -0.5, 1e-7)
    assert (nn.GroupNorm(1, 2).weight.shape, nn.LayerNorm((2, 2, 2)).weight.shape) == ((2,), (2, 2, 2))


def test_group_norm_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="6 features.*groups=4"):
        functional.group_norm(torch.ones(2, 6), 4)
    with pytest.raises(ValueError, match=r"batch.*\(6,\)"):
        functional.group_norm(torch.ones(6), 2, over="tokens")
    with pytest.raises(ValueError, match="6 features.*groups=0"):
        functional.group_scaling(torch.ones(2, 6), 0)


# --- PowerNorm ------------------------------------------------------------------------------------------------------


def test_power_norm_divides_by_what_it_knew_before():
    norm = PowerNorm(1, eps=1e-12, warmup=0).double()
    x = torch.tensor([[2.0], [-2]], dtype=torch.float64)
    close(norm(x), x)  # phi starts at 1
    close(norm.running_phi, torch.tensor([0.9 + 0.1 * 4], dtype=torch.float64))
    close(norm(x), x / 1.3**0.5)
    norm.eval()
    phi = norm.running_phi.clone()
    close(norm(x), x / (1.3 * 0.9 + 0.4) ** 0.5)
    assert torch.equal(phi, norm.running_phi)


def test_power_norm_counts_each_warm_up_batch_once():
    norm = PowerNorm(1, eps=0.0, warmup=2).double()
    for size, mean in ((2.0, 4.0), (3.0, 6.5)):
        x = torch.tensor([[size], [-size]], dtype=torch.float64)
        close(norm(x), x / size)  # the batch's own mean square
        close(norm.running_phi, torch.tensor([mean], dtype=torch.float64))
    close(norm(x), x / 6.5**0.5)
    close(norm.running_phi, torch.tensor([0.9 * 6.5 + 0.1 * 9], dtype=torch.float64))


@pytest.mark.parametrize("warmup", [0, 100])
def test_power_norm_has_its_own_backward_pass(warmup):
    """Three steps against the recursion written out."""
    norm = randomize(PowerNorm(3, eps=1e-3, alpha_fwd=0.8, alpha_bkw=0.7, warmup=warmup)).double()
    phi, nu = torch.ones(3).double(), torch.zeros(3).double()
    for step in range(3):
        x = normal(2, 4, 3, seed=step, std=1.5).requires_grad_()
        g = normal(2, 4, 3, seed=10 + step)
        batch = x.detach().square().mean((0, 1))
        root = ((batch if warmup else phi) + 1e-3).sqrt()
        scores, u = x.detach() / root, g * norm.weight.detach()
        dx, dweight, dbias = torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), g)
        close(dx, (u - nu * scores) / root)
        close(dweight, (g * scores).sum((0, 1)))
        close(dbias, g.sum((0, 1)))
        nu = nu * (1 - 0.3 * scores.square().mean((0, 1))) + 0.3 * (u * scores).mean((0, 1))
        phi = (phi * step + batch) / (step + 1) if warmup else 0.8 * phi + 0.2 * batch
        close(norm.running_nu, nu)
        close(norm.running_phi, phi)


def test_power_norms_backward_pass_settles_at_the_exact_gradient():
    """On one batch over and over, nu converges to mean(g x̂), and the gradient to that of the batch's statistic."""
    norm = PowerNorm(3, eps=0.0).double()
    x, g = normal(50, 3, seed=20).requires_grad_(), normal(50, 3, seed=21)
    (exact,) = torch.autograd.grad(functional.power_norm(x, eps=0.0), x, g)
    gaps = [(torch.autograd.grad(norm(x), x, g)[0] - exact).abs().max().item() for _ in range(300)]
    assert gaps[0] > 0.05 and gaps[-1] < 1e-12


def test_power_norm_without_state_is_differentiated_exactly():
    x, w, b = (
        normal(*shape, seed=s).requires_grad_() for s, shape in ((22, (4, 3)), (23, (3,)), (24, (3,)))
    )
    assert torch.autograd.gradcheck(functional.power_norm, (x, w, b))
    phi = torch.tensor([0.5, 1, 2], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *a: functional.power_norm(*a, phi=phi), (x, w, b))


def test_power_norms_group_scaling_is_a_visible_option():
    x = normal(2, 5, 6, seed=25, mean=1.0)
    plain, scaled = PowerNorm(6, eps=1e-6).double(), PowerNorm(6, eps=1e-6, group_scaling=1).double()
    close(scaled(x), plain(functional.rms_norm(x, eps=1e-6)))
    grouped = functional.group_scaling(x, 2, eps=1e-6)
    close(grouped[..., :3], functional.rms_norm(x[..., :3], eps=1e-6))
    close(grouped[..., 3:], functional.rms_norm(x[..., 3:], eps=1e-6))


def test_power_norm_uses_its_gain_and_shift():
    norm, x = randomize(PowerNorm(3)).double(), normal(8, 3, seed=26)
    close(norm(x), norm.weight * x / (x.square().mean(0) + 1e-6).sqrt() + norm.bias)


def test_an_empty_batch_leaves_power_norm_alone():
    norm = PowerNorm(3)
    assert norm(torch.ones(0, 4, 3), torch.zeros(0, 4)).shape == (0, 4, 3) and norm.num_batches_tracked == 0
    assert torch.equal(norm.running_phi, torch.ones(3))


# --- ScaleNorm, DyT, identity ---------------------------------------------------------------------------------------


def test_scale_norm_sets_the_length():
    norm = make_norm("scalenorm", 16).double()
    x = normal(5, 16, seed=27)
    close(norm(x).norm(dim=-1), torch.full((5,), 4.0).double())
    assert norm.weight.shape == ()
    with torch.no_grad():
        norm.weight.fill_(2.5)
    close(norm(x), 2.5 * F.normalize(x, dim=-1))
    close(norm(1e-9 * x), 2.5 * 1e-9 * x / 1e-6)  # shorter than eps: divided by eps
    with pytest.raises(ValueError, match=r"weight .*\(\).*\(16,\)"):
        functional.scale_norm(x, torch.ones(16))


def test_dyt_squashes_every_feature_alone():
    norm = randomize(make_norm("dyt", 4, alpha=0.8)).double()
    x = normal(5, 4, seed=28)
    close(norm(x), norm.weight * torch.tanh(norm.alpha * x) + norm.bias)
    assert make_norm("dyt", 4).alpha.item() == 0.5
    close(functional.dyt(x), torch.tanh(x / 2))
    with pytest.raises(ValueError, match=r"alpha .*\(\).*\(4,\)"):
        functional.dyt(x, alpha=torch.ones(4))


def test_identity_returns_its_argument():
    x = torch.ones(2, 3)
    assert make_norm("identity", 3)(x) is x and not list(make_norm("identity", 3).parameters())


# --- masks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, options", [("batchnorm", {}), ("powernorm", {}), ("groupnorm", {"over": "tokens"})])
def test_a_mask_of_another_shape_is_refused(kind, options):
    with pytest.raises(ValueError, match=r"\(2, 5\).*\(2, 5, 6\)"):
        make_norm(kind, 6, **options)(torch.ones(2, 5, 6), torch.ones(2, 5, 6))


@pytest.mark.parametrize("kind, options", [("batchnorm", {}), ("powernorm", {}), ("groupnorm", {"over": "tokens"})])
@pytest.mark.parametrize("name", WRONG_MASKS)
@pytest.mark.parametrize("training", [True, False])
def test_a_mask_that_is_none_is_refused(kind, options, name, training):
    mask, error, words = WRONG_MASKS[name]
    norm = make_norm(kind, 6, **options).train(training)
    with pytest.raises(error, match=f"mask must .*{words}"):
        norm(normal(2, 5, 6, dtype=torch.float32), mask)


@pytest.mark.parametrize("kind, options", [("batchnorm", {}), ("powernorm", {}), ("groupnorm", {"over": "tokens"})])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, *HALF, torch.float64])
def test_a_mask_may_have_any_dtype(kind, options, dtype):
    mask, x = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]), normal(2, 5, 6, dtype=torch.float32)
    results = [make_norm(kind, 6, **options)(x, m) for m in (mask.bool(), mask.to(dtype))]
    assert torch.equal(*results) and results[0][0, 2:].abs().max() == 0


# --- where torch does something else (test_torch_itself.py says what) -----------------------------------------------


@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
def test_the_missing_eps_does_not_depend_on_the_dtype(dtype):
    x = torch.full((1, 4), 1e-3, dtype=dtype)
    assert functional.rms_norm(x)[0, 0].item() == pytest.approx(0.5**0.5, abs=3e-3 if dtype in HALF else 1e-6)
    assert RMSNorm(4).eps == 1e-6


def test_a_gain_may_be_narrower_than_the_input():
    x, w = normal(3, 8, seed=29, dtype=torch.float32), normal(8, seed=30, dtype=torch.float32)
    for half in HALF:
        close(functional.layer_norm(x, w.to(half)), functional.layer_norm(x, w.to(half).float()), 0)


def test_where_decay_pulls_a_gain():
    """Decay pulls what is stored to 0. Under GEMMA that is a gain of 1, under LLAMA it switches the feature off."""
    x = normal(3, 6, seed=31, dtype=torch.float32)
    gains = [make_norm("rmsnorm", 6, convention=c) for c in ("gemma", "llama")]
    for norm in gains:
        nn.init.zeros_(norm.weight)
    close(gains[0](x), functional.rms_norm(x), 1e-6)
    assert gains[1](x).abs().max() == 0
