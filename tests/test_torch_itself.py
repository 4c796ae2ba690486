"""What the course, its docstrings and comments say about torch itself; nothing here is about our functions.

Another torch may behave differently without any fault of ours. So these tests run with the release that they describe,
which is the one that constraints.txt pins, and are skipped with every other one. Whoever moves the pin moves VERSION,
and rewrites the sentence about torch that a failure here belongs to.
"""

import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from draw import normal
from torch import nn

VERSION = "2.13"  # described in November 2026; older ones are described in the docstrings

HALF = (torch.float16, torch.bfloat16)


def describes(test):
    """Mark a test of torch's behavior."""
    here = torch.__version__.startswith(f"{VERSION}.")
    return pytest.mark.skipif(not here, reason=f"describes torch {VERSION}")(test)


def test_the_described_torch_is_the_pinned_one():
    pins = (Path(__file__).resolve().parent.parent / "constraints.txt").read_text(encoding="utf-8")
    assert re.search(r"^torch==(\d+\.\d+)\.", pins, re.MULTILINE)[1] == VERSION


@describes
@pytest.mark.parametrize(
    "dtype, expected",
    [(torch.float16, 0.9453), (torch.bfloat16, 0.9453), (torch.float32, 0.94524), (torch.float64, 1.0)],
)
def test_without_eps_rms_norm_takes_that_of_float32_for_half_types(dtype, expected):
    """Torch 2.6 takes that of the input: 0.0320 and 0.0113 in half types."""
    x = torch.full((1, 4), 1e-3, dtype=dtype)
    assert nn.RMSNorm(4).eps is None
    assert F.rms_norm(x, (4,))[0, 0].item() == pytest.approx(expected, abs=3e-5)


@describes
def test_rms_norm_of_half_types_is_rounded_once():
    """[3, 1, 1, 5] has root mean square 3; values by exact fractions. Torch 2.6 also rounds before the gain."""
    x, gain = torch.tensor([3.0, 1, 1, 5], dtype=torch.bfloat16), torch.full((4,), 1.015625, dtype=torch.bfloat16)
    assert F.rms_norm(x, (4,), gain, 1e-6).tolist() == [1.015625, 0.337890625, 0.337890625, 1.6953125]


@describes
@pytest.mark.parametrize("half", HALF)
def test_layer_norm_takes_a_wider_gain_but_no_narrower_one(half):
    """Torch 2.6 as well."""
    x, gain = normal(3, 8).float(), normal(8, seed=1).float()
    assert F.layer_norm(x.to(half), (8,), gain).dtype == half
    other = torch.bfloat16 if half is torch.float16 else torch.float16
    for given in (x, x.to(other)):
        with pytest.raises(RuntimeError, match="mixed dtype"):
            F.layer_norm(given, (8,), gain.to(half))


@describes
def test_rms_norm_keeps_twice_its_input_for_the_backward_pass():
    """In float32; ours keeps it once. Torch 2.6 as well."""
    x, gain, kept = normal(64, 96).float().requires_grad_(), normal(96).float().requires_grad_(), {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        F.rms_norm(x, (96,), gain, 1e-6)
    assert 2 < sum(t.numel() for t in kept.values()) / x.numel() < 2.1


@describes
def test_layer_norm_is_off_by_more_than_rounding_where_the_mean_is_1000_std():
    x = 1e3 + normal(200, 512)
    exact = x - x.mean(-1, keepdim=True)
    exact = exact - exact.mean(-1, keepdim=True)  # the first mean was rounded
    exact = exact / (exact.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert 5e-14 < (F.layer_norm(x, (512,)) - exact).abs().max() < 1e-12


@describes
def test_higher_derivatives_of_layer_norm_are_wrong():
    """In reverse mode from the third on, in forward mode from the second on. Torch 2.6 as well."""
    x, direction = 0.4 + normal(3, 5), normal(3, 5, seed=1)

    def plain(x):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    def reverse(f, times):
        at = x.clone().requires_grad_()
        value = (f(at) ** 3).sum()
        for _ in range(times):
            (value,) = torch.autograd.grad(value, at, create_graph=True)
            value = (value * direction).sum()
        return value.detach()

    def forward(f, times):
        for _ in range(times):
            f = (lambda g: lambda x: torch.func.jvp(g, (x,), (direction,))[1])(f)
        return f(x)

    for derivative, right in ((reverse, 2), (forward, 1)):
        for times in range(1, right + 2):
            expected, found = derivative(plain, times), derivative(lambda x: F.layer_norm(x, (5,)), times)
            off = ((found - expected).abs().max() / expected.abs().max()).item()
            assert off < 1e-12 if times <= right else off > 0.1, (derivative, times, off)


@describes
def test_layer_norm_with_a_bias_alone_has_no_second_derivative():
    x, bias = normal(3, 5).requires_grad_(), normal(5, seed=1).requires_grad_()
    first = torch.autograd.grad((F.layer_norm(x, (5,), None, bias) ** 3).sum(), (x, bias), create_graph=True)
    with pytest.raises(RuntimeError, match="None"):
        torch.autograd.grad(sum(g.square().sum() for g in first), (x, bias))


@describes
def test_autocast_on_a_cpu_leaves_norms_in_half_types():
    x = normal(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for norm in (F.layer_norm, F.rms_norm):
            assert norm(x.bfloat16(), (8,)).dtype is torch.bfloat16 and norm(x.float(), (8,)).dtype is torch.float32


@describes
def test_attention_of_a_row_that_sees_nothing():
    """The fused path of nn.TransformerEncoder gives NaN, the other one finite numbers."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x, hidden = normal(2, 3, 8).float(), torch.tensor([[False, False, True], [True, True, True]])
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        with torch.no_grad():
            torch.backends.mha.set_fastpath_enabled(True)
            assert encoder(x, src_key_padding_mask=hidden)[1].isnan().all()
            torch.backends.mha.set_fastpath_enabled(False)
            assert encoder(x, src_key_padding_mask=hidden).isfinite().all()
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@describes
def test_which_steps_from_one_bfloat16_loses():
    """The numbers below 1 are twice as dense as those above it, so that a step up is lost sooner than a step down."""
    one = torch.ones((), dtype=torch.bfloat16)
    up, down = (one + 2.0**-8, one + 1.01 * 2.0**-8), (one - 2.0**-9, one - 1.01 * 2.0**-9)
    assert [y.item() == 1 for y in (*up, *down)] == [True, False, True, False]
