"""The corpora: shipped plays, generated tokens, digits, and the batches drawn from them."""

import math

import pytest
import torch

from normlab import data


def draw(batches, seed=0):
    return batches(torch.Generator().manual_seed(seed))


# --- plays -----------------------------------------------------------------------------------------------------------


def test_every_play_is_the_one_that_was_shipped():
    text = data.load_text(list(data.PLAYS))
    assert len(text) > 1_000_000 and text.isascii() and "To be, or not to be" in text
    assert "gutenberg" not in text.lower()


def test_corpus_round_trip():
    corpus = data.corpus(["hamlet"])
    text = data.load_text(["hamlet"])
    assert corpus.decode(torch.cat([corpus.train, corpus.val])) == text
    assert len(corpus.val) == pytest.approx(len(text) / 10, abs=1)


def test_windows_and_their_successors():
    ids = torch.arange(50)
    inputs, targets = data.windows(ids, 64, 7, torch.Generator().manual_seed(0))
    assert torch.equal(targets, inputs + 1)
    assert inputs.min() == 0 and targets.max() == 49  # first and last token are reached
    with pytest.raises(ValueError, match="7 tokens has no window of 7"):
        data.windows(ids[:7], 1, 7, torch.Generator())


def test_unknown_plays_are_named():
    with pytest.raises(ValueError, match="'hamlets'.*hamlet, macbeth"):
        data.load_text(["hamlets"])


def test_lines_end_with_their_newline_and_are_padded():
    ids = torch.tensor([5, 6, 0, 0, 7, 0, 8, 9, 1, 2, 3, 0, 4])  # 0 ends a line; one line is empty, the last has no end
    inputs, targets, mask = draw(data.line_sampler(ids, newline=0, batch=40, longest=4))
    lines = {(tuple(i[m].tolist()), tuple(t[m].tolist())) for i, t, m in zip(inputs, targets, mask)}
    assert lines == {((5, 6), (6, 0)), ((7,), (0,)), ((8, 9, 1, 2), (9, 1, 2, 3))}
    assert inputs.shape == targets.shape == mask.shape == (40, 4)
    assert (targets[~mask] == -100).all() and (inputs[~mask] == 0).all()
    with pytest.raises(ValueError, match="no line: 3 tokens, 3 of them"):
        data.line_sampler(torch.zeros(3, dtype=torch.long), 0, 1, 4)


def test_lines_of_hamlet():
    corpus = data.corpus()
    newline = corpus.vocabulary.index("\n")
    inputs, targets, mask = draw(data.line_sampler(corpus.train, newline, 32, 64))
    lines = [line.strip() for line in data.load_text().splitlines()]
    for row, real in zip(inputs, mask):
        assert corpus.decode(row[real]).strip() in lines
    assert mask.sum(1).min() < mask.sum(1).max() == mask.shape[1]


# --- generated -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_zipf_frequencies_and_entropy(exponent):
    ids = data.zipf(50, 200_000, seed=1, exponent=exponent)
    expected = [r**-exponent for r in range(1, 51)]
    expected = [p / sum(expected) for p in expected]
    counts = torch.bincount(ids, minlength=50)
    assert len(counts) == 50
    for count, p in zip(counts.tolist(), expected):
        assert abs(count / 200_000 - p) < 5 * math.sqrt(p / 200_000)
    assert data.zipf_entropy(50, exponent) == pytest.approx(-sum(p * math.log(p) for p in expected), rel=1e-12)
    assert torch.equal(ids, data.zipf(50, 200_000, seed=1, exponent=exponent))
    assert not torch.equal(ids, data.zipf(50, 200_000, seed=2, exponent=exponent))


def test_counting():
    assert data.counting(3, 7).tolist() == [0, 1, 2, 0, 1, 2, 0]


def test_copying_asks_for_the_repetition_only():
    inputs, targets = draw(data.copying(vocabulary=10, length=6, batch=5))
    assert inputs.shape == targets.shape == (5, 12)
    assert (inputs[:, 6] == 10).all() and inputs[:, :6].max() < 10
    assert torch.equal(inputs[:, 7:], inputs[:, :5])
    assert (targets[:, :6] == -100).all()
    assert torch.equal(targets[:, 6:], inputs[:, :6])


# --- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_split_without_loss():
    digits = data.digits()
    assert digits.train.shape == (1437, 64) and digits.val.shape == (360, 64)
    assert digits.train.min() == 0 and digits.train.max() == 1
    labels = torch.cat([digits.train_labels, digits.val_labels])
    assert torch.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not torch.equal(digits.val, data.digits(seed=1).val)


def test_rows_are_different_and_keep_their_labels():
    inputs = torch.arange(30.0)
    x, y = draw(data.rows(inputs, 2 * inputs, 30))
    assert torch.equal(y, 2 * x) and torch.equal(x.sort().values, inputs)
    with pytest.raises(ValueError, match="31 .* from 30"):
        data.rows(inputs, inputs, 31)
