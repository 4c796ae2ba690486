"""The question bank: its schema, its numbers, and the package's copy of it."""

import copy
import doctest
import re
import subprocess
import sys
from collections import Counter

import pytest
import questions as tool

from normlab import interview, ledger
from normlab.interview import expressions

SOURCE = tool.read_source(tool.ROOT)
BANK = interview.questions()


def test_the_package_carries_the_questions_of_the_book():
    """Evaluated anew from the formulas and the notebooks; `python tools/questions.py` renews the copy."""
    current = tool.as_json(tool.read_questions(tool.ROOT)) == interview.BANK.read_text(encoding="utf-8")
    assert current, "the texts or what cells recorded has changed: run `python tools/questions.py`"


def test_how_many_there_are():
    tiers = Counter(item["tier"] for item in BANK)
    assert tiers["must"] == 15
    assert [item["tier"] for item in BANK] == sorted((item["tier"] for item in BANK), key=interview.TIERS.index)
    assert interview.questions("must") == BANK[:15]
    with pytest.raises(ValueError, match="tier must be one of must, likely, deep, got 'easy'"):
        interview.questions("easy")


@pytest.mark.parametrize("item", SOURCE, ids=lambda item: item["id"])
def test_no_number_is_typed_by_hand(item):
    found = {field: numbers for field, text in interview.texts(item) if (numbers := expressions.typed_numbers(text))}
    assert found == {}


@pytest.mark.parametrize("item", BANK, ids=lambda item: item["id"])
def test_texts_are_finished(item):
    for field, text in interview.texts(item):
        assert "{{" not in text and "  " not in text, field
        assert text == text.strip() and text[-1] in ".?。", (field, text[-20:])
        assert not re.search(r"\b(nan|inf|None)\b", text), field


def test_numbers_of_two_must_answers_in_another_way():
    """Worked out with pencil and paper, not with the ledger."""
    at = {item["id"]: item for item in BANK}
    entries, width, layers, vocab = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 4096, 32, 32000
    short, long = (2 * entries * t + 4 * layers * width * t * t + 2 * vocab * width for t in (2048, 16384))
    total = entries + 2 * vocab * width + 65 * width
    text = " ".join(word for _, text in interview.texts(at["two-k-to-sixteen-k"]) for word in text.split())
    for number in (
        f"{2048**2:,}",
        f"{16384**2:,}",
        f"× {long / short:.1f}",
        f"{short / 1e12:.2f}, then {long / 1e12:.1f} trillion",
        f"{entries // (2 * 32 * 4096):,} tokens",
        "8.000 GiB (8.590 GB)",
        f"at most {int((80e9 - 2 * total) // 2**33)} sequences",
    ):
        assert number in text
    text = " ".join(word for _, text in interview.texts(at["norm-parameters"]) for word in text.split())
    for number in (65, 65 * 4096, 2 * 65 * 4096, total, 129, 129 * 4096, 64 * 128, 64 * 4096):
        assert f" {number:,}" in text
    assert f"{100 * 65 * 4096 / total:.3f}%" in text


# --- expressions ----------------------------------------------------------------------------------

LINES = {"falls": "loss falls by 3.5 % in 2 of 5 runs"}


@pytest.mark.parametrize(
    "text, value",
    [
        ("no number", "no number"),
        ("{{ n(266240) }} and {{ f(2 / 3, 2) }}", "266,240 and 0.67"),
        ("{{ g(0.02, 1) }} {{ g(1234.5, 3) }} {{ g(0.00769, 2) }} {{ g(-12.29, 3) }}", "0.02 1,234 0.0077 -12.3"),
        ("{{ pct(0.3988, 1) }} {{ sci(0.0000123, 2) }}", "39.9% 1.2 × 10⁻⁵"),
        ("{{ line('falls', r'by (\\S+) %') }}", "3.5"),
        ("{{ norms(changed(P('GPT-2'), layers=2), 1).count }}", "5"),
        ("{{ size(2**31, 1) }}", "2.0 GiB (2.1 GB)"),
        ("{{ said('x', r'(\\d+) steps') }}", "2000"),
    ],
)
def test_expressions(text, value):
    assert expressions.evaluate(text, LINES, {"x": "It took 2000 steps."}) == value


@pytest.mark.parametrize(
    "text, problem",
    [
        ("{{ 1 / 0 }}", "{{ 1 / 0 }}: ZeroDivisionError"),
        ("{{ 2 / 3 }}", "must give a text or a whole number, got 0.66"),
        ("{{ True }}", "must give a text or a whole number, got True"),
        ("{{ n(2.5) }}", "for whole numbers, got 2.5"),
        ("{{ line('rises', '(a)') }}", "no cell recorded a line for the claim 'rises'"),
        ("{{ line('falls', r'by (\\S+) m') }}", "must have one group and match once, got \\[\\]"),
        ("{{ line('falls', r'(\\d) ') }}", "match once, got \\['5', '2', '5'\\]"),
        ("{{ P('Llama-9') }}", "KeyError"),
        ("{{ open('x') }}", "NameError"),
    ],
)
def test_a_bad_expression_is_named(text, problem):
    with pytest.raises(ValueError, match=problem):
        expressions.evaluate(text, LINES)


@pytest.mark.parametrize(
    "text, typed",
    [
        ("It has {{ n(65) }} norms in bfloat16, as Llama-2-7B and OLMo 2, GPT-2 and T5.", []),
        ("With ε of `1e-5` and $d - 2$ and $1/\\sqrt{2L}$, $4LdT^2$, see {claim}`3-attn-64x`.", []),
        ("It has 65 norms.", ["65"]),
        ("A factor of 12.3, or 7%.", ["12.3", "7"]),
        ("The product $266{,}240$.", ["266{,}240"]),
        ("Width `4096`.", ["4096"]),
        ("In 2015.", ["2015"]),
    ],
)
def test_typed_numbers_are_found(text, typed):
    assert expressions.typed_numbers(text) == typed


# --- the schema -----------------------------------------------------------------------------------


def item(**changes):
    good = {
        "id": "a-question",
        "tier": "must",
        "level": "L1",
        "type": "recall",
        "topic": "definitions",
        "minutes": 2,
        "question": "Why?",
        "short": "Therefore.",
        "long": "For this reason.",
        "wrong": [{"answer": "No.", "why": "Yes."}],
        "refute": "A counterexample.",
        "follow_ups": [{"question": "And?", "answer": "So."}, {"question": "Then?", "answer": "Thus."}],
        "claims": ["one"],
        "zh": "因此。",
    }
    good = copy.deepcopy(good) | changes
    return {field: value for field, value in good.items() if value is not ...}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"short": ...}, "short missing"),
        ({"zh": ...}, "zh missing"),
        ({"tier": "likely"}, "unknown field zh"),
        ({"company": "Acme"}, "unknown field company"),
        ({"tier": "maybe"}, "tier must be one of must, likely, deep, got 'maybe'"),
        ({"level": 1}, "level must be a text, got 1"),
        ({"level": "L5"}, "level must be one of L1, L2, L3, L4, got 'L5'"),
        ({"type": "trivia"}, "type must be one of recall, .*'trivia'"),
        ({"topic": "food"}, "topic must be one of definitions, .*'food'"),
        ({"minutes": 0}, "minutes must be an integer from 1 to 10, got 0"),
        ({"minutes": True}, "minutes must be an integer from 1 to 10, got True"),
        ({"short": "word " * 76}, "short must have at most 75 words, got 76"),
        ({"long": " "}, "long must be a text"),
        ({"wrong": []}, r"wrong must be a list of \{answer, why\}, got \[\]"),
        ({"wrong": [{"answer": "No."}]}, r"wrong\[0\] must have answer and why"),
        ({"wrong": [{"answer": "No.", "why": ""}]}, r"wrong\[0\].why must be a text, got ''"),
        ({"follow_ups": [{"question": "And?", "answer": "So."}]}, "follow_ups must be two, got 1"),
        ({"claims": []}, r"claims must be a list of one or more ids, got \[\]"),
        ({"claims": ["one", "three"]}, "claims must be ids of the ledger, got three"),
        ({"zh": "because"}, "zh must be Chinese"),
        ({"id": "A question"}, "id must be small letters, digits and single hyphens"),
    ],
)
def test_a_bad_question_is_named_with_its_field(changes, problem):
    interview.validate([item()], ["one", "two"])
    with pytest.raises(ValueError, match=f"question '.*': .*{problem}"):
        interview.validate([item(**changes)], ["one", "two"])


def test_ids_are_unique_and_items_are_mappings():
    with pytest.raises(ValueError, match="question 'a-question': id stands twice"):
        interview.validate([item(), item()], ["one"])
    with pytest.raises(ValueError, match="question number 2: must be a mapping, got str"):
        interview.validate([item(), "Why?"], ["one"])
    with pytest.raises(ValueError, match="question number 1: id missing"):
        interview.validate([item(id=...)], ["one"])


@pytest.mark.parametrize("text, count", [("One, two – three.", 3), ("$x$ is $a + b$", 4), ("see {claim}`a-b` now", 3)])
def test_words(text, count):
    assert interview.words(text) == count


def test_the_bank_needs_no_torch():
    program = "import sys; from normlab import interview; interview.questions(); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "yaml"} & set(run.stdout.split())


def test_the_examples_of_the_docstring():
    result = doctest.testmod(expressions)
    assert result.failed == 0 and result.attempted == 2
    assert set(ledger.PRESETS) >= {"Llama-2-7B", "GPT-2"}
