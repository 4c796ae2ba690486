"""Variance algorithms against float64 and exact fractions; hand-written backward passes against autograd."""

from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from draw import normal

from normlab import functional, numerics
from normlab.backward import LayerNormFunction, RMSNormFunction, layer_norm_backward, rms_norm_backward
from normlab.numerics import ALGORITHMS, Partial, merge

EPS = (0.0, 1e-12, 1e-8, 1e-5, 1e-3, 0.1)


# --- variance ------------------------------------------------------------------------------------------------------

# Median over 60 draws of the relative error, float32, 4096 entries of N(offset, 1): measured, times about three.
BOUNDS = {
    "two-pass": {0: 1e-7, 1e1: 1e-7, 1e2: 1e-7, 1e3: 1.5e-7, 1e4: 4e-7, 1e5: 5e-5},
    "centered twice": {0: 1e-7, 1e1: 1e-7, 1e2: 1e-7, 1e3: 1e-7, 1e4: 1e-7, 1e5: 1e-7},
    "Welford": {0: 1.5e-6, 1e1: 2e-6, 1e2: 4e-6, 1e3: 3e-5, 1e4: 4e-4, 1e5: 5e-3},
    "E[x²] − μ²": {0: 1.5e-7, 1e1: 2.5e-5, 1e2: 2.5e-3, 1e3: 0.2, 1e4: 20, 1e5: 3e3},
    "shifted one-pass": {0: 3e-7, 1e1: 3e-7, 1e2: 3e-7, 1e3: 3e-7, 1e4: 4e-7, 1e5: 3e-7},
    "chunks merged": {0: 4e-7, 1e1: 4e-7, 1e2: 6e-7, 1e3: 4e-6, 1e4: 1e-4, 1e5: 1e-3},
}


@pytest.mark.parametrize("offset", [0, 1e1, 1e2, 1e3, 1e4, 1e5])
def test_errors_in_float32(offset):
    x = normal(60, 4096, mean=offset, dtype=torch.float32)
    for name, algorithm in ALGORITHMS.items():
        error = numerics.relative_error(algorithm, x).abs().median().item()
        assert error <= BOUNDS[name][offset], name
    if offset >= 1e2:  # the cancellation is real: a hundredfold error for each tenfold mean
        cancelled = numerics.relative_error(numerics.difference_of_squares, x).abs().median()
        assert cancelled > 2e-8 * offset**2
    if offset == 1e4:
        assert (numerics.difference_of_squares(x) < 0).any()


def exact_variance(row):
    entries = [Fraction(v) for v in row.tolist()]
    mean = sum(entries) / len(entries)
    return float(sum((v - mean) ** 2 for v in entries) / len(entries))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("n", [1, 2, 3, 64, 65, 200])
def test_all_are_the_biased_variance(name, n):
    x = normal(4, n, seed=1, mean=2.0)
    expected = torch.tensor([exact_variance(row) for row in x], dtype=torch.float64)
    torch.testing.assert_close(ALGORITHMS[name](x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_row_that_one_pass_cannot_do(name):
    x = torch.tensor([9998.5, 9999.5, 10000.5, 10001.5])
    variance = ALGORITHMS[name](x).item()
    if name == "E[x²] − μ²":
        assert variance == 0.0
    else:
        assert variance == pytest.approx(1.25, rel=1e-3)


def test_parts_merge_to_the_whole_in_any_order():
    a, b, c = (normal(3, n, seed=s, mean=m) for s, n, m in ((2, 5, 0), (3, 1, 10), (4, 17, -4)))
    part = lambda x: Partial(x.shape[-1], x.mean(-1), (x - x.mean(-1, keepdim=True)).square().sum(-1))
    whole = part(torch.cat([a, b, c], -1))
    for total in (merge(merge(part(a), part(b)), part(c)), merge(part(c), merge(part(b), part(a)))):
        assert total.count == 23
        torch.testing.assert_close(total.mean, whole.mean)
        torch.testing.assert_close(total.variance, whole.variance)


@pytest.mark.parametrize("size", [1, 3, 64, 1000])
def test_the_size_of_chunks_does_not_matter(size):
    x = normal(2, 130, seed=5)
    torch.testing.assert_close(numerics.chunked(x, size), x.var(-1, correction=0))


def test_chunks_have_at_least_one_entry():
    with pytest.raises(ValueError, match="size.*0"):
        numerics.chunked(torch.ones(4), 0)


# --- backward passes -----------------------------------------------------------------------------------------------


def inputs(seed, shape, mean=0.5, std=1.3):
    x, grad = normal(*shape, seed=seed, mean=mean, std=std), normal(*shape, seed=seed + 1)
    weight, bias = normal(shape[-1], seed=seed + 2, mean=1.0), normal(shape[-1], seed=seed + 3)
    return grad, x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()


def same(ours, theirs, tolerance=1e-12):
    for mine, yours in zip(ours, theirs, strict=True):
        assert mine.shape == yours.shape
        assert ((mine - yours).abs() <= tolerance * yours.abs().clamp(min=1)).all()


def check_backward_of_the_reference(grad, x, weight, bias, eps):
    same(
        layer_norm_backward(grad, x, weight, eps),
        torch.autograd.grad(functional.layer_norm(x, weight, bias, eps), (x, weight, bias), grad),
    )
    same(
        rms_norm_backward(grad, x, weight, eps),
        torch.autograd.grad(functional.rms_norm(x, weight, eps), (x, weight), grad),
    )


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("shape", [(6,), (5, 4), (2, 3, 17), (3, 0, 4)])
def test_equal_to_autograd(eps, shape):
    """Of torch's kernels and of our forward pass."""
    grad, x, weight, bias = inputs(10, shape)
    width = shape[-1:]
    check_backward_of_the_reference(grad, x, weight, bias, eps)
    same(
        layer_norm_backward(grad, x, weight, eps),
        torch.autograd.grad(F.layer_norm(x, width, weight, bias, eps), (x, weight, bias), grad),
    )
    if eps:
        same(
            rms_norm_backward(grad, x, weight, eps),
            torch.autograd.grad(F.rms_norm(x, width, weight, eps), (x, weight), grad),
        )


@pytest.mark.parametrize("eps", EPS[1:])
@pytest.mark.parametrize("std", [0.0, 1e-6, 1e-3, 1e3])
def test_equal_to_autograd_where_eps_bites(eps, std):
    """Constant and tiny rows as well; gradients reach 1/sqrt(eps) there."""
    check_backward_of_the_reference(*inputs(20, (4, 5), mean=0.0, std=std), eps)


def test_without_a_gain():
    grad, x, weight, _ = inputs(30, (3, 5))
    ones = torch.ones_like(weight)
    same(layer_norm_backward(grad, x), layer_norm_backward(grad, x, ones))
    same(rms_norm_backward(grad, x), rms_norm_backward(grad, x, ones))


@pytest.mark.parametrize("eps", EPS)
def test_differentiated_once_and_twice(eps):
    _, x, weight, bias = inputs(40, (2, 3, 4), mean=1.0)
    ln = lambda *a: LayerNormFunction.apply(*a, eps)
    rms = lambda *a: RMSNormFunction.apply(*a, eps)
    for function, arguments in ((ln, (x, weight, bias)), (rms, (x, weight))):
        assert torch.autograd.gradcheck(function, arguments)
        assert torch.autograd.gradgradcheck(function, arguments)
    same(
        [ln(x, weight, bias), rms(x, weight)],
        [functional.layer_norm(x, weight, bias, eps), functional.rms_norm(x, weight, eps)],
        0,
    )


@pytest.mark.parametrize("eps", EPS)
def test_the_jacobian_has_the_spectrum_on_the_page(eps):
    """LayerNorm: r (d - 2 times), 0 on the ones, r eps/(var + eps) on x - mean; RMSNorm: r (d - 1 times), and on x."""
    x = normal(8, seed=50, mean=1.0)
    for center in (True, False):
        backward = (
            (lambda g: layer_norm_backward(g, x, None, eps)[0])
            if center
            else (lambda g: rms_norm_backward(g, x, None, eps)[0])
        )
        jacobian = torch.stack([backward(row) for row in torch.eye(8, dtype=torch.float64)])
        square = (x - x.mean() * center).square().mean()
        r = (square + eps) ** -0.5
        small = [r * eps / (square + eps)] + [torch.zeros_like(r)] * center
        expected = torch.stack([*small, *[r] * (8 - len(small))]).sort().values
        torch.testing.assert_close(torch.linalg.eigvalsh(jacobian), expected, rtol=1e-12, atol=1e-13)


def test_gradients_of_ones_at_unit_gain_vanish():
    """Why a check of a backward pass must not use grad = 1 and gain = 1: the true dx of LayerNorm is 0."""
    x = normal(3, 6, seed=60)
    assert layer_norm_backward(torch.ones_like(x), x)[0].abs().max() < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes_and_rounding(dtype):
    grad, x, weight, _ = (t.detach() for t in inputs(70, (8, 33)))
    grad, x = grad.to(dtype), x.to(dtype)
    for backward in (layer_norm_backward, rms_norm_backward):
        ours, exact = backward(grad, x, weight.float()), backward(grad.double(), x.double(), weight.float())
        assert [t.dtype for t in ours] == [dtype] + [torch.float32] * (len(ours) - 1)
        for mine, yours in zip(ours, exact, strict=True):
            torch.testing.assert_close(mine.double(), yours.double(), rtol=torch.finfo(dtype).eps, atol=4e-6)


def test_huge_rows_keep_right_gradients():
    grad, x, weight, _ = (t.detach().float() for t in inputs(80, (4, 500)))
    for backward in (layer_norm_backward, rms_norm_backward):
        plain, huge = backward(grad, x, weight, 0.0), backward(grad, x * 2.0**100, weight, 0.0)
        assert torch.equal(huge[0] * 2.0**100, plain[0]) and torch.equal(huge[1], plain[1])


@pytest.mark.parametrize("backward", [layer_norm_backward, rms_norm_backward])
def test_bad_gradients_are_refused(backward):
    x = torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"\(2, 4\).*\(4,\)"):
        backward(torch.ones(4), x)
    for grad, words in (([1.0] * 4, "list"), (torch.ones(2, 4, dtype=torch.complex64), "complex64"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"grad must .*{words}"):
            backward(grad, x)
    with pytest.raises(TypeError, match="eps must be a number, got None"):
        backward(x, x, None, None)
