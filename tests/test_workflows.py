"""The workflows call what exists here: make targets, the CI script, files. What runs on GitHub itself cannot be tried."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
# Beside the file that a target writes stands the target.
WRITTEN = {"offline": "_build/two-knobs-offline.zip", "deck": "_build/two-knobs.apkg", "sheet": "_build/two-knobs-sheet.pdf"}


def workflow(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict]:
    return [step for job in workflow(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> list[list[str]]:
    """The words of all commands, less what GitHub puts in."""
    runs = [re.sub(r"\$\{\{.*?\}\}", "x", step["run"]).replace("\\\n", " ") for step in steps(path) if "run" in step]
    return [shlex.split(line) for run in runs for line in run.splitlines()]


def test_there_is_one_for_each_purpose():
    assert {path.stem for path in FILES} == {"tests", "site", "colab", "weekly", "release"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_workflow_is_well_formed(path):
    found = workflow(path)
    assert found["name"] == path.stem and found[True]  # YAML reads the key "on" as true
    assert "contents" in found["permissions"], "the token may do no more than it must"
    for job in found["jobs"].values():
        assert job["runs-on"] and job["steps"][0]["uses"].startswith("actions/checkout@")
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[\w-]+@v\d+", step.get("uses", "actions/checkout@v1"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_workflow_runs_exists(path):
    ran = commands(path)
    for words in ran:
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS and len(words) == 2, words
        elif "/" in words[0]:
            assert (ROOT / words[0]).is_file(), words
        for option in words:
            name = option.removeprefix("--ignore=")
            if words[0] == "python" and re.fullmatch(r"[\w./-]+\.txt|tests.*", name):
                assert (ROOT / name).exists(), words
    assert any(words[0] in ("make", ".ci/run", "python") for words in ran)


def test_a_release_holds_what_its_targets_write():
    (release,) = (path for path in FILES if path.stem == "release")
    ran = commands(release)
    assert {words[1] for words in ran if words[0] == "make"} == {*WRITTEN, "wheel"}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:.*\n\t.* {re.escape(name)}$", makefile, re.MULTILINE) for target, name in WRITTEN.items())
    published = next(words for words in ran if words[:3] == ["gh", "release", "create"])
    given = {word for word in published if word.startswith("_build/")}
    assert given == {*WRITTEN.values(), "_build/wheel/*.whl", "_build/html/book/claims.json"}


def test_the_package_is_tested_on_three_systems():
    (tests,) = (path for path in FILES if path.stem == "tests")
    assert [name.split("-")[0] for name in workflow(tests)["jobs"]["package"]["strategy"]["matrix"]["system"]] == [
        "ubuntu", "macos", "windows",
    ]  # fmt: skip
