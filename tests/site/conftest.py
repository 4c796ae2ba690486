"""What the tests of the built site share: the built pages, checked to be up to date, and a browser."""

import os
from pathlib import Path

import pytest
from chromium import LAUNCH
from pages import ROOT, is_stale


@pytest.fixture(scope="module")
def browser():
    """One browser for a module: the system's, else Playwright's own."""
    sync_api = pytest.importorskip("playwright.sync_api")
    playwright = sync_api.sync_playwright().start()
    try:
        chromium = playwright.chromium.launch(**LAUNCH)
    except sync_api.Error:
        playwright.stop()
        reason = "no browser: install Chromium or Chrome, or run `playwright install chromium`"
        pytest.fail(reason, pytrace=False) if os.environ.get("CI") == "true" else pytest.skip(reason)
    yield chromium
    chromium.close()
    playwright.stop()


@pytest.fixture(scope="session")
def html() -> Path:
    """The folder of the built site."""
    html = ROOT / "_build" / "html"
    if not (html / "index.html").exists():
        pytest.fail("there is no built book: run `make book`", pytrace=False)
    if is_stale(ROOT):
        pytest.fail("the built book is older than its sources: run `make book`", pytrace=False)
    return html
