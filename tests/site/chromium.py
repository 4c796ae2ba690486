"""How the tests start a browser: the system's Chromium or Chrome, else Playwright's own; without a network."""

import shutil

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LAUNCH = {
    "executable_path": next(filter(None, map(shutil.which, BROWSERS)), None),
    "args": ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
}
