"""What the modules of a package import, read from their sources: nothing is run.

The standalone copies carry what a notebook reaches, the picture of the house (book/_ext/course/house.py) shows it,
and tests/test_house.py checks that it goes one way.
"""

import ast
from functools import cache
from pathlib import Path


@cache
def imported_names(code: str, within: str) -> set[str]:
    """Dotted names that may be modules: all that ``code``, a module in the package ``within``, could import.

    Imports inside of functions count.
    """
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = within.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")  # normlab.page.figures, which imports on first use
    return names


def files_of(package: Path, name: str) -> list[Path]:
    """The files that importing the dotted ``name`` runs: each package on the way, and the module itself.

    A name that the package offers lazily, such as normlab.layer_norm, is followed to the module that defines it.
    """
    parts = lazy_names(package).get(name, name).split(".")
    if parts[0] != package.name:
        return []
    path, files = package, [package / "__init__.py"]
    for part in parts[1:]:
        path = path / part
        files += [path / "__init__.py", path.with_suffix(".py")]
    return [file for file in files if file.is_file()]


@cache
def lazy_names(package: Path) -> dict[str, str]:
    """The table ``_NAMES`` of the package's __init__.py: dotted name -> module that defines it."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["_NAMES"]:
            return {f"{package.name}.{name}": module for name, module in ast.literal_eval(node.value).items()}
    return {}


def imports(package: Path) -> dict[Path, set[Path]]:
    """For each module of ``package``, as a file, the files that it imports.

    Not counted are the package itself, and for a module in a folder the ``__init__.py`` of that folder: they run
    before it does.
    """
    found = {}
    for path in sorted(package.rglob("*.py")):
        names = imported_names(path.read_text(encoding="utf-8"), dotted(package, path.parent))
        files = {file for name in names for file in files_of(package, name)}
        found[path] = files - {path, package / "__init__.py"} - {folder / "__init__.py" for folder in path.parents}
    return found


def dotted(package: Path, path: Path) -> str:
    """The name under which a file or folder of the package is imported: normlab.page.claims."""
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
