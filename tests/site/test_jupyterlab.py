"""A chapter in JupyterLab, as `make lab` starts it and a reader sees it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pages import NOTEBOOKS, ROOT, notebook

START_SECONDS = 90
CHAPTER = NOTEBOOKS[0]
# Scrolls through the chapter, since JupyterLab draws only what is near the window, and notes of the cells seen, by
# number: the text of those in Markdown, the code cells that are unfolded, the cells with a picture.
READ = """async () => {
    const pane = document.querySelector(".jp-WindowedPanel-outer"), texts = {}, open = {}, pictures = {};
    for (let top = 0; ; top += 500) {
        pane.scrollTop = top;
        await new Promise(done => setTimeout(done, 250));
        for (const cell of document.querySelectorAll(".jp-Cell")) {
            const number = cell.dataset.windowedListIndex, text = cell.querySelector(".myst");
            if (text?.innerText) texts[number] = text.innerText;
            if (cell.matches(".jp-CodeCell")) open[number] = !cell.querySelector(".jp-InputPlaceholder");
            if (cell.querySelector(".jp-RenderedSVG img")?.naturalWidth) pictures[number] = true;
        }
        if (top + pane.clientHeight >= pane.scrollHeight) return { texts, open, pictures };
    }
}"""


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab of its own, on a copy of the chapter."""
    (tmp_path / "course" / "notebooks").mkdir(parents=True)
    shutil.copy(ROOT / f"{CHAPTER}.ipynb", tmp_path / "course" / "notebooks")
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR", "LAB_SETTINGS_DIR", "LAB_WORKSPACES_DIR")
    own = {f"JUPYTER_{name}".replace("_LAB", "LAB"): str(tmp_path / name.lower()) for name in names}
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", "--IdentityProvider.token="]
    command = [sys.executable, ROOT / "tools" / "lab.py", f"--notebook-dir={tmp_path / 'course'}", *options]
    with open(tmp_path / "log", "w") as log:
        server = subprocess.Popen(command, env=os.environ | own, stdout=log, stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (address := re.search(r"http://127\.0\.0\.1:\d+/", (tmp_path / "log").read_text())):
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield address[0]
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # with its kernels
        server.wait()


def test_a_chapter_in_jupyterlab(browser, lab, tmp_path):
    """MyST is rendered, folded cells are folded, figures are there; opening and saving changes nothing."""
    stored = tmp_path / "course" / f"{CHAPTER}.ipynb"
    before, errors = stored.read_bytes(), []
    cells = notebook(CHAPTER)["cells"]
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{lab}lab/tree/{CHAPTER}.ipynb")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(state="attached", timeout=60_000)
    page.locator(".jp-MarkdownCell .myst").first.wait_for(timeout=30_000)
    written = [cell["cell_type"] for cell in cells].count("markdown")
    for _ in range(3):  # a slow machine draws late
        seen = page.evaluate(READ)
        if len(seen["texts"]) == written:
            break

    text = "\n".join(seen["texts"].values())
    assert len(seen["texts"]) == written
    assert re.findall(r"^:::|\{[a-z:]+\}`?|\$[^$\n]+\$", text, re.MULTILINE) == []
    claims = re.findall(r"\{claim\}`([^`]+)`", "".join("".join(cell["source"]) for cell in cells))
    assert claims and [name for name in claims if name not in text] == []  # a role of ours alone

    code = {str(number): cell for number, cell in enumerate(cells) if cell["cell_type"] == "code"}
    tags = {number: {*cell["metadata"].get("tags", [])} for number, cell in code.items()}
    assert seen["open"] == {number: not tags[number] & {"hide-input", "hide-cell"} for number in code}
    drawn = {n for n, cell in code.items() if any("image/svg+xml" in out.get("data", {}) for out in cell["outputs"])}
    assert drawn and {n for n in drawn if "hide-cell" not in tags[n]} == {*seen["pictures"]}

    assert page.locator(".jp-mod-dirty").count() == 0
    modified = stored.stat().st_mtime_ns
    page.keyboard.press("Control+s")
    deadline = time.monotonic() + 20
    while stored.stat().st_mtime_ns == modified and time.monotonic() < deadline:
        page.wait_for_timeout(200)
    assert stored.stat().st_mtime_ns != modified, "nothing was saved"
    assert stored.read_bytes() == before
    assert errors == []
    page.close()
