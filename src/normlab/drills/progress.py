"""A small file of the learner's own: which drills were tried and passed. Losing it costs nothing else."""

import contextlib
import json
import os
from pathlib import Path

from normlab import files

VARIABLE = "NORMLAB_PROGRESS"  # another place for the file


def place() -> Path:
    """Where the file is, or would be: ~/.normlab/drills.json unless NORMLAB_PROGRESS names another place."""
    return Path(os.environ.get(VARIABLE) or Path.home() / ".normlab" / "drills.json")


def read() -> dict[str, dict[str, int]]:
    """Tries and passes of each drill by its slug. A missing or damaged file is an empty one."""
    try:
        found = json.loads(place().read_text(encoding="utf-8"))
        return {slug: {"tries": int(item["tries"]), "passes": int(item["passes"])} for slug, item in found.items()}
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def note(slug: str, passed: bool) -> None:
    """Count one try. Where nothing can be written, nothing is counted."""
    found = read()
    item = found.setdefault(slug, {"tries": 0, "passes": 0})
    item["tries"] += 1
    item["passes"] += passed
    with contextlib.suppress(OSError, RuntimeError):  # no right, no room, no home
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, json.dumps(found, indent=1).encode())


def forget() -> None:
    """Delete the file."""
    with contextlib.suppress(OSError, RuntimeError):
        place().unlink(missing_ok=True)
