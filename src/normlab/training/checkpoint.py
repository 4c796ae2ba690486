"""Checkpoint files of training runs: written at once or not at all, read without running code."""

import hashlib
import os
import pickle
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn


def save(path: Path, state: dict) -> None:
    """Write ``state`` (tensors, numbers, strings and containers of them) to ``path``.

    Through a temporary file beside it: whatever interrupts the writing leaves the previous checkpoint whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path, settings: Mapping[str, object]) -> dict:
    """Read the checkpoint at ``path``, of a run with these ``settings``.

    Raises:
        ValueError: not a checkpoint, or one of a run with other settings; names what differs.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        there = state["settings"]
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as problem:
        raise ValueError(f"{path} is not a checkpoint of normlab.training: {problem}") from None
    lines = [
        _difference(name, there.get(name), settings.get(name))
        for name in {**there, **settings}
        if there.get(name) != settings.get(name)
    ]
    if lines:
        more = f"; and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise ValueError(
            f"{path} belongs to a run with other settings: {'; '.join(lines[:5])}{more}. Give back those settings, or "
            "choose another file."
        )
    return state


def model_settings(model: nn.Module) -> dict[str, str]:
    """What has to agree between the model that wrote a checkpoint and the one that reads it."""
    config = getattr(getattr(model, "config", None), "__dict__", {})
    options = {f"config.{name}": repr(value) for name, value in config.items() if not name.startswith("_")}
    parameters = {n: f"{list(p.shape)} {p.dtype}" for n, p in model.named_parameters()}
    return {"model": repr(model)} | options | parameters


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of torch's global generators, which dropout draws from."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_random_state(states: dict[str, Tensor], device: torch.device) -> None:
    """Set what :func:`random_state` returned."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def digest(tensors: Sequence[Tensor]) -> str:
    """A fingerprint of the shapes, types and contents of some tensors."""
    total = hashlib.sha256()
    for t in tensors:
        total.update(f"{list(t.shape)} {t.dtype}".encode())
        total.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _difference(name: str, there: object, here: object) -> str:
    """One line of the error message; of long texts only the first line that differs."""
    pairs = zip_longest(str(there).splitlines(), str(here).splitlines(), fillvalue="nothing")
    old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), (there, here))
    return f"{name}: {old} there, {new} here"
