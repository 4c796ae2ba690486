"""``normlab drill``: the drills in a terminal."""

import argparse
import functools
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from normlab.drills import drill, ladder, progress
from normlab.drills.checking import Drill, Solution
from normlab.drills.modes import TestReport, check_test, repair, review
from normlab.drills.scoring import score, table


def main(arguments: Sequence[str]) -> int:
    """The command line: 0 for passed or shown, 1 for not yet, 2 and one line for what cannot be understood."""
    parser = argparse.ArgumentParser(
        prog="normlab drill",
        description="Coding drills whose checker names the mistake. Without arguments: the ladder. With a drill's "
        "name: its task. With a file as well: check the function of that name in it.",
    )
    parser.add_argument("drill", nargs="?", metavar="DRILL", help="for instance rms_norm")
    parser.add_argument("file", nargs="?", metavar="FILE.py", help="defines a function named like the drill")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1, help="1 what fails, 2 its name, 3 the fix")
    parser.add_argument("--start", action="store_true", help="print the task and start the clock")
    parser.add_argument("--repair", type=int, metavar="SEED", help="code with one mistake: which? see --answer")
    parser.add_argument("--review", type=int, metavar="SEED", help="three snippets: which is right? see --answer")
    parser.add_argument("--answer", metavar="LETTER", help="your answer to --repair or --review")
    parser.add_argument("--test", action="store_true", help="FILE.py defines test(solution): how much does it find?")
    parser.add_argument("--stub", action="store_true", help="print an empty solution")
    parser.add_argument("--solution", action="store_true", help="print a right solution")
    parser.add_argument("--score", action="store_true", help="print what the checker sees, names and tells apart")
    parser.add_argument("--forget", action="store_true", help="delete the file of your progress")
    options = parser.parse_args(arguments)
    if options.forget:
        progress.forget()
        return 0
    try:
        chosen = drill(options.drill) if options.drill else None
        if options.score:
            slugs = [chosen.slug] if chosen else [slug for week in ladder().values() for slug in week]
            print(table(score(drill(slug)) for slug in slugs))
        elif chosen is None:
            print(_ladder())
        elif options.repair is not None or options.review is not None:
            question = repair(chosen, options.repair) if options.review is None else review(chosen, options.review)
            if options.answer is None:
                print(question)
            else:
                return 0 if question.answer(options.answer) else 1
        elif options.test:
            found = _check_test(chosen, options.file)
            return 0 if found.accepts_right and not found.survived else 1
        elif options.start:
            chosen.start()
        elif options.file:
            return 0 if _check(chosen, options.file, options.level) else 1
        else:
            print(chosen.stub() if options.stub else chosen.source if options.solution else chosen)
    except (KeyError, OSError, ValueError) as problem:
        print("normlab drill:", problem.args[0] if isinstance(problem, KeyError) else problem, file=sys.stderr)
        return 2
    return 0


def _check(chosen: Drill, file: str, level: int) -> bool:
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}")
    report = chosen.check_loaded(lambda: _load(file, chosen.slug), level)
    if report.mistakes and level < 3:
        more = {1: "--level 2 names the mistake, --level 3 says the fix", 2: "--level 3 says the fix"}
        print(f"({more[level]})")
    return report.passed


def _check_test(chosen: Drill, file: str | None) -> TestReport:
    if file is None or not Path(file).is_file():
        raise FileNotFoundError(f"--test needs a file that defines test(solution), got {file}")
    loaded = functools.cache(lambda: _load(file, "test"))
    return check_test(chosen, lambda solution: loaded()(solution))


def _load(file: str, slug: str) -> Solution:
    names = runpy.run_path(file)
    if not callable(names.get(slug)):
        raise LookupError(f"{file} defines no function {slug}")
    return names[slug]


def _ladder() -> str:
    """The drills week by week, with the tries and passes so far."""
    done, lines = progress.read(), []
    for week, slugs in ladder().items():
        lines.append(f"week {week}")
        for slug in slugs:
            item = done.get(slug)
            state = f"{item['passes']} of {item['tries']} tries passed" if item else ""
            lines.append(f"  {slug:<26}{drill(slug).minutes:>3} min  {state}".rstrip())
    return "\n".join(lines)
