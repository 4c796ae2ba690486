"""Three more ways to practice with a drill: repair, review, and write the test."""

import contextlib
import functools
import inspect
import io
import random
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normlab.drills import guard
from normlab.drills.checking import Drill, Mistake, Solution, collect, compiled, judge, observe, source_of, wrong

LETTERS = "ABCD"
# What lets a test reject a right solution, said once.
TOO_STRICT = "Your test rejects a right solution"
FLOAT32 = "computed in float32"


@dataclass(frozen=True)
class Question:
    """Code to look at and answers to choose from; printing it shows both, :meth:`answer` tells.

    Args:
        text: what is asked, with the code.
        choices: the answers by letter.
        right: the letter of the right one.
        because: what is said after the answer.
    """

    text: str
    choices: dict[str, str]
    right: str
    because: str

    def __repr__(self):
        return "\n".join([self.text, *(f"{letter}  {choice}" for letter, choice in self.choices.items())])

    def answer(self, letter: str) -> bool:
        """Print whether this is the right letter, and why; True where it is.

        Raises:
            ValueError: there is no such letter.
        """
        if letter not in self.choices:
            raise ValueError(f"the answers are {', '.join(self.choices)}, got {letter!r}")
        print(f"{'Right' if letter == self.right else f'No, {self.right}'}. {self.because}")
        return letter == self.right


def repair(drill: Drill, seed: int = 0) -> Question:
    """A solution with one mistake in it: state the diagnosis before running anything, then repair it."""
    chance = random.Random(f"repair {drill.slug} {seed}")
    candidates = [m for m in drill.mistakes if not m.accepted]
    mistake, *others = chance.sample(candidates, min(4, len(candidates)))
    offered = [mistake, *others]
    chance.shuffle(offered)
    choices = {letter: m.says for letter, m in zip(LETTERS, offered)}
    text = f"{drill.slug}: what is wrong here?\n\n{source_of(drill, mistake)}"
    return Question(text, choices, LETTERS[offered.index(mistake)], f"{mistake.id}. {mistake.fix}")


def review(drill: Drill, seed: int = 0) -> Question:
    """Three solutions, of which one is right."""
    chance = random.Random(f"review {drill.slug} {seed}")
    candidates = [m for m in drill.mistakes if not m.accepted and isinstance(m.change, dict)]
    offered: list[Mistake | None] = [None, *chance.sample(candidates, 2)]
    chance.shuffle(offered)
    sources = {letter: source_of(drill, *([m] if m else [])) for letter, m in zip(LETTERS, offered)}
    faults = [f"{letter} is {m.id}: {m.says}" for letter, m in zip(LETTERS, offered) if m]
    text = f"{drill.slug}: which one is right?"
    choices = {letter: "\n" + textwrap.indent(str(source), "   ") for letter, source in sources.items()}
    return Question(text, choices, LETTERS[offered.index(None)], " ".join(faults))


@dataclass(frozen=True)
class TestReport:
    """How good a test is: whether it lets right solutions pass, and which mistakes it finds."""

    __test__ = False  # no test of pytest's

    accepts_right: bool
    found: tuple[str, ...]
    survived: tuple[str, ...]


def check_test(drill: Drill, test: Callable[[Solution], Any]) -> TestReport:
    """Score a test: it gets one solution after the other and must raise (an assertion, mostly) at the wrong ones.

    Args:
        drill: whose mistakes are to be found.
        test: takes a solution and calls it on inputs of its own choice. Returning False counts as raising.
    """
    messages, end = guard.guarded(lambda: _verdicts(drill, test))
    verdicts = dict(messages)
    rights = [FLOAT32, *(m.id for m in drill.mistakes if m.accepted)]
    refused = next(((name, verdicts[name]) for name in ["", *rights] if verdicts.get(name)), None)
    wrongs = [m.id for m in drill.mistakes if not m.accepted and m.id in verdicts]
    found = tuple(id for id in wrongs if verdicts[id])
    survived = tuple(id for id in wrongs if not verdicts[id])
    if end:
        print(f"Your test {end}.")
    if refused:
        name, why = refused
        which = f" ({name})" if name == FLOAT32 else f" (with the convention {name})" if name else ""
        print(f"{TOO_STRICT}{which}: {why}")
    else:
        print(f"{drill.slug}: your test accepts the right solution and finds {len(found)} of {len(wrongs)} mistakes.")
        for id in survived:
            print(f"  survives: {id} (seen on an input with {drill.probes[drill.mistake(id).probe].sees})")
    return TestReport(not refused and not end, found, survived)


def _verdicts(drill: Drill, test: Callable[[Solution], Any]) -> Iterator[tuple[str, str]]:
    """(id, why it is rejected, or nothing) for the right solution, whose id is empty, and for every mistake."""
    yield "", _verdict(test, compiled(drill, drill.source))
    if rounded := in_float32(drill):
        yield FLOAT32, _verdict(test, rounded)
    for mistake in drill.mistakes:
        solution = wrong(drill, mistake.id)
        assert solution is not None
        yield mistake.id, _verdict(test, solution)


@functools.cache
def in_float32(drill: Drill) -> Solution | None:
    """The right solution on float64 tensors narrowed to float32 and back, where :meth:`Drill.check` lets it pass."""

    def cast(value: Any, old: torch.dtype, new: torch.dtype) -> Any:
        if isinstance(value, Tensor):
            return value.to(new) if value.dtype == old else value
        return type(value)(cast(item, old, new) for item in value) if isinstance(value, list | tuple) else value

    def solution(*arguments: Any, **named: Any) -> Any:
        given = inspect.signature(drill.solution).bind(*arguments, **named).args
        if any(map(callable, given)):  # which may be made for float64
            return drill.solution(*given)
        found = drill.solution(*cast(given, torch.float64, torch.float32))
        wide = any(isinstance(a, Tensor) and a.dtype == torch.float64 for a in _leaves(given))
        return cast(found, torch.float32, torch.float64) if wide else found

    if inspect.isclass(drill.solution):
        return None
    return solution if judge(drill, collect(observe(drill, lambda: solution))).passed else None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _verdict(test: Callable[[Solution], Any], solution: Solution) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return "it returned False" if test(solution) is False else ""
    except guard.OutOfTime:
        raise
    except BaseException as error:
        return guard.explain(error)
