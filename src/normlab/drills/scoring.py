"""The checker checked: which mistakes it sees, names, and tells apart."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from normlab.drills import values
from normlab.drills.checking import Drill, Outcome, collect, diagnose, judge, observe, predicted, wrong

HEAD = ("drill", "mistakes", "seen", "named", "equal pairs", "doubles", "doubles named")


@dataclass(frozen=True)
class Score:
    """What became of the mistakes of one drill, alone and in pairs.

    Args:
        slug: the drill.
        mistakes: how many there are.
        unseen: ids that their own probe does not separate from the right solution.
        misnamed: ids that are diagnosed as something else.
        equal: pairs of ids with equal results on all probes.
        doubles: how many pairs of edits go together and behave unlike either of the two alone.
        named: how many of these are diagnosed as these two and nothing else.
        unexplained: pairs for which the diagnosis finds nothing.
    """

    slug: str
    mistakes: int
    unseen: tuple[str, ...]
    misnamed: tuple[str, ...]
    equal: tuple[tuple[str, str], ...]
    doubles: int
    named: int
    unexplained: tuple[tuple[str, str], ...]


def alike(drill: Drill, one: dict[str, Outcome], other: dict[str, Outcome]) -> bool:
    """Two sets of outcomes that the diagnosis cannot tell apart."""
    return all(
        one[name].error == other[name].error
        and values.same(one[name].value, other[name].value, 5 * drill.probes[name].tolerance)
        for name in drill.probes
    )


def score(drill: Drill) -> Score:
    """Run every mistake of a drill and every pair of them through the checker."""
    right = predicted(drill)
    single = {m.id: predicted(drill, m.id) for m in drill.mistakes}
    assert right is not None
    unseen, misnamed, equal, unexplained = [], [], [], []
    doubles = named = 0
    for mistake in drill.mistakes:
        mine, probe = single[mistake.id], mistake.probe
        if mine is None or mine[probe].error == right[probe].error and _close(mine[probe], right[probe]):
            unseen.append(mistake.id)
        report = judge(drill, collect(observe(drill, partial(wrong, drill, mistake.id))))
        expected = (True, (), mistake.id) if mistake.accepted else (False, (mistake.id,), report.convention)
        if (report.passed, report.mistakes, report.convention) != expected:
            misnamed.append(mistake.id)
    for a, b in itertools.combinations(single, 2):
        one, two = single[a], single[b]
        if one is None or two is None or alike(drill, one, two):
            equal.append((a, b))
        both = predicted(drill, a, b)
        if both is None or any(other and alike(drill, both, other) for other in (right, one, two)):
            continue
        doubles += 1
        ids, others = diagnose(drill, both)
        named += ids == (a, b) and not others
        if ids is None:
            unexplained.append((a, b))
    return Score(
        drill.slug,
        len(single),
        tuple(unseen),
        tuple(misnamed),
        tuple(equal),
        doubles,
        named,
        tuple(unexplained),
    )


def _close(one: Outcome, other: Outcome) -> bool:
    """Nearer than the distance that the catalogue promises; half precision is compared in bits."""
    return values.same(one.value, other.value, 1e-4) and values.broken(one.value, other.value) is None


def row(s: Score) -> list[str | int]:
    """A score as a row under HEAD."""
    seen, named = s.mistakes - len(s.unseen), s.mistakes - len(s.misnamed)
    return [s.slug, s.mistakes, seen, named, len(s.equal), s.doubles, s.named]


def table(scores: Iterable[Score]) -> str:
    """The scores as text, one line a drill, and their sum."""
    rows = [row(s) for s in scores]
    total = ("together", *(sum(column) for column in list(zip(*rows))[1:]))
    width = max(len(str(line[0])) for line in [HEAD, *rows])
    lines = []
    for line in [HEAD, *rows, total]:
        cells = [str(cell).rjust(len(title)) for cell, title in zip(line[1:], HEAD[1:])]
        lines.append("  ".join([str(line[0]).ljust(width), *cells]))
    return "\n".join(lines)
