"""A learner's code under guard: in a process of its own, with a limit of time and memory, its errors explained.

The process is a fork, so that functions typed into a notebook need not be importable. Only Linux (Colab too) has forks
that torch survives; elsewhere the code runs here, and only its time is limited.
"""

import multiprocessing
import os
import pickle
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

HERE = os.path.dirname(__file__)
SECONDS = 5.0
BYTES = 2 * 2**30  # beyond what the process holds when it starts
FORKS = sys.platform == "linux"

TIME = f"did not end within {SECONDS:g} seconds: an endless loop?"
DIED = "ended its process without a word"


class OutOfTime(BaseException):
    """Raised inside the learner's code where there is no process to end; no ``except Exception`` catches it."""


def guarded(work: Callable[[], Iterable[Any]], seconds: float = SECONDS) -> tuple[list[Any], str]:
    """What ``work()`` yields until it ends, and how it ended: "" for well, TIME or DIED.

    Everything that is yielded must be picklable. Nothing that the work changes is changed here (where FORKS).
    """
    return _in_a_fork(work, seconds) if FORKS else _in_here(work, seconds)


def _in_a_fork(work: Callable[[], Iterable[Any]], seconds: float) -> tuple[list[Any], str]:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(work, sender), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads exist; the child uses none of their locks
        process.start()
    sender.close()
    deadline, found, end = time.monotonic() + seconds, [], DIED
    try:
        while True:
            if not receiver.poll(max(0.0, deadline - time.monotonic())):
                end = TIME
                break
            message = pickle.loads(receiver.recv_bytes())
            if message is None:
                end = ""
                break
            found.append(message)
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()
        receiver.close()
    return found, end


def _child(work: Callable[[], Iterable[Any]], sender: Any) -> None:
    torch.set_num_threads(1)  # the threads of the parent did not come along
    _limit_memory()
    for message in work():
        sender.send_bytes(pickle.dumps(message))
    sender.send_bytes(pickle.dumps(None))


def _limit_memory() -> None:
    import resource

    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = held + BYTES if hard == resource.RLIM_INFINITY else min(held + BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _in_here(work: Callable[[], Iterable[Any]], seconds: float) -> tuple[list[Any], str]:
    deadline, found, before = time.monotonic() + seconds, [], sys.gettrace()

    def watch(frame, event, argument):
        if time.monotonic() > deadline:
            raise OutOfTime
        return watch

    sys.settrace(watch)
    try:
        for message in work():
            found.append(message)
    except OutOfTime:
        return found, TIME
    finally:
        sys.settrace(before)
    return found, ""


# --- errors, in words that help --------------------------------------------------------------------------------------

# What stands in a message of torch or Python, and what it mostly means.
MEANINGS = {
    r"NotImplementedError": "the stub is not filled in yet",
    r"missing \d+ required|takes \d+ positional|unexpected keyword|takes from \d+": "the signature is another one",
    r"must match the size of tensor|not broadcastable|doesn't match the broadcast": "two shapes do not broadcast; a "
    "statistic that was taken without keepdim=True has lost its axis",
    r"shapes cannot be multiplied|size mismatch|inconsistent tensor size": "a matrix product of shapes that do not "
    "fit: is a transpose missing, or one too many?",
    r"leaf Variable that requires grad": "an in-place operation on an input that requires a gradient; compute a new "
    "tensor instead",
    r"modified by an inplace operation": "an in-place operation overwrote what the backward pass needs",
    r"same device|expected device|on cpu|Torch not compiled with CUDA": "tensors on two devices; create new ones with "
    "device=x.device",
    r"Can't call numpy\(\)": "NumPy cuts the graph of gradients; stay with torch",
    r"same dtype|expected scalar type|not implemented for '": "two dtypes that do not go together; convert one, for "
    "instance with .to(x.dtype)",
    r"Boolean value of Tensor": "an if on a whole tensor; torch.where, .any() or .all() is meant",
    r"Dimension out of range": "an axis that this input does not have; -1 is the last one for every number of axes",
    r"could not infer output dtype|Input dtype must be": "a mean of integers or booleans; convert to floats first",
    r"invalid argument|not iterable|has no attribute|not subscriptable": "something is of another type than the code "
    "assumes",
    r"is not defined": "a name that the solution does not define; imports must stand in it or above it",
    r"MemoryError|can't allocate memory|not enough memory": f"more than {BYTES // 2**30} GiB of memory were asked for",
    r"RecursionError": "the function calls itself without an end",
    r"ZeroDivisionError": "a division by zero: an empty input, or a missing eps?",
    r"UnboundLocalError": "a name is used before it has a value",
}


def explain(error: BaseException) -> str:
    """The error in one or two sentences: where, what, and what it mostly means."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((HERE, "<frozen"))]
    lines = [frame.lineno for frame in frames if frame.lineno]
    meaning = next((meaning for sign, meaning in MEANINGS.items() if re.search(sign, text)), "")
    where = f" (line {lines[0]})" if lines else ""
    return f"{text}{where}" + (f"\n  This mostly means: {meaning}." if meaning else "")
