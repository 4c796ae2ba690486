"""How the tests start a browser: the system's Chromium or Chrome, else Playwright's own; without a network."""

import shutil
import time

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LAUNCH = {
    "executable_path": next(filter(None, map(shutil.which, BROWSERS)), None),
    "args": ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
}


def until(page, condition: str, seconds: float = 10) -> None:
    """Wait for a JavaScript expression to be true. Playwright's own way evaluates text, which the pages' policy refuses."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        if time.monotonic() > end:
            raise TimeoutError(f"{page.url}: not in {seconds} s: {condition}")
        page.wait_for_timeout(20)
