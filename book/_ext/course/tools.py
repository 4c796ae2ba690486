"""The repository's tools/, which are not an installed package."""

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
