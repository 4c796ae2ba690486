"""Ask for known faults of the pinned libraries: `make audit`, by hand and before a release.

    python tools/audit.py constraints.txt

pip-audit asks the vulnerability list of PyPI about every pin. It comes into an environment of its own, _build/audit, so
that it changes none of ours. Without a network nothing can be said, and the exit status is 2.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

import whole

PLACE = Path(__file__).resolve().parent.parent / "_build" / "audit"
INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-user", "pip-audit")
AUDIT = ("-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner", "off", "-r")


def main(pins: str) -> int:
    """0: no known fault; 1: pip-audit names some; 2: it could not be had, or could not ask."""
    python = PLACE / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    with whole.told():
        whole.check_writable(PLACE / "tried")
    venv.create(PLACE, with_pip=True)
    if subprocess.run([python, *INSTALL]).returncode:
        print("audit: pip-audit cannot be installed here, so nothing was asked; run this where PyPI answers", file=sys.stderr)
        return 2
    done = subprocess.run([python, *AUDIT, pins], stderr=subprocess.PIPE, text=True)
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode and "Error" in done.stderr:  # of the connection; faults are listed on the standard output
        print("audit: the list of faults did not answer, so nothing is known", file=sys.stderr)
        return 2
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
