"""How tools write files: whole or not at all (`normlab.files`), and in a sentence why not.

Works where the package is not installed: `normlab.files` is plain Python, read from `src`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SOURCES = str(Path(__file__).resolve().parent.parent / "src")
sys.path.insert(0, _SOURCES)
try:
    from normlab.files import check_writable, lock, write
finally:
    sys.path.remove(_SOURCES)

__all__ = ["check_writable", "lock", "told", "write", "write_text"]
INTERRUPTED = 130  # as a shell has it


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, in a folder that is made if need be. Raises NotWrittenError."""
    check_writable(path)
    write(path, text.encode())


@contextmanager
def told() -> Iterator[None]:
    """The block of a command: a full disk, a place without the right to write and Ctrl+C end it with a sentence."""
    name = Path(sys.argv[0]).stem
    try:
        yield
    except OSError as problem:
        sys.exit(f"{name}: {problem}")
    except KeyboardInterrupt:
        print(f"{name}: stopped; no file is half-written, and the same command does what is left", file=sys.stderr)
        sys.exit(INTERRUPTED)
