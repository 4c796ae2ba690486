"""Exercises answer without giving the answer away."""

import pytest
import torch

from normlab.page import check

X = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("blank", [..., None, [1.0, ...], (None, 2.0), {"a": ...}, [[...]]])
def test_a_blank_is_not_wrong(capsys, blank):
    check(blank, [1.0, 2.0])
    assert capsys.readouterr().out == "not answered yet\n"


@pytest.mark.parametrize(
    "answer, expected",
    [
        (0.5 + 1e-8, 0.5),
        (3, 3.0),
        (torch.tensor(2.0), 2),
        ("post", "post"),
        (True, True),
        (X.double() + 1e-8, X.double()),
        (X.half(), X.double()),
        ((1.0, X), [1, X]),
        ({"b": 2, "a": 1}, {"a": 1, "b": 2}),
        (float("inf"), float("inf")),
    ],
)
def test_right_answers(capsys, answer, expected):
    check(answer, expected)
    assert capsys.readouterr().out == "right\n"


@pytest.mark.parametrize(
    "answer, expected, said",
    [
        (0.9, 0.75, "not yet: off by 20%"),
        (3.557, 3.5566, "not yet: off by less than 1%"),
        (0, 0.75, "not yet: 0 is too small"),
        (float("nan"), 0.75, "not yet"),
        ("0.75", 0.75, "not yet: a number is asked for, got str"),
        (True, 1.0, "not yet: a number is asked for, got bool"),
        ("pre", "post", "not yet"),
        (1, True, "not yet: a bool is asked for, got 1"),
        (X[:1], X, "not yet: shape [2] is asked for, got [1]"),
        (X + 1, X, "not yet: 2 of 2 entries are off, the worst by 1"),
        (X * float("nan"), X, "not yet: NaN or infinite entries"),
        (X, X.half(), "not yet: dtype torch.float16 is asked for, got torch.float32"),
        ([X.half()], [X.bfloat16()], "answer 1: not yet: dtype torch.bfloat16 is asked for, got torch.float16"),
        (1.0, X, "not yet: a tensor is asked for, got float"),
        ([1.0], [1.0, 2.0], "not yet: 2 answers are asked for, got [1.0]"),
        ([1.0, 3.0], [1.0, 2.0], "answer 2: not yet: off by 50%"),
        ({"a": 1}, {"b": 1}, "not yet: answers are asked for b; got a"),
        ({"a": 2}, {"a": 1}, "a: not yet: off by 100%"),
    ],
)
def test_wrong_answers_are_not_told_the_right_one(capsys, answer, expected, said):
    check(answer, expected)
    assert capsys.readouterr().out == said + "\n"


@pytest.mark.parametrize("expected, tolerance", [(..., 0), (None, 0), (1.0, -1.0)])
def test_the_author_of_an_exercise_is_told(expected, tolerance):
    with pytest.raises(ValueError, match="expected|tolerances"):
        check(1.0, expected, rtol=tolerance)
