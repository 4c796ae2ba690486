"""What the chapter on cost runs, against formulas, hand counts and the other models' own code."""

import json

import pytest
import torch
from torch import nn

from normlab import cost, ledger, record
from normlab.experiments import cost as run


def test_a_saving_is_the_product_of_its_two_factors():
    saved, part, of_it = run.taken_apart(1.0, 5.0, 2.0)  # LayerNorm takes 4 of 5, and 3 of those 4 are saved
    assert (saved, part, of_it) == (0.6, 0.8, 0.75)
    assert saved == pytest.approx(part * of_it)


def test_the_papers_range():
    plain, partial = zip(
        *([run.taken_apart(none, ln, t)[0] for t in others] for none, ln, *others in run.PAPER_SECONDS.values())
    )
    assert [round(100 * v, 1) for v in (min(plain), max(plain), max(partial))] == [6.9, 40.8, 63.9]


def test_the_share_of_a_prefill_by_hand():
    """One parallel block without final norm: one norm of d, products of 2 · 16 d² a token but for attention and head."""
    d, tokens = 64, 32
    config = ledger.Config(
        vocab_size=1, layers=1, width=d, heads=1, mlp_width=4 * d, placement="parallel", final_norm=False
    )
    share = run.prefill_share(config, tokens, balance=10)
    products = 2 * tokens * (4 * d * d + 3 * 4 * d * d) + 4 * tokens**2 * d + 2 * tokens * d
    assert share.fused == pytest.approx((4 * tokens * d + 2 * d) * 10 / products)
    assert share.operations == pytest.approx(tokens * (4 * d + 2) / products)
    assert share.eager > 8 * share.fused and run.prefill_share(config, tokens, 20).eager == 2 * share.eager


def test_the_norm_of_the_published_benchmark_is_llamas():
    ways = cost.implementations(16, torch.bfloat16)
    norm, (weight,) = run.llama_norm(16, torch.bfloat16)
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    unit = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    torch.testing.assert_close(norm(x), unit, rtol=0.02, atol=0.02)
    if "LlamaRMSNorm" in ways:
        counts = [cost.bill(n, cost.one_block(16, torch.bfloat16)) for n in (ways["LlamaRMSNorm"], (norm, [weight]))]
        assert counts[0] == counts[1]


def test_published_times_are_those_of_a_plain_norm_and_a_faster_one():
    for by_width in run.LIGER.values():
        assert all(by_steps > 2 * fused for by_steps, fused in by_width.values())
        assert list(by_width) == sorted(by_width)


def small_llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def test_models_differ_in_their_norms_alone():
    model, ids = small_llama().eval(), torch.arange(6)[None]
    models = run.models_by_norm(model)
    expected = model(ids).logits
    for name, other in models.items():
        kinds = [type(m).__name__ for m in other.modules()]
        assert kinds.count("LlamaRMSNorm") == (5 if name == "LlamaRMSNorm" else 0)
        same = torch.allclose(other.eval()(ids).logits, expected, atol=1e-5)
        assert same is ("RMSNorm" in name), name
    assert sum(isinstance(m, nn.Identity) for m in models[run.NO_NORM].modules()) == 5


def test_a_training_step_moves_weights_and_a_decoding_step_lengthens_the_cache():
    model, ids = small_llama(), torch.arange(7)[None]
    before = model.lm_head.weight.detach().clone()
    run.training_step(model, ids[:, :-1], ids[:, 1:])()
    assert not torch.equal(before, model.lm_head.weight)
    seen = []
    step = run.decoding_step(model, ids[:, :-1], ids[:, 1:])
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((args[0].shape[1], kwargs["past_key_values"].get_seq_length())),
        with_kwargs=True,
    )
    step(), step()
    assert seen == [(1, 6), (1, 7)]


def test_a_measurement_has_quartiles_and_ratios(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    found = run.measure("addition", dtype="float32", sizes=[[2**16, 8]], seconds=0.0)["65536 x 8"]
    assert found["x.clone()"]["ratio"] == [1, 1, 1] and all(len(v["us"]) == 3 for v in found.values())
    with pytest.raises(ValueError, match="nothing"):
        run.measure("nothing")


@pytest.mark.parametrize("recipe", run.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    made = record.load(recipe.name)
    assert [r["setting"] for r in made["runs"]] == json.loads(json.dumps(recipe.settings))
    if recipe.name == "cost_times":
        sizes = {size for r in made["runs"] if r["setting"]["part"] == "forward" for size in r["result"]}
        assert {f"{t} x {w}" for t in (1, 8192) for w in run.WIDTHS} <= sizes
