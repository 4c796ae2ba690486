"""The formulas against torch, float64 and longdouble, closed forms, and the inputs that break implementations."""

import functools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from draw import normal

from normlab import functional
from normlab.functional import layer_norm, rms_norm

HALF = (torch.float16, torch.bfloat16)
WIDTHS = (1, 2, 3, 12, 64, 257, 1000)


def reference(x, weight, bias, eps, center):
    """The formula in 80-bit floats, straight from the page."""
    v = x.double().numpy().astype(np.longdouble)
    if center:
        v = v - v.mean(-1, keepdims=True)
    y = v / np.sqrt((v**2).mean(-1, keepdims=True) + np.longdouble(eps))
    y = y * weight.double().numpy()
    return y if bias is None else y + bias.double().numpy()


# --- right values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("mean", [0.0, -3.0, 100.0])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])
def test_float64_equals_torch(width, mean, eps):
    x = normal(7, 5, width, seed=1, mean=mean, std=1.7)
    w, b = normal(width, seed=2), normal(width, seed=3)
    pairs = [(rms_norm(x, w, eps), F.rms_norm(x, (width,), w, eps))]
    if width > 1 or mean == 0:
        pairs.append((layer_norm(x, w, b, eps), F.layer_norm(x, (width,), w, b, eps)))
    for ours, theirs in pairs:
        assert ((ours - theirs).abs() <= 1e-12 * theirs.abs().clamp(min=1)).all()


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("mean", [0.0, 1.0, 1e3, -1e3])
def test_float64_against_longdouble(width, mean):
    """At |mean| = 1000 std too, where the second centering keeps us at rounding."""
    x, w, b = normal(50, width, seed=4, mean=mean), normal(width, seed=5, std=3.0), normal(width, seed=6)
    for ours, exact in (
        (layer_norm(x, w, b, 1e-5), reference(x, w, b, 1e-5, center=True)),
        (rms_norm(x, w, 1e-6), reference(x, w, None, 1e-6, center=False)),
    ):
        assert (np.abs(ours.numpy() - exact) <= 2e-14 * np.maximum(1, np.abs(exact))).all()


def test_float64_equals_torch_at_a_mean_of_1000_std():
    x = normal(200, 512, seed=7, mean=1e3)
    ours, theirs = layer_norm(x), F.layer_norm(x, (512,))
    assert ((ours - theirs).abs() <= 1e-12 * theirs.abs().clamp(min=1)).all()


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_half_types_are_within_one_unit_in_the_last_place(dtype, mean):
    x, w, b = (
        normal(*shape, seed=s, dtype=dtype, mean=m)
        for s, shape, m in ((8, (300, 96), mean), (9, (96,), 0), (10, (96,), 0))
    )
    for ours, exact in (
        (layer_norm(x, w, b, 1e-5), layer_norm(x.double(), w.double(), b.double(), 1e-5)),
        (rms_norm(x, w, 1e-6), rms_norm(x.double(), w.double(), 1e-6)),
    ):
        assert ours.dtype == dtype
        unit = torch.finfo(dtype).eps * 2.0 ** exact.abs().clamp(min=torch.finfo(dtype).tiny).log2().floor()
        assert ((ours.double() - exact).abs() <= unit).all()


def test_a_standard_score_by_hand():
    x = torch.tensor([0.0, 1.0, 2.0, 3.0])
    expected = torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5  # deviations over sqrt(5/4)
    torch.testing.assert_close(layer_norm(x, eps=0.0), expected)
    one_hot = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(layer_norm(one_hot, eps=0.0).double(), (one_hot - 0.25) * (16 / 3) ** 0.5)


def test_the_variance_is_biased_and_eps_inside_the_root():
    """Values of [0, 1, 2, 3] and [1, 0, 0, 0]; with the sample deviation plus eps they are 1.1619 and 1.5, -0.5."""
    torch.testing.assert_close(layer_norm(torch.arange(4.0))[3].item(), 1.5 / (1.25 + 1e-5) ** 0.5, rtol=1e-6, atol=0)
    one_hot = layer_norm(torch.tensor([1.0, 0, 0, 0]))
    torch.testing.assert_close(one_hot, torch.tensor([1.73200, -0.57733, -0.57733, -0.57733]), rtol=0, atol=1e-5)
    assert layer_norm(torch.tensor([[7.0]])).item() == 0


def test_float64_is_not_narrowed():
    """With a detour through float32 the scores would be off by 5e-7."""
    x = normal(6, 50, seed=21, mean=3.0)
    for ours, exact in (
        (layer_norm(x), reference(x, torch.ones(50), None, 1e-5, True)),
        (rms_norm(x), reference(x, torch.ones(50), None, 1e-6, False)),
    ):
        assert np.abs(ours.numpy() - exact).max() < 1e-14
        assert np.abs(ours.numpy() - ours.float().double().numpy()).max() > 1e-9


def test_eps_stands_inside_the_root():
    x = torch.full((4,), 1e-3, dtype=torch.float64)
    assert rms_norm(x, eps=1e-6)[0].item() == pytest.approx(0.5**0.5)  # outside the root it would be 0.999
    y = torch.tensor([1e-3, -1e-3], dtype=torch.float64)
    assert layer_norm(y, eps=1e-6)[0].item() == pytest.approx(0.5**0.5)


def test_layer_norm_is_rms_norm_of_the_centered_vector():
    x, w = normal(9, 33, seed=11, mean=4.0), normal(33, seed=12)
    torch.testing.assert_close(layer_norm(x, w, eps=1e-6), rms_norm(x - x.mean(-1, keepdim=True), w, eps=1e-6))
    assert (rms_norm(x) - rms_norm(x - x.mean(-1, keepdim=True))).abs().max() > 0.1


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_gradients(norm):
    x, w = normal(3, 7, seed=13, mean=1.0).requires_grad_(), normal(7, seed=14).requires_grad_()
    assert torch.autograd.gradcheck(norm, (x, w))


# --- inputs that break implementations --------------------------------------------------------------------------


def test_large_mean_does_not_cancel():
    x = torch.tensor([9998.5, 9999.5, 10000.5, 10001.5])
    torch.testing.assert_close(layer_norm(x), torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [10000.1, -0.1, 3e4, 7.0, 1e18])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF])
@pytest.mark.parametrize("width", WIDTHS)
def test_constant_vectors_give_the_bias(value, dtype, width):
    x = torch.full((2, width), min(value, torch.finfo(dtype).max), dtype=dtype)
    b = normal(width, seed=15, dtype=dtype)
    assert torch.equal(layer_norm(x, normal(width, seed=16, dtype=dtype), b), b.expand(2, width))


@pytest.mark.parametrize("dtype", HALF)
def test_half_squares_neither_overflow_nor_vanish(dtype):
    x = torch.tensor([300.0, 300.0, -300.0, 300.0], dtype=dtype)
    assert rms_norm(x, eps=1e-6).tolist() == [1, 1, -1, 1]
    largest = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=dtype) * torch.finfo(dtype).max
    assert rms_norm(largest).tolist() == [1, -1, 1, 1]
    assert layer_norm(largest).isfinite().all()
    assert torch.equal(rms_norm(torch.zeros(4, dtype=dtype), eps=1e-12), torch.zeros(4, dtype=dtype))
    assert torch.equal(layer_norm(torch.zeros(4, dtype=dtype), eps=1e-12), torch.zeros(4, dtype=dtype))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_a_bad_vector_spoils_itself_only(norm, bad):
    x = normal(4, 6, seed=17)
    spoiled = x.clone()
    spoiled[2, 3] = bad
    y = norm(spoiled)
    assert y[2].isnan().any()
    assert torch.equal(y[[0, 1, 3]], norm(x)[[0, 1, 3]])


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0, 4), (3, 0)])
def test_empty_batches_stay_empty(norm, shape, recwarn):
    assert norm(torch.empty(shape)).shape == shape
    assert not recwarn


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
def test_views_equal_their_copies(norm):
    x = normal(6, 8, seed=18)
    for view in (x[1:4], x.t(), x[::2, ::2]):
        torch.testing.assert_close(norm(view), norm(view.contiguous()), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("x_dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("w_dtype", [torch.float64, torch.float32, *HALF])
def test_the_result_has_the_dtype_of_x(x_dtype, w_dtype):
    x, w = normal(5, 8, seed=19, dtype=x_dtype), normal(8, seed=20, dtype=w_dtype)
    for y in (layer_norm(x, w, w), rms_norm(x, w)):
        assert y.dtype == x_dtype and y.isfinite().all()


@pytest.mark.parametrize("norm", [layer_norm, rms_norm])
@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda n: n(torch.ones(3, 4), torch.ones(5)), ValueError, r"weight .*\(4,\).*\(5,\)"),
        (lambda n: n(torch.ones(3, 4), torch.ones(1)), ValueError, r"weight .*\(4,\).*\(1,\)"),
        (lambda n: n(torch.ones(3, 4), torch.ones(3, 4)), ValueError, r"weight .*\(4,\).*\(3, 4\)"),
        (lambda n: n(torch.ones(3, 4, dtype=torch.int64)), TypeError, "int64"),
        (lambda n: n(torch.ones(3, 4, dtype=torch.bool)), TypeError, "bool"),
        (lambda n: n(torch.ones(3, 4, dtype=torch.complex64)), TypeError, "complex64"),
        (lambda n: n(np.ones((3, 4))), TypeError, "ndarray"),
        (lambda n: n([1.0, 2.0]), TypeError, "list"),
        (lambda n: n(torch.ones(3, 4).to(torch.float8_e4m3fn)), TypeError, "x must .*float64.*got torch.float8_e4m3fn"),
        (lambda n: n(torch.ones(3, 4), torch.ones(4).to(torch.float8_e5m2)), TypeError, "weight .*float8_e5m2"),
        (lambda n: n(torch.ones(3, 4), [1.0] * 4), TypeError, "weight .*list"),
        (lambda n: n(torch.ones(3, 4), torch.ones(4, dtype=torch.complex64)), TypeError, "weight .*complex64"),
        (lambda n: n(torch.tensor(3.0)), ValueError, r"last axis of features.*\(\)"),
        (lambda n: n(torch.ones(3, 4), eps=-1e-5), ValueError, "eps"),
        (lambda n: n(torch.ones(3, 4), eps=float("nan")), ValueError, "eps must be finite, got nan"),
        (lambda n: n(torch.ones(3, 4), eps=float("inf")), ValueError, "eps must be finite, got inf"),
        (lambda n: n(torch.ones(3, 4), eps=None), TypeError, "eps must be a number, got None"),
        (lambda n: n(torch.ones(3, 4), eps="1e-5"), TypeError, "eps must be a number, got '1e-5'"),
        (lambda n: n(torch.ones(3, 4), eps=torch.tensor(1e-5)), TypeError, "eps must be a number, got a Tensor"),
    ],
)
def test_bad_input_gets_a_clear_error(norm, call, error, words):
    with pytest.raises(error, match=words):
        call(norm)


@pytest.mark.parametrize(
    "norm",
    [
        functional.batch_norm,
        functional.power_norm,
        functional.dyt,
        lambda x, *given: functional.group_norm(x, 2, *given),
        lambda x, *given: functional.group_norm(x, 2, *given, over="tokens"),
    ],
)
@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ((torch.ones(3, 4), torch.ones(5)), ValueError, r"weight .*\(4,\).*\(5,\)"),
        ((torch.ones(3, 4), torch.ones(4), torch.ones(1)), ValueError, r"bias .*\(4,\).*\(1,\)"),
        ((torch.ones(3, 4, dtype=torch.int64),), TypeError, "int64"),
        ((torch.tensor(3.0),), ValueError, r"last axis of features.*\(\)"),
        ((np.ones((3, 4)),), TypeError, "ndarray"),
        (([[1.0] * 4],), TypeError, "x must .*list"),
        ((torch.ones(3, 4).to(torch.float8_e4m3fn),), TypeError, "float8_e4m3fn"),
        ((torch.ones(3, 4), [1.0] * 4), TypeError, "weight must .*list"),
        ((torch.ones(3, 4), torch.ones(4), torch.ones(4, dtype=torch.complex64)), TypeError, "bias .*complex64"),
    ],
)
def test_the_other_norms_name_bad_input_too(norm, arguments, error, words):
    with pytest.raises(error, match=words):
        norm(*arguments)


@pytest.mark.parametrize(
    "norm",
    [
        functional.batch_norm,
        functional.power_norm,
        functional.scale_norm,
        functools.partial(functional.group_norm, groups=2),
        functools.partial(functional.group_scaling, groups=2),
    ],
)
def test_eps_is_checked_everywhere(norm):
    with pytest.raises(ValueError, match="eps.*-1"):
        norm(torch.ones(3, 4), eps=-1.0)
    with pytest.raises(TypeError, match="eps must be a number, got None"):
        norm(torch.ones(3, 4), eps=None)


def test_single_numbers_are_checked():
    x = torch.ones(3, 4)
    for call, error, words in (
        (lambda: functional.scale_norm(x, 2.0), TypeError, "weight must be a torch.Tensor, got float"),
        (lambda: functional.scale_norm(x, torch.tensor(2)), TypeError, "weight .*int64"),
        (lambda: functional.dyt(x, alpha=None), TypeError, "alpha must be a number, got None"),
        (lambda: functional.dyt(x, alpha=math.nan), ValueError, "alpha must be finite, got nan"),
        (lambda: functional.dyt(x, alpha=torch.tensor(1j)), TypeError, "alpha .*complex64"),
        (lambda: rms_norm(x, fraction=None), TypeError, "fraction must be a number, got None"),
    ):
        with pytest.raises(error, match=words):
            call()


@pytest.mark.parametrize("fraction", [1e-12, 1e-300, 0.2])
def test_partial_rms_norm_looks_at_one_feature_at_least(fraction):
    x = normal(6, 5, seed=31)
    torch.testing.assert_close(rms_norm(x, fraction=fraction, eps=0.0), x / x[:, :1].abs())


@pytest.mark.parametrize("norm", [functional.batch_norm, functional.scale_norm, functional.dyt])
def test_gradients_of_the_others(norm):
    x = normal(5, 4, seed=22, mean=1.0).requires_grad_()
    shapes = ((),) if norm is functional.scale_norm else ((4,), (4,))
    given = [normal(*shape, seed=23).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(norm, (x, *given))
    assert torch.autograd.gradgradcheck(norm, (x, *given))


def test_gradients_of_group_norm_with_padding():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    x, w, b = (normal(*s, seed=24 + len(s)).requires_grad_() for s in ((2, 3, 4), (4,), (4,)))
    assert torch.autograd.gradcheck(
        lambda x, w, b: functional.group_norm(x, 2, w, b, over="tokens", mask=mask), (x, w, b)
    )


def test_a_bias_of_wrong_width_is_named():
    with pytest.raises(ValueError, match=r"bias .*\(4,\).*\(3,\)"):
        layer_norm(torch.ones(2, 4), torch.ones(4), torch.ones(3))
