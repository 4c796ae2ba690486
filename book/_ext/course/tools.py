"""The repository's tools/ and package, which need not be installed."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(root: Path, name: str) -> ModuleType:
    """The module tools/NAME.py of the repository at ``root``."""
    path = root / "tools" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # its neighbors
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def package(root: Path, name: str) -> ModuleType:
    """The module normlab.NAME of the repository at ``root``, one of those that are plain Python."""
    folder = str(root / "src")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(f"normlab.{name}")
    finally:
        sys.path.remove(folder)
