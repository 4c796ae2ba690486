"""``normlab drill``: the drills in a terminal."""

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from normlab.drills import drill, ladder, progress
from normlab.drills.checking import Drill, Solution
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
        elif options.file:
            return 0 if _check(chosen, options.file, options.level) else 1
        else:
            print(chosen.stub() if options.stub else chosen.source if options.solution else chosen)
    except (KeyError, OSError) as problem:
        print("normlab drill:", problem.args[0] if isinstance(problem, KeyError) else problem, file=sys.stderr)
        return 2
    return 0


def _check(chosen: Drill, file: str, level: int) -> bool:
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}")
    return chosen.check_loaded(lambda: _load(file, chosen.slug), level).passed


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
