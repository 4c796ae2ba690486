"""The console script ``normlab``, one word a task: ``normlab record``, ``normlab bench``, ``normlab inspect``,
``normlab doctor``, ``normlab drill``, ``normlab interview``."""

import argparse
import sys
from collections.abc import Sequence

from normlab import __version__

# Libraries that the package works without, but for some of its commands.
OPTIONAL = ("matplotlib", "scipy", "sklearn", "joblib", "distributed", "transformers", "IPython")
COMMANDS = {
    "record": "list or make the recorded results of the course",
    "bench": "time the norms against torch, and a small Llama against transformers",
    "inspect": "say which norms a model has, how they compute and where they stand",
    "doctor": "measure what goes wrong with a model's norms, and with what they keep in bounds",
    "drill": "coding drills: check a function of yours and name its mistake",
    "interview": "a mock interview: answer aloud, grade yourself, see what to revise",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (None: that of this process) and return its exit status; 2 if it cannot be understood."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="normlab",
        usage="normlab COMMAND [ARGUMENT ...]",
        description="Normalization in Transformers: instruments of the course Two Knobs.",
        epilog="commands:\n"
        + "".join(f"  {name.ljust(width)}  {text}\n" for name, text in COMMANDS.items())
        + "\n`normlab COMMAND --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"normlab {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    if not arguments:
        parser.print_help()
        return 0
    command = parser.parse_args(arguments[:1]).command
    try:
        return _run(command, arguments[1:])
    except ModuleNotFoundError as missing:
        library = (missing.name or "").partition(".")[0]
        if library not in OPTIONAL:
            raise
        print(f"normlab {command}: this needs {library}, which is not installed here", file=sys.stderr)
        return 2


def _run(command: str, arguments: list[str]) -> int:
    match command:  # imported here, so that `normlab --help` need not wait for torch
        case "record":
            from normlab import record

            return record.main(arguments)
        case "bench":
            from normlab import bench

            return bench.main(arguments)
        case "doctor":
            from normlab.inspection import doctor_command

            return doctor_command.main(arguments)
        case "drill":
            from normlab.drills import command as drills

            return drills.main(arguments)
        case "interview":
            from normlab.interview import mock

            return mock.main(arguments)
    from normlab.inspection import command as inspection

    return inspection.main(arguments)
