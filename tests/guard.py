"""Loaded by conftest.py: lets no notebook cell pass that nbval would let pass by mistake.

nbval takes a cell that exceeds its time limit and swallows the interrupt, as training does, for a sound one, and
expects all later cells of that notebook to fail: wrong outputs are then no failures either. It also lets a cell pass
that is marked as raising and raises nothing, if its outputs are not compared.
"""

import contextlib
import signal
import threading

import psutil
import pytest
from nbval.plugin import IPyNbCell

# A cell that has ignored the interrupt for so long, and goes on printing, would keep nbval waiting for ever.
GRACE_SECONDS = 30


def pytest_configure():
    """Let Ctrl-C work: it is ignored in what a script starts in the background, and some tests press it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if isinstance(item, IPyNbCell) and item.parent.timed_out:
        pytest.fail("not run: an earlier cell of this notebook exceeded its time limit", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not isinstance(item, IPyNbCell):
        return (yield)
    with _watched(item):
        result = yield
    if item.parent.timed_out:
        item.raise_cell_error(f"The cell exceeded its limit of {item.config.option.nbval_cell_timeout:g} seconds.")
    if item.options["check_exception"] and not any(out.output_type == "error" for out in item.test_outputs):
        item.raise_cell_error("The cell is marked as raising an exception, and raised none.")
    return result


@contextlib.contextmanager
def _watched(cell):
    """Kill the kernel of a ``cell`` that does not end; note the processor time that it took (for whole_run.py)."""
    if not cell.parent.kernel.is_alive():
        yield  # nbval says so
        return
    kernel = psutil.Process(cell.parent.kernel.km.provisioner.pid)
    watchdog = threading.Timer(cell.config.option.nbval_cell_timeout + GRACE_SECONDS, kernel.kill)
    watchdog.start()
    before = _cpu_seconds(kernel)
    try:
        yield
    finally:
        watchdog.cancel()
        with contextlib.suppress(psutil.NoSuchProcess):
            cell.user_properties.append(("cpu_seconds", _cpu_seconds(kernel) - before))


def _cpu_seconds(process):
    """User and system time of a process and of those that it started and saw end."""
    return sum(process.cpu_times()[:4])
