"""Ctrl-C between two steps rather than in the middle of one."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_strict = ContextVar("whether Ctrl-C must end everything", default=False)


@contextmanager
def strict() -> Iterator[None]:
    """Within the block Ctrl-C ends the program as usual: a half-trained model must not pass for a result."""
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether the caller stands in a :func:`strict` block."""
    return _strict.get()


@contextmanager
def deferred() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C is only noted; a second one raises KeyboardInterrupt.

    Gives a function that says whether Ctrl-C was pressed. Signals reach the main thread only: elsewhere, in a
    :func:`strict` block, and where the program ignores or handles Ctrl-C in its own way, nothing changes.
    """
    usual = signal.getsignal(signal.SIGINT)
    pressed = threading.Event()

    def note(number, frame):
        pressed.set()
        signal.signal(signal.SIGINT, usual)

    here = threading.current_thread() is threading.main_thread() and usual is signal.default_int_handler
    if is_strict() or not here:
        yield pressed.is_set
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)
