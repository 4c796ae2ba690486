"""Loaded by conftest.py: how ``pytest -n`` spreads tests over workers, file by file and the heaviest files first.

The cells of a notebook share a kernel and the tests of a file their fixtures, so that a file stays on one worker. A
worker that begins a long file last would keep the others waiting.
"""

from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

# The longest files in order, after the notebooks: 60 to 10 seconds of one core.
HEAVY = [
    "tests/site/test_every_page.py",
    "tests/site/test_browser.py",
    "tests/test_guard.py",
    "tests/test_doctor_healthy.py",
    "tests/test_experiments_placement_trained.py",
    "tests/test_types.py",
    "tests/test_distributed.py",
    "tests/test_contributing.py",
    "tests/test_inspect.py",
    "tests/test_inspect_models.py",
    "tests/site/test_small_books.py",
    "tests/site/test_incremental.py",
    "tests/site/test_stopped.py",
]
PARSING = ("files", "reading", "slimming", "claims_page", "question_pages", "practice_pages", "api_page", "takeaway_page")
# Files that import the same large parts of a library, or parse the same pages, for which a worker takes up to half a
# minute: one has them all.
TOGETHER = {
    "tests/test_census.py": "all of transformers",
    "tests/test_inspect_models.py": "all of transformers",
    "tests/test_doctor_healthy.py": "all of transformers",
    "tests/test_across_tokens.py": "torch.compile",
    "tests/test_fast.py": "torch.compile",
    "tests/test_transformer.py": "torch.compile",
    **dict.fromkeys((f"tests/site/test_{name}.py" for name in PARSING), "pages, parsed"),
}
# Tests as long as a whole file, which share nothing with the rest of theirs.
APART = ["tests/test_standalone.py::test_runs_elsewhere"]


class ByFile(LoadScopeScheduling):
    """Hands out files as they were collected, those of `TOGETHER` at once, and the tests of `APART` one by one."""

    def _split_scope(self, nodeid):
        file = nodeid.partition("::")[0]
        return nodeid if nodeid.startswith(tuple(APART)) else TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") == "load":  # what -n means by default
        config.option.loadscopereorder = False  # not by their number of tests
        return ByFile(config, log)


def pytest_collection_modifyitems(config, items):
    if hasattr(config, "workerinput"):
        items.sort(key=_rank)


def _rank(item):
    file = item.nodeid.partition("::")[0]
    if file.endswith(".ipynb"):
        return 0, -Path(item.path).stat().st_size
    if item.nodeid.startswith(tuple(APART)):
        return 1, 0
    return 2, HEAVY.index(file) if file in HEAVY else len(HEAVY)
