"""The environment of all tests, and an interpreter without the package.

The variables are set at import, before anything imports numpy or torch, so that plain ``pytest`` is enough; the
kernels that nbval starts inherit them.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest_plugins = ["guard", "whole_run", "spread"]  # from tests/

for _name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):  # tests that call make are not part of the make that runs them
    os.environ.pop(_name, None)
os.environ["PYTHONHASHSEED"] = "0"  # for the kernels; this process has hashed its strings already
os.environ["TQDM_DISABLE"] = "1"  # progress bars would land in compared outputs
os.environ.setdefault("OMP_NUM_THREADS", "1")  # `make test-matrix` sets 2 as well
LIGHT = str(Path(__file__).parent / "tests" / "light")  # on the path of all that the tests start
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (LIGHT, os.environ.get("PYTHONPATH"))))
os.environ.pop("NORMLAB_STRICT_SHOW", None)  # only tools/execute.py refuses values near a rounding border
for _name in ("NORMLAB_DEVICE", "NORMLAB_LARGER"):  # what is compared is computed on the CPU
    os.environ.pop(_name, None)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory) -> Path:
    """A new interpreter with the libraries of this one, but not the package under test: Colab, in effect.

    Its site-packages reads this one's as a plain folder, so the link of the editable install is not followed.
    """
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.run([python, "-c", ask], check=True, capture_output=True, text=True).stdout.strip())
    lines = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "libraries.pth").write_text("\n".join(sorted(lines)) + "\n")
    return python


@pytest.fixture(scope="session")
def bare_environment() -> dict[str, str]:
    """The environment for `bare_python`: nothing in it may lead to the repository."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def pytest_terminal_summary(terminalreporter):
    """Say at the end of every run how much of the ledger is still open."""
    import json

    import yaml

    root = Path(__file__).parent
    claims = yaml.safe_load((root / "book" / "claims.yml").read_text("utf-8"))
    settled = {
        output["data"]["application/vnd.normlab.claim+json"]["id"]
        for path in (root / "notebooks").glob("*.ipynb")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        for output in cell.get("outputs", [])
        if "application/vnd.normlab.claim+json" in output.get("data", {})
    }
    kinds = [claim["kind"] for claim in claims if claim["id"] not in settled]
    reported, opinions = kinds.count("historical"), kinds.count("opinion")
    terminalreporter.write_line(
        f"claims: {len(settled)} of {len(claims)} checked, {reported} reported, {opinions} opinions, "
        f"{len(kinds) - reported - opinions} not yet checked"
    )
