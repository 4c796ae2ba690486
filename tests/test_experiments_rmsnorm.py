"""Chapter 4's experiments against closed forms, torch, float64 and hand counts."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from draw import normal, randomize

from normlab import functional, record
from normlab.experiments import rmsnorm as rms
from normlab.norms import LayerNorm, RMSNorm

WIDTH = 64


def disturbed(norm, seed=0, **options):
    """A small model in float64 with random gains and biases."""
    return randomize(rms.small_model(norm, seed, layers=2, width=16, **options).double(), matrices=True)


# --- the mean ------------------------------------------------------------------------------------------------------


def test_mean_share_of_known_vectors():
    assert rms.mean_share(torch.tensor([[2.0, 2.0, 2.0, 2.0]])) == 1
    assert rms.mean_share(torch.tensor([[1.0, -1.0]])) == 0
    assert rms.mean_share(torch.tensor([[3.0, 1.0]])) == pytest.approx(4 / 5)  # mean 2, mean square 5


def test_mean_share_of_noise_is_one_over_d():
    assert rms.mean_share(normal(20_000, 50)) == pytest.approx(1 / 50, rel=0.05)


def test_mean_shares_have_one_entry_per_sublayer_and_the_start():
    shares = rms.mean_shares(disturbed("layernorm"))
    assert len(shares) == 1 + 2 * 2 and all(0 < s < 1 for s in shares)


# --- conversion and rotation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sublayers", [("attention", "mlp"), ("mlp",), ("attention",)])
def test_converted_model_computes_the_same(sublayers):
    model = disturbed("layernorm", sublayers=sublayers)
    new = rms.to_rmsnorm(model)
    assert not any(isinstance(m, LayerNorm) for m in new.modules())
    assert sum(isinstance(m, RMSNorm) for m in new.modules()) == 2 * len(sublayers) + 1
    assert rms.logit_difference(model, new) < 1e-12
    assert max(rms.mean_shares(new)) < 1e-25
    assert rms.logit_difference(model, rms.to_rmsnorm(model, center=False)) > 1e-3


def test_rotation_is_orthogonal():
    Q = rms.rotation(WIDTH)
    torch.testing.assert_close(Q @ Q.T, torch.eye(WIDTH, dtype=torch.float64))


def test_rotated_models():
    Q = rms.rotation(16)
    plain, converted = disturbed("rmsnorm"), rms.to_rmsnorm(disturbed("layernorm"))
    for model in (plain, converted):
        assert rms.logit_difference(model, rms.rotated(model, Q)) < 1e-11
        assert rms.logit_difference(model, rms.rotated(model, Q, fold=False)) > 1e-2
    eye = torch.eye(16, dtype=torch.float64)
    assert rms.logit_difference(plain, rms.rotated(plain, eye, fold=False)) < 1e-12


def test_no_gradient_reaches_the_mean_of_a_layer_norm_stream():
    ids = rms.passages(2)
    for norm, vanishes in (("layernorm", True), ("rmsnorm", False)):
        model = disturbed(norm)
        F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        for writer in rms._writers(model):
            share = writer.weight.grad.mean(0).norm() / writer.weight.grad.norm()
            assert bool(share < 1e-13) is vanishes


# --- number formats ------------------------------------------------------------------------------------------------


def test_float16_overflows_at_256():
    sizes = [255.875, 256.0]
    assert rms.size_after(rms.rms_norm_within, sizes, torch.float16) == [1, 0]
    assert rms.size_after(functional.rms_norm, sizes, torch.float16) == [1, 1]


def test_within_is_the_formula_in_float64():
    x = normal(3, WIDTH)
    torch.testing.assert_close(rms.rms_norm_within(x), F.rms_norm(x, (WIDTH,), eps=1e-6))


# --- counts --------------------------------------------------------------------------------------------------------


def test_formulas_by_hand_equal_torch():
    x, weight, bias = normal(5, WIDTH), normal(WIDTH, seed=1), normal(WIDTH, seed=2)
    torch.testing.assert_close(rms.article_layer_norm(x, weight, bias), F.layer_norm(x, (WIDTH,), weight, bias))
    torch.testing.assert_close(rms.article_rms_norm(x, weight), F.rms_norm(x, (WIDTH,), weight, 1e-6))


def test_all_implementations_agree():
    x, ways = normal(5, WIDTH).float(), rms.implementations(WIDTH)
    for kind in ("LayerNorm", "RMSNorm"):
        names = [n for n in ways if kind in n or n == f"F.{'layer' if kind == 'LayerNorm' else 'rms'}_norm"]
        assert len(names) == 3
        for name in names:
            torch.testing.assert_close(ways[name](x), ways[names[0]](x), rtol=1e-4, atol=1e-5)


def test_traffic_of_simple_functions():
    x = normal(8, WIDTH, dtype=torch.float32)
    add = rms.traffic(lambda x: x + x, x)
    assert (add.names, add.read, add.written, add.reductions) == (["add"], 2, 1, 0)
    chain = rms.traffic(lambda x: (x * 2).view(-1).sum(), x)  # a view costs nothing
    assert (chain.names, chain.read, chain.written, chain.reductions) == (["mul", "sum"], 2, 1, 1)


def test_traffic_by_hand():
    # LayerNorm: mean, x − mean, square, mean, x − mean, times gain, divide, plus bias: 8 reads, 6 writes.
    x, ways = normal(8, WIDTH, dtype=torch.float32), rms.implementations(WIDTH)
    ln, rn = (rms.traffic(ways[f"{kind}, by hand"], x) for kind in ("LayerNorm", "RMSNorm"))
    assert (len(ln.names), ln.reductions, ln.read, ln.written) == (8, 2, 8, 6)
    assert (len(rn.names), rn.reductions, rn.read, rn.written) == (4, 1, 4, 3)


def test_kept_for_backward():
    x = normal(8, WIDTH, dtype=torch.float32)
    assert rms.kept_for_backward(lambda x: x * x, x) == 1
    assert rms.kept_for_backward(lambda x: x.exp().exp(), x) == 2  # each exp keeps its result
    assert rms.kept_for_backward(lambda x: x + 1, x) == 0


def test_graph_nodes():
    assert rms.graph_nodes(rms.article_rms_norm) == ["mul", "square", "mean", "add", "sqrt", "truediv"]


# --- what others measured and run ----------------------------------------------------------------------------------


def test_paper_range():
    saved = [[1 - t / ln for t in others] for ln, *others in rms.PAPER_SECONDS.values()]
    plain, partial = zip(*saved)
    assert [round(100 * v, 1) for v in (min(plain), max(plain), max(partial))] == [6.9, 40.8, 63.9]


def test_published_norms_are_conventions():
    pytest.importorskip("transformers")
    x = normal(4, 256).bfloat16()
    expected = {"llama": "llama", "gemma": "gemma", "olmo2": "olmo2", "t5": "t5"}
    norms = rms.published_norms()
    for name, convention in expected.items():
        found = [c.value for c in rms.conventions_of(rms.randomized(norms[name]).bfloat16(), x)]
        assert convention in found and ("olmo2" in found) == (name == "olmo2")


def test_decayed_counts():
    pytest.importorskip("transformers")
    models = rms.tiny_models()
    everything = {name: rms.decayed(m.named_modules(), lambda *_: True) for name, m in models.items()}
    assert everything == {"GPT-2": 2 * 5, "Llama": 5, "Qwen 3": 9}
    assert rms.decayed(models["Llama"].named_modules(), lambda name, p: p.dim() > 1) == 0


def test_gain_after_decay():
    assert rms.gain_after_decay(1.0) == pytest.approx(math.exp(-3), rel=1e-4)
    assert rms.gain_after_decay(0.0) == 0


# --- records -------------------------------------------------------------------------------------------------------


def test_seeds_are_paired():
    first, second = (rms.small_model(norm, 3) for norm in rms.NORMS)
    names = dict(second.named_parameters())
    assert all(torch.equal(p, names[n]) for n, p in first.named_parameters() if n in names)
    assert {n.rpartition(".")[2] for n, _ in first.named_parameters() if n not in names} == {"bias"}


def test_training_runs_and_describes():
    model, result = rms.train_small_model("rmsnorm", 0, layers=1, width=8, steps=3)
    assert set(result) == {"loss", "before", "after"} and 0 < result["loss"] < 6
    assert len(result["after"]) == 3 and result["before"] != result["after"]
    assert next(model.parameters()).device.type == "cpu"


def test_timings_cover_all_implementations():
    assert set(record.results(record.load("norm_timings"))[0]["forward"]) > set(rms.implementations(8))


@pytest.mark.parametrize("recipe", rms.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    made = record.load(recipe.name)
    assert [run["setting"] for run in made["runs"]] == json.loads(json.dumps(recipe.settings))
