"""What the chapters' small language models share, against hand counts and an explicit call of the training loop."""

import math
from collections import Counter

import pytest
import torch
from draw import normal
from torch import nn

from normlab import data, training
from normlab.experiments import small_models, tiny_transformers
from normlab.optimizers import learning_rate


class Bigrams(nn.Module):
    """Logits from the last character alone; remembers what it was given."""

    def __init__(self, names=("hamlet",)):
        super().__init__()
        size = len(data.corpus(names).vocabulary)
        self.table = nn.Embedding(size, size)
        draw = normal(size, size)
        self.table.weight = nn.Parameter(draw.float())
        self.seen = []

    def forward(self, ids):
        self.seen.append(ids.clone())
        return self.table(ids)


def contains(text, row):
    """Whether the token ids ``row`` stand in ``text`` in this order, without a gap."""
    return (text.unfold(0, len(row), 1) == row).all(1).any().item()


def test_character_entropy_against_a_count():
    text = data.load_text()
    counts = Counter(text[: len(text) * 9 // 10])
    total = sum(counts.values())
    expected = -sum(n / total * math.log(n / total) for n in counts.values())
    assert small_models.character_entropy() == pytest.approx(expected, rel=1e-12)


def test_the_recipe_is_the_one_that_is_documented():
    ours, theirs = Bigrams(), Bigrams()
    history = small_models.train(ours, 20, 3e-2, seed=5)
    sampler = data.sampler(data.corpus().train, small_models.BATCH, small_models.TOKENS)
    expected = training.train(theirs, sampler, 20, lr=3e-2, seed=1005, warmup=2, floor=0.0, clip=1.0)
    assert history.loss == expected.loss and history.gradient_norm == expected.gradient_norm
    assert torch.equal(ours.table.weight, theirs.table.weight)


def test_the_same_seed_means_the_same_batches():
    first, again, other = Bigrams(), Bigrams(), Bigrams()
    for model, seed, lr in ((first, 3, 1e-2), (again, 3, 1e-1), (other, 4, 1e-2)):
        small_models.train(model, 5, lr, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.seen, again.seen, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first.seen, other.seen, strict=True))


def test_batches_come_from_the_training_part_in_the_size_asked_for():
    model, names = Bigrams(("hamlet", "macbeth")), ("hamlet", "macbeth")
    small_models.train(model, 3, 1e-2, 0, plays=names, batch=5, tokens=11)
    assert [tuple(ids.shape) for ids in model.seen] == [(5, 11)] * 3
    assert all(contains(data.corpus(names).train, row) for ids in model.seen for row in ids)


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, {"warmup": 3, "floor": 0.0}),
        ({"warmup": 10}, {"warmup": 10, "floor": 0.0}),
        ({"warmup": 0, "floor": None}, {}),
        ({"floor": 0.5}, {"warmup": 3, "floor": 0.5}),
    ],
)
def test_options_override_the_schedule(options, expected):
    rates = small_models.train(Bigrams(), 30, 1e-2, 0, **options).lr
    assert rates == [learning_rate(step, 30, 1e-2, **expected) for step in range(30)]


def test_clipping_can_be_changed():
    step = {}
    for clip in (1e-6, None):
        model = Bigrams()
        before = model.table.weight.detach().clone()
        small_models.train(model, 1, 1e-3, 0, clip=clip, optimizer="sgd", warmup=0, floor=None)
        step[clip] = (model.table.weight.detach() - before).norm().item()
    assert step[1e-6] <= 1e-3 * 1e-6 * 1.01 and step[None] > 1e-5


def test_validation_reads_held_out_text_only():
    model = Bigrams()
    loss = small_models.validation_loss(model, count=3)
    held_out = data.corpus().val
    assert [tuple(ids.shape) for ids in model.seen] == [(small_models.BATCH, small_models.TOKENS)] * 3
    assert all(contains(held_out, row) for ids in model.seen for row in ids)
    assert loss == training.validation_loss(model, data.sampler(held_out, small_models.BATCH, small_models.TOKENS), count=3)


def test_passages_are_held_out_and_followed_by_their_targets():
    ids, targets = small_models.passages(4, 9, seed=1)
    assert ids.shape == targets.shape == (4, 9) and torch.equal(ids[:, 1:], targets[:, :-1])
    assert all(contains(data.corpus().val, torch.cat([row, last[-1:]])) for row, last in zip(ids, targets))
    assert torch.equal(small_models.passages(4, 9, seed=1)[0], ids) and not torch.equal(small_models.passages(4, 9, seed=2)[0], ids)


def test_five_digits_reach_into_lists_and_dicts():
    assert small_models.five_digits({"a": [1.2345678, {"b": 0.000123456}], "c": 98765.4}) == {
        "a": [1.2346, {"b": 0.00012346}],
        "c": 98765.0,
    }


def test_model_fits_its_text_and_takes_options():
    model = small_models.model(3, layers=3, width=16, placement="deepnorm", init="deepnorm")
    assert model.config.vocab_size == len(set(data.load_text())) and model.config.context == small_models.TOKENS
    assert (model.config.norm, model.config.heads) == ("layernorm", 4)
    assert model.blocks[0].residuals[0].alpha == pytest.approx(6**0.25)
    both = small_models.model(0, plays=("hamlet", "lear"), layers=1, width=16, norm="rmsnorm", context=8)
    assert both.config.vocab_size == len(set(data.load_text(("hamlet", "lear")))) and both.config.norm == "rmsnorm"
    assert both.config.context == 8
    with pytest.raises(ValueError, match="sandwich"):
        small_models.model(0, layers=1, width=16, placement="sandwich")


# --- tiny models of transformers ------------------------------------------------------------------------------------


def test_a_tiny_model_depends_on_its_seed_alone():
    pytest.importorskip("transformers")
    state = torch.random.get_rng_state()
    first, again, other = (tiny_transformers.tiny_model("Llama", seed) for seed in (0, 0, 1))
    together = tiny_transformers.tiny_models(["GPT-2", "Llama"])
    assert torch.equal(torch.random.get_rng_state(), state)
    for p, q, r, s in zip(*(m.parameters() for m in (first, again, together["Llama"], other))):
        assert torch.equal(p, q) and torch.equal(p, r) and not torch.equal(p, s)


@pytest.mark.parametrize("missing, found", [("transformers", {}), ("another", None)])
def test_without_the_library_there_are_none(monkeypatch, missing, found):
    def fail(*_):
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(tiny_transformers, "tiny_model", fail)
    if found is None:  # a fault of the library is no missing library
        with pytest.raises(ModuleNotFoundError):
            tiny_transformers.tiny_models(["Llama"])
    else:
        assert tiny_transformers.tiny_models(["Llama"]) == found
