"""``normlab inspect``: the norms of a model that is named on the command line, built with random weights."""

import argparse
import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normlab import files
from normlab.inspection.cut import Cut, Layers, Settings, at_least, changes, on_meta, shorter, smaller
from normlab.inspection.diagram import as_ranges, wiring_diagram
from normlab.inspection.report import ModelReport, inspect

WHOLE = 30_000_000  # parameters of a configuration that is not cut
LARGEST = 500_000_000  # parameters that are built without being asked for

_EXAMPLES = """examples:
  normlab inspect config.json                     a configuration of transformers, cut to what shows every kind of layer
  normlab inspect my-model/ --svg wiring.svg      a folder that holds one; its wiring as a picture too
  normlab inspect my_package.model:make_model     a function of yours, run in the current folder
  normlab inspect config.json --json              the report as JSON
"""


def main(arguments: Sequence[str]) -> int:
    """The command line: 0 and the report, or 2 and one line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="normlab inspect",
        description="Say which norms a model has, how they compute and where they stand, by running it once with\n"
        "random weights. Nothing is downloaded; weights beside a config.json are not read.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a config.json of transformers, a folder that holds one, or package.module:make_model, a function "
        "(or class) that returns the model",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of text")
    parser.add_argument("--svg", metavar="FILE", help="also write a wiring diagram to FILE; an old one is replaced")
    parser.add_argument(
        "--input",
        metavar="MODULE:FUNCTION",
        help="a function that returns the model's input: a tensor, a tuple of arguments or a dictionary of named ones; "
        "without it a few token ids are tried",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help=f"build a config.json as it is; else one of more than {WHOLE // 10**6} million parameters is cut",
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported: it asks no host for anything
    try:
        if options.svg:
            _try(Path(options.svg))
        args, kwargs = _input(options.input)
        report = report_on(options.model, args, kwargs, full=options.full)
        if options.svg:
            files.write(Path(options.svg), (wiring_diagram(report).svg + "\n").encode())
    except (ImportError, OSError, TypeError, ValueError) as problem:
        print("normlab inspect:", " ".join(str(problem).split()), file=sys.stderr)
        return 2
    print(json.dumps(as_json(report), indent=2) if options.json else report)
    return 0


def report_on(name: str, args: tuple = (), kwargs: dict[str, Any] | None = None, full: bool = False) -> ModelReport:
    """The report on the model that ``name`` stands for, with random weights.

    Args:
        name: the path of a ``config.json`` of transformers or of a folder that holds one, or
            ``package.module:function``.
        args, kwargs: the model's input, as for :func:`normlab.inspect`.
        full: leave a configuration as it is. Else one of more than ``WHOLE`` parameters is made narrow, and so short
            that it still shows every kind of layer; ``cut`` and ``notes`` of the report say how.

    Raises:
        ValueError: neither a file or folder nor MODULE:FUNCTION, a config that transformers does not know, a model that
            is too large, or one that does not run.
        ImportError: no such module or function, or transformers is missing.
        TypeError: the function returned something else than a model.
    """
    config = _config(name)
    if config is not None:
        return config.report(args, kwargs or {}, full)
    return inspect(_made(name), *args, **(kwargs or {}))


def build(name: str) -> tuple[nn.Module, tuple[Cut, ...]]:
    """The model that :func:`report_on` reports on, in evaluation mode, and what was cut; errors as there."""
    config = _config(name)
    return (_made(name), ()) if config is None else config.built()


def _config(name: str) -> "_Config | None":
    """The configuration that ``name`` stands for, None for the name of a function."""
    path = Path(name)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json":
        return _Config(path)
    if ":" not in name:
        raise ValueError(f"{name!r} is neither a config.json, nor a folder with one, nor package.module:make_model")
    return None


def _made(name: str) -> nn.Module:
    model = _from_function(name)
    if not isinstance(model, nn.Module):
        raise TypeError(f"{name} returned {type(model).__name__}, not a torch.nn.Module")
    return model


class _Config:
    """A configuration file, and the models that can be built from it."""

    def __init__(self, path: Path):
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        try:
            given = json.loads(path.read_text("utf-8"))
        except ValueError as problem:
            raise ValueError(f"{path} is not JSON: {problem}") from None
        if not isinstance(given, dict):
            raise ValueError(f"{path} holds a {type(given).__name__}, not the settings of a model")
        try:
            import transformers
        except ModuleNotFoundError:
            raise ImportError(f"{path} needs the library transformers, which is not installed here") from None

        self.path, self.notes = path, ["random weights, built from the configuration"]
        self.kind = given.pop("model_type", None)
        if self.kind not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
            code = " and asks for code of its own (auto_map), which is not run; pass package.module:make_model instead"
            raise ValueError(
                f"{path}: model_type {self.kind!r} is not known to transformers {transformers.__version__}"
                + (code if "auto_map" in given else "")
            )
        if given.pop("auto_map", None):
            self.notes.append(f"auto_map is not followed: this is the model {self.kind!r} of transformers itself")
        if given.pop("quantization_config", None):
            self.notes.append("not quantized: quantization_config is not followed")
        for name in ("torch_dtype", "dtype"):  # what is measured is measured in float32
            given.pop(name, None)
        names = given.get("architectures") or []
        self.names = [name for name in names if hasattr(transformers, name)]
        if names and not self.names:
            self.notes.append(f"architecture {names[0]!r} is not known: this is the model without a head")
        try:
            config = transformers.AutoConfig.for_model(self.kind, **given)
        except Exception as problem:  # strict configurations raise errors of their own
            raise ValueError(f"{path}: transformers refuses it, {_said(problem)}") from None
        self.settings = _settings(config, given)

    def make(self, settings: Settings) -> nn.Module:
        import transformers

        with warnings.catch_warnings(action="ignore"):
            transformers.logging.set_verbosity_error()
            config = transformers.AutoConfig.for_model(self.kind, **json.loads(json.dumps(settings)))
            if self.names:
                return getattr(transformers, self.names[0])(config)
            return transformers.AutoModel.from_config(config)

    def report(self, args: tuple, kwargs: dict[str, Any], full: bool) -> ModelReport:
        if full or at_least(self.settings) <= WHOLE:
            try:
                size = _parameters(on_meta(self.make, self.settings))
            except Exception as problem:
                raise ValueError(f"{self.path}: transformers cannot build it, {_said(problem)}") from None
            if full and size > (most := _largest()):
                raise ValueError(
                    f"{self.path} describes a model of {size:,} parameters, more than the {most:,} that fit into half "
                    "of this machine's memory; leave --full away"
                )
            if full or size <= WHOLE:
                return self._run(self.settings, [], args, kwargs)
        problems = []
        for widths in (True, False):
            try:
                settings, layers = shorter(smaller(self.settings, widths), self.make)
                size = _parameters(on_meta(self.make, settings))
                if size > LARGEST:
                    raise ValueError(f"it still has {size:,} parameters, more than {LARGEST:,}")
                found = self._run(settings, layers, args, kwargs)
                return replace(found, cut=tuple(changes(self.settings, settings)))
            except Exception as problem:
                problems.append(_said(problem))
        raise ValueError(
            f"{self.path}: cut to a small size, the model does not run ({problems[0]}); --full takes it as it is"
        )

    def built(self) -> tuple[nn.Module, tuple[Cut, ...]]:
        """The model, cut as in :meth:`report`, and what was cut."""
        settings = self.settings
        try:
            if at_least(settings) > WHOLE or _parameters(on_meta(self.make, settings)) > WHOLE:
                settings, _ = shorter(smaller(settings), self.make)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                model = self.make(settings).eval()
        except Exception as problem:
            raise ValueError(f"{self.path}: transformers cannot build it, {_said(problem)}") from None
        return model, tuple(changes(self.settings, settings))

    def _run(self, settings: Settings, layers: list[Layers], args: tuple, kwargs: dict[str, Any]) -> ModelReport:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = self.make(settings)
        notes = self.notes + [_in_words(found) for found in layers]
        lists = {found.path: list(model.get_submodule(found.path).children()) for found in layers}
        with _noting_calls(model) as called:
            report = inspect(model, *args, **kwargs)
        for path, modules in lists.items():
            idle = [number for number, module in enumerate(modules, 1) if module not in called]
            which = f"layers {as_ranges(idle)}" if len(idle) < len(modules) else "the layers"
            notes += [f"{path}: {which} did not run with this input and are not in the report"] if idle else []
        if settings is not self.settings:
            notes.append("sizes below, and factors made from sizes, are of the cut model")
        return replace(report, notes=tuple(notes))


@contextmanager
def _noting_calls(model: nn.Module) -> Iterator[set[nn.Module]]:
    """The modules of the model that run within the block."""
    called: set[nn.Module] = set()

    def note(module: nn.Module, *_: Any) -> None:
        called.add(module)

    handles = [module.register_forward_hook(note) for module in model.modules()]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _said(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _settings(config: Any, given: dict[str, Any]) -> Settings:
    """What a configuration of transformers is made from, without what it works out itself.

    What was given under a name that its class does not declare is kept too: models read such settings.
    """
    plain, other_names = config.to_dict(), getattr(config, "attribute_map", {})
    names = [field.name for field in fields(config)] if is_dataclass(config) else list(plain)
    found = {}
    for name in names:
        stored = name if name in plain else other_names.get(name, name)
        inner: Any = getattr(config, name) if isinstance(plain.get(stored), dict) else None
        if hasattr(inner, "to_dict"):
            inside = given.get(name)
            found[name] = {"model_type": inner.model_type} | _settings(inner, inside if isinstance(inside, dict) else {})
        elif stored in plain:
            found[name] = plain[stored]
    try:
        own = type(config)().to_dict()
    except Exception:  # a class that cannot be made without settings
        own = plain
    found |= {name: plain[name] for name in given if name in plain and name not in own}
    return {n: v for n, v in found.items() if n not in ("model_type", "dtype", "torch_dtype", "id2label", "label2id")}


def _in_words(layers: Layers) -> str:
    if len(layers.kinds) == 1:
        return f"{layers.path}: all {layers.many} layers are built alike"
    kinds = (f"{len(kind)} like layer {kind[0]} ({_shortened(as_ranges(kind))})" for kind in layers.kinds)
    return f"{layers.path}: {layers.many} layers of {len(layers.kinds)} kinds, {', '.join(kinds)}"


def _shortened(ranges: str) -> str:
    parts = ranges.split(", ")
    return ranges if len(parts) < 5 else f"{', '.join(parts[:3])}, … {parts[-1]}"


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _largest() -> int:
    """How many parameters fill half of the memory of this machine; LARGEST where it cannot be told."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8
    except (AttributeError, ValueError, OSError):
        return LARGEST


def _from_function(name: str) -> Any:
    """What the function ``package.module:function`` returns; the current folder is searched too."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise ValueError(f"{name!r} is not of the form package.module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current folder, as with `python -m`
    made = getattr(importlib.import_module(module), function, None)
    if made is None:
        raise ImportError(f"module {module!r} has no {function!r}")
    if not callable(made):
        raise TypeError(f"{name} is a {type(made).__name__}, not a function that can be called without arguments")
    return made()


def _input(name: str | None) -> tuple[tuple, dict[str, Any]]:
    if name is None:
        return (), {}
    value = _from_function(name)
    if isinstance(value, dict):
        return (), value
    if isinstance(value, tuple | torch.Tensor):
        return value if isinstance(value, tuple) else (value,), {}
    raise TypeError(f"{name} returned {type(value).__name__}, not a tensor, a tuple or a dictionary")


def _try(path: Path) -> None:
    """Whether the picture can be written, before the model is built."""
    if path.suffix.lower() != ".svg":
        raise ValueError(f"--svg writes a picture, so its file must end in .svg, got {str(path)!r}")
    if not path.parent.is_dir():
        raise OSError(f"the picture cannot be written to {path}: there is no folder {path.parent}")
    files.check_writable(path)


def as_json(report: Any) -> Any:
    """A report in the types of JSON: {"format": 1, "model", "notes", "cut", "stacks", "last_hidden"}.

    Every object has the fields of its class in :mod:`normlab.inspection.report` and
    :class:`normlab.inspection.norm_probe.NormReport` under the same names. Enumerations are their values, what does not
    apply or is not known is null. ``format`` grows when a key is renamed or taken away.
    """
    return {"format": 1} | _plain(report)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
