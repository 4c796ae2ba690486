"""Norms over tokens where no value can be looked at: meta device, torch.func, torch.export, torch.compile.

The oracle is the same module called eagerly: that call leaves padding out before it computes, and is tested against
torch in test_norms.py.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from draw import normal
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vmap

from normlab import functional
from normlab.norms import make_norm
from normlab.transformer import Transformer, TransformerConfig

WIDTH = 6
# name: (kind, options, training)
CASES = {
    "batchnorm": ("batchnorm", {}, True),
    "batchnorm, mean of all batches": ("batchnorm", {"momentum": None}, True),
    "batchnorm in evaluation": ("batchnorm", {}, False),
    "groupnorm over tokens": ("groupnorm", {"groups": 2, "over": "tokens"}, True),
    "powernorm": ("powernorm", {"warmup": 1}, True),
    "powernorm with group scaling": ("powernorm", {"group_scaling": 2}, True),
    "powernorm in evaluation": ("powernorm", {}, False),
}
OWN_BACKWARD = ("powernorm", "powernorm with group scaling")
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
each_case = pytest.mark.parametrize("name", CASES)
MASKS = {"bool mask": MASK, "int mask": MASK.int(), "no mask": None}
with_and_without_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def tokens(mask, seed=0):
    """[3, 5, WIDTH], NaN at padding."""
    x = 0.5 + normal(3, 5, WIDTH, seed=seed)
    return x if mask is None else x.masked_fill(~mask.bool()[..., None], math.nan)


def build(name, seed=1):
    """With random parameters and running quantities."""
    kind, options, training = CASES[name]
    norm = make_norm(kind, WIDTH, **options).double().train(training)
    with torch.no_grad():
        for i, t in enumerate([*norm.parameters(), *norm.buffers()]):
            if t.is_floating_point():
                t += 0.3 * normal(*t.shape, seed=seed + i).abs()
    return norm


class EveryNorm(nn.Module):
    """One norm of each case, side by side, so that one graph holds them all."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(build(name) for name in CASES)

    def forward(self, x, mask=None):
        return [norm(x, mask) for norm in self.norms]


def call(norm, state, x, mask):
    """The module as a function of its parameters and buffers, which stay as they are."""
    parameters, buffers = state
    return functional_call(norm, (parameters, {k: v.clone() for k, v in buffers.items()}), (x, mask))


def state_of(norm):
    return dict(norm.named_parameters()), dict(norm.named_buffers())


def unread(f):
    """f() in a torch.func transform, where no value can be looked at."""
    return vmap(lambda _: f())(torch.zeros(1))[0]


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@each_case
@with_and_without_mask
def test_meta_device(name, mask):
    norm, x = build(name).to("meta"), torch.empty(3, 5, WIDTH, dtype=torch.float64, device="meta")
    y = norm(x, None if mask is None else mask.to("meta"))
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "meta")


@each_case
@with_and_without_mask
def test_vmap_over_models(name, mask):
    """Two norms in a row, so that one sees the same x for all models and one another x for each."""

    class Two(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.first, self.second = build(name, seed), build(name, seed + 10)

        def forward(self, x):
            return self.second(self.first(x, mask), mask)

    models, x = [Two(seed) for seed in (1, 2, 3)], tokens(mask)
    parameters, buffers = stack_module_state(models)
    y = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    close(y, torch.stack([model(x) for model in models]))
    for key, stacked in buffers.items():
        close(stacked, torch.stack([model.get_buffer(key) for model in models]))


@each_case
@with_and_without_mask
def test_torch_func_grad(name, mask):
    norm, x = build(name), tokens(mask)
    parameters, buffers = state_of(norm)
    loss = lambda y: (y * normal(3, 5, WIDTH, seed=7)).square().sum()
    found = grad(lambda p, x: loss(call(norm, (p, buffers), x, mask)), (0, 1))(parameters, x)
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(loss(norm(leaf, mask)), [*norm.parameters(), leaf])
    close([*found[0].values(), found[1]], list(expected))
    if mask is not None:
        assert found[1][~mask.bool()].abs().max() == 0


@each_case
@with_and_without_mask
def test_jacrev(name, mask):
    norm, x = build(name), tokens(mask)
    jacobian = jacrev(lambda x: call(norm, state_of(norm), x, mask))
    if name in OWN_BACKWARD:  # PowerNorm's backward pass is no derivative, and moves a running quantity
        with pytest.raises(RuntimeError, match="inplace"):
            jacobian(x)
    else:
        close(jacobian(x), torch.autograd.functional.jacobian(lambda x: copy.deepcopy(norm)(x, mask), x))


@pytest.mark.parametrize("mask", [MASK.int(), None], ids=["int mask", "no mask"])
def test_export(mask):
    """One graph for every batch size and length and for every mask."""
    given = [t for t in (tokens(mask), mask) if t is not None]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    exported = torch.export.export(EveryNorm(), tuple(given), dynamic_shapes=(sizes,) * len(given))
    given[0] = torch.cat([given[0], normal(3, 5, WIDTH, seed=2)], 1)[:2]
    if mask is not None:
        given[1] = torch.cat([mask, ~mask.bool()], 1)[:2]
    for ours, theirs in zip(exported.module()(*given), EveryNorm()(*given), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("mask", [MASK, None], ids=["mask", "no mask"])
def test_compile_without_graph_breaks(mask):
    """Two training steps with their gradients and running quantities."""
    norms, compiled = EveryNorm(), EveryNorm()
    compiled_call = torch.compile(compiled, fullgraph=True, backend="aot_eager")
    for step in range(2):
        results = []
        for model, run in ((norms, norms), (compiled, compiled_call)):
            x = tokens(mask, seed=step).requires_grad_()
            y = run(x, mask)
            loss = sum(((1 + i) * t).square().sum() for i, t in enumerate(y))
            results.append([*y, *torch.autograd.grad(loss, [x, *model.parameters()]), *model.buffers()])
        for ours, theirs in zip(*results, strict=True):
            close(ours, theirs)


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_with_batch_norm_and_a_mask(training):
    """With a norm wherever one can stand; meta, vmap and export."""
    options = {"qk_norm": "joint", "embedding_norm": True, "head_transform": True, "heads": 2}
    config = TransformerConfig(vocab_size=11, context=8, layers=1, width=WIDTH, norm="batchnorm", **options)
    models = [Transformer(config, seed).double().train(training) for seed in (0, 1)]
    ids = torch.randint(0, 11, MASK.shape, generator=torch.Generator().manual_seed(0))
    assert copy.deepcopy(models[0]).to("meta")(ids.to("meta"), MASK.to("meta")).shape == (3, 5, 11)
    exported = torch.export.export(models[0], (ids, MASK)).module()
    y = vmap(lambda p, b: functional_call(models[0], (p, b), (ids, MASK)))(*stack_module_state(models))
    close(y, torch.stack([model(ids, MASK) for model in models]))
    close(exported(ids, MASK), y[0])


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_extreme_columns_with_padding_that_stays(dtype):
    """Huge values, a mean that outweighs the spread, small and huge constants, tiny values; the oracle is torch in
    float64 on the real tokens."""
    x = normal(3, 5, WIDTH)
    x[..., 0] *= torch.finfo(dtype).max / 4
    x[..., 1] += 1e3
    x[..., 2] = 0.1
    x[..., 3] = torch.finfo(dtype).max / 4
    x[..., 4] *= 1e-12
    x = x.to(dtype)
    junk = x.masked_fill(~MASK[..., None], math.inf)
    real = x[MASK].double()
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 1e-2}[dtype]  # the large mean costs digits
    real[:, [0, 3]] /= torch.finfo(dtype).max  # torch's squares would not fit
    expected = F.batch_norm(real, None, None, training=True, eps=1e-6)
    expected[:, 0] = F.batch_norm(real[:, :1], None, None, training=True, eps=1e-99)[:, 0]
    y = unread(lambda: functional.batch_norm(junk, mask=MASK))
    torch.testing.assert_close(y[MASK].double(), expected, rtol=tolerance, atol=tolerance)
    assert y[~MASK].abs().max() == 0
    eager = functional.batch_norm(junk, mask=MASK)
    torch.testing.assert_close(y, eager, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)
    grouped = functional.group_norm(junk, WIDTH, over="tokens", mask=MASK)  # a group is one column of one sequence
    one = functional.batch_norm(junk[0], mask=MASK[0])
    torch.testing.assert_close(grouped[0], one, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


# --- what cannot be had ---------------------------------------------------------------------------------------------


def test_too_few_tokens_give_nan_where_they_cannot_be_counted():
    x = normal(2, 3, WIDTH)
    for count in (1, 2):
        mask = torch.arange(6).reshape(2, 3) < count
        y = unread(lambda: functional.batch_norm(x, mask=mask))
        mean = unread(lambda: functional.batch_moments(x, mask).mean)
        var = unread(lambda: functional.batch_moments(x, mask).unbiased_var)
        assert y[mask].isnan().all().item() is (count < 2)
        assert mean.isnan().all().item() is var.isnan().all().item() is (count < 2)
        assert y[~mask].abs().max() == 0


@pytest.mark.parametrize("name", ["batchnorm", "powernorm"])
def test_running_quantities_must_be_passed_to_torch_func(name):
    """As with torch's own BatchNorm1d: a transform refuses to change what its function did not get."""
    for norm in (build(name), nn.BatchNorm1d(WIDTH).double()):
        with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
            grad(lambda x: norm(x).square().sum())(normal(5, WIDTH))
