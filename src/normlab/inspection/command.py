"""``normlab inspect``: the norms of a model that is named on the command line, built with random weights."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normlab.inspection.report import inspect

LARGEST = 500_000_000  # parameters that are built without asking back


def main(arguments: Sequence[str]) -> int:
    """The command line: 0 and the report, or 2 and one line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="normlab inspect",
        description="Say which norms a model has, how they compute and where they stand, by running it once with random "
        "weights. Nothing is downloaded.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a config.json of transformers, a folder that holds one, or package.module:make_model, a function "
        "(or class) that returns the model",
    )
    options = parser.parse_args(arguments)
    try:
        report = inspect(build(options.model))
    except (ImportError, OSError, TypeError, ValueError) as problem:
        print("normlab inspect:", " ".join(str(problem).split()), file=sys.stderr)
        return 2
    print(report)
    return 0


def build(name: str) -> nn.Module:
    """The model that ``name`` stands for, with random weights.

    Raises:
        ValueError: neither a file or folder nor MODULE:FUNCTION, a config that transformers does not know, or a model
            of more than LARGEST parameters.
        ImportError: no such module or function, or transformers is missing.
        TypeError: the function returned something else than a model.
    """
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        return _from_config(path)
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"{name!r} is neither a config.json, nor a folder with one, nor package.module:make_model")
    return _from_function(module, function)


def _from_config(path: Path) -> nn.Module:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        settings: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError as problem:
        raise ValueError(f"{path} is not JSON: {problem}") from None
    import transformers

    kind = settings.get("model_type") if isinstance(settings, dict) else None
    if kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
        raise ValueError(f"{path}: model_type {kind!r} is not known to transformers {transformers.__version__}")
    config = transformers.AutoConfig.for_model(kind, **{k: v for k, v in settings.items() if k != "model_type"})
    names = [n for n in settings.get("architectures") or () if hasattr(transformers, n)]

    def make() -> nn.Module:
        if names:
            return getattr(transformers, names[0])(config)
        return transformers.AutoModel.from_config(config)

    with torch.device("meta"):
        size = sum(p.numel() for p in make().parameters())
    if size > LARGEST:
        raise ValueError(
            f"{path} describes a model of {size:,} parameters, more than {LARGEST:,}; "
            "give it fewer layers or a smaller vocabulary first"
        )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


def _from_function(module: str, function: str) -> nn.Module:
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current folder, as with `python -m`
    made = getattr(importlib.import_module(module), function, None)
    if made is None:
        raise ImportError(f"module {module!r} has no {function!r}")
    model = made()
    if not isinstance(model, nn.Module):
        raise TypeError(f"{module}:{function} returned {type(model).__name__}, not a torch.nn.Module")
    return model
