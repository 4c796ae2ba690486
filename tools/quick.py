"""What `make quick` runs: what a small edit can break, in less than a minute.

    python tools/quick.py

prints the test files: always those of texts, claims, form and links, then the changed notebooks, the changed tests, and
of every changed module the tests that bear its name. Changed is what differs from the last commit, new files included.
"""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = (
    "tests/test_house.py",
    "tests/test_notebooks_clean.py",
    "tests/test_prose_numbers.py",
    "tests/test_claims_file.py",
    "tests/test_chapters.py",
    "tests/test_explanations.py",
    "tests/site/test_files.py",
    "tests/site/test_claims_page.py",
)


def changed(root: Path) -> list[str]:
    """Files that differ from the last commit. Raises CalledProcessError outside of a git clone."""
    asked = (["diff", "--name-only", "-z", "HEAD", "--"], ["ls-files", "--others", "--exclude-standard", "-z"])
    said = [subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout for words in asked]
    return sorted({name for text in said for name in text.split("\0") if name and (root / name).is_file()})


def chosen(names: list[str], tests: list[str]) -> list[str]:
    """The files to run for the changed files ``names``; ``tests`` are all test files."""
    found = list(ALWAYS)
    for name in map(Path, names):
        if name.suffix == ".ipynb" and name.parts[0] == "notebooks":
            found.append(name.as_posix())
        elif name.as_posix() in tests:
            found.append(name.as_posix())
        elif name.suffix == ".py" and name.parts[0] in ("src", "tools", "book"):
            words = {name.stem, "_".join(name.with_suffix("").parts[-2:])}  # rmsnorm; experiments_rmsnorm
            found += [test for test in tests if Path(test).stem.removeprefix("test_") in words]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    tests = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    print(*chosen(changed(ROOT), tests))
