"""Counts of what a norm does to memory, against counts made by hand."""

import pytest
import torch
import torch.nn.functional as F
from draw import normal

from normlab import cost, ledger

WIDTH = 16


def x_of(tokens=8, dtype=torch.float32):
    return normal(tokens, WIDTH, dtype=dtype)


def test_the_implementations_agree():
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.02)):
        ways = cost.implementations(WIDTH, dtype)
        for kind, oracle in (("LayerNorm", "F.layer_norm"), ("RMSNorm", "F.rms_norm")):
            names = [name for name in ways if kind in name]
            assert len(names) >= 2
            for name in names:
                expected = ways[oracle][0](x_of(dtype=dtype))
                torch.testing.assert_close(ways[name][0](x_of(dtype=dtype)), expected, rtol=tolerance, atol=tolerance)


def test_an_addition_reads_two_and_writes_one():
    x = x_of()
    (kernel,) = cost.count_forward(lambda x: x + x.flip(0), x).kernels[1:]
    assert (kernel.name, kernel.read, kernel.written, kernel.reduces) == ("add", (x.nbytes,) * 2, (x.nbytes,), False)
    assert kernel.bytes == 3 * x.nbytes


def test_views_and_allocations_move_nothing():
    x = x_of()
    assert cost.count_forward(lambda x: x.view(-1)[3:].detach(), x).kernels == []
    assert cost.count_forward(torch.empty_like, x).kernels == []


@pytest.mark.parametrize(
    "overwrite",
    [lambda x, y: y.copy_(x), lambda x, y: torch.mul(x, 1.0, out=y)],
    ids=["copy_", "out"],
)
def test_what_is_overwritten_is_not_read(overwrite):
    x, y = x_of(), torch.empty(8, WIDTH)
    count = cost.count_forward(lambda x: overwrite(x, y), x)
    assert count.bytes == 2 * x.nbytes


def test_an_expanded_tensor_counts_with_the_memory_behind_it():
    x = x_of()
    count = cost.count_forward(lambda x: x * torch.ones(1).expand(8, WIDTH), x)
    assert count.kernels[-1].read == (x.nbytes, 4)


def test_by_hand():
    """LayerNorm: mean, x − mean, square, mean, x − mean, gain, + ε, root, divide, + bias."""
    x = x_of(64)
    layer_norm, rms_norm = (
        cost.count_forward(cost.implementations(WIDTH)[f"{kind}, by hand"][0], x) for kind in ("LayerNorm", "RMSNorm")
    )
    assert [k.name for k in layer_norm.kernels] == "mean sub pow mean sub mul add sqrt div add".split()
    assert (layer_norm.reductions, rms_norm.reductions) == (2, 1)
    large = [sum(size == x.nbytes for k in c.kernels for size in k.read + k.written) for c in (layer_norm, rms_norm)]
    assert large == [14, 7]


def test_kept_bytes():
    x = x_of()
    assert cost.kept_bytes(lambda x: x * x, x) == x.nbytes
    assert cost.kept_bytes(lambda x: x.exp().exp(), x) == 2 * x.nbytes
    assert cost.kept_bytes(lambda x: x + 1, x) == 0
    fused = cost.kept_bytes(lambda x: F.layer_norm(x, (WIDTH,)), x)
    assert fused == x.nbytes + 2 * 8 * 4  # a mean and a rate for each of 8 tokens


def test_the_backward_pass_is_counted_to_all_parameters_and_the_same_twice():
    norm, parameters = cost.implementations(WIDTH)["LayerNorm, by hand"]
    counts = [cost.count_backward(norm, x_of(), parameters) for _ in range(2)]
    assert counts[0].kernels == counts[1].kernels
    assert len(cost.count_backward(norm, x_of()).kernels) < len(counts[0].kernels)  # to x alone
    assert all(p.grad is None for p in parameters)


def test_a_bill_is_per_number_and_the_same_for_more_tokens():
    norm = cost.implementations(WIDTH)["RMSNorm, by hand"]
    small, large = (cost.bill(norm, x_of(tokens)) for tokens in (64, 1024))
    assert small.kernels == large.kernels and abs(small.moved / large.moved - 1) < 0.01
    # 7 tensors; on each token's number: mean written, + ε and root read and written, divisor read; the gain, once.
    assert large.moved == 28 + 6 * 4 / WIDTH + 4 / 1024 and abs(large.kept - 8) < 0.5
    assert large.both_moved == large.moved + large.backward_moved


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_ledger_counts_llamas_norm_as_the_counter_does(dtype):
    ways = cost.implementations(4096, getattr(torch, dtype))
    if "LlamaRMSNorm" not in ways:
        pytest.skip("transformers is missing")
    count = cost.count_forward(ways["LlamaRMSNorm"][0], torch.ones(8, 4096, dtype=getattr(torch, dtype)))
    config = ledger.Config(
        vocab_size=8, layers=1, width=4096, heads=1, mlp_width=8, placement="parallel", final_norm=False
    )
    formula = ledger.norms(config, 8, dtype=dtype).eager
    assert (len(count.kernels), count.bytes) == (formula.launches, formula.bytes)


def test_one_block_is_what_the_fast_path_takes_at_once():
    for width in (256, 8192):
        x = cost.one_block(width)
        names = [k.name for k in cost.count_forward(cost.implementations(width)["normlab.fast RMSNorm"][0], x).kernels]
        assert names.count("mul_") == 1
