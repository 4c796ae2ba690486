"""Which device to use, and how many threads."""

import os
import warnings
from contextlib import contextmanager

import torch


def pick() -> torch.device:
    """The fastest device that is there: CUDA, then Apple's MPS, then the CPU.

    The environment variable NORMLAB_DEVICE (``cpu``, ``cuda``, ``mps``) overrides the choice. Under torchrun every
    process has a GPU of its own.
    """
    wanted = os.environ.get("NORMLAB_DEVICE")
    if wanted:
        return torch.device(wanted)
    if torch.cuda.is_available():
        number = os.environ.get("LOCAL_RANK")  # set by torchrun
        return torch.device("cuda") if number is None else torch.device("cuda", int(number))
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


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
