"""Run a command while no other process holds a place, for which one waits; in a sentence why not.

    python tools/alone.py PLACE COMMAND …

`make` sets up its environments this way, so that two of them do not install into one at the same time.
"""

import subprocess
import sys
from pathlib import Path

import whole

PATIENCE = 3600  # seconds; an installation of everything takes minutes


def main(place: Path, command: list[str]) -> int:
    """The exit status of the command."""
    whole.check_writable(place)
    with whole.lock(place, PATIENCE):
        return subprocess.run(command).returncode


if __name__ == "__main__":
    with whole.told():
        sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
