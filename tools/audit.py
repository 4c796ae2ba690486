"""Ask for known faults of the pinned libraries: `make audit`, by hand and before a release.

    python tools/audit.py constraints.txt

pip-audit asks PyPI's list about every pin. It comes into an environment of its own, _build/audit, so that it changes none
of ours. What the list does not know is told: pip-audit itself would call it free of faults.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import whole

PLACE = Path(__file__).resolve().parent.parent / "_build" / "audit"
INSTALL = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-user", "pip-audit")
AUDIT = ("-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json", "-r")


def verdict(report: str) -> tuple[int, list[str]]:
    """The exit status and what is to be said of pip-audit's report: 0 no known fault, 1 some, 2 nothing is known."""
    pins = json.loads(report)["dependencies"] if report.strip() else []
    asked = [pin for pin in pins if "vulns" in pin]
    if not asked:
        return 2, [f"the list of faults did not answer for any of {len(pins)} pins: nothing is known"]
    said = [
        f"{pin['name']} {pin['version']}: {fault['id']}, mended in {', '.join(fault['fix_versions']) or 'no version yet'}"
        for pin in asked
        for fault in pin["vulns"]
    ]
    status = 1 if said else 0
    said += [f"not known to the list: {pin['name']}" for pin in pins if pin not in asked]
    return status, [*said, f"{len(asked)} pins were looked up, {'faults are known' if status else 'no fault is known'}"]


def main(pins: str) -> int:
    with whole.told():
        whole.check_writable(PLACE / "tried")
    python = PLACE / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    venv.create(PLACE, with_pip=True)
    if subprocess.run([python, *INSTALL]).returncode:
        print("audit: pip-audit cannot be installed here, so nothing was asked; run this where PyPI answers", file=sys.stderr)
        return 2
    report = subprocess.run([python, *AUDIT, pins], stdout=subprocess.PIPE, text=True).stdout
    status, said = verdict(report)
    print("\n".join(said))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
