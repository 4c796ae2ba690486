"""What marked answers and quiz questions must look like. Plain Python.

The sources are `book/interview/marked.yml` and `quiz.yml`, in which a number is an expression
(:mod:`normlab.interview.expressions`).
"""

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

GRADES = ("right", "half", "wrong")

_MARKED = ("id", "asked", "answer", "grade", "right", "fails", "when", "better")
_QUIZ = ("id", "question", "explanation")
_FORBIDDEN = re.compile(r"\b(all|none|both|neither) of (the above|these|them)\b", re.IGNORECASE)


def validate_marked(items: Sequence[Any], claims: Collection[str]) -> None:
    """Checks evaluated marked answers; ``claims`` are the ids that they may name.

    A marked answer has the texts id, asked (the question), answer (as somebody gave it), grade ("right", "half" or
    "wrong"), right (what is right in it), fails (what is not), when (at which condition it fails) and better (what to
    say instead); and claims.

    Raises:
        ValueError: naming the item, the field, what was given and what was expected.
    """

    def check(item: dict[str, Any]) -> None:
        _texts(item, _MARKED, {*_MARKED, "claims"})
        if item["grade"] not in GRADES:
            raise ValueError(f"grade must be one of {', '.join(GRADES)}, got {item['grade']!r}")
        _claims(item, claims)

    _each("marked answer", items, check)


def validate_quiz(items: Sequence[Any], claims: Collection[str]) -> None:
    """Checks evaluated quiz questions: one right answer, and for every wrong one why it is wrong.

    A quiz question has the texts id, question and explanation (why the right answer is right); claims; options, a list
    of three to five {text, why}; and either right, the text of the right option, or number, the right value, which is
    typed. With a number, the options are the values that a known mistake leads to, without the right one.

    Raises:
        ValueError: naming the item, the field, what was given and what was expected.
    """

    def check(item: dict[str, Any]) -> None:
        answer = "number" if "number" in item else "right"
        _texts(item, (*_QUIZ, answer), {*_QUIZ, answer, "options", "claims"})
        _claims(item, claims)
        options = item["options"]
        few = 1 if answer == "number" else 2
        if not isinstance(options, list) or not few <= len(options) <= 4:
            raise ValueError(f"options must be {few} to 4 wrong ones, got {options!r}")
        for i, option in enumerate(options):
            if not isinstance(option, dict):
                raise ValueError(f"options[{i}] must be a mapping, got {option!r}")
            try:
                _texts(option, ("text", "why"), {"text", "why"})
            except ValueError as problem:
                raise ValueError(f"options[{i}].{problem}") from None
        texts = [item[answer], *(option["text"] for option in options)]
        if len({_key(text) for text in texts}) < len(texts):
            raise ValueError(f"options must differ from each other and from the right one, got {texts}")
        if answer == "number":
            for text in texts:
                number(text)
        elif vague := [text for text in texts if _FORBIDDEN.search(text)]:
            raise ValueError(f"options must stand for themselves, got {vague[0]!r}")

    _each("quiz question", items, check)


def number(text: str) -> float:
    """The value of a number as a reader may type it: 266,240 or 0.5. Raises ValueError if it is none."""
    plain = text.strip().replace(",", "")
    if not re.fullmatch(r"[-+−]?\d+(\.\d+)?(e[-+]?\d+)?", plain):
        raise ValueError(f"must be a number, got {text!r}")
    return float(plain.replace("−", "-"))


def shuffled(item: dict[str, Any]) -> list[str]:
    """The texts of a question's options, the right one among them, in an order that its id fixes."""
    texts = [item["right"], *(option["text"] for option in item["options"])]
    return sorted(texts, key=lambda text: hashlib.sha256(f"{item['id']}/{text}".encode()).digest())


def _key(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def _each(kind: str, items: Sequence[Any], check: Callable[[dict[str, Any]], None]) -> None:
    seen: set[str] = set()
    for position, item in enumerate(items, start=1):
        name = item.get("id") if isinstance(item, dict) else None
        where = f"{kind} {name!r}" if isinstance(name, str) else f"{kind} number {position}"
        try:
            if not isinstance(item, dict):
                raise ValueError(f"must be a mapping, got {type(item).__name__}")
            check(item)
            if name in seen:
                raise ValueError("id stands twice")
        except ValueError as problem:
            raise ValueError(f"{where}: {problem}") from None
        seen.add(item["id"])


def _texts(item: dict[str, Any], fields: Collection[str], known: Collection[str]) -> None:
    if missing := set(known) - set(item):
        raise ValueError(f"{', '.join(sorted(missing))} missing")
    if strange := set(item) - set(known):
        raise ValueError(f"unknown field {', '.join(map(str, sorted(strange, key=str)))}")
    for field in fields:
        if not isinstance(item[field], str) or not item[field].strip():
            raise ValueError(f"{field} must be a text, got {item[field]!r}")
    if "id" in item and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item["id"]):
        raise ValueError(f"id must be small letters, digits and single hyphens, got {item['id']!r}")


def _claims(item: dict[str, Any], known: Collection[str]) -> None:
    if not isinstance(item["claims"], list) or not item["claims"]:
        raise ValueError(f"claims must be a list of one or more ids, got {item['claims']!r}")
    if unknown := [claim for claim in item["claims"] if claim not in known]:
        raise ValueError(f"claims must be ids of the ledger, got {', '.join(map(str, unknown))}")
