"""Marked answers and the quiz: their schema and their numbers."""

import re
from collections import Counter

import pytest
import questions as tool

from normlab import interview
from normlab.interview import expressions, practice

FILES = {"marked.yml": tool.read_marked}
SOURCES = [(file, item) for file in FILES for item in tool.read_source(tool.ROOT, file)]
EVALUATED = [(file, item) for file, read in FILES.items() for item in read(tool.ROOT)]
MARKED = [item for file, item in EVALUATED if file == "marked.yml"]


def texts(value) -> list[str]:
    """All texts of an item that a reader sees."""
    if isinstance(value, dict):
        hidden = ("id", "claims", "grade")
        return [text for key, part in value.items() if key not in hidden for text in texts(part)]
    return [text for part in value for text in texts(part)] if isinstance(value, list) else [value]


def by_id(pair):
    return pair[1]["id"] if isinstance(pair, tuple) else None


@pytest.mark.parametrize("pair", SOURCES, ids=by_id)
def test_no_number_is_typed_by_hand(pair):
    assert [number for text in texts(pair[1]) for number in expressions.typed_numbers(text)] == []


@pytest.mark.parametrize("pair", EVALUATED, ids=by_id)
def test_texts_are_finished(pair):
    for text in texts(pair[1]):
        assert "{{" not in text and "  " not in text and text == text.strip()
        assert not re.search(r"\b(nan|inf|None)\b", text)


def test_marked_answers_have_every_grade():
    counts = Counter(item["grade"] for item in MARKED)
    assert sum(counts.values()) >= 20 and set(counts) == set(practice.GRADES)
    assert max(counts.values()) < 0.6 * len(MARKED)  # no grade is a safe guess


@pytest.mark.parametrize("item", MARKED, ids=lambda item: item["id"])
def test_a_marked_answer_can_be_read_in_a_minute(item):
    assert all(text[-1] in ".?" for text in texts(item))
    assert sum(interview.words(text) for text in texts(item)) <= 200
    assert (item["fails"] == "Nothing.") <= (item["grade"] == "right")


def marked(**changes):
    good = dict.fromkeys(("asked", "answer", "right", "fails", "when", "better"), "A text.")
    return good | {"id": "a-b", "grade": "half", "claims": ["one"]} | changes


def without(item, field):
    return {key: value for key, value in item.items() if key != field}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"grade": "good"}, "grade must be one of right, half, wrong, got 'good'"),
        ({"better": " "}, "better must be a text, got ' '"),
        ({"claims": ["two"]}, "claims must be ids of the ledger, got two"),
        ({"claims": []}, r"claims must be a list of one or more ids, got \[\]"),
        ({"note": "x"}, "unknown field note"),
        ({"id": "A b"}, "id must be small letters, digits and single hyphens, got 'A b'"),
    ],
)
def test_a_bad_marked_answer_is_named(changes, problem):
    practice.validate_marked([marked()], ["one"])
    with pytest.raises(ValueError, match=f"marked answer '.*': {problem}"):
        practice.validate_marked([marked(**changes)], ["one"])


def test_marked_answers_are_mappings_with_all_fields_and_ids_of_their_own():
    for items, problem in (
        ([without(marked(), "when")], "marked answer 'a-b': when missing"),
        ([marked(), marked()], "marked answer 'a-b': id stands twice"),
        (["text"], "marked answer number 1: must be a mapping, got str"),
    ):
        with pytest.raises(ValueError, match=problem):
            practice.validate_marked(items, ["one"])
