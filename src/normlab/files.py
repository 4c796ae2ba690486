"""Files that are written whole or not at all, in a place that was tried before the work, by one process at a time."""

import errno
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class NotWrittenError(OSError):
    """A file could not be written. Names it (``filename``) and the reason (``strerror``, ``errno``)."""

    def __str__(self):
        return f"cannot write {self.filename}: {self.strerror}"


def write(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``; whatever interrupts this leaves the previous file whole.

    It goes to a temporary file beside it, with a name of its own, which then replaces ``path`` in one step.

    Raises:
        NotWrittenError: no place, no right, a folder in the way.
    """
    with _named(path):
        temporary = _temporary(path)
        try:
            _write_through(temporary, content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def check_writable(path: Path, size: int = 0) -> None:
    """Try, before any work, whether ``path`` can be written; folders that are missing are made.

    Args:
        size: bytes that have to be free on its disk.

    Raises:
        NotWrittenError: it cannot; ``path`` itself is left as it is.
    """
    with _named(path):
        _make_folder(path.parent)
        if os.path.exists(path) and not os.path.isfile(path):
            raise OSError(errno.EISDIR, "it is a folder" if path.is_dir() else "it is not an ordinary file")
        temporary = _temporary(path)
        try:
            _write_through(temporary, b"tried before the work\n")
        finally:
            temporary.unlink(missing_ok=True)
        disk = shutil.disk_usage(path.parent)
        if disk.free < size and disk.total:  # some network disks say 0 of 0
            raise OSError(errno.ENOSPC, f"{size / 1e6:.4g} MB are needed, {disk.free / 1e6:.4g} MB are free")


@contextmanager
def lock(path: Path, patience: float = 60) -> Iterator[None]:
    """Within the block no other process or thread is in a block for the same ``path``.

    This is the system's lock on a file beside ``path``: it ends with the process that holds it, however that dies.

    Raises:
        NotWrittenError: nothing can be written there, or another one stays for more than ``patience`` seconds.
    """
    beside, deadline = path.with_name(f".{path.name}.lock"), time.monotonic() + patience
    with _named(path):
        while (held := _try_lock(beside)) is None:
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, f"another process has held {beside} for {patience:g} s")
            time.sleep(0.01)
    try:
        yield
    finally:
        _unlock(beside, held)


if sys.platform == "win32":

    def _try_lock(beside: Path) -> int | None:
        with suppress(PermissionError):  # locked, or about to be removed
            descriptor = os.open(beside, os.O_CREAT | os.O_RDWR)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return descriptor
            except BaseException:
                os.close(descriptor)
                raise
        return None

    def _unlock(beside: Path, descriptor: int) -> None:
        os.close(descriptor)
        with suppress(OSError):  # another one has opened it: then it stays
            beside.unlink()

else:

    def _try_lock(beside: Path) -> int | None:
        descriptor = os.open(beside, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have removed it in between: then this lock is on a file that nobody else will find.
            if os.path.samestat(os.fstat(descriptor), os.stat(beside)):
                return descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _unlock(beside: Path, descriptor: int) -> None:
        with suppress(OSError):
            beside.unlink()
        os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Whatever goes wrong in the block is told with the name of the file that was to be written."""
    try:
        yield
    except OSError as problem:
        raise NotWrittenError(problem.errno, problem.strerror or str(problem), str(path)) from problem


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _write_through(path: Path, content: bytes) -> None:
    """A new file that is on the disk, and not only on its way, when this returns."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise OSError(errno.ENOTDIR, f"{folder} is not a folder, or lies in one that is none") from None
