"""The package installs beside what is there, imports light; the pins fit; the Makefile says what is missing."""

import ast
import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import unquote, urlsplit

import build_wheel
import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import normlab

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
REQUIREMENT_FILES = ["requirements-book.txt", "requirements.txt"]
CONSTRAINT_FILES = ["constraints.txt", "constraints-oldest.txt"]
PYTHONS = ["3.11.2", "3.11.9", "3.12.1", "3.13.0"]  # 3.11.2 is Debian 12's
SYSTEMS = [("linux", "Linux", "posix"), ("darwin", "Darwin", "posix"), ("win32", "Windows", "nt")]


def lines(name: str) -> list[str]:
    """The lines of a requirements file that say something."""
    text = (ROOT / name).read_text(encoding="utf-8")
    stripped = (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in stripped if line]


def requirements(name: str) -> list[Requirement]:
    return [Requirement(line) for line in lines(name) if not line.startswith("-")]


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, the chapters' libraries included."""
    groups = [PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group]


def versions(requirements: list[Requirement]) -> dict[str, Version]:
    """The one version that each of them names, as a bound or a pin."""
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements}


def run_python(code: str, **variables) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | variables, timeout=120
    )


# --- installing -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what an install reads: building writes into the source folder."""
    folder = tmp_path_factory.mktemp("project")
    build_wheel.copy_project(ROOT, folder)
    return folder


@pytest.mark.parametrize("torch", [None, "2.99.0+cu999"])
def test_install_touches_neither_torch_nor_numpy(project, bare_python, bare_environment, tmp_path, torch):
    """In an environment with the oldest torch that is supported, or a far newer one of another kind."""
    found = {name: versions(declared())[name] for name in ("torch", "numpy", "tqdm")}
    found |= {"torch": torch} if torch else {}
    installed = tmp_path / "site-packages"
    for name, version in found.items():
        info = installed / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "INSTALLER").write_text("pip\n")
        (info / "RECORD").write_text("")
    report = tmp_path / "report.json"
    command = [bare_python, "-m", "pip", "install", "--quiet", "--dry-run", "--no-build-isolation", "--no-index"]
    none_of_this_machines = {name: value for name, value in bare_environment.items() if not name.startswith("PIP_")}
    result = subprocess.run(
        [*command, "--report", report, project],
        env=none_of_this_machines | {"PYTHONPATH": str(installed), "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    names = [item["metadata"]["name"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    assert names == ["normlab"]


def test_the_version_is_the_same_everywhere():
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert PYPROJECT["project"]["version"] == normlab.__version__ == said == newest


def test_dependencies_have_lower_bounds_only():
    for requirement in declared():
        assert [clause.operator for clause in requirement.specifier] == [">="], requirement
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"


def test_wheel_carries_data_and_records(tmp_path):
    (tmp_path / "normlab-0.0.1-py3-none-any.whl").touch()  # of a former version
    made = build_wheel.write(ROOT, tmp_path)
    assert list(tmp_path.glob("*.whl")) == [made] and made.name == f"normlab-{normlab.__version__}-py3-none-any.whl"
    shutil.unpack_archive(made, tmp_path / "unpacked", "zip")
    packed = {path.relative_to(tmp_path / "unpacked").as_posix() for path in tmp_path.rglob("normlab/**/*.*")}
    package = ROOT / "src" / "normlab"
    wanted = {path for pattern in ("**/*.py", "data/*", "records/*.json", "interview/*.json") for path in package.glob(pattern)}
    assert {path.relative_to(ROOT / "src").as_posix() for path in wanted if path.is_file()} == packed


# --- importing ------------------------------------------------------------------------------------


def test_import_is_light():
    code = "import sys, normlab; print([m for m in ('torch', 'numpy', 'matplotlib', 'IPython') if m in sys.modules])"
    assert run_python(code).stdout.strip() == "[]"


def test_plain_modules_import_without_torch():
    plain = ["page", "record", "cli", "ledger", "interview", "interview.expressions", "interview.mock", "interview.practice"]
    blocked = "import sys\nfor m in ('torch', 'numpy', 'matplotlib', 'IPython'): sys.modules[m] = None\n"
    for name in plain:
        result = run_python(blocked + f"from normlab.{name} import *")
        assert result.returncode == 0, result.stderr
    assert run_python(blocked + "import torch").returncode != 0


# --- requirements and pins ------------------------------------------------------------------------


def test_the_book_needs_no_torch():
    names = {requirement.name for requirement in requirements("requirements-book.txt")}
    assert not names & {"torch", "numpy", "matplotlib", "normlab"}
    book = next(r for r in requirements("requirements-book.txt") if r.name == "jupyter-book")
    assert book.specifier.contains("1.0.4.post1") and not book.specifier.contains("2.0.0")


def test_requirements_hold_the_package_and_its_dependencies():
    assert "-r requirements-book.txt" in lines("requirements.txt") and "-e ." in lines("requirements.txt")
    names = {requirement.name for requirement in requirements("requirements.txt")}
    assert {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]} <= names


def test_lower_bounds_are_the_same_everywhere():
    """In pyproject.toml, in requirements.txt, and among the versions that `make test-oldest` installs."""
    bounds = versions(declared())
    assert {"torch", "transformers"} <= set(bounds)
    for file in ("requirements.txt", "constraints-oldest.txt"):
        assert bounds.items() <= versions(requirements(file)).items(), file


def test_what_is_installed_is_allowed():
    for requirement in [*declared(), *(r for file in REQUIREMENT_FILES for r in requirements(file))]:
        installed = importlib.metadata.version(requirement.name)
        assert requirement.specifier.contains(installed, prereleases=True), f"{requirement}, installed {installed}"


# What is asked for and not imported under its own name: where it is used, and the word for it there.
USED_OTHERWISE = {
    "axe-playwright-python": ("tests/site/test_every_page.py", "axe_playwright_python"),
    "distributed": ("src/normlab/record.py", "dask.distributed"),
    "jupyterlab-myst": ("requirements.txt", "# … which shows the text as the book does"),
    "mypy": ("tests/test_types.py", '"mypy"'),
    "playwright": ("tests/site/conftest.py", "playwright.sync_api"),
    "setuptools": ("pyproject.toml", "setuptools.build_meta"),
}
# What is imported and comes along with something that is asked for.
COMES_WITH = {
    "IPython": "ipykernel", "cycler": "matplotlib", "dask": "distributed", "docutils": "jupyter-book", "sphinx": "jupyter-book",
    "sphinx_external_toc": "jupyter-book",
    "jsonschema": "nbformat", "jupyter_client": "ipykernel", "jupyter_server": "jupyterlab", "psutil": "ipykernel",
}  # fmt: skip


def imported() -> set[str]:
    """The first names of all imports: of the package, the notebooks, the tools, the extension and the tests."""
    texts = [path.read_text(encoding="utf-8") for path in [ROOT / "conftest.py", *_below("src", "tools", "tests", "book/_ext")]]
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts.append("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))
    found = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _below(*folders: str) -> list[Path]:
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def modules() -> dict[str, set[str]]:
    """What can be imported of each installed library."""
    found = {}
    for module, libraries in importlib.metadata.packages_distributions().items():
        for library in libraries:
            found.setdefault(canonicalize_name(library), set()).add(module)
    return found


def test_every_requirement_is_used_and_says_what_for():
    here, of = imported(), modules()
    asked = {canonicalize_name(r.name) for file in REQUIREMENT_FILES for r in requirements(file)}
    assert asked >= {canonicalize_name(r.name) for r in declared()}
    assert {name for name in asked if not of[name] & here} == set(USED_OTHERWISE)
    for name, (file, word) in USED_OTHERWISE.items():
        assert word in (ROOT / file).read_text(encoding="utf-8"), name
    for file in REQUIREMENT_FILES:
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines():
            assert re.search(r"^#|^-r |\s# ?\S", line), f"{file}: {line} says not what for"


def test_every_import_is_asked_for():
    """Or comes along with what is: pip installed it, and its maker says so."""
    of = modules()
    asked = {canonicalize_name(r.name) for file in REQUIREMENT_FILES for r in requirements(file)}
    own = {path.stem for path in _below("tools", "tests")} | {"normlab", "course", "slow_squares"}
    there = set().union(*(of[name] for name in asked)) | own | set(sys.stdlib_module_names)
    assert imported() - there == set(COMES_WITH)
    for module, library in COMES_WITH.items():
        needs = importlib.metadata.requires(library) or []
        reached = {canonicalize_name(Requirement(text).name) for text in needs}
        reached |= {canonicalize_name(Requirement(t).name) for name in reached & set(of) for t in importlib.metadata.requires(name) or []}
        assert canonicalize_name(library) in asked and any(module in of[name] for name in reached & set(of)), module


@pytest.mark.parametrize("name", [*REQUIREMENT_FILES, *CONSTRAINT_FILES])
def test_no_second_index(name):
    text = "\n".join(lines(name))
    assert not re.search(r"index-url|--find-links|^-i\b|^-f\b|://| @ ", text, re.MULTILINE)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system[0])
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("constraints", CONSTRAINT_FILES)
def test_pins_fit_the_requirements(constraints, python, system):
    """On every supported Python and system each library has at most one pin, and what we ask for has one that fits."""
    platform, platform_name, os_name = system
    environment = default_environment() | {
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": platform,
        "platform_system": platform_name,
        "os_name": os_name,
    }
    pins = {}
    for pin in requirements(constraints):
        if pin.marker is None or pin.marker.evaluate(environment):
            (clause,) = pin.specifier
            name = canonicalize_name(pin.name)
            assert clause.operator == "==" and name not in pins, pin
            pins[name] = clause.version
    for file in REQUIREMENT_FILES:
        for requirement in requirements(file):
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


# --- what is committed ----------------------------------------------------------------------------

FOREIGN = {
    "a path of one machine": r"(?<![\w.:/~}])/(?:home|root|work|Users)/[\w.-]+",
    "an index other than the default one": r"https?://[\w.-]*(?:pypi|pythonhosted|npmjs|artifactory|nexus|mirror)[\w.-]*",
    "torch's index outside the Makefile": r"download\.pytorch\.org",
}


def test_no_machine_paths_and_no_registry_hosts():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git clone")
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.suffix in (".woff2", ".png") or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{name}: {what}" for what, pattern in FOREIGN.items() if re.search(pattern, text)]
    assert found == ["Makefile: torch's index outside the Makefile"]


# --- the Makefile ---------------------------------------------------------------------------------

make = pytest.mark.skipif(shutil.which("make") is None or os.name == "nt", reason="needs make")


def fake_python(folder: Path, patch: str) -> Path:
    """An interpreter like this one, with something changed before anything else runs."""
    (folder / "sitecustomize.py").write_text(patch)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def run_make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", *REQUIREMENT_FILES):
        shutil.copy(ROOT / name, folder)
    result = subprocess.run(["make", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert not (folder / ".venv").exists()
    return result


def complaint(result: subprocess.CompletedProcess) -> str:
    """What a failed command printed, less make's own closing lines."""
    assert result.returncode != 0
    told = [line for line in (result.stdout + result.stderr).splitlines() if not line.startswith("make")]
    return "\n".join(told)


@make
@pytest.mark.parametrize("command", ["book", "test"])
@pytest.mark.parametrize(
    ("patch", "message"),
    [
        (
            "import sys; sys.version_info = (3, 9, 2, 'final', 0)",
            r"Python is too old: '.*' is 3\.9 and the book needs 3\.11 or newer; .* make book PYTHON=python3\.12",
        ),
        (  # Debian without python3-venv: the module venv is there, but not what it works with
            "import sys; sys.modules['ensurepip'] = None",
            r"Python's venv module is missing; on Debian or Ubuntu install it with: apt install python3-venv",
        ),
    ],
)
def test_make_says_what_is_wrong_with_python(tmp_path, command, patch, message):
    python = fake_python(tmp_path, patch)
    assert re.fullmatch(message, complaint(run_make(tmp_path, command, f"PYTHON={python}")))


@make
def test_make_says_that_there_is_no_python(tmp_path):
    message = complaint(run_make(tmp_path, "book", "PYTHON=python3-of-nobody"))
    assert re.fullmatch(r"Python is missing: there is no 'python3-of-nobody' here; .*", message)


def variable(name: str) -> str:
    """What the Makefile has under ``name``."""
    command = ["make", "-C", ROOT, "--no-print-directory", "PY=python", "--eval", f"tell: ; @echo '$({name})'", "tell"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@make
def test_installing_withstands_a_users_own_settings(bare_python, bare_environment, tmp_path):
    """`user = true` in pip's configuration is an error in a virtual environment."""
    (tmp_path / "pip.conf").write_text("[install]\nuser = true\n")
    command = shlex.split(variable("PIP"))
    assert command[:4] == ["python", "-m", "pip", "--disable-pip-version-check"]

    def install(*options):
        return subprocess.run(
            [bare_python, *options, "--no-index", "--dry-run", "pytest"],
            env=bare_environment | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf")},
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert "Can not perform a '--user' install" in install("-m", "pip", "install").stderr
    assert install(*command[1:]).returncode == 0


@make
@pytest.mark.parametrize("folder", ["a b", "c [1]", "#2", "100%", "%41", "Bücher", "d?e&f", "it's"])
def test_make_book_prints_an_address_that_opens(tmp_path, folder):
    """Whatever the folder is called; the build itself is replaced by one that does nothing."""
    book = tmp_path / folder
    (book / ".venv" / "bin").mkdir(parents=True)
    (book / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (book / ".venv" / "bin" / "jupyter-book").symlink_to(shutil.which("true"))
    for name in ("Makefile", "_config.yml", "_toc.yml", "constraints.txt"):
        shutil.copy(ROOT / name, book)
    for step in ("BOOK_READY", "BOOK_BUILT"):
        stamp = book / variable(step)
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    skipped = [f"--old-file={variable(step)}" for step in ("BOOK_READY", "BOOK_BUILT")]
    told = subprocess.run(["make", *skipped, "book"], cwd=book, check=True, capture_output=True, text=True).stdout
    address = urlsplit(re.search(r"^ +(file:\S+)$", told, re.MULTILINE)[1])
    assert (address.query, address.fragment) == ("", "")
    assert Path(unquote(address.path)) == book.resolve() / "_build" / "html" / "index.html"


@make
def test_no_source_of_the_book_is_a_command():
    """The folders book and notebooks bear names of commands, which would run."""
    sources = {os.path.normpath(name) if "/." not in name else name for name in variable("SOURCES").split()}
    commands = set(re.search(r"^\.PHONY: (.*)$", makefile(), re.MULTILINE)[1].split())
    assert sources & commands == set() and {"book/.", "notebooks/."} <= sources


def makefile() -> str:
    """The Makefile with its broken lines joined."""
    return (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n\t", "")


@make
def test_make_help_lists_every_command(tmp_path):
    told = run_make(tmp_path, "help").stdout
    phony = re.search(r"^\.PHONY: (.*)$", makefile(), re.MULTILINE)[1].split()
    assert set(re.findall(r"^  make (\S+)  +\S", told, re.MULTILINE)) == set(phony)


def test_readme_names_the_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for text in ("make book", "make test", "_build/html/index.html", "constraints.txt", "Colab", "CC BY 4.0", "MIT"):
        assert text in readme, text


def test_readme_links_lead_somewhere():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", readme) if "://" not in target]
    assert targets and [target for target in targets if not (ROOT / target).exists()] == []


def test_ci_runs_what_the_readme_says():
    script = ROOT / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert re.search("^export CI=true$", text, re.MULTILINE)
    commands = re.findall(r"^timed (make .*)$", text, re.MULTILINE)
    assert commands == ["make book", "make test-all"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"CI (`.ci/run`) runs {' and '.join(f'`{command}`' for command in commands)}." in readme
    subprocess.run(["bash", "-n", script], check=True)


def test_the_readme_runs_pytest_as_the_makefile_does():
    """For those without make: the same options."""
    whole = re.search(r"^WHOLE_RUN := \$\(PY\) (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for options, command in (("", "test"), (" --all", "test-all")):
        assert re.search(rf"python {re.escape(whole + options)} +# make {command}$", readme, re.MULTILINE)
