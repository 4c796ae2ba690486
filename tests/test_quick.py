"""`make quick` runs what an edit can break: always the same texts' tests, and those of what changed."""

import subprocess
from pathlib import Path

import pytest
import quick

ROOT = Path(__file__).resolve().parents[1]
GIT = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
TESTS = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]


def test_the_files_that_run_always_exist():
    assert set(quick.ALWAYS) <= set(TESTS)


@pytest.mark.parametrize(
    ("changed", "more"),
    [
        ([], []),
        (["book/intro.md", "README.md"], []),
        (["notebooks/05_placement.ipynb"], ["notebooks/05_placement.ipynb"]),
        (["src/normlab/norms.py"], ["tests/test_norms.py"]),
        (["src/normlab/experiments/rmsnorm.py"], ["tests/test_experiments_rmsnorm.py"]),
        (["book/_ext/course/repository.py"], ["tests/site/test_repository.py"]),
        (["tools/quick.py", "tests/test_quick.py"], ["tests/test_quick.py"]),
        (["tests/test_house.py", "tests/tiny_models.py"], []),
    ],
)
def test_what_changed_is_run_as_well(changed, more):
    assert quick.chosen(changed, TESTS) == [*quick.ALWAYS, *more]


def test_changed_files_are_those_that_git_sees(tmp_path):
    subprocess.run([*GIT, "init"], cwd=tmp_path, check=True, capture_output=True)
    for name in ("kept", "edited", "removed", "a b"):
        (tmp_path / name).write_text("1")
    (tmp_path / ".gitignore").write_text("ignored\n")
    for words in (["add", "."], ["commit", "-m", "first"]):
        subprocess.run([*GIT, *words], cwd=tmp_path, check=True, capture_output=True)
    for name in ("edited", "a b", "new", "ignored"):
        (tmp_path / name).write_text("2")
    (tmp_path / "removed").unlink()
    assert quick.changed(tmp_path) == ["a b", "edited", "new"]
