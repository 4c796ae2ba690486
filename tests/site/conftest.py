"""What the tests of the built site share: the built pages, checked to be up to date."""

import sys
from pathlib import Path

import pytest
from pages import ROOT, is_stale

sys.path.insert(0, str(ROOT / "book" / "_ext"))  # the extension `course`, for unit tests


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built site."""
    html = ROOT / "_build" / "html"
    if not (html / "index.html").exists():
        pytest.fail("there is no built book: run `make book`", pytrace=False)
    if is_stale(ROOT):
        pytest.fail("the built book is older than its sources: run `make book`", pytrace=False)
    return html
