"""The package's annotations are consistent."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_mypy_finds_nothing():
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", "_build/mypy"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
