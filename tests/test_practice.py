"""Marked answers and the quiz: their schema and their numbers."""

import re
from collections import Counter

import pytest
import questions as tool

from normlab import interview
from normlab.interview import expressions, practice

FILES = {"marked.yml": tool.read_marked, "quiz.yml": tool.read_quiz}
SOURCES = [(file, item) for file in FILES for item in tool.read_source(tool.ROOT, file)]
EVALUATED = [(file, item) for file, read in FILES.items() for item in read(tool.ROOT)]
MARKED = [item for file, item in EVALUATED if file == "marked.yml"]
QUIZ = [item for file, item in EVALUATED if file == "quiz.yml"]


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


# --- the quiz -------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", QUIZ, ids=lambda item: item["id"])
def test_a_quiz_question_has_one_right_answer_and_a_reason_for_every_wrong_one(item):
    """And no option gives itself away by its length."""
    whys = [option["why"] for option in item["options"]]
    assert len(set(whys)) == len(whys) and all(why[-1] == "." for why in (*whys, item["explanation"]))
    if "number" in item:
        right = practice.number(item["number"])
        values = [practice.number(option["text"]) for option in item["options"]]
        apart = [abs(a - b) / max(abs(a), abs(b)) for a in (right, *values) for b in (right, *values) if a != b]
        assert len({right, *values}) == len(values) + 1 and min(apart) > 0.01  # the page takes half a percent as equal
    else:
        texts = practice.shuffled(item)
        assert sorted(texts) == sorted([item["right"], *(option["text"] for option in item["options"])])
        assert interview.words(item["right"]) <= 2 + 2 * max(interview.words(option["text"]) for option in item["options"])


def test_the_right_option_stands_at_any_place():
    places = Counter(practice.shuffled(item).index(item["right"]) for item in QUIZ if "right" in item)
    assert set(places) >= {0, 1, 2} and max(places.values()) <= places.total() / 2
    assert len(QUIZ) >= 15 and sum("number" in item for item in QUIZ) >= 4


def test_numbers_of_the_quiz_in_another_way():
    """By pencil and paper, not with the ledger."""
    numbers = {item["id"]: practice.number(item["number"]) for item in QUIZ if "number" in item}
    assert numbers == {
        "count-of-norms": 32 * 2 + 1,
        "norm-parameters": 65 * 4096,
        "kv-cache-per-token": 2 * 4096 * 2 * 32,
        "scores-growth": 8**2,
        "deepnorm-alpha": pytest.approx(64**0.25, abs=0.005),
    }


def quiz(**changes):
    options = [{"text": "Two", "why": "No."}, {"text": "Three", "why": "No."}]
    good = {"id": "a", "question": "?", "right": "One", "explanation": "Yes.", "options": options, "claims": ["one"]}
    return {key: value for key, value in (good | changes).items() if value is not ...}


def option(text, why="No."):
    return {"text": text, "why": why}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"right": ...}, "right missing"),
        ({"number": "5"}, "unknown field right"),
        ({"options": [option("Two")]}, "options must be 2 to 4 wrong ones"),
        ({"options": [option(str(i)) for i in range(5)]}, "options must be 2 to 4 wrong ones"),
        ({"options": ["Two", "Three"]}, r"options\[0\] must be a mapping, got 'Two'"),
        ({"options": [option("Two"), option("Three", " ")]}, r"options\[1\].why must be a text, got ' '"),
        ({"options": [option("Two"), {"text": "Three"}]}, r"options\[1\].why missing"),
        ({"options": [option("Two"), option("one.")]}, "options must differ from each other and from the right one"),
        ({"options": [option("Two"), option("None of these")]}, "options must stand for themselves, got 'None of these'"),
        ({"right": ..., "number": "many", "options": [option("2")]}, "must be a number, got 'many'"),
        ({"right": ..., "number": "1", "options": [option("1.")]}, "options must differ"),
        ({"claims": ["two"]}, "claims must be ids of the ledger, got two"),
    ],
)
def test_a_bad_quiz_question_is_named(changes, problem):
    practice.validate_quiz([quiz(), quiz(id="b", right=..., number="1", options=[option("2")])], ["one"])
    with pytest.raises(ValueError, match=f"quiz question 'a': {problem}"):
        practice.validate_quiz([quiz(**changes)], ["one"])


@pytest.mark.parametrize("text, value", [("266,240", 266240), ("−2.5", -2.5), ("1e-5", 1e-5), (" 7 ", 7)])
def test_numbers_as_they_are_typed(text, value):
    assert practice.number(text) == value


def test_the_order_of_the_options_depends_on_the_question():
    orders = {tuple(practice.shuffled(quiz(id=name))) for name in "abcdefgh"}
    assert len(orders) > 1 and practice.shuffled(quiz()) == practice.shuffled(quiz())
