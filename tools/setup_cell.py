"""The folded set-up cell: as it stands in every notebook of the repository, and as a standalone copy carries it."""

import base64
import hashlib
import zlib

# The first code cell of every notebook, word for word (tests/test_notebooks_clean.py compares).
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

# {folder} and {files} are filled in below. Each copy has a folder of its own, named after its contents, so that
# two copies in one place never read each other's data.
_STANDALONE = '''\
#@title Set-up: brings the course's package along (run me first; safe to run again)
import base64
import importlib.util
import sys
import zlib
from pathlib import Path


def unpack(packed):
    """A data file from its compressed form."""
    return zlib.decompress(base64.b64decode(packed)).decode("utf-8")


def bring_package(folder, files):
    """Write the package beside this notebook and make it importable."""
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\\n")
    sys.path.insert(0, str(Path(folder).resolve()))
    importlib.invalidate_caches()


NORMLAB_FILES = {{
{files}
}}

if importlib.util.find_spec("normlab") is None:
    bring_package("{folder}", NORMLAB_FILES)
del unpack, bring_package, NORMLAB_FILES'''


def _literal(text: str) -> str:
    """A Python literal of ``text``: readable lines where they mean the same, else an escaped string."""
    readable = f"r'''{text}'''"
    try:
        return readable if eval(readable) == text else repr(text)  # our own files, in a literal
    except (SyntaxError, ValueError):
        return repr(text)


def _packed(text: str) -> str:
    """Python code that gives ``text`` back. Sources stay readable; data are compressed to keep the copy small."""
    return f'unpack("{base64.b64encode(zlib.compress(text.encode(), 9)).decode()}")'


def standalone_cell(files: dict[str, str]) -> str:
    """The set-up cell of a copy that carries ``files`` (name below the folder -> text)."""
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:8]
    entries = "\n".join(
        f'"{name}": {_literal(text) if name.endswith(".py") else _packed(text)},' for name, text in sorted(files.items())
    )
    return _STANDALONE.format(folder=f"normlab-{digest}", files=entries)
