"""A small file of the learner's own: which drills were tried and passed. Losing it costs nothing else."""

import contextlib
import json
import os
import time
from pathlib import Path

from normlab import files

VARIABLE = "NORMLAB_PROGRESS"  # another place for the file


def place() -> Path:
    """Where the file is, or would be: ~/.normlab/drills.json unless NORMLAB_PROGRESS names another place."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".normlab" / "drills.json")


def read() -> dict[str, dict[str, int]]:
    """Tries and passes of each drill by its slug, and when its clock was started. A damaged file is an empty one."""
    try:
        found = json.loads(place().read_text(encoding="utf-8"))
        return {slug: _entry(item) for slug, item in found.items()}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _entry(item: dict[str, int]) -> dict[str, int]:
    started = {"started": int(item["started"])} if "started" in item else {}
    return {"tries": int(item["tries"]), "passes": int(item["passes"]), **started}


def note(slug: str, passed: bool) -> None:
    """Count one try; a pass stops the clock. Where nothing can be written, nothing is counted."""
    found = read()
    item = found.setdefault(slug, {"tries": 0, "passes": 0})
    item["tries"] += 1
    item["passes"] += passed
    if passed:
        item.pop("started", None)
    _write(found)


def start(slug: str) -> None:
    """Start the clock of a drill."""
    found = read()
    found.setdefault(slug, {"tries": 0, "passes": 0})["started"] = int(time.time())
    _write(found)


def running(slug: str) -> int | None:
    """Seconds since the clock of a drill was started; None where it does not run."""
    started = read().get(slug, {}).get("started")
    return None if started is None else max(0, int(time.time()) - started)


def _write(found: dict[str, dict[str, int]]) -> None:
    with contextlib.suppress(OSError, RuntimeError):  # no right, no room, no home
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(found, indent=1).encode())


def forget() -> None:
    """Delete the file."""
    with contextlib.suppress(OSError, RuntimeError):
        place().unlink(missing_ok=True)
