"""What the tests of the built site share: the built pages, checked to be up to date."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
sys.path.insert(0, str(ROOT / "book" / "_ext"))  # the extension `course`, for unit tests


def _newest(paths) -> float:
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built site. Every build writes the standalone copies, hence their date."""
    sources = [ROOT / "_config.yml", ROOT / "_toc.yml"]
    for folder in ("book", "notebooks", "tools"):
        generated = ("__pycache__", ".ipynb_checkpoints")
        sources += [p for p in (ROOT / folder).rglob("*") if not set(generated).intersection(p.parts)]
    built = [HTML / "index.html", *HTML.glob("standalone/*")]
    if not built[0].exists():
        pytest.fail("there is no built book: run `make book`", pytrace=False)
    if _newest(built) < _newest(sources):
        pytest.fail("the built book is older than its sources: run `make book`", pytrace=False)
    return HTML
