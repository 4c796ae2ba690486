"""A record made on a Dask cluster: a scheduler and two workers, each a process, one of which is killed on the way."""

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from normlab import record

# Runs that tell which process they are in. They stand in a module of their own, which the workers import.
SLOW = """
import os, time

def square(seed):
    with open(os.environ["STARTED"], "a") as file:
        file.write(f"{seed} {os.getpid()}\\n")
    time.sleep(0.5)
    return {"square": seed**2, "process": os.getpid()}
"""


@contextmanager
def processes(*commands, env):
    """Programs that run in the background until the block ends."""
    started = [subprocess.Popen(c, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in commands]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened for a minute"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Address of a scheduler, and its two workers by process number."""
    (tmp_path / "slow_squares.py").write_text(SLOW, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "STARTED": str(tmp_path / "started"),
        "OMP_NUM_THREADS": "1",
    }
    dask = [sys.executable, "-m", "dask"]
    file = tmp_path / "scheduler.json"
    scheduler = [*dask, "scheduler", "--host=127.0.0.1", "--port=0", "--no-dashboard", f"--scheduler-file={file}"]
    worker = [*dask, "worker", f"--scheduler-file={file}", "--nthreads=1", "--no-nanny", "--no-dashboard"]
    worker += [f"--local-directory={tmp_path}"]
    with processes(scheduler, env=env):
        wait_for(file.exists)
        address = json.loads(file.read_text())["address"]
        with processes(worker, worker, env=env) as workers:
            from dask.distributed import Client

            with Client(address) as client:
                client.wait_for_workers(2, timeout=60)
            yield address, {process.pid: process for process in workers}


def recipe(seeds):
    from slow_squares import square

    return record.Recipe("squares", "for the test", record.grid(seed=range(seeds)), square)


def test_a_worker_is_killed_and_nothing_is_lost_or_kept_twice(cluster, tmp_path, monkeypatch, capsys):
    address, workers = cluster
    started = tmp_path / "started"
    folder = tmp_path / "records"
    folder.mkdir()
    killed = []

    def kill_one(line):
        if not killed and line.startswith("[2/"):
            running = [int(pid) for _, pid in map(str.split, started.read_text().splitlines())]
            killed.append(running[-1])
            workers[running[-1]].kill()

    with record.dask_client(address) as client:
        path = record.make(recipe(10), folder, log=kill_one, cluster=client)
    runs = json.loads(path.read_text())["runs"]
    assert [(r["setting"]["seed"], r["result"]["square"]) for r in runs] == [(s, s * s) for s in range(10)]
    assert killed and {r["result"]["process"] for r in runs} <= set(workers)
    starts = started.read_text().splitlines()
    # What died with its worker began once more, on the other one: the run that it was in, and those whose results had
    # not been fetched, one on a quiet machine. No process did anything twice.
    assert len(starts) > 10 and len(set(starts)) == len(starts)
    assert {int(line.split()[1]) for line in starts[-4:]} == set(workers) - set(killed)

    monkeypatch.setattr(record, "recipes", lambda: {"squares": recipe(12)})
    monkeypatch.setattr(record, "FOLDER", folder)
    assert record.main(["squares", "--dask", address]) == 0  # the same command goes on where it stood
    assert "squares: 10 of 12 runs are there already" in capsys.readouterr().out
    assert len(started.read_text().splitlines()) == len(starts) + 2


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nowhere://x", "127.0.0.1:http"])
def test_no_scheduler_there(address, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(record, "recipes", lambda: {"squares": record.Recipe("squares", "", [{"seed": 0}], dict)})
    monkeypatch.setattr(record, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "SCHEDULER_SECONDS", 1)
    assert record.main(["squares", "--dask", address]) == 2
    assert capsys.readouterr().err.startswith(f"normlab record: no Dask scheduler answers at {address!r} (")
