"""A chapter in JupyterLab, as `make lab` starts it and a reader sees it, runs it and answers an exercise."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from pages import NOTEBOOKS, ROOT, notebook

pytestmark = pytest.mark.every
START_SECONDS = 90
CHAPTER = NOTEBOOKS[0]
RUN_CHAPTER = "notebooks/04_rmsnorm"  # the shortest to run that has a slider
RUN_SECONDS = 400  # on a busy machine; 20 on a quiet one
# Scrolls through the chapter, since JupyterLab draws only what is near the window, and notes of the cells seen, by
# number: the text of those in Markdown, the code cells that are unfolded, the cells with a picture.
READ = """async () => {
    const pane = document.querySelector(".jp-WindowedPanel-outer"), texts = {}, open = {}, pictures = {};
    for (let top = 0; ; top += 500) {
        pane.scrollTop = top;
        await new Promise(done => setTimeout(done, 120));
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
    """The address of a JupyterLab of its own, on copies of the chapters."""
    (tmp_path / "course" / "notebooks").mkdir(parents=True)
    for chapter in (CHAPTER, RUN_CHAPTER):
        shutil.copy(ROOT / f"{chapter}.ipynb", tmp_path / "course" / "notebooks")
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
    page.locator(".jp-MarkdownCell .myst").first.wait_for(timeout=60_000)
    wait_for_kernel(page, lab)
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
    # While it is being written, it is empty.
    while (stored.stat().st_mtime_ns == modified or stored.read_bytes() != before) and time.monotonic() < deadline:
        page.wait_for_timeout(200)
    assert stored.stat().st_mtime_ns != modified, "nothing was saved"
    assert stored.read_bytes() == before
    assert errors == []
    page.close()


# What a reader writes into the first exercise of the chapter: a mistake (the gain in float32), then what is asked.
WRONG = """\
def my_llama_norm(x, weight, eps=1e-6):
    wide = x.float()
    return (weight.float() * wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
"""
RIGHT = """\
def my_llama_norm(x, weight, eps=1e-6):
    wide = x.float()
    return weight * (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
"""


def bring(page, number):
    """The cell of this number, brought into view: JupyterLab draws only what is near the window."""
    cell = page.locator(f'.jp-Cell[data-windowed-list-index="{number}"]')
    pane = page.locator(".jp-WindowedPanel-outer")
    pane.evaluate("pane => { pane.scrollTop = 0 }")
    for _ in range(400):
        page.wait_for_timeout(50)
        if cell.count():
            cell.scroll_into_view_if_needed()
            return cell
        pane.evaluate("pane => { pane.scrollTop += 500 }")
    raise AssertionError(f"cell {number} is not drawn")


def saved(page, stored):
    """The code cells of the notebook as JupyterLab saves it now."""
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    page.locator(".jp-mod-dirty").wait_for(state="detached", timeout=30_000)
    return [cell for cell in json.loads(stored.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def texts(cell):
    """What a code cell printed; nothing if its outputs are marked as varying."""
    ignored = "nbval-ignore-output" in cell["metadata"].get("tags", [])
    return "" if ignored else "".join("".join(output.get("text", "")) for output in cell["outputs"])


def wait_for_kernel(page, lab):
    """Wait for an idle kernel that this page is connected to. JupyterLab shows "idle" before it has one, and then
    running all cells only clears them.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        kernels = page.request.get(f"{lab}api/kernels").json()
        if any(kernel["connections"] and kernel["execution_state"] == "idle" for kernel in kernels):
            return wait_until_idle(page, START_SECONDS)
        page.wait_for_timeout(200)
    raise AssertionError("no kernel was started")


def wait_until_idle(page, seconds):
    """Wait for the kernel to have had nothing to do for two seconds."""
    idle, deadline = 0, time.monotonic() + seconds
    while idle < 10:
        assert time.monotonic() < deadline, "the cells are still running"
        page.wait_for_timeout(200)
        idle = idle + 1 if page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").count() else 0


def test_a_reader_runs_all_moves_the_slider_and_solves_an_exercise(browser, lab, tmp_path):
    stored = tmp_path / "course" / f"{RUN_CHAPTER}.ipynb"
    cells = notebook(RUN_CHAPTER)["cells"]
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(f"{lab}lab/tree/{RUN_CHAPTER}.ipynb")
    page.locator(".jp-MarkdownCell .myst").first.wait_for(timeout=60_000)
    wait_for_kernel(page, lab)

    page.locator(".lm-MenuBar-item", has_text="Run").first.click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_timeout(2000)
    wait_until_idle(page, RUN_SECONDS)
    run = saved(page, stored)
    committed = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in run] == [*range(1, len(committed) + 1)]
    assert [texts(cell) for cell in run] == [texts(cell) for cell in committed]

    (number,) = [n for n, cell in enumerate(cells) if "slider(" in "".join(cell["source"]) and cell["outputs"]]
    bring(page, number)
    line, moved = page.locator(".normlab-slider-line"), page.locator(".normlab-slider input[type=range]")
    before = line.inner_text()
    box = moved.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] / 2)
    last = int(moved.get_attribute("max"))
    assert int(moved.input_value()) == last and line.inner_text() != before
    at_the_end = line.inner_text()
    page.keyboard.press("ArrowLeft")  # which folds a heading where the slider does not keep it
    assert int(moved.input_value()) == last - 1 and line.inner_text() != at_the_end

    number = next(n for n, cell in enumerate(cells) if "".join(cell["source"]).startswith("def my_llama_norm"))
    given = "".join(cells[number]["source"])
    rest = given[given.index("\n\n") :]
    for answer, said in ((WRONG, "not yet"), (RIGHT, "right")):
        cell = bring(page, number)
        cell.locator(".cm-content").click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(answer + rest)
        page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(500)
        wait_until_idle(page, 60)
        assert bring(page, number).locator(".jp-OutputArea-output").inner_text().strip().startswith(said)
    page.close()
