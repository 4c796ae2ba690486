"""The fast path against the reference formulas: values, gradients, dtypes, memory, and inputs that break kernels.

"Relative to the row" means: an entry may be off by that share of |weight| times the largest normalized entry of its
row, plus |bias|. An entry in which these happen to cancel need not be more exact than the numbers it is made of.
"""

import copy
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from draw import normal

from normlab import fast, functional, norms
from normlab.config import TransformerConfig
from normlab.conventions import LAYER_NORM_CONVENTIONS, RMS_NORM_CONVENTIONS, Convention
from normlab.transformer import Transformer

HALF = (torch.float16, torch.bfloat16)
DTYPES = (torch.float64, torch.float32, *HALF)
NORMS = ("layer_norm", "rms_norm")
INF, NAN = float("inf"), float("nan")

each_norm = pytest.mark.parametrize("name", NORMS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def parameters(name, width, dtype):
    """Random gain, and for LayerNorm a shift."""
    return [normal(width, seed=101 + i, dtype=dtype, mean=0.3) for i in range(2 if name == "layer_norm" else 1)]


def tolerance(dtype):
    return 1e-12 if dtype == torch.float64 else 2e-6


def unit(y):
    """One unit in the last place of y: the distance from |y| to the next number of its dtype."""
    info = torch.finfo(y.dtype)
    return info.eps * 2.0 ** y.double().abs().clamp(min=info.tiny).log2().floor()


def assert_agree(name, x, given=(), eps=1e-6):
    """Fast path and reference agree on x: 1e-12 in float64, 2e-6 in float32, relative to the row; one unit in the
    last place in half types, to which LayerNorm may add float32's share, because it subtracts before it rounds."""
    ours = getattr(fast, name)(x, *given, eps=eps)
    theirs = getattr(functional, name)(x, *given, eps=eps)
    assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
    weight = given[0].double().abs() if given else 1.0
    bias = given[1].double().abs() if len(given) > 1 else 0.0
    scores = getattr(functional, name)(x.double(), eps=eps).abs().amax(-1, keepdim=True)
    allowed = tolerance(x.dtype) * (weight * scores + bias)
    if x.dtype in HALF:
        allowed = unit(theirs) + (allowed if name == "layer_norm" else 0.0)
    close = (ours.double() - theirs.double()).abs() <= allowed
    assert (close | (ours == theirs) | (ours.isnan() & theirs.isnan())).all()


def gradients(module, name, x, given, grad, eps=1e-6):
    x, *given = (t.detach().clone().requires_grad_() for t in (x, *given))
    return torch.autograd.grad(getattr(module, name)(x, *given, eps=eps), (x, *given), grad)


# --- agreement with the reference ---------------------------------------------------------------------------------


@each_norm
@each_dtype
@pytest.mark.parametrize("width", [1, 2, 3, 12, 255, 511, 512, 513, 688, 1000, 4096])
def test_values(name, dtype, width):
    kinds = ((0.0, 1.0, 1e-6), (3.0, 1.7, 1e-5), (-100.0, 0.5, 0.3), (0.0, 1e-3, 1e-6), (30.0, 30.0, 0.0))
    for mean, std, eps in kinds:
        if eps == 0 and width == 1 and name == "layer_norm":
            continue  # 0/0
        x = normal(7, 5, width, seed=1, dtype=dtype, mean=mean, std=std)
        assert_agree(name, x, parameters(name, width, dtype), eps)
        assert_agree(name, x, (), eps)


@pytest.mark.parametrize("width", [4096, 16384, 100_003, 1 << 20])
def test_long_vectors_of_equal_entries(width):
    """A plain sum of squares in float32 drifts here: by 2e-6 at 4096 entries, by 4e-4 at a million."""
    assert_agree("rms_norm", torch.full((2, width), 0.1), eps=0.0)
    assert_agree("rms_norm", normal(2, width, seed=2, dtype=torch.float32).mul(2).exp(), eps=0.0)


def traps(dtype):
    """Inputs that break implementations (rows of eight), by what is wrong with them."""
    largest = torch.finfo(dtype).max
    signs = torch.tensor([1, -1, 1, 1, -1, 1, 1, -1], dtype=dtype)
    ordinary = normal(4, 8, seed=3, dtype=dtype)
    huge, tiny = (65504.0, 1e-7) if dtype == torch.float16 else (1e18, 1e-18)
    zeros = torch.zeros(3, 8, dtype=dtype)
    bad = {v: ordinary.clone().index_fill_(0, torch.tensor([2]), v) for v in (NAN, INF)}
    one_nan = ordinary.clone()
    one_nan[1, 3] = NAN
    return {
        "zeros": zeros,
        "one zero row": torch.cat([ordinary, zeros]),
        "constant": torch.stack([torch.full((8,), v, dtype=dtype) for v in (10000.1, -0.1, 3e4, 7.0)]),
        "one constant row": torch.cat([ordinary, torch.full((1, 8), 10000.1, dtype=dtype)]),
        "tiny": tiny * signs,
        "huge": huge * signs,
        "huge and tiny rows": torch.stack([huge * signs, tiny * signs, signs]),
        "largest": largest * signs,
        "smallest": torch.finfo(dtype).tiny * signs,
        "large mean": torch.tensor([9998.5, 9999.5, 10000.5, 10001.5], dtype=dtype),
        "tiny spread": 3e-7 + 1e-10 * ordinary,
        "overflowing squares": torch.tensor([300, 300, -300, 300], dtype=dtype),
        "NaN row": bad[NAN],
        "one NaN": one_nan,
        "infinite row": bad[INF],
        "no rows": torch.empty(0, 4, dtype=dtype),
        "an empty axis": torch.empty(3, 0, 4, dtype=dtype),
        "slice": normal(6, 8, seed=4, dtype=dtype)[1:3],
        "transposed": normal(6, 8, seed=5, dtype=dtype).t(),
        "strided": normal(6, 1200, seed=6, dtype=dtype)[::2, ::2],
        "heads before tokens": normal(2, 5, 3, 8, seed=7, dtype=dtype).transpose(1, 2),
        "expanded": normal(1, 8, seed=8, dtype=dtype).expand(5, 8),
        "one vector": normal(8, seed=9, dtype=dtype),
    }


@each_norm
@each_dtype
@pytest.mark.parametrize("trap", traps(torch.float32))
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-6])
def test_traps(name, dtype, trap, eps, recwarn):
    x = traps(dtype)[trap]
    assert_agree(name, x, (), eps)
    assert_agree(name, x, parameters(name, x.shape[-1], dtype), eps)
    assert not recwarn


@each_norm
@each_dtype
@pytest.mark.parametrize("trap", traps(torch.float32))
@pytest.mark.parametrize("eps", [0.0, 1e-6, 2.0])
def test_traps_among_many_rows(name, dtype, trap, eps):
    """The checks of a batch look at its extremes first, and at every row only where these leave a doubt."""
    x = traps(dtype)[trap]
    x = torch.cat([x.reshape(-1, x.shape[-1])] * 20)
    for others in (x[:0], *(normal(5, x.shape[-1], seed=10, dtype=dtype, std=std) for std in (1, 1e3))):
        for given in ((), parameters(name, x.shape[-1], dtype)):
            assert_agree(name, torch.cat([x, others]), given, eps)


@each_norm
def test_a_bad_row_spoils_itself_only(name):
    for trap in ("NaN row", "one NaN", "infinite row"):
        x = traps(torch.float32)[trap]
        y = getattr(fast, name)(x)
        fine = x.isfinite().all(-1)
        assert y[fine].isfinite().all() and y[~fine].isnan().any()


def test_right_values_by_hand():
    x = torch.tensor([300.0, 300.0, -300.0, 300.0], dtype=torch.float16)
    assert fast.rms_norm(x).tolist() == [1, 1, -1, 1]
    scores = torch.tensor([-3.0, -1.0, 1.0, 3.0]) / 5**0.5
    torch.testing.assert_close(fast.layer_norm(torch.tensor([9998.5, 9999.5, 10000.5, 10001.5])), scores)
    assert fast.layer_norm(torch.full((2, 257), 10000.1), bias=torch.ones(257)).tolist() == [[1.0] * 257] * 2
    huge = torch.full((512,), 1e18)  # its squares sum to more than float32 has
    torch.testing.assert_close(fast.rms_norm(huge), torch.ones(512))
    torch.testing.assert_close(fast.layer_norm(torch.cat([huge, -huge])), torch.cat([huge, -huge]).sign())


@pytest.mark.parametrize(
    "convention, weight, expected",
    [
        ("gemma", 7.96875, [8.9375, 2.984375, 2.984375, 14.9375]),  # with 1 + w in bfloat16: 9, 3, 3, 15
        ("llama", 1.015625, [1.015625, 0.33984375, 0.33984375, 1.6875]),
        ("olmo2", 1.015625, [1.015625, 0.337890625, 0.337890625, 1.6953125]),
    ],
)
def test_the_conventions_round_where_they_should(convention, weight, expected):
    x = torch.tensor([3.0, 1.0, 1.0, 5.0], dtype=torch.bfloat16)
    assert fast.rms_norm(x, torch.full_like(x, weight), convention=convention).tolist() == expected


@each_norm
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("w_dtype", DTYPES, ids=str)
def test_any_mixture_of_dtypes(name, x_dtype, w_dtype):
    x, given = normal(6, 40, seed=10, dtype=x_dtype), parameters(name, 40, w_dtype)
    assert_agree(name, x, given)
    grad = normal(6, 40, seed=11, dtype=x_dtype)
    for ours, theirs in zip(gradients(fast, name, x, given, grad), gradients(functional, name, x, given, grad)):
        assert ours.dtype == theirs.dtype


@each_dtype
@pytest.mark.parametrize("w_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("convention", Convention, ids=lambda c: c.value)
def test_conventions(dtype, w_dtype, convention):
    """The conventions differ in where they round; the fast path follows to a rounding of what the reference gives."""
    x = normal(9, 64, seed=12, dtype=dtype)
    for name, known in (("layer_norm", LAYER_NORM_CONVENTIONS), ("rms_norm", RMS_NORM_CONVENTIONS)):
        if convention not in known:
            with pytest.raises(ValueError, match="not known"):
                getattr(fast, name)(x, convention=convention)
            continue
        weight = None if convention is Convention.BARE else normal(64, seed=13, dtype=w_dtype, mean=0.5)
        ours, theirs = (getattr(m, name)(x, weight, convention=convention) for m in (fast, functional))
        assert ours.dtype == theirs.dtype
        coarsest = max(torch.finfo(t).eps for t in (ours.dtype, dtype, w_dtype))
        torch.testing.assert_close(ours, theirs, rtol=2 * coarsest, atol=max(tolerance(dtype), 1e-12))


@pytest.fixture
def threads():
    """Sets the number of threads, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("shape", [(3, 70, 4096), (300, 1000), (3, 1 << 19), (20_000, 16)])
def test_any_number_of_threads_gives_the_same_numbers(shape, threads):
    """One thread works in blocks of rows, several on the whole tensor."""
    x, weight = normal(*shape, seed=40, dtype=torch.float32), normal(shape[-1], seed=41, dtype=torch.float32)
    results = []
    for count in (1, 2):
        threads(count)
        assert_agree("rms_norm", x, [weight])
        results.append(fast.rms_norm(x, weight))
    assert torch.equal(*results)


# --- gradients ----------------------------------------------------------------------------------------------------


@each_norm
def test_gradients_twice(name):
    x = normal(3, 6, seed=14, mean=1.0).requires_grad_()
    given = [p.requires_grad_() for p in parameters(name, 6, torch.float64)]
    norm = getattr(fast, name)
    assert torch.autograd.gradcheck(norm, (x, *given))
    assert torch.autograd.gradgradcheck(norm, (x, *given))
    assert torch.autograd.gradgradcheck(norm, (x,))


@each_norm
@each_dtype
@pytest.mark.parametrize("width", [1, 2, 96, 700, 4096])
@pytest.mark.parametrize("mean", [0.0, 2.0, 50.0])
@pytest.mark.parametrize("grad_mean", [0.0, 30.0])
def test_gradients_agree(name, dtype, width, mean, grad_mean):
    """Against float64: dx relative to rate * max |weight * grad| * (1 + |x̂|) of the row, where rate is what x is
    multiplied by, dweight and dbias relative to the sum of what they add up, absolutely taken.
    """
    eps = 1e-5
    x, grad = normal(20, width, seed=15, dtype=dtype, mean=mean), normal(20, width, seed=16, dtype=dtype, mean=grad_mean)
    given = parameters(name, width, dtype)
    X, G, *GIVEN = (t.double() for t in (x, grad, *given))
    centered = X - X.mean(-1, keepdim=True) if name == "layer_norm" else X
    rate = (centered.square().mean(-1, keepdim=True) + eps).rsqrt()
    scores = (centered * rate).abs()
    largest = (GIVEN[0] * G).abs().amax(-1, keepdim=True)
    scales = [rate * largest * (1 + scores), (G.abs() * scores).sum(0), G.abs().sum(0)]
    ours = gradients(fast, name, x, given, grad, eps)
    exact = gradients(functional, name, X, GIVEN, G, eps)
    for o, e, scale in zip(ours, exact, scales):
        allowed = tolerance(dtype) * scale + (unit(o) if dtype in HALF else 0.0)
        assert ((o.double() - e).abs() <= allowed).all()


@each_norm
@pytest.mark.parametrize("power", range(-36, 37, 3))
def test_gradients_of_any_size(name, power):
    """With eps = 0 the result does not depend on the size of x, and the gradient is inverse to it."""
    x, grad, given = normal(6, 40, seed=17), normal(6, 40, seed=18), parameters(name, 40, torch.float64)
    exact = gradients(functional, name, x, given, grad, 0.0)
    single = [t.float() for t in (x, *given, grad)]
    ours = gradients(fast, name, single[0] * 10.0**power, single[1:-1], single[-1], 0.0)
    sized = [ours[0].double() * 10.0**power, *(o.double() for o in ours[1:])]
    for o, e in zip(sized, exact):
        torch.testing.assert_close(o, e, rtol=1e-5, atol=1e-5 * e.abs().max().item())


@each_norm
def test_gradients_through_views_and_parts(name):
    x, weight = normal(5, 4, 8, seed=19).transpose(0, 1).requires_grad_(), normal(8, seed=20).requires_grad_()
    norm, reference = getattr(fast, name), getattr(functional, name)
    for make_loss in (lambda y: y.sum(), lambda y: y[1:3].square().sum(), lambda y: (y.transpose(0, 2) ** 3).sum()):
        for wanted in ([x], [weight], [x, weight]):
            ours, theirs = (torch.autograd.grad(make_loss(f(x, weight)), wanted) for f in (norm, reference))
            torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    assert not norm(x.detach(), weight.detach()).requires_grad


@each_norm
def test_input_stays_as_it_was_and_must_stay_so(name):
    x, weight = normal(4, 8, seed=21), normal(8, seed=22).requires_grad_()
    before = x.clone()
    y = getattr(fast, name)(x, weight)
    assert torch.equal(x, before)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


# --- memory -------------------------------------------------------------------------------------------------------


def saved_bytes(call):
    """Bytes of the distinct tensors that autograd keeps of a call for its backward pass."""
    kept = {}

    def keep(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        call()
    return sum(kept.values())


@each_dtype
@pytest.mark.parametrize("shape", [(64, 96), (2, 5, 1024), (3, 4, 7, 700)])
def test_rms_norm_saves_input_gain_and_one_number_per_token(dtype, shape):
    x, weight = normal(*shape, seed=25, dtype=dtype).requires_grad_(), normal(shape[-1], seed=26, dtype=dtype).requires_grad_()
    number = 8 if dtype == torch.float64 else 4
    expected = (x.numel() + weight.numel()) * dtype.itemsize + x.numel() // shape[-1] * number
    assert saved_bytes(lambda: fast.rms_norm(x, weight)) == expected
    assert saved_bytes(lambda: fast.rms_norm(x)) == expected - weight.numel() * dtype.itemsize


def test_layer_norm_saves_two_numbers_per_token():
    x, weight, bias = normal(64, 96, seed=27).requires_grad_(), normal(96, seed=28).requires_grad_(), normal(96, seed=29).requires_grad_()
    expected = (x.numel() + weight.numel() + 2 * 64) * 8
    assert expected <= saved_bytes(lambda: fast.layer_norm(x, weight, bias)) <= expected + bias.numel() * 8


# --- where it runs ------------------------------------------------------------------------------------------------


@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled(name, dtype):
    """One graph, forward and backward, no compiler needed."""
    torch._dynamo.reset()
    layer = norms.make_norm(name.replace("_", ""), 64).to(dtype)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        layer.weight.copy_(normal(64, seed=30, dtype=dtype))
    x, grad = normal(5, 3, 64, seed=31, dtype=dtype, mean=0.5).requires_grad_(), normal(5, 3, 64, seed=32, dtype=dtype)
    wide = 2e-5 if dtype == torch.float32 else 3 * torch.finfo(dtype).eps
    with fast.enabled(False):
        expected = layer(x)
    gradients_expected = torch.autograd.grad(expected, (x, layer.weight), grad)
    y = compiled(x)
    torch.testing.assert_close(y, expected, rtol=wide, atol=wide)
    for ours, theirs in zip(torch.autograd.grad(y, (x, layer.weight), grad), gradients_expected):
        torch.testing.assert_close(ours, theirs, rtol=wide, atol=wide * theirs.abs().max().item())


def test_a_compiled_module_does_not_read_the_switch():
    """One graph for both, half types in float32."""
    torch._dynamo.reset()
    dtypes = []

    def note_dtypes(graph, _):
        dtypes.append({str(node.args[1]) for node in graph.graph.nodes if node.target == "to"})
        return graph.forward

    compiled = torch.compile(norms.make_norm("rmsnorm", 8), fullgraph=True, backend=note_dtypes)
    x = normal(4, 8, seed=39, dtype=torch.bfloat16)
    for on in (False, True):
        with fast.enabled(on):
            compiled(x)
    assert [("torch.float64" in d, "torch.float32" in d) for d in dtypes] == [(False, True)]


@each_norm
def test_compiled_on_traps(name):
    torch._dynamo.reset()
    compiled = torch.compile(getattr(fast, name), fullgraph=True, backend="aot_eager", dynamic=False)
    for trap in ("constant", "huge and tiny rows", "one NaN", "zeros"):
        x = traps(torch.float32)[trap]
        torch.testing.assert_close(compiled(x), getattr(functional, name)(x), rtol=2e-6, atol=2e-6, equal_nan=True)


@each_norm
@pytest.mark.parametrize("autocast", HALF, ids=str)
def test_autocast_changes_nothing(name, autocast):
    x, grad = normal(6, 700, seed=33, dtype=torch.float32), normal(6, 700, seed=34, dtype=torch.float32)
    given = parameters(name, 700, torch.float32)
    plain = gradients(fast, name, x, given, grad)
    with torch.autocast("cpu", dtype=autocast):
        inside = gradients(fast, name, x, given, grad)
        y = getattr(fast, name)(x.to(autocast), *given)
    assert all(torch.equal(a, b) for a, b in zip(plain, inside))
    assert y.dtype == autocast and torch.equal(y, getattr(fast, name)(x.to(autocast), *given))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@each_norm
@pytest.mark.parametrize("x_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("w_dtype", DTYPES, ids=str)
def test_cuda(name, x_dtype, w_dtype):
    x, given, grad = normal(30, 700, seed=35, dtype=x_dtype), parameters(name, 700, w_dtype), normal(30, 700, seed=36, dtype=x_dtype)
    on_gpu = [t.cuda() for t in (x, *given)]
    ours = [getattr(fast, name)(*on_gpu), *gradients(fast, name, on_gpu[0], on_gpu[1:], grad.cuda())]
    theirs = [getattr(functional, name)(x, *given), *gradients(functional, name, x, given, grad)]
    for o, t in zip(ours, theirs):
        assert o.dtype == t.dtype and o.device.type == "cuda"
        units = 2 * max(torch.finfo(x_dtype).eps, torch.finfo(t.dtype).eps)
        torch.testing.assert_close(o.cpu(), t, rtol=units, atol=max(units, 1e-5) * t.abs().max().item())


# --- transforms, tracing, higher derivatives ----------------------------------------------------------------------


def layers(width=5):
    """Every LayerNorm and RMSNorm with random parameters in float64, by name, and partial RMSNorm."""
    for kind, known in (("layernorm", LAYER_NORM_CONVENTIONS), ("rmsnorm", RMS_NORM_CONVENTIONS)):
        for convention in known:
            yield f"{kind}-{convention.value}", norms.make_norm(kind, width, eps=1e-3, convention=convention)
    yield "rmsnorm-partial", norms.make_norm("rmsnorm", width, eps=1e-3, fraction=0.5)


LAYERS = dict(layers())
for seed, layer in enumerate(LAYERS.values()):
    layer.double()
    for i, parameter in enumerate(layer.parameters()):
        parameter.data = normal(5, seed=50 + 2 * seed + i, mean=0.7)
each_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def plain(layer):
    """The same function by the formula, with derivatives of any order and mode from elementary operations."""
    gain = 0.0 if layer.weight is None else layer.weight
    if layer.convention in (Convention.GEMMA, Convention.NEMOTRON):
        gain = 1 + gain
    gain = 1.0 if layer.weight is None else gain
    bias = getattr(layer, "bias", None)
    features = 3 if getattr(layer, "fraction", 1) == 0.5 else None

    def norm(x):
        x = x - x.mean(-1, keepdim=True) if isinstance(layer, norms.LayerNorm) else x
        y = gain * x / (x[..., :features].square().mean(-1, keepdim=True) + layer.eps).sqrt()
        return y if bias is None else y + bias

    return norm


def third_directional(f, x, direction):
    """The third derivative of sum(f(x)^3) along a direction, by three reverse passes."""
    x = x.clone().requires_grad_()
    value = (f(x) ** 3).sum()
    for _ in range(3):
        (value,) = torch.autograd.grad(value, x, create_graph=True)
        value = (value * direction).sum()
    return value.detach()


@pytest.mark.parametrize("convention, gain", [("torch", None), ("nemotron", 0.0), ("bare", None)])
def test_third_derivatives_of_conventions_that_run_the_kernel_of_torch(convention, gain):
    x, direction = normal(3, 5, seed=80, mean=0.4), normal(3, 5, seed=81)
    weight = None if gain is None else torch.full((5,), gain, dtype=x.dtype)
    ours, theirs, right, torchs = (
        third_directional(f, x, direction)
        for f in (
            lambda x: fast.layer_norm(x, weight, convention=convention),
            lambda x: functional.layer_norm(x, weight, convention=convention),
            functional.layer_norm,
            lambda x: F.layer_norm(x, (5,)),
        )
    )
    torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(theirs, torchs, rtol=1e-9, atol=1e-9)


@each_layer
def test_third_derivatives_in_reverse(layer):
    x, direction = normal(3, 5, seed=80, mean=0.4), normal(3, 5, seed=81)
    assert fast.is_enabled()
    torch.testing.assert_close(
        third_directional(layer, x, direction), third_directional(plain(layer), x, direction), rtol=1e-9, atol=1e-9
    )


@each_layer
def test_function_transforms(layer):
    """vmap, jvp, jacrev, jacfwd, and forward mode nested three times, which the fused kernels would get wrong."""
    x, tangent = normal(3, 5, seed=82, mean=0.4), normal(3, 5, seed=83)
    other = plain(layer)

    def nested(f):
        for _ in range(3):
            f = (lambda g: lambda x: torch.func.jvp(g, (x,), (tangent,))[1])(f)
        return f(x)

    transforms = {
        "vmap": lambda f: torch.vmap(f)(x),
        "jvp": lambda f: torch.func.jvp(f, (x,), (tangent,)),
        "vjp": lambda f: torch.func.vjp(f, x)[1](tangent),
        "jacrev": lambda f: torch.func.jacrev(f)(x),
        "jacfwd": lambda f: torch.func.jacfwd(f)(x),
        "hessian": lambda f: torch.func.hessian(lambda x: f(x)[0, 0])(x),
        "nested": nested,
    }
    for name, transform in transforms.items():
        torch.testing.assert_close(transform(layer), transform(other), rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}: {m}")


@each_layer
def test_forward_mode(layer):
    x, tangent = normal(3, 5, seed=84, mean=0.4), normal(3, 5, seed=85)
    with torch.autograd.forward_ad.dual_level():
        found, expected = (
            torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(x, tangent))).tangent
            for f in (layer, plain(layer))
        )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_gradients_per_example_through_the_parameters(kind):
    layer, x = LAYERS[f"{kind}-default"], normal(6, 4, 5, seed=86)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(parameters, x):
        return (torch.func.functional_call(layer, parameters, (x,)) ** 3).sum()

    found = torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for n, example in enumerate(x):
        expected = torch.autograd.grad((plain(layer)(example) ** 3).sum(), list(layer.parameters()))
        for gradients, gradient in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(gradients[n], gradient, rtol=1e-9, atol=1e-9)


@each_layer
def test_export(layer):
    x = normal(3, 5, seed=87, mean=0.4)
    program = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(program(x), plain(layer)(x), rtol=1e-9, atol=1e-9)
    huge = 1e200 * x  # nothing that was decided for x may be in the program
    assert program(huge).isfinite().all()


@each_layer
def test_tracing_and_tensors_without_values(layer):
    x = normal(3, 5, seed=88, mean=0.4)
    expected = plain(layer)(x)
    traced = torch.fx.experimental.proxy_tensor.make_fx(layer)(x)
    torch.testing.assert_close(traced(x), expected, rtol=1e-9, atol=1e-9)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert layer(mode.from_tensor(x)).shape == x.shape
    assert copy.deepcopy(layer).to("meta")(x.to("meta")).device.type == "meta"


def test_a_subclass_of_tensor_stays_one():
    class Named(torch.Tensor):
        pass

    x = normal(3, 5, seed=89).as_subclass(Named)
    for name in NORMS:
        y = getattr(fast, name)(x)
        assert type(y) is Named
        torch.testing.assert_close(y.as_subclass(torch.Tensor), getattr(functional, name)(x.as_subclass(torch.Tensor)))


# --- the switch ---------------------------------------------------------------------------------------------------


def test_the_fast_path_is_the_default():
    assert fast.is_enabled()
    with fast.enabled(False):
        assert not fast.is_enabled()
        with fast.enabled():
            assert fast.is_enabled()
        assert not fast.is_enabled()
    assert fast.is_enabled()
    with pytest.raises(KeyError), fast.enabled(False):
        raise KeyError
    assert fast.is_enabled()


def test_the_switch_stays_where_it_was_put():
    try:
        fast.enabled(False)
        assert not fast.is_enabled()
    finally:
        fast.enabled(True)
    assert fast.is_enabled()


def test_threads_have_switches_of_their_own():
    """Blocks of two threads that overlap in time leave nothing behind; a new thread starts with the default."""
    first_is_in, second_is_in, first_is_out, seen = *(threading.Event() for _ in range(3)), {}

    def first():
        seen["new thread"] = fast.is_enabled()
        with fast.enabled(False):
            first_is_in.set()
            second_is_in.wait(10)
        seen["first, behind its block"] = fast.is_enabled()
        first_is_out.set()

    def second():
        first_is_in.wait(10)
        with fast.enabled(True):
            second_is_in.set()
            first_is_out.wait(10)
            seen["second, in its block"] = fast.is_enabled()
        seen["second, behind its block"] = fast.is_enabled()

    with fast.enabled(False):
        threads = [threading.Thread(target=f) for f in (first, second)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert seen == dict.fromkeys(seen, True) and len(seen) == 4


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norm_modules_follow_the_switch(kind):
    layer = norms.make_norm(kind, 96)
    with torch.no_grad():
        layer.weight.copy_(normal(96, seed=37))
    x = normal(50, 96, seed=38, dtype=torch.float32, mean=0.3)
    name = kind.replace("norm", "_norm")
    given = list(layer.parameters())
    usual = layer(x)
    with fast.enabled(False):
        reference = layer(x)
    assert torch.equal(reference, getattr(functional, name)(x, *given, layer.eps))
    assert torch.equal(usual, getattr(fast, name)(x, *given, layer.eps))
    assert not torch.equal(reference, usual)  # or this test has seen nothing


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("placement", ["pre", "post", "peri"])
def test_a_model_follows_the_switch(kind, placement):
    config = TransformerConfig(
        vocab_size=13, context=9, layers=2, width=24, heads=2, norm=kind, placement=placement, qk_norm="per_head"
    )
    model = Transformer(config, seed=1).double()
    ids = torch.randint(13, (3, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.ones(3, 9, dtype=torch.bool).index_fill_(1, torch.tensor([0, 1]), False)

    def run():
        logits = model(ids, attention_mask=mask)
        return logits, *torch.autograd.grad(logits.square().mean(), list(model.parameters()), materialize_grads=True)

    with fast.enabled(False):
        expected = run()
    for ours, theirs in zip(run(), expected):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# --- refusals -----------------------------------------------------------------------------------------------------


@each_norm
@pytest.mark.parametrize(
    "arguments, options, error, words",
    [
        ((torch.ones(3, 4), torch.ones(5)), {}, ValueError, r"weight .*\(4,\).*\(5,\)"),
        ((torch.ones(3, 4, dtype=torch.int64),), {}, TypeError, "int64"),
        (([1.0, 2.0],), {}, TypeError, "list"),
        ((torch.tensor(3.0),), {}, ValueError, r"last axis of features.*\(\)"),
        ((torch.ones(3, 4),), {"eps": -1e-5}, ValueError, "eps"),
        ((torch.ones(3, 4),), {"convention": "lama"}, ValueError, "lama"),
        ((torch.ones(3, 4), torch.ones(4)), {"convention": "bare"}, ValueError, "bare"),
    ],
)
def test_bad_input_gets_the_errors_of_the_reference(name, arguments, options, error, words):
    with pytest.raises(error, match=words):
        getattr(fast, name)(*arguments, **options)


def test_partial_rms_norm_is_left_to_the_reference():
    x, weight = normal(3, 4, seed=90), normal(4, seed=91)
    assert torch.equal(fast.rms_norm(x, weight, fraction=0.5), functional.rms_norm(x, weight, fraction=0.5))


@pytest.mark.parametrize("given", [(None, True), (True, None), (None, None), (True, True)], ids=str)
def test_gradients_of_the_parameters_that_there_are(given):
    """Twice as well, where the fused kernel gives none for a bias without a weight."""
    tensors = [None if g is None else normal(5, seed=92 + i).requires_grad_() for i, g in enumerate(given)]
    x = normal(3, 5, seed=94).requires_grad_()
    wanted = [t for t in (x, *tensors) if t is not None]
    found = []
    for f in (fast.layer_norm, functional.layer_norm):
        first = torch.autograd.grad((f(x, *tensors) ** 3).sum(), wanted, create_graph=True)
        found.append([*first, *torch.autograd.grad(sum((g**2).sum() for g in first), wanted)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


# --- importing ----------------------------------------------------------------------------------------------------


def test_importing_the_norms_is_quick():
    """At most 0.1 s beyond torch itself. The best of a few, because other programs may be running."""
    code = "import time, torch; t = time.perf_counter(); import normlab.norms; print(time.perf_counter() - t)"
    times = []
    while len(times) < 5 and min(times, default=1.0) > 0.1:
        times.append(float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert min(times) <= 0.1
