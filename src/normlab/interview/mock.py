"""The mock interview: draw a question, grade the answer, and let the grade choose what is asked next.

``normlab interview`` runs it in a terminal with the questions that the package carries; the page of the book follows
the same tree. Plain Python.
"""

import argparse
import random
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from normlab import interview

# What follows a step: by the number of rubric points for the answer, by "right" and "wrong" for what is asked then.
# None ends the round.
TREE: dict[str, dict[str, str | None]] = {
    "answer": {"3": "first", "2": "mistake", "1": "again", "0": "again"},
    "again": {"right": "mistake", "wrong": None},
    "mistake": {"right": "first", "wrong": None},
    "first": {"right": "second", "wrong": None},
    "second": {"right": None, "wrong": None},
}
AGAIN = "Read the short answer, cover it, and say it in your own words."
MISTAKE = "Somebody says: “{}” What is wrong with it?"
POINTS = (
    "I said the substance of the short answer",
    "I made none of the usual mistakes",
    "I could say what would refute my answer",
)
PAGE = "book/interview/{}.html#question-{}"

Question = dict[str, Any]


@dataclass
class Round:
    """What came out for one question: rubric points (0 to 3), the seconds of the answer, the steps that went wrong."""

    question: Question
    points: int
    seconds: float
    missed: list[str] = field(default_factory=list)

    @property
    def to_revise(self) -> bool:
        """Whether a rubric point is missing or a later step went wrong."""
        return self.points < len(POINTS) or bool(self.missed)


def fitting(
    questions: Iterable[Question], tier: str | None = None, level: str | None = None, minutes: int | None = None
) -> list[Question]:
    """The questions of a tier and a level that take at most so many minutes; None stands for any."""
    return [
        item
        for item in questions
        if tier in (None, item["tier"])
        and level in (None, item["level"])
        and (minutes is None or item["minutes"] <= minutes)
    ]


def rubric(question: Question) -> list[tuple[str, str]]:
    """Three points, each with the text to hold an answer against."""
    mistakes = " ".join(f"“{pair['answer']}”" for pair in question["wrong"])
    return list(zip(POINTS, (question["short"], mistakes, question["refute"])))


def step(question: Question, name: str) -> tuple[str, str]:
    """What is asked in a step of the tree and what the right answer is. Raises ValueError for an unknown step."""
    first, second = question["follow_ups"]
    steps = {
        "answer": (question["question"], question["short"]),
        "again": (AGAIN, question["short"]),
        "mistake": (MISTAKE.format(question["wrong"][0]["answer"]), question["wrong"][0]["why"]),
        "first": (first["question"], first["answer"]),
        "second": (second["question"], second["answer"]),
    }
    if name not in steps:
        raise ValueError(f"step must be one of {', '.join(steps)}, got {name!r}")
    return steps[name]


def plain(text: str) -> str:
    """Markdown for a terminal: roles become their content, formulas and code stay as they are written."""
    return " ".join(re.sub(r"\{[\w:]+\}`([^`]+)`", r"\1", text).split())


def ask(
    question: Question,
    read: Callable[[str], str] = input,
    write: Callable[[str], object] = print,
    clock: Callable[[], float] = time.monotonic,
) -> Round:
    """One round: the question, the three points, and what the tree asks then."""
    say = _wrapped(write)
    say(f"[{question['tier']} · {question['level']} · {question['type']} · {question['minutes']} min]")
    say(question["question"])
    start = clock()
    read("Answer aloud, then press Enter. ")
    found = Round(question, 0, clock() - start)
    say(f"You took {found.seconds:.0f} s of {60 * question['minutes']} s. Three points:")
    for point, text in rubric(question):
        say(f"– {text}")
        found.points += _yes(read, f"{point}? [y/n] ")
    name = TREE["answer"][str(found.points)]
    while name is not None:
        asked, answer = step(question, name)
        say(asked)
        read("Answer aloud, then press Enter. ")
        say(f"– {answer}")
        right = _yes(read, "Was that yours? [y/n] ")
        if not right:
            found.missed.append(name)
        name = TREE[name]["right" if right else "wrong"]
    return found


def summary(rounds: Sequence[Round]) -> str:
    """What came out, and what to revise with the place where it stands."""
    if not rounds:
        return "No question was answered."
    total = sum(found.points for found in rounds)
    lines = [f"{len(rounds)} answered, {total} of {len(POINTS) * len(rounds)} points."]
    weak = [found for found in rounds if found.to_revise]
    lines += ["To revise:"] if weak else ["Nothing to revise among these."]
    for found in weak:
        item = found.question
        missed = f", missed: {', '.join(found.missed)}" if found.missed else ""
        lines.append(f"- {plain(item['question'])} ({found.points} of {len(POINTS)}{missed})")
        lines.append(f"  {PAGE.format(item['tier'], item['id'])}; claims: {', '.join(item['claims'])}")
    return "\n".join(lines)


def _wrapped(write: Callable[[str], object]) -> Callable[[str], None]:
    def say(text: str) -> None:
        write("\n".join(textwrap.wrap(plain(text), 100, subsequent_indent="  ")))

    return say


def _yes(read: Callable[[str], str], prompt: str) -> bool:
    while (answer := read(prompt).strip().lower()) not in ("y", "yes", "n", "no"):
        pass
    return answer.startswith("y")


def main(arguments: Sequence[str]) -> int:
    """The command ``normlab interview``; 2 if nothing fits what was asked for."""
    parser = argparse.ArgumentParser(
        prog="normlab interview", description="A mock interview: answer aloud, grade yourself, see what to revise."
    )
    parser.add_argument("--tier", choices=interview.TIERS, help="only questions of this tier")
    parser.add_argument("--level", choices=interview.LEVELS, help="only questions of this level")
    parser.add_argument("--minutes", type=int, metavar="N", help="only questions that take at most N minutes")
    parser.add_argument("--questions", type=int, default=3, metavar="N", help="how many are drawn (default 3)")
    parser.add_argument("--seed", type=int, metavar="N", help="draw the same questions again")
    options = parser.parse_args(arguments)
    if options.questions < 1:
        parser.error(f"--questions must be at least 1, got {options.questions}")
    pool = fitting(interview.questions(), options.tier, options.level, options.minutes)
    if not pool:
        problem = "no question fits; ask for another tier or level, or for more minutes"
        print(f"normlab interview: {problem}", file=sys.stderr)
        return 2
    drawn = random.Random(options.seed).sample(pool, min(options.questions, len(pool)))
    rounds: list[Round] = []
    try:
        for item in drawn:
            rounds.append(ask(item))
            print()
    except (EOFError, KeyboardInterrupt):
        print()
    print(summary(rounds))
    return 0
