"""Which device to use, and how many threads."""

import os
import warnings
from contextlib import contextmanager

import torch


def pick() -> torch.device:
    """Where models train: on the CPU, unless a variable of the environment asks for something else.

    With one thread of a CPU the chapters print the same digits with and without a GPU in the machine, and their models
    are small enough for it. NORMLAB_DEVICE names a device (``cpu``, ``cuda``, ``cuda:1``, ``mps``), which has to work;
    NORMLAB_LARGER=1 and torchrun take the :func:`fastest`.

    Raises:
        ValueError: NORMLAB_DEVICE names no device, or one that cannot compute here.
    """
    wanted = os.environ.get("NORMLAB_DEVICE")
    if wanted:
        return _named(wanted)
    return fastest() if larger() or "LOCAL_RANK" in os.environ else torch.device("cpu")


def larger() -> bool:
    """Whether NORMLAB_LARGER=1 asks for the larger settings.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    wanted = os.environ.get("NORMLAB_LARGER") or "0"
    if wanted not in ("0", "1"):
        raise ValueError(f"NORMLAB_LARGER must be 0 or 1, got {wanted!r}")
    return wanted == "1"


@contextmanager
def larger_settings():
    """Run a block, and the processes that it starts, as with NORMLAB_LARGER=1."""
    before = os.environ.get("NORMLAB_LARGER")
    os.environ["NORMLAB_LARGER"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["NORMLAB_LARGER"]
        else:
            os.environ["NORMLAB_LARGER"] = before


def fastest() -> torch.device:
    """CUDA, then Apple's MPS, then the CPU: the first that computes. Under torchrun every process has its own GPU.

    A GPU can be listed and be too old for this build of torch; then a warning says so.
    """
    number = os.environ.get("LOCAL_RANK")  # set by torchrun
    for kind, there in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())):
        if there:
            device = torch.device(kind) if number is None or kind == "mps" else torch.device(kind, int(number))
            problem = why_not(device)
            if problem is None:
                return device
            warnings.warn(f"torch lists {device}, but cannot compute on it ({problem}); going on without it")
    return torch.device("cpu")


def _named(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"NORMLAB_DEVICE must be a device such as cpu, cuda, cuda:1 or mps, got {name!r}") from None
    if problem := why_not(device):
        raise ValueError(f"NORMLAB_DEVICE is {name!r}, but torch cannot compute there: {problem}")
    return device


def why_not(device: torch.device) -> str | None:
    """Why a product of two small matrices cannot be had on ``device``; None if it can."""
    try:
        product = torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)
        right = bool((product == 8).all())  # waits for the device
    except (RuntimeError, AssertionError, NotImplementedError) as problem:  # torch raises all three
        return str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    return None if right else "a product came out wrong"


@contextmanager
def single_thread():
    """Run a block with one CPU thread: faster for toy models, and the same digits on every machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def supports_autocast(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether autocast to ``dtype`` takes place on ``device``, found by trying a product.

    Torch itself only warns, and goes on in float32, where it cannot. A GPU that only emulates bfloat16 does not
    count; a CPU without instructions for it does, and is slow.
    """
    if device.type == "cuda" and dtype is torch.bfloat16 and torch.version.hip is None:
        if torch.cuda.get_device_capability(device) < (8, 0):  # older ones emulate it
            return False
    ones = torch.ones(8, 8, device=device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autocast(device.type, dtype=dtype):
                product = ones @ ones
    except RuntimeError:
        return False
    return product.dtype is dtype and bool((product == 8).all())


def half_type(device: torch.device) -> torch.dtype | None:
    """The 16-bit type to train in on ``device``: bfloat16 where it computes in it, else float16, else None.

    See :func:`supports_autocast`; bfloat16 first, since its range is that of float32 and no loss has to be scaled.
    """
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if supports_autocast(device, dtype)), None)
