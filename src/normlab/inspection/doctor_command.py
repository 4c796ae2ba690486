"""``normlab doctor``: :func:`normlab.doctor` on a model named on the command line, with random weights."""

import argparse
import json
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normlab.inspection.command import build
from normlab.inspection.diagnosis import doctor

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_CONTEXTS = ("max_position_embeddings", "n_positions", "context")


def main(arguments: Sequence[str]) -> int:
    """The command line: 0 if nothing was found, 1 with findings, 2 and one line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="normlab doctor",
        description="Measure on one batch what goes wrong with the norms of a model, and with what they keep in "
        "bounds. Nothing is downloaded; a large configuration is cut. Exit status: 0 nothing found, 1 findings, 2 it could not be done.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a config.json of transformers, a folder that holds one, or package.module:make_model, a function "
        "(or class) that returns the model",
    )
    parser.add_argument(
        "--batch",
        metavar="FILE",
        help="ids [B, T] or a dictionary of arguments, as .json, .npy or .pt; without it 4 rows of random ids",
    )
    parser.add_argument("--dtype", choices=_DTYPES, help="the type to run the model in; as it is built if not given")
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: it asks no host for anything
    try:
        model, cut = build(options.model)
        if options.dtype:
            model = model.to(_DTYPES[options.dtype])
        diagnosis = doctor(model, random_batch(model) if options.batch is None else read_batch(Path(options.batch)))
    except (ImportError, OSError, TypeError, ValueError) as problem:
        print("normlab doctor:", " ".join(str(problem).split()), file=sys.stderr)
        return 2
    notes = [str(change) for change in cut]
    if options.json:
        print(json.dumps({"cut": notes} | diagnosis.as_dict(), indent=2, ensure_ascii=False))
    else:
        print(*[f"of the model cut to {', '.join(notes)}"] if notes else [], diagnosis, sep="\n")
    return 1 if diagnosis.findings else 0


def random_batch(model: nn.Module, rows: int = 4, tokens: int = 32) -> Tensor | dict[str, Tensor]:
    """Random ids [rows, tokens] that every table of the model knows, shorter for a model of a shorter context.

    Raises ValueError for a model without embeddings.
    """
    sizes = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    config = getattr(model, "config", None)
    contexts = [getattr(config, name, None) for name in _CONTEXTS]
    longest = min([tokens, *(c for c in contexts if isinstance(c, int) and c > 0)])
    known = [size for size in sizes if size > 8] or sizes  # a table of segments is not one of tokens
    if not known:
        raise ValueError(f"{type(model).__name__} has no embedding, so that random ids are no input; pass --batch")
    # A table with as many rows as the context has is likely one of positions.
    tables = [size for size in known if size not in contexts] or known
    device = next(model.parameters()).device
    ids = torch.randint(min(tables), (rows, longest), generator=torch.Generator().manual_seed(0)).to(device)
    if getattr(config, "is_encoder_decoder", False):
        return {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    return ids


def read_batch(path: Path) -> Tensor | dict[str, Any]:
    """Ids or a dictionary of arguments from a file.

    Raises:
        ValueError: another ending, or content that is no such thing.
        OSError: the file cannot be read.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        if path.suffix == ".json":
            content = json.loads(path.read_text("utf-8"))
        elif path.suffix == ".npy":
            import numpy as np

            content = torch.from_numpy(np.load(path, allow_pickle=False))
        elif path.suffix == ".pt":
            try:
                content = torch.load(path, weights_only=True)
            except pickle.UnpicklingError:
                raise ValueError("its tensors cannot be loaded") from None
        else:
            raise ValueError(f"a batch is read from .json, .npy or .pt, got {path.name}")
        if isinstance(content, dict):
            return {name: _tensor(value) for name, value in content.items()}
        return _tensor(content)
    except (RuntimeError, TypeError, ValueError) as problem:
        raise ValueError(f"{path} holds no batch: {problem}") from None


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)
