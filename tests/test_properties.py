"""Properties that hold for whole families of inputs: causality, padding, invariances, extreme rows, views.

Every property is one function that raises AssertionError where it does not hold, and the norms that lack it must
fail that very function: a test that nothing can fail says nothing.
"""

import math

import pytest
import torch
from draw import normal, randomize
from hypothesis import given, settings
from hypothesis import strategies as st

from normlab.norms import make_norm

settings.register_profile("course", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("course")

# name: (kind, options)
NORMS = {
    "layernorm": ("layernorm", {}),
    "layernorm, torch": ("layernorm", {"convention": "torch"}),
    "layernorm, nemotron": ("layernorm", {"convention": "nemotron"}),
    "layernorm, no bias": ("layernorm", {"convention": "no_bias"}),
    "layernorm, bare": ("layernorm", {"convention": "bare"}),
    "rmsnorm": ("rmsnorm", {}),
    "rmsnorm, llama": ("rmsnorm", {"convention": "llama"}),
    "rmsnorm, gemma": ("rmsnorm", {"convention": "gemma"}),
    "rmsnorm, olmo2": ("rmsnorm", {"convention": "olmo2"}),
    "rmsnorm, t5": ("rmsnorm", {"convention": "t5"}),
    "rmsnorm, bare": ("rmsnorm", {"convention": "bare"}),
    "rmsnorm, partial": ("rmsnorm", {"fraction": 0.3}),
    "groupnorm over features": ("groupnorm", {"groups": 2}),
    "scalenorm": ("scalenorm", {}),
    "dyt": ("dyt", {}),
    "identity": ("identity", {}),
    "batchnorm": ("batchnorm", {}),
    "powernorm": ("powernorm", {}),
    "powernorm, group scaling": ("powernorm", {"group_scaling": 2}),
    "groupnorm over tokens": ("groupnorm", {"groups": 2, "over": "tokens"}),
}
ACROSS_TOKENS = ("batchnorm", "powernorm", "powernorm, group scaling", "groupnorm over tokens")
PER_TOKEN = tuple(name for name in NORMS if name not in ACROSS_TOKENS)
WIDTH = 6

seeds = st.integers(0, 2**32 - 1)


def build(name, seed=1, **more):
    """In float64 and training mode, with random gains and shifts."""
    kind, options = NORMS[name]
    return randomize(make_norm(kind, WIDTH, **{**options, **more}).double(), seed)


def same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# --- causality -----------------------------------------------------------------------------------------------------


def check_prefix(name, seed, tokens, prefix):
    """In training mode the first tokens come out as without the later ones, and do not depend on them."""
    x = normal(2, tokens, WIDTH, seed=seed, mean=0.5, std=2.0).requires_grad_()
    y, alone = build(name)(x), build(name)(x[:, :prefix].detach())
    same(y[:, :prefix], alone, 1e-13)
    (grad,) = torch.autograd.grad(y[:, :prefix].square().sum(), x)
    assert grad[:, prefix:].abs().max() == 0


@pytest.mark.parametrize("name", PER_TOKEN)
@given(seed=seeds, tokens=st.integers(3, 12), share=st.floats(0.1, 0.9))
def test_the_past_does_not_see_the_future(name, seed, tokens, share):
    check_prefix(name, seed, tokens, max(2, int(share * tokens)))


@pytest.mark.parametrize("name", ACROSS_TOKENS)
@given(seed=seeds, tokens=st.integers(3, 12), share=st.floats(0.1, 0.9))
def test_norms_across_tokens_fail_the_same_check(name, seed, tokens, share):
    with pytest.raises(AssertionError):
        check_prefix(name, seed, tokens, max(2, int(share * tokens)))


def test_in_evaluation_batch_and_power_norm_are_causal():
    """Their statistics are constants then; GroupNorm has none and leaks in evaluation too."""
    x = normal(2, 8, WIDTH)
    for name in ACROSS_TOKENS:
        norm = build(name)
        norm(x)
        norm.eval()
        gap = (norm(x)[:, :5] - norm(x[:, :5])).abs().max()
        assert gap < 1e-13 or (name == "groupnorm over tokens" and gap > 1e-3)


# --- padding -------------------------------------------------------------------------------------------------------


def run_padded(name, x, mask, warmed_up):
    """Outputs and input gradients at real tokens, parameter gradients, buffers, after two training steps."""
    norm = build(name, warmup=1) if warmed_up and name.startswith("powernorm") else build(name)
    x = x.clone().requires_grad_()
    for _ in range(2):
        y = norm(x, mask)
        loss = (y[mask] * torch.arange(1.0, 1 + mask.sum()).unsqueeze(1)).square().sum()
        gradients = torch.autograd.grad(loss, [x, *norm.parameters()])
    at_pads = gradients[0][~mask]
    assert at_pads.numel() == 0 or at_pads.abs().max() == 0
    return [y[mask], gradients[0][mask], *gradients[1:], *norm.buffers(), norm.eval()(x, mask)[mask]]


@pytest.mark.parametrize("name", NORMS)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    pads=st.integers(0, 50),
    content=st.sampled_from([0.0, 7.0, -1e4, 1e4]),
    left=st.booleans(),
    warmed_up=st.booleans(),
)
def test_padding_has_no_influence(name, seed, lengths, pads, content, left, warmed_up):
    sequences = [normal(n, WIDTH, seed=seed + i, mean=0.5) for i, n in enumerate(lengths)]
    results = []
    for total, filling in ((max(lengths), 0.0), (max(lengths) + pads, content)):
        x = torch.full((len(lengths), total, WIDTH), filling, dtype=torch.float64)
        mask = torch.zeros(len(lengths), total, dtype=torch.bool)
        for i, tokens in enumerate(sequences):
            place = slice(total - len(tokens), total) if left else slice(0, len(tokens))
            x[i, place], mask[i, place] = tokens, True
        results.append(run_padded(name, x, mask, warmed_up))
    for short, long in zip(*results, strict=True):
        same(short, long)  # gradients are small differences of hundreds, summed in the order of the instruction set


@pytest.mark.parametrize("name", ACROSS_TOKENS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_not_even_nan_in_the_padding(name, bad):
    x = normal(3, 5, WIDTH, seed=1)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    clean = run_padded(name, x, mask, False)
    x[~mask] = bad
    for one, other in zip(clean, run_padded(name, x, mask, False), strict=True):
        assert torch.equal(one, other)
    assert build(name)(x, mask)[~mask].abs().max() == 0


@pytest.mark.parametrize("name", ACROSS_TOKENS)
def test_without_a_mask_padding_is_seen(name):
    x = normal(2, 5, WIDTH, seed=2)
    padded = torch.cat([x, torch.zeros(2, 3, WIDTH, dtype=torch.float64)], 1)
    assert (build(name)(padded)[:, :5] - build(name)(x)).abs().max() > 1e-2


# --- invariances ---------------------------------------------------------------------------------------------------

ROTATION = torch.linalg.qr(normal(WIDTH, WIDTH, seed=3)).Q


def plain(name):
    """Without gain and shift; without eps, which breaks every invariance a little."""
    kind, options = NORMS[name]
    return make_norm(kind, WIDTH, **({} if kind in ("dyt", "identity") else {"eps": 0.0}), **options).double()


def check_shift(name, x, amount):
    """The same number added to every feature of a token changes nothing."""
    same(plain(name)(x + amount), plain(name)(x))


def check_dataset_shift(name, x, amount):
    """The same vector added to every token changes nothing."""
    same(plain(name)(x + amount * normal(WIDTH, seed=4)), plain(name)(x))


def check_scale(name, x, amount):
    """Each token times a positive number of its own changes nothing."""
    factors = (2.0 + torch.sin(torch.arange(x.shape[1], dtype=x.dtype))).unsqueeze(1) * abs(amount)
    same(plain(name)(x * factors), plain(name)(x))


def check_dataset_scale(name, x, amount):
    """All tokens times one positive number changes nothing."""
    same(plain(name)(x * abs(amount)), plain(name)(x))


def check_sign(name, x, amount):
    """The result of -x is minus that of x."""
    same(plain(name)(-x), -plain(name)(x))


def check_rotation(name, x, amount):
    """A rotation of the features goes through."""
    same(plain(name)(x @ ROTATION), plain(name)(x) @ ROTATION)


WITHOUT_STATISTIC = {"dyt", "identity"}
LAYER_NORMS = {name for name in NORMS if name.startswith("layernorm")}
RMS_NORMS = {name for name in NORMS if name.startswith("rmsnorm")}
GROUP_NORMS = {name for name in NORMS if name.startswith("groupnorm")}
INVARIANCES = {
    check_shift: LAYER_NORMS | GROUP_NORMS | {"batchnorm"},
    check_dataset_shift: {"batchnorm"},
    check_scale: set(PER_TOKEN) - WITHOUT_STATISTIC | {"powernorm, group scaling"},
    check_dataset_scale: set(NORMS) - WITHOUT_STATISTIC,
    check_sign: set(NORMS),
    check_rotation: RMS_NORMS - {"rmsnorm, partial"} | {"scalenorm", "identity"},
}


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("check", INVARIANCES, ids=lambda check: check.__name__)
@given(seed=seeds, amount=st.floats(0.1, 100))
@settings(max_examples=8)
def test_invariances_and_their_absence(check, name, seed, amount):
    x = normal(2, 5, WIDTH, seed=seed, mean=1.0)
    amount = 1.5 if 0.9 < amount < 1.1 else amount
    if name in INVARIANCES[check]:
        check(name, x, amount)
    else:
        with pytest.raises(AssertionError):
            check(name, x, amount)


@pytest.mark.parametrize("name", ["layernorm", "rmsnorm", "batchnorm", "scalenorm"])
def test_a_negative_gain_of_the_input_flips_the_sign_only(name):
    """Norm(-2 x) = -Norm(x): magnitude is removed, orientation is not."""
    x = normal(2, 4, WIDTH, seed=5)
    same(plain(name)(-2 * x), -plain(name)(x))


# --- extreme rows --------------------------------------------------------------------------------------------------

LARGEST = {torch.float32: 1e18, torch.bfloat16: 1e18, torch.float16: 65504.0}
SMALLEST = {torch.float32: 1e-30, torch.bfloat16: 1e-30, torch.float16: 6e-8}


def extreme_rows(dtype, width, seed):
    """Rows of zeros, of one constant, tiny, huge, one huge entry among ordinary ones, tiny ones around a mean."""
    ordinary = normal(6, width, seed=seed)
    ordinary = ordinary / ordinary.abs().amax(-1, keepdim=True)
    rows = torch.stack([
        torch.zeros(width),
        torch.full((width,), 3.7),
        SMALLEST[dtype] * ordinary[0],
        LARGEST[dtype] * ordinary[1],
        ordinary[2].clone().index_fill(0, torch.tensor([0]), LARGEST[dtype]),
        torch.full((width,), -LARGEST[dtype]),
        1.0 + 2e-3 * ordinary[3],
    ])  # fmt: skip
    return rows.to(dtype)


def exact(kind, x, weight, bias, eps):
    """The formula in float64, differentiable; float64 squares of 1e18 are far from any limit."""
    if kind == "scalenorm":
        return weight * x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=eps)
    if kind == "dyt":
        return weight * torch.tanh(0.5 * x) + bias
    axis = 0 if kind in ("batchnorm", "powernorm") else -1
    if kind in ("layernorm", "batchnorm"):
        x = x - x.mean(axis, keepdim=True)
        x = x - x.mean(axis, keepdim=True)
    y = weight * x / (x.square().mean(axis, keepdim=True) + eps).sqrt()
    return y if bias is None else y + bias


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "scalenorm", "dyt", "batchnorm", "powernorm"])
@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("width", [4, 257, 2000])
@given(seed=seeds)
@settings(max_examples=4)
def test_extreme_rows_have_right_values_and_finite_gradients(kind, dtype, width, seed):
    norm = make_norm(kind, width).double()
    with torch.no_grad():
        for name, p in norm.named_parameters():
            p.add_(0.3 * normal(*p.shape, seed=seed + len(name)) * (name != "alpha"))
    x = extreme_rows(dtype, width, seed)
    if kind in ("batchnorm", "powernorm"):
        x = x.mT.contiguous()  # extreme columns
        norm = make_norm(kind, 7).double()
    twins = [x.clone().requires_grad_(), x.double().requires_grad_()]
    y = norm(twins[0])
    bias = getattr(norm, "bias", None)
    expected = exact(kind, twins[1], norm.weight, bias, getattr(norm, "eps", 0.0))
    assert y.dtype == dtype and y.isfinite().all()
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), expected, rtol=4 * unit, atol=16 * unit)
    g = normal(*x.shape, seed=seed + 1)
    (grad,) = torch.autograd.grad(y, twins[0], g.to(dtype))
    (right,) = torch.autograd.grad(expected, twins[1], g.to(dtype).double())
    if (kind, dtype) == ("scalenorm", torch.float16):
        long = [1, 3, 4, 5, 6]  # rows shorter than eps have the slope weight / eps, beyond float16
        grad, right = grad[long], right[long]
    assert grad.isfinite().all()
    if kind != "powernorm":  # whose backward pass is its own
        scale = right.abs().amax(0 if kind == "batchnorm" else -1, keepdim=True)
        smallest = torch.finfo(dtype).smallest_normal
        assert ((grad.double() - right).abs() <= 64 * unit * scale + smallest).all()


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "scalenorm"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_finite_rows_are_normalized(kind, dtype):
    """Up to the largest number of the dtype, and with eps = 0 down to the smallest normal one."""
    x = normal(5, 700, seed=6).to(dtype)
    norm = make_norm(kind, 700, eps=0.0)
    ordinary = norm(x)
    info = torch.finfo(dtype)
    for size in (info.max / 8, info.smallest_normal):
        factor = 2.0 ** math.floor(math.log2(size))
        row = x * factor
        back = (row.double() / factor).to(dtype)  # entries below the smallest number were lost on the way
        torch.testing.assert_close(norm(row), norm(back), rtol=0, atol=4 * info.eps)
        assert (norm(row) - ordinary).abs().max() < (0.1 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm", "scalenorm"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_spoils_its_own_row_only(kind, bad):
    x = normal(4, WIDTH, seed=7)
    norm = build(kind)
    clean = norm(x)
    x[2, 3] = bad
    y = norm(x)
    assert y[2].isnan().any()
    # Not bit for bit: a batch with such a row is computed by the reference formula, also when the others are fine.
    torch.testing.assert_close(y[[0, 1, 3]], clean[[0, 1, 3]], rtol=1e-13, atol=1e-13)


# --- views and empty tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
@given(seed=seeds)
@settings(max_examples=5)
def test_views_equal_their_copies(name, seed):
    whole = normal(4, 2 * WIDTH, WIDTH, seed=seed, mean=1.0)
    mask = normal(4, 2 * WIDTH, seed=seed + 1) > -1
    mask[:, 0] = True
    views = [(whole[1:3], mask[1:3]), (whole.mT[:, :, :WIDTH], mask[:, :WIDTH]), (whole[::2, ::3], mask[::2, ::3])]
    views += [(whole[:1].expand(3, -1, -1), mask[:3]), (whole.transpose(0, 1), mask.T)]
    for view, real in views:
        twins = [
            view.detach().requires_grad_(),
            view.detach().clone(memory_format=torch.contiguous_format).requires_grad_(),
        ]
        ys = [build(name)(twin, real) for twin in twins]
        same(ys[0], ys[1], 1e-13)
        grads = [torch.autograd.grad(y.square().sum(), twin)[0] for y, twin in zip(ys, twins, strict=True)]
        same(grads[0], grads[1], 1e-12)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("shape", [(0, 5, WIDTH), (3, 0, WIDTH), (0, WIDTH)])
def test_empty_in_empty_out(name, shape, recwarn):
    norm, x = build(name), torch.empty(shape, dtype=torch.float64)
    if name == "batchnorm":
        with pytest.raises(ValueError, match="two real tokens"):
            norm(x)
    else:
        assert norm(x).shape == shape
    assert norm.eval()(x).shape == shape
    assert not recwarn
