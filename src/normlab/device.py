"""Which device to use, and how many threads."""

import os
from contextlib import contextmanager

import torch


def pick() -> torch.device:
    """The fastest device that is there: CUDA, then Apple's MPS, then the CPU.

    The environment variable NORMLAB_DEVICE (``cpu``, ``cuda``, ``mps``) overrides the choice.
    """
    wanted = os.environ.get("NORMLAB_DEVICE")
    if wanted:
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
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
