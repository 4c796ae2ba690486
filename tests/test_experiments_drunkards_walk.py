"""The experiments of chapter 1 on real stacks, against closed forms and attention written out."""

import pytest
import torch
from torch.nn import functional as F

from normlab import probes, record
from normlab.experiments import drunkards_walk as walk
from normlab.transformer import Init


def attention_by_hand(sublayer, x):
    """softmax(Q K^T / sqrt(head_dim)) V of every head, causal, and the output projection."""
    heads = 4
    projections = (sublayer.query, sublayer.key, sublayer.value)
    q, k, v = (project(x).unflatten(-1, (heads, -1)).transpose(1, 2) for project in projections)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    return sublayer.out((scores.masked_fill(future, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))


@torch.no_grad()
def test_attention_by_depth():
    found = walk.attention_by_depth(seed=3, layers=2)
    model = walk.fresh_stack(2, seed=3)
    ids = walk.reading(64, 4)[0]
    x, inputs = model.embed(ids), []
    for n, block in enumerate(model.blocks):
        unit = x / x.norm(dim=-1, keepdim=True)
        pairs = [unit[:, i] @ unit[:, j].T for i in range(64) for j in range(64) if i != j]
        assert found.alike[n] == pytest.approx(torch.stack([p.diagonal() for p in pairs]).mean().item())
        inputs.append(F.layer_norm(x, x.shape[-1:], eps=block.residuals[0].norm.eps))
        r = attention_by_hand(block.residuals[0].sublayer, inputs[-1])
        assert found.all_tokens[n] == pytest.approx(r.var(-1, correction=0).mean().item())
        assert found.first_token[n] == pytest.approx(r[:, 0].var(-1, correction=0).mean().item())
        x = block.residuals[1](x + r)
    for n, swapped in enumerate(found.swapped):
        r = attention_by_hand(model.blocks[n].residuals[0].sublayer, inputs[1 - n])
        assert swapped == pytest.approx(r.var(-1, correction=0).mean().item())


def test_of_one_block_the_swap_changes_nothing():
    found = walk.attention_by_depth(seed=0, layers=1)
    assert found.swapped == (pytest.approx(found.all_tokens[0]), pytest.approx(found.all_tokens[0]))


def test_growth_within_starts_at_the_embeddings():
    """Tokens and positions with a standard deviation of 0.02 each: 0.02 sqrt(2), whatever the width."""
    for width in (64, 256):
        plain, scaled = (walk.growth_within(width, init, layers=2) for init in (Init.GPT2, "gpt2-scaled"))
        assert plain["start"] == scaled["start"] == pytest.approx(0.02 * 2**0.5, rel=0.03)
        assert scaled["written"] == pytest.approx(plain["written"] / 4**0.5, rel=0.05)  # 1 / sqrt(2 L)
        assert plain["growth"] > scaled["growth"] > 1


def test_attentions_part_of_the_increments():
    names = ("MLP only", "attention only", "attention + MLP")
    shares = {name: walk.stack_growth(name, 0, width=32, shallow=2, deep=3)["attention"] for name in names}
    assert shares["MLP only"] == 0 and shares["attention only"] == 1 and 0 < shares["attention + MLP"] < 1
    account = probes.variance_account(walk.read_stack(walk.fresh_stack(3, 0, width=32)))
    attention, mlp = (s.increment for s in account[-2:])
    assert shares["attention + MLP"] == pytest.approx(attention / (attention + mlp))


@pytest.mark.parametrize("recipe", walk.RECORDS, ids=lambda recipe: recipe.name)
def test_records_are_complete(recipe):
    runs = record.load(recipe.name)["runs"]
    assert [run["setting"] for run in runs] == recipe.settings
    assert len({run["setting"]["seed"] for run in runs}) >= 5
