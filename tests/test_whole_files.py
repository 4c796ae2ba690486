"""Files written whole or not at all; places tried before the work; one process at a time."""

import errno
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time

import pytest

from normlab import files

posix = pytest.mark.skipif(os.name != "posix", reason="signals and limits of POSIX")


def no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_write_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    for content in (b"first", b""):
        files.write(path, content)
        assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_previous_file(tmp_path, monkeypatch, where):
    path = tmp_path / "a.bin"
    files.write(path, b"first")
    monkeypatch.setattr(os, where, no_space)
    with pytest.raises(files.NotWrittenError, match=f"^cannot write {path}: No space left on device$") as error:
        files.write(path, b"second")
    assert error.value.errno == errno.ENOSPC and isinstance(error.value, OSError)
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


@posix
def test_a_write_that_the_system_cuts_off(tmp_path):
    """A real limit: the kernel takes the first 1000 bytes of the second file and refuses the rest."""
    import resource
    import signal

    path = tmp_path / "a.bin"
    files.write(path, b"first")
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(files.NotWrittenError, match="a.bin: File too large"):
            files.write(path, bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"first" and list(tmp_path.iterdir()) == [path]


@posix
def test_a_process_killed_while_it_writes_leaves_the_previous_file(tmp_path):
    path = tmp_path / "a.bin"
    files.write(path, b"first")
    code = "import os, sys; from pathlib import Path; from normlab import files\n"
    code += "os.fsync = lambda _: os.kill(os.getpid(), 9)\nfiles.write(Path(sys.argv[1]), b'second')"
    done = subprocess.run([sys.executable, "-c", code, path])
    assert done.returncode == -9 and path.read_bytes() == b"first"


PLACES = ["below a file", "deep below a file", "a folder", "full", "no right", "too small", "too long"]


@pytest.fixture(params=PLACES)
def bad_place(request, tmp_path, monkeypatch):
    """A path that cannot be written, and words that say why. (The tests may run as root, whom no permission stops.)"""
    file, path = tmp_path / "file", tmp_path / "new" / "a.bin"
    file.write_text("")
    match request.param:
        case "below a file":
            return (file / "a.bin", f"{file} is not a folder")
        case "deep below a file":
            return (file / "b" / "a.bin", "is not a folder")
        case "a folder":
            return (tmp_path, "it is a folder")
        case "full":
            monkeypatch.setattr(os, "fsync", no_space)
            return (path, "No space left on device")
        case "no right":

            def refuse(path, mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

            monkeypatch.setattr(files, "open", refuse, raising=False)
            return (path, "Permission denied")
        case "too small":
            usage = shutil.disk_usage(tmp_path)._replace(free=10)
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
            return (path, "MB are needed")
    return (tmp_path / ("x" * 300), "too long")


def test_a_bad_place_is_named_before_the_work(bad_place):
    path, words = bad_place
    with pytest.raises(files.NotWrittenError, match=f"^cannot write {path}: .*{words}"):
        files.check_writable(path, 1000)
    assert not path.parent.is_dir() or not list(path.parent.glob("*.tmp"))


RIGHTS = """
import os, sys
from pathlib import Path
import joblib, torch
from normlab import data, files, record, training

folder = Path(sys.argv[1], "folder")
model, batches = torch.nn.Linear(3, 3), data.rows(torch.randn(9, 3), torch.arange(9) % 3, 4)
calls = [
    lambda path: files.check_writable(path),
    lambda path: record.make(record.Recipe(path.stem, "", [{}], lambda: print("a run was started")), path.parent),
    lambda path: training.train(model, batches, 2, 1e-3, 0, checkpoint=path, each_step=lambda *_: print("a step")),
]
training.train(model, batches, 1, 1e-3, 0)  # imports the last modules, which may be root's alone
folder.mkdir()
folder.chmod(0o555)  # may be listed, not written
Path(sys.argv[1]).chmod(0o755)
if os.geteuid() == 0:
    os.seteuid(65534)
for call in calls:
    for name in ("a.json", "new/a.json"):
        try:
            call(folder / name)
        except files.NotWrittenError as error:
            print(error.errno, error)
"""


@posix
def test_without_the_right_to_write_nothing_is_begun(tmp_path):
    """With the permissions that the system has, in a process that is not root's."""
    done = subprocess.run([sys.executable, "-c", RIGHTS, tmp_path], capture_output=True, text=True)
    names = [f"{tmp_path}/folder/a.json", f"{tmp_path}/folder/new/a.json"] * 3
    assert done.stdout.splitlines() == [f"13 cannot write {name}: Permission denied" for name in names], done.stderr


def test_a_good_place_is_left_as_it_is(tmp_path):
    path = tmp_path / "new" / "folder" / "a.bin"
    files.check_writable(path, 1000)
    assert list(path.parent.iterdir()) == []
    path.write_bytes(b"first")
    files.check_writable(path)
    assert path.read_bytes() == b"first" and list(path.parent.iterdir()) == [path]


def test_the_error_travels_between_processes():
    error = pickle.loads(pickle.dumps(files.NotWrittenError(errno.EACCES, "why", "where")))
    assert str(error) == "cannot write where: why" and error.errno == errno.EACCES


# --- the lock --------------------------------------------------------------------------------------------------------


def count_up(module, path, times):
    for _ in range(times):
        with module.lock(path):
            number = int(path.read_text())
            time.sleep(0.001)
            path.write_text(str(number + 1))


def test_threads_take_turns(tmp_path):
    path = tmp_path / "number"
    path.write_text("0")
    threads = [threading.Thread(target=count_up, args=(files, path, 25)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "100" and list(tmp_path.iterdir()) == [path]


HOLD = "import sys, time; from pathlib import Path; from normlab import files\n" + (
    "with files.lock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
)


def test_a_lock_ends_with_the_process_that_holds_it(tmp_path):
    path = tmp_path / "number"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(files.NotWrittenError, match="number: another process has held .*lock for 0.1 s"):
            with files.lock(path, patience=0.1):
                pass
    finally:
        holder.kill()
        holder.communicate()
    with files.lock(path, patience=5):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_left_behind_stops_nobody(tmp_path):
    path = tmp_path / "number"
    (tmp_path / ".number.lock").write_text("")
    with files.lock(path, patience=0):
        pass


def test_a_lock_that_cannot_be_had_names_the_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(files.NotWrittenError, match="cannot write .*file.number"):
        with files.lock(tmp_path / "file" / "number"):
            pass


@posix
def test_the_branch_for_windows_takes_turns_too(tmp_path, monkeypatch):
    """With a stand-in for Windows' module that refuses as that does: PermissionError while another one holds it."""
    import fcntl

    class Msvcrt:
        LK_NBLCK = 2

        @staticmethod
        def locking(descriptor, mode, count):
            assert (mode, count) == (2, 1)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PermissionError(errno.EACCES, "Permission denied") from None

    spec = importlib.util.spec_from_file_location("files_on_windows", files.__file__)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setitem(sys.modules, "msvcrt", Msvcrt)
        spec.loader.exec_module(module)
    # There an open file cannot be removed: whoever comes after the close finds it in use, and leaves it.
    monkeypatch.setattr(type(tmp_path), "unlink", no_space)
    path = tmp_path / "number"
    path.write_text("0")
    threads = [threading.Thread(target=count_up, args=(module, path, 10)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_text() == "30"
