"""Interview questions: what one must look like, and the bank that the package carries.

The source is `book/interview/questions.yml`, in which a number is an expression (:mod:`normlab.interview.expressions`).
`tools/questions.py` evaluates and validates it and stores the result beside this file, for those who have no book at
hand. Plain Python.
"""

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

TIERS = ("must", "likely", "deep")
LEVELS = ("L1", "L2", "L3", "L4")  # screen, mid, senior, staff or research
TYPES = ("recall", "derive", "compute", "compare", "explain", "code", "debug", "review", "design")
TOPICS = {
    "definitions": "Definitions",
    "batchnorm": "BatchNorm on text",
    "gradients": "Invariances and gradients",
    "numerics": "Numerics",
    "placement": "Placement",
    "parameters": "Parameters and optimizer",
    "systems": "Speed and memory",
    "context": "From short to long context",
    "debugging": "Debugging",
}
SHORT_WORDS = 75  # what fits into thirty seconds
BANK = Path(__file__).with_name("questions.json")

_TEXTS = ("id", "tier", "level", "type", "topic", "question", "short", "long", "refute")
_PAIRS = {"wrong": ("answer", "why"), "follow_ups": ("question", "answer")}
_CHOICES = {"level": LEVELS, "type": TYPES, "topic": tuple(TOPICS)}
_FIELDS = {*_TEXTS, *_PAIRS, "minutes", "claims", "zh"}


def questions(tier: str | None = None) -> list[dict[str, Any]]:
    """The questions of the bank in their order, all or those of one tier. Raises ValueError for an unknown tier."""
    if tier is not None and tier not in TIERS:
        raise ValueError(f"tier must be one of {', '.join(TIERS)}, got {tier!r}")
    bank = json.loads(BANK.read_text(encoding="utf-8"))
    return [item for item in bank if tier in (None, item["tier"])]


def validate(items: Sequence[dict[str, Any]], claims: Collection[str]) -> None:
    """Checks evaluated questions against the schema; ``claims`` are the ids that they may name.

    A question has the texts id, tier, level, type, topic, question, short (at most 75 words), long and refute; minutes;
    wrong, a list of {answer, why}; follow_ups, two of {question, answer}, the second asked after the first; claims.
    A question of the tier "must" also has zh, the short answer in Chinese.

    Raises:
        ValueError: naming the question, the field, what was given and what was expected.
    """
    seen: set[str] = set()
    for number, item in enumerate(items, start=1):
        name = item.get("id") if isinstance(item, dict) else None
        where = f"question {name!r}" if isinstance(name, str) else f"question number {number}"
        try:
            _check(item, claims)
        except ValueError as problem:
            raise ValueError(f"{where}: {problem}") from None
        if name in seen:
            raise ValueError(f"{where}: id stands twice")
        seen.add(item["id"])


def _check(item: Any, claims: Collection[str]) -> None:
    if not isinstance(item, dict):
        raise ValueError(f"must be a mapping, got {type(item).__name__}")
    wanted = _FIELDS if item.get("tier") == "must" else _FIELDS - {"zh"}
    if missing := wanted - set(item):
        raise ValueError(f"{', '.join(sorted(missing))} missing")
    if item["tier"] not in TIERS:
        raise ValueError(f"tier must be one of {', '.join(TIERS)}, got {item['tier']!r}")
    if strange := set(item) - wanted:
        raise ValueError(f"unknown field {', '.join(map(str, sorted(strange, key=str)))}")
    for field in (*_TEXTS, *(["zh"] if "zh" in item else [])):
        _check_text(field, item[field])
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", item["id"]):
        raise ValueError(f"id must be small letters, digits and single hyphens, got {item['id']!r}")
    for field, known in _CHOICES.items():
        if item[field] not in known:
            raise ValueError(f"{field} must be one of {', '.join(known)}, got {item[field]!r}")
    minutes = item["minutes"]
    if not isinstance(minutes, int) or isinstance(minutes, bool) or not 1 <= minutes <= 10:
        raise ValueError(f"minutes must be an integer from 1 to 10, got {minutes!r}")
    for field, keys in _PAIRS.items():
        _check_pairs(field, item[field], keys)
    if len(item["follow_ups"]) != 2:
        raise ValueError(f"follow_ups must be two, got {len(item['follow_ups'])}")
    if (count := words(item["short"])) > SHORT_WORDS:
        raise ValueError(f"short must have at most {SHORT_WORDS} words, got {count}")
    if "zh" in item and not re.search(r"[\u4e00-\u9fff]", item["zh"]):
        raise ValueError("zh must be Chinese")
    if not isinstance(item["claims"], list) or not item["claims"]:
        raise ValueError(f"claims must be a list of one or more ids, got {item['claims']!r}")
    if unknown := [claim for claim in item["claims"] if claim not in claims]:
        raise ValueError(f"claims must be ids of the ledger, got {', '.join(map(str, unknown))}")


def _check_text(field: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text, got {value!r}")


def _check_pairs(field: str, value: Any, keys: tuple[str, str]) -> None:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{field} must be a list of {{{', '.join(keys)}}}, got {value!r}")
    for i, pair in enumerate(value):
        if not isinstance(pair, dict) or set(pair) != set(keys):
            raise ValueError(f"{field}[{i}] must have {' and '.join(keys)}, got {pair!r}")
        for key in keys:
            _check_text(f"{field}[{i}].{key}", pair[key])


def words(text: str) -> int:
    """Words of a text as they are spoken, roughly.

    A formula ``$...$`` counts as one word and one more for each =, +, −, fraction bar and root in it, a role as one.
    """
    count = 0
    for formula in re.findall(r"\$[^$]+\$", text):
        count += 1 + len(re.findall(r"=|\+|-|/|\\frac|\\sqrt", formula))
    rest = re.sub(r"\{[\w:]+\}`[^`]+`", "role", re.sub(r"\$[^$]+\$", " ", text))
    return count + len([word for word in rest.split() if re.search(r"\w", word)])


def texts(item: dict[str, Any]) -> list[tuple[str, str]]:
    """All texts of a question that a reader sees, each with the name of its field."""
    found: list[tuple[str, str]] = []
    for field in ("question", "short", "long", "refute", "zh"):
        if field in item:
            found.append((field, item[field]))
    for field, keys in _PAIRS.items():
        found += [(f"{field}[{i}].{key}", pair[key]) for i, pair in enumerate(item[field]) for key in keys]
    return found
