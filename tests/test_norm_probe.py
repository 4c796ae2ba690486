"""What the norm probe finds, against modules whose formula is known: ours, torch's, and some written by hand."""

import pytest
import torch
from draw import normal
from torch import nn
from torch.nn import functional as F

from normlab.conventions import LAYER_NORM_CONVENTIONS, RMS_NORM_CONVENTIONS
from normlab.inspection.norm_probe import Cast, EpsPlace, Gain, measure
from normlab.norms import Convention, NormKind, make_norm

WIDTH = 24
X = normal(2, 5, WIDTH, dtype=torch.float32)


class Formula(nn.Module):
    """A norm written by hand: ``function`` of x, times a gain."""

    def __init__(self, function, gain=True):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(WIDTH)) if gain else None

    def forward(self, x):
        y = self.function(x)
        return y if self.weight is None else self.weight * y


def rms(x):
    return x.square().mean(-1, keepdim=True).sqrt()


# --- which norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", [k for k in NormKind if k is not NormKind.IDENTITY])
def test_every_kind_of_ours(kind, dtype):
    options = {"groups": 4} if kind is NormKind.GROUPNORM else {}
    report = measure(make_norm(kind, WIDTH, **options).to(dtype), X.to(dtype))
    assert report.kind is kind and report.width == WIDTH
    assert report.across_tokens == (kind in (NormKind.BATCHNORM, NormKind.POWERNORM))
    assert report.groups == options.get("groups", 1)
    assert report.gain is Gain.WEIGHT
    assert report.bias == (kind not in (NormKind.RMSNORM, NormKind.SCALENORM))
    if kind is not NormKind.DYT:
        assert report.eps == (1e-5 if kind is NormKind.LAYERNORM else 1e-6)
        assert report.eps_place is (EpsPlace.CLAMP if kind is NormKind.SCALENORM else EpsPlace.INSIDE)


CASTS = {
    Convention.DEFAULT: Cast.ONCE,
    Convention.LLAMA: Cast.BEFORE_GAIN,
    Convention.T5: Cast.BEFORE_GAIN,
    Convention.GEMMA: Cast.ONCE,
    Convention.OLMO2: Cast.ONCE,
    Convention.NEMOTRON: Cast.OFFSET_FIRST,
    Convention.BARE: None,
    Convention.NO_BIAS: Cast.ONCE,
    Convention.TORCH: Cast.ONCE,
}
KNOWN = [("layernorm", c) for c in LAYER_NORM_CONVENTIONS] + [("rmsnorm", c) for c in RMS_NORM_CONVENTIONS]


@pytest.mark.parametrize("kind, convention", KNOWN)
def test_every_convention_of_ours(kind, convention):
    report = measure(make_norm(kind, WIDTH, convention=convention, eps=3e-4), X)
    offset = convention in (Convention.GEMMA, Convention.NEMOTRON)
    expected = Gain.NONE if convention is Convention.BARE else Gain.OFFSET if offset else Gain.WEIGHT
    assert (report.kind, report.eps, report.gain) == (NormKind(kind), 3e-4, expected)
    bare = convention in (Convention.BARE, Convention.NO_BIAS)
    assert report.bias == (kind == "layernorm" and not bare)
    assert report.cast is CASTS[convention]


@pytest.mark.parametrize("width", [2, 3, 7, 64, 1000])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_widths(kind, width):
    x = normal(2, 3, width, dtype=torch.float32)
    report = measure(make_norm(kind, width), x)
    assert (report.kind.value, report.width, report.gain) == (kind, width, Gain.WEIGHT)


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.5625e-7, 1e-6, 1e-5, 1e-2, 0.5])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_eps_is_measured(kind, eps):
    report = measure(make_norm(kind, WIDTH, eps=eps), X)
    assert report.eps == eps and report.eps_place is EpsPlace.INSIDE


def test_partial_rms_norm():
    assert measure(make_norm("rmsnorm", WIDTH, fraction=0.25), X).fraction == 0.25
    assert measure(make_norm("rmsnorm", WIDTH), X).fraction == 1


@pytest.mark.parametrize(
    "groups, over, kind", [(1, "features", "layernorm"), (1, "tokens", "groupnorm"), (3, "tokens", "groupnorm")]
)
def test_group_norm(groups, over, kind):
    """One group of features is LayerNorm; over tokens it is not."""
    report = measure(make_norm("groupnorm", WIDTH, groups=groups, over=over), X)
    assert (report.kind.value, report.groups, report.across_tokens) == (kind, groups, over == "tokens")


def test_torch_modules():
    assert measure(nn.LayerNorm(WIDTH, bias=False), X).bias is False
    assert measure(nn.LayerNorm(WIDTH, elementwise_affine=False), X).gain is Gain.NONE
    for dtype in (torch.float32, torch.float64):  # eps=None, which depends on the input's dtype
        default = torch.finfo(dtype).eps
        assert measure(nn.RMSNorm(WIDTH).to(dtype), X.to(dtype)).eps == pytest.approx(default, rel=1e-4)
    assert measure(nn.LayerNorm(WIDTH), X).cast is Cast.ONCE


def test_features_second_as_in_torch_batch_norm():
    report = measure(nn.BatchNorm1d(WIDTH), X.transpose(1, 2))
    assert (report.kind, report.width, report.eps, report.across_tokens) == (NormKind.BATCHNORM, WIDTH, 1e-5, True)
    assert measure(nn.BatchNorm1d(WIDTH), X[0]).kind is NormKind.BATCHNORM
    report = measure(nn.GroupNorm(3, WIDTH), X.transpose(1, 2))
    assert (report.kind, report.groups, report.across_tokens) == (NormKind.GROUPNORM, 3, True)


def test_one_gain_per_head_and_feature():
    class PerHead(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 8))

        def forward(self, x):
            return self.weight * F.layer_norm(x, (8,))

    report = measure(PerHead(), X.view(2, 5, 3, 8))
    assert (report.kind, report.width, report.gain) == (NormKind.LAYERNORM, 8, Gain.WEIGHT)


# --- what differs from the usual formula ------------------------------------------------------------------------------


def test_eps_outside_the_root_or_as_a_floor():
    assert measure(Formula(lambda x: x / (rms(x) + 1e-3)), X).eps_place is EpsPlace.OUTSIDE
    report = measure(Formula(lambda x: x / rms(x).clamp_min(1e-3)), X)
    assert (report.eps, report.eps_place) == (1e-3, EpsPlace.CLAMP)
    report = measure(Formula(lambda x: F.normalize(x, dim=-1), gain=False), X)
    assert (report.kind, report.eps, report.gain) == (NormKind.SCALENORM, 1e-12, Gain.NONE)


def test_sample_variance_is_not_passed_over():
    report = measure(Formula(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)), X)
    assert report.kind is NormKind.LAYERNORM and report.gain is Gain.UNKNOWN  # sqrt((d - 1) / d) times w


def test_statistics_in_half_precision_are_an_unknown_rounding():
    naive = Formula(lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    assert measure(naive, X).cast is Cast.UNKNOWN


def test_a_gain_stored_in_another_way_is_unknown():
    class Exponential(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_weight = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x):
            return self.log_weight.exp() * F.rms_norm(x, (WIDTH,), eps=1e-6)

    report = measure(Exponential(), X)
    assert (report.kind, report.gain, report.eps, report.cast) == (NormKind.RMSNORM, Gain.UNKNOWN, 1e-6, Cast.UNKNOWN)


def test_normalizing_in_an_unknown_way():
    report = measure(Formula(lambda x: x / x.abs().mean(-1, keepdim=True)), X)
    assert report is not None and report.kind is None and str(report).startswith("unknown norm over 24 features")


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * x


@pytest.mark.parametrize(
    "module",
    [nn.GELU(), nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.Softmax(-1), nn.Dropout(), nn.Identity(), LayerScale()],
    ids=lambda m: type(m).__name__,
)
def test_no_norms(module):
    assert measure(module, X) is None


def test_a_module_that_takes_no_such_input_is_no_norm():
    assert measure(nn.Conv2d(3, 3, 1), X) is None


def test_the_module_itself_is_left_alone():
    module = make_norm("batchnorm", WIDTH).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    measure(module, X)
    assert not module.training and all(torch.equal(before[n], t) for n, t in module.state_dict().items())


def test_text():
    assert str(measure(make_norm("rmsnorm", WIDTH, convention="llama"), X)) == (
        "rmsnorm over 24 features, eps 1e-06, gain w, no bias, rounds before the gain and again after it (RMSNorm)"
    )
    text = str(measure(make_norm("batchnorm", WIDTH), X))
    assert text.startswith("batchnorm over 24 features, statistics across tokens, eps")
