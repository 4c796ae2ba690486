"""Checkpoint files of training runs: written at once or not at all, checked to the last bit, read without running code.

A file is a line that says format, length and SHA-256 of what follows, and then what ``torch.save`` makes of the state.
"""

import hashlib
import io
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn

from normlab import files

FORMAT = 2  # 1, which had no head, held the same parts
PARTS = ("settings", "history", "model", "optimizer", "scaler", "before_draw", "drawn", "random")
_HEAD = re.compile(rb"normlab checkpoint, format (\d{4}), (\d{15}) bytes, sha256 [0-9a-f]{64}\n")


def save(path: Path, state: dict) -> None:
    """Write ``state`` (tensors, numbers, strings and containers of them) to ``path``.

    Raises:
        NotWrittenError: that failed; whatever was at ``path`` before is there still.
    """
    content = _to_bytes(state)
    files.write(path, _head(content) + content)


def load(path: Path, settings: Mapping[str, object]) -> dict:
    """Read the checkpoint at ``path``, of a run with these ``settings``.

    Raises:
        ValueError: not a checkpoint, a damaged one, one of another format, or one of a run with other settings. Names
            the file, and what is the matter with it or what differs.
    """
    state = _read(path)
    there = state["settings"]
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


def unusable(path: Path, problem: object) -> ValueError:
    """The error for a file that cannot be resumed, for this reason."""
    return ValueError(f"{path} is not a checkpoint to resume from: {problem}. Move it away, or choose another file.")


def check_readable(what: str, state: object) -> None:
    """Try, before any work, whether a checkpoint with ``state`` in it could be read again.

    Raises:
        ValueError: no; ``what`` names the state.
    """
    try:
        _from_bytes(_to_bytes(state))
    except (pickle.PickleError, AttributeError, TypeError) as problem:
        raise ValueError(f"{what} holds what a checkpoint cannot hold: {_first_line(problem)}") from None


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


def _head(content: bytes) -> bytes:
    text = f"normlab checkpoint, format {FORMAT:04}, {len(content):015} bytes, sha256 "
    return (text + hashlib.sha256(content).hexdigest() + "\n").encode()


def _read(path: Path) -> dict:
    """What is in the file, once nothing is the matter with it."""
    if not os.path.isfile(path):
        raise unusable(path, "it is a folder" if os.path.isdir(path) else "it is not an ordinary file")
    try:
        with open(path, "rb") as file:
            head = file.read(len(_head(b"")))
            _check_head(path, head, os.fstat(file.fileno()).st_size)
            content = file.read()
    except OSError as problem:
        raise unusable(path, f"reading it gave {problem.strerror or problem}") from None
    if head != _head(content):
        raise unusable(path, "it is damaged, its content does not have the SHA-256 that it had when it was written")
    try:
        state = _from_bytes(content)
    except pickle.UnpicklingError:
        # torch's own message advises to load it all the same.
        raise unusable(path, "it holds more than tensors, numbers, strings and containers of them") from None
    except Exception as problem:
        raise unusable(path, f"torch cannot read it: {_first_line(problem)}") from None
    parts = state if isinstance(state, dict) else {}
    missing = [name for name in PARTS if name not in parts]
    if missing:
        raise unusable(path, f"it is of another version of normlab, it lacks {', '.join(missing)}")
    return parts


def _check_head(path: Path, head: bytes, size: int) -> None:
    if not size:
        raise unusable(path, "it is empty")
    expected = _head(b"")
    if size < len(expected) and head[:20] == expected[:size][:20]:
        raise unusable(path, f"it is cut off, there are {size} bytes of it")
    match = _HEAD.fullmatch(head)
    if match is None:
        raise unusable(
            path, "it does not begin like one. It is of another program, of an older version of normlab, or damaged"
        )
    version, length = (int(number) for number in match.groups())
    if version != FORMAT:
        raise unusable(path, f"it says that it has format {version}, and this version of normlab reads {FORMAT}")
    if size != len(head) + length:
        raise unusable(path, f"it is cut off or damaged, it has {size} bytes and says {len(head) + length}")


def _to_bytes(state: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(content: bytes) -> object:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def _difference(name: str, there: object, here: object) -> str:
    """One line of the error message; of long texts only the first line that differs."""
    pairs = zip_longest(str(there).splitlines(), str(here).splitlines(), fillvalue="nothing")
    old, new = next(((a.strip(), b.strip()) for a, b in pairs if a != b), (there, here))
    return f"{name}: {old} there, {new} here"
