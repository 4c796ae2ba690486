"""Loaded by conftest.py: ``--all``, for all of what is alike (every copy, every chapter's page), and ``--whole``, for a run
of everything, in which nothing may be left out without a word.

Without ``--all`` the tests marked ``every`` do not run: another of their kind does.

A whole run fails if a test file or notebook contributes no test or is skipped, if a notebook contributes fewer cells than it
has, if a collected test has no result, if one is skipped for a reason that is not listed here or is expected to
fail, if a worker dies, or if the notebooks take far too long. A run of a part looks at none of this.
"""

import fnmatch
import json
import re
from collections import Counter, defaultdict

import pytest

# What a machine may lack. The libraries are pinned: a test that misses one is a mistake.
MAY_BE_SKIPPED = re.compile(
    "needs (CUDA|MPS|make)|no browser|not a git clone|this torch (has no gloo|does not autocast)|describes torch|"
    "partial RMSNorm has no fast path|torch.s kernel refuses this mix"
)
ALL_OF_IT = r"^pytestmark = pytest\.mark\.every$"  # a module that runs only with --all
# All notebooks together, in seconds of one core. Another load on the machine makes a processor second longer too,
# so the run fails only at twice the bar.
CPU_SECONDS = 360


def pytest_addoption(parser):
    parser.addoption("--all", action="store_true", help="run all of what is alike: every copy, every chapter's page")
    parser.addoption("--whole", action="store_true", help="a run of everything: fail if anything is left out")


def pytest_configure(config):
    config.addinivalue_line("markers", "every: one of many that are alike; runs only with --all")
    if config.option.whole and not hasattr(config, "workerinput"):  # not in the workers of pytest-xdist
        config.pluginmanager.register(WholeRun(config))


def pytest_collection_modifyitems(config, items):
    if not config.option.all:
        left_out = [item for item in items if item.get_closest_marker("every")]
        items[:] = [item for item in items if not item.get_closest_marker("every")]
        config.hook.pytest_deselected(items=left_out)


class WholeRun:
    """Watches a run from the process that reports it."""

    def __init__(self, config):
        self.config = config
        self.collected = set()
        self.finished = set()
        self.complaints = []
        self.seconds = defaultdict(float)

    # --- what happens ---------------------------------------------------------------------------

    def pytest_collection_finish(self, session):
        self.collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node, ids):
        self.collected.update(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        if error:
            self.complaints.append(f"worker {node.gateway.id} died: {error}")

    def pytest_collectreport(self, report):
        if report.skipped:
            self.complaints.append(f"{report.nodeid} was skipped: {_reason(report)}")

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self.finished.add(report.nodeid)
        if hasattr(report, "wasxfail"):
            self.complaints.append(f"{report.nodeid} was expected to fail: {report.wasxfail}")
        elif report.skipped and not MAY_BE_SKIPPED.search(_reason(report)):
            self.complaints.append(f"{report.nodeid} was skipped: {_reason(report)}")
        if report.when == "call":
            self.seconds[_file(report.nodeid)] += dict(report.user_properties).get("cpu_seconds", 0)

    # --- what is said at the end ----------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # stopped early, and not green
        self.complaints += self._not_collected()
        self.complaints += [f"{nodeid} has no result" for nodeid in sorted(self.collected - self.finished)]
        if self._all_seconds() > 2 * CPU_SECONDS:
            self.complaints.append(f"the notebooks took more than twice {CPU_SECONDS} s of one core")
        if self.complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self._all_seconds():
            each = ", ".join(f"{file} {s:.0f}" for file, s in sorted(self.seconds.items()) if file.endswith(".ipynb"))
            over = " TOO LONG:" if self._all_seconds() > CPU_SECONDS else ""
            terminalreporter.write_line(
                f"notebooks:{over} {self._all_seconds():.0f} of {CPU_SECONDS} s of one core ({each})"
            )
        if self.complaints:
            terminalreporter.section("this was not a whole run", red=True)
            for complaint in self.complaints:
                terminalreporter.write_line(complaint)

    def _all_seconds(self):
        return sum(self.seconds.values())

    def _not_collected(self):
        """Files below ``testpaths`` of which tests are missing."""
        found = Counter(map(_file, self.collected))
        root = self.config.rootpath
        for folder in self.config.getini("testpaths"):
            for path in sorted((root / folder).rglob("*.*")):
                file = path.relative_to(root)
                if any(part.startswith(".") for part in file.parts):
                    continue
                there, wanted = found[file.as_posix()], self._wanted(path)
                if there < wanted:
                    yield f"{file.as_posix()}: {there} tests collected, not {wanted}"
        if not any(name.endswith(".ipynb") for name in found):
            yield "no notebook cell was collected"

    def _wanted(self, path):
        """The least number of tests in a file: all code cells of a notebook, one at least, and one in a module."""
        if path.suffix == ".ipynb":
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            return max(1, sum(cell["cell_type"] == "code" for cell in cells))
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in self.config.getini("python_files")):
            return 0
        return int(self.config.option.all or not re.search(ALL_OF_IT, path.read_text(encoding="utf-8"), re.MULTILINE))


def _reason(report):
    """Why a test was skipped."""
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _file(nodeid):
    return nodeid.partition("::")[0]
