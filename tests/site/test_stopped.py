"""Builds that are stopped at any moment, that run at the same time, or that have no place: nothing stays half-written."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from course import depends
from small_book import build, claim_output, make_book
from test_incremental import assert_same_sites, built, picture

from normlab import files

TEXT = "A claim {claim}`first`, and a [place](../notebooks/01_small.ipynb#a-place)."
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A book that was built once."""
    outputs = [claim_output("first"), picture("a")]
    root = make_book(tmp_path_factory.mktemp("first") / "book", TEXT, outputs, chapter="Text.\n\n## A place\n\nMore.")
    built(root)
    return root


@pytest.fixture
def book(first, tmp_path):
    """The same one, not built."""
    return shutil.copytree(first, tmp_path / "book", ignore=shutil.ignore_patterns("_build"))


def start(root: Path) -> subprocess.Popen:
    """A strict build in the background."""
    command = [shutil.which("jupyter-book", path=Path(sys.executable).parent), "build", ".", "-W", "-n", "--keep-going"]
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(build: subprocess.Popen, path: Path) -> None:
    while not list(path.parent.glob(path.name)):
        assert build.poll() is None, build.stdout.read()
        time.sleep(0.002)


MOMENTS = {  # the first file of each stage
    "reading": "_build/jupyter_execute/*.svg",
    "writing": "_build/html/book/intro.html",
    "at the end": "_build/html/standalone/*.ipynb",
}


@posix
@pytest.mark.parametrize(("moment", "how"), [*zip(MOMENTS, (signal.SIGKILL, signal.SIGINT, signal.SIGTERM))])
def test_a_build_that_is_stopped_can_be_run_again(book, first, moment, how):
    """Each file of the site is then that of a first build."""
    stopped = start(book)
    wait_for(stopped, book / MOMENTS[moment])
    stopped.send_signal(how)
    said = stopped.communicate(timeout=60)[0]
    whole = stopped.returncode == 0  # on a busy machine the last moment may have passed
    assert (book / "_build" / ".doctrees" / depends.FINISHED).exists() == whole, said
    built(book)
    assert_same_sites(book, first)


@posix
@pytest.mark.parametrize("moment", ["reading", "writing"])
def test_ctrl_c_ends_make_book_with_a_sentence(book, moment):
    """It reaches all processes of the terminal."""
    tool = Path(__file__).resolve().parents[2] / "tools" / "build_book.py"
    command = [sys.executable, tool, ".", "-W", "-n", "--keep-going"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    stopped = subprocess.Popen(command, cwd=book, start_new_session=True, **pipes)
    wait_for(stopped, book / MOMENTS[moment])
    os.killpg(stopped.pid, signal.SIGINT)
    _, said = stopped.communicate(timeout=60)
    assert (stopped.returncode, said) == (130, "\nbook: stopped; the site is not complete, and the same command completes it\n")


def test_what_a_stopped_build_left_half_written_is_written_again(book, first):
    """Whatever the moment was: every file of the site, of Sphinx's notes and of the pictures is cut in half."""
    shutil.copytree(first / "_build", book / "_build")
    made = [path for path in (book / "_build").rglob("*") if path.is_file()]
    assert {"html", ".doctrees", depends.PICTURES} <= {path.relative_to(book / "_build").parts[0] for path in made}
    for path in made:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    (book / "_build" / ".doctrees" / depends.FINISHED).unlink()
    built(book)
    assert_same_sites(book, first)


def test_of_two_builds_at_once_one_waits_for_the_other(book, first):
    builds = [start(book), start(book)]
    said = [build.communicate(timeout=300)[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    assert sum("Another build of this book is at work" in text for text in said) == 1, said
    assert list((book / "_build").glob(".*.lock")) == []
    assert_same_sites(book, first)


def test_a_build_does_not_wait_for_ever(book, monkeypatch):
    monkeypatch.setattr(depends, "PATIENCE", 0.05)
    folder = book / "_build" / ".doctrees"
    folder.mkdir(parents=True)
    with files.lock(folder.parent / "book"), pytest.raises(SystemExit, match="the book cannot be built: .*another process"):
        depends._be_alone(book, folder)


def test_a_disk_without_room_is_told_before_the_work(book, monkeypatch):
    """A first build needs more than a later one."""
    folder = book / "_build" / ".doctrees"
    folder.mkdir(parents=True)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9 - 10**7, 10**7))
    with pytest.raises(SystemExit, match=r"the book cannot be built: .*60 MB are needed, 10 MB are free"):
        depends._be_alone(book, folder)
    (folder / depends.FINISHED).touch()
    depends._be_alone(book, folder)


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_place_that_takes_no_files_is_told(book, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    folder = book / "_build" / ".doctrees"
    folder.mkdir(parents=True)
    monkeypatch.setattr(files, "_write_through", refuse)
    with pytest.raises(SystemExit, match=f"^the book cannot be built: cannot write .*: {os.strerror(number)}$"):
        depends._be_alone(book, folder)


def test_the_sentence_is_all_that_a_build_says(book):
    """No traceback: a file where the folder should be stands for every place that takes no file."""
    (book / "_build" / "book").mkdir(parents=True)  # where the lock's name comes from
    code, said = build(book)
    assert code != 0 and "the book cannot be built: cannot write" in said and "Traceback" not in said, said
