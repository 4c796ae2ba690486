"""The package as a wheel.

    python tools/build_wheel.py _build/wheel

It is built from a copy of what belongs to it: setuptools writes into the folder that it builds, and would pack modules
that a former build left there. Needs setuptools, and no network.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ("pyproject.toml", "README.md", "LICENSE", "LICENSE-text.md")
COMMAND = ("-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")


def copy_project(root: Path, folder: Path) -> None:
    """What the build reads of the repository at ``root``."""
    for name in FILES:
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))


def write(root: Path, out: Path) -> Path:
    """Build the wheel into the folder ``out``, from which wheels of other versions are removed."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("normlab-*.whl"):
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        copy_project(root, Path(folder))
        subprocess.run([sys.executable, *COMMAND, "--wheel-dir", out.resolve(), folder], check=True)
    (wheel,) = out.glob("normlab-*.whl")
    return wheel


if __name__ == "__main__":
    print(write(ROOT, Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "_build" / "wheel")))
