"""The folded set-up cell: as it stands in every notebook of the repository, and as a standalone copy carries it."""

import base64
import hashlib
import json
import lzma
import re

# How the first code cell of every notebook begins, word for word (tests/test_notebooks_clean.py compares). The
# chapter's imports may follow in the same cell, after a blank line.
SETUP_CELL = """\
#@title Set-up
import importlib.util

if importlib.util.find_spec("normlab") is None:
    raise ModuleNotFoundError(
        "This notebook needs the course's package normlab, which is not installed here. "
        "Start it with `make lab` in a clone of the course, or take the copy that carries "
        "the package along: the download link at the top of this chapter's page, "
        "or standalone/NAME.ipynb in the built book."
    )"""

SETUP_TAGS = ["setup", "hide-input"]

# {folder} and {packed} are filled in below. Each copy has a folder of its own, named after its contents, so that
# two copies in one place never read each other's data. The files are packed to keep the copy small; once written,
# they lie beside the notebook to be read and changed.
_STANDALONE = '''\
#@title Set-up: brings the course's package along (run me first; safe to run again)
import base64
import importlib.util
import json
import lzma
import sys
from pathlib import Path


def bring_package(folder, packed):
    """Write the package beside this notebook and make it importable."""
    files = json.loads(lzma.decompress(base64.b85decode(packed)))
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\\n")
    sys.path.insert(0, str(Path(folder).resolve()))
    importlib.invalidate_caches()


if importlib.util.find_spec("normlab") is None:
    bring_package("{folder}", "{packed}")
del bring_package'''


def standalone_cell(files: dict[str, str], packed: dict[str, str] | None = None) -> str:
    """The set-up cell of a copy that carries ``files`` (name below the folder -> text).

    ``packed`` is what former copies carry, by folder: packing takes half of the time of a copy.
    """
    packed = {} if packed is None else packed
    content = json.dumps(files, sort_keys=True).encode()
    folder = f"normlab-{hashlib.sha256(content).hexdigest()[:8]}"
    if folder not in packed:
        packed[folder] = base64.b85encode(lzma.compress(content, preset=9)).decode()
    return _STANDALONE.format(folder=folder, packed=packed[folder])


def read_packed(copy: str) -> dict[str, str]:
    """What a copy carries, by the folder that is named after the contents; from the text of its file."""
    return dict(re.findall(r'bring_package\(\\?"(normlab-[0-9a-f]{8})\\?", \\?"([^"\\]+)\\?"\)', copy))
