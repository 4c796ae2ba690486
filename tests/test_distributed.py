"""The same script, alone and in two gloo processes on the CPU that torchrun starts.

torch takes seconds to import in each process. So torchrun starts one of the pairs; the others, and the process that is
alone, are forked (on Linux) from one that has imported torch, with the variables that torchrun would set.
"""

import json
import os
import re
import signal
import subprocess
import sys

import pytest
import torch

from normlab.training import distributed

# Trains without knowing of other processes; `rank` only serves to tell them apart where a test needs it.
SCRIPT = r"""
import json, multiprocessing, os, signal, socket, sys
import torch
from normlab import data, training
from normlab.transformer import Transformer, TransformerConfig

folder = sys.argv[1]
corpus = data.corpus()
newline = corpus.vocabulary.index("\n")
lines = data.line_sampler(corpus.train, newline, 5, 24)  # 5 rows of unequal length for 2 processes

def fresh():  # each process with weights of its own: those of the first one have to count
    config = TransformerConfig(vocab_size=len(corpus.vocabulary), context=24, layers=2, width=16, heads=2)
    return Transformer(config, seed=int(rank == "1")).double()

def train(model, batches, **options):
    settings = {"steps": 10, "lr": 1e-2, "seed": 0, "warmup": 5, "floor": 0.1, "clip": 0.5, "weight_decay": 0.1}
    return training.train(model, batches, **{**settings, **options})

def fifty_steps():
    model = fresh()
    history = train(model, lines, steps=50)
    mask = lines(torch.Generator().manual_seed(0))[2]
    return {
        "tokens": [m.sum().item() for m in mask.tensor_split(2)],
        "loss": history.loss,
        "norm": history.gradient_norm,
        "weights": [p.sum().item() for p in model.parameters()],
    }

def targets_on_one_side():
    def batches(generator):
        inputs, targets, mask = lines(generator)
        if torch.rand((), generator=generator) < 0.5:
            targets[3:] = -100  # nothing counts in the second process
        return inputs, targets, mask
    return train(fresh(), batches).loss

def resumed():
    def stop(step, history):
        if step == 6:
            raise ZeroDivisionError
    file = f"{folder}/{'alone' if rank == 'alone' else part}.pt"
    try:
        train(fresh(), lines, checkpoint=file, save_every=5, each_step=stop)
    except ZeroDivisionError:
        pass
    steps = []
    loss = train(fresh(), lines, checkpoint=file, each_step=lambda step, history: steps.append(step)).loss
    return {"steps": steps, "loss": loss, "whole": train(fresh(), lines).loss}

def killed():
    def kill(step, history):
        if step == 6 and rank == "1":
            os.kill(os.getpid(), signal.SIGKILL)
    train(fresh(), lines, checkpoint=f"{folder}/{part}.pt", save_every=5, each_step=kill)

def after_the_kill():
    steps = []
    file = f"{folder}/killed{'_sharded' if os.environ.get('NORMLAB_SHARDED') else ''}.pt"
    loss = train(fresh(), lines, checkpoint=file, each_step=lambda step, history: steps.append(step)).loss
    return {"steps": steps, "loss": loss}

def parts_of_weights():
    model = fresh()
    train(model, lines)
    held = sum(getattr(p, "to_local", lambda: p)().numel() for p in model.parameters())
    return {
        "held": held,
        "all": sum(p.numel() for p in model.parameters()),
        "validation": training.validation_loss(model, data.sampler(corpus.train, 3, 24), count=2),
        "again": train(model, lines).loss,
    }

def nan_without_a_place():
    model = fresh()
    with torch.no_grad():
        model.token_embedding.weight.fill_(float("nan"))
    try:
        train(model, lines)
    except FloatingPointError as error:
        return str(error)

def other_world():
    try:
        train(fresh(), lines, checkpoint=f"{folder}/alone.pt")
    except ValueError as error:
        return str(error)

def no_place():
    try:
        train(fresh(), lines, checkpoint=f"{folder}/script.py/run.pt")
    except OSError as error:
        return str(error)

def disk_full_for_the_first_process():
    calls, fsync = iter(range(100)), os.fsync
    def full(descriptor):
        if next(calls) > 0 and rank != "1":
            raise OSError(28, "No space left on device")
        fsync(descriptor)
    os.fsync = full
    try:
        train(fresh(), lines, checkpoint=f"{folder}/full.pt", save_every=5)
    except training.NotSavedError as error:
        return [str(error), len(error.history.loss)]
    finally:
        os.fsync = fsync

def ctrl_c_in_one_process():
    def press(step, history):
        if step == 3 and rank in ("alone", "1"):
            signal.raise_signal(signal.SIGINT)
    history = train(fresh(), lines, each_step=press)
    return [len(history.loss), history.interrupted]

def nan_in_the_last_rows():
    model = fresh()
    with torch.no_grad():
        model.token_embedding.weight[newline] = float("nan")
    def batches(generator):
        inputs, targets = data.windows(corpus.train[corpus.train != newline], 5, 24, generator)
        inputs[-1, 7] = newline
        return inputs, targets
    try:
        train(model, batches)
    except FloatingPointError as error:
        return str(error)

def one_row():
    try:
        return train(fresh(), data.sampler(corpus.train, 1, 24)).loss
    except ValueError as error:
        return str(error)

def run(new_part, env):
    global part, rank
    os.environ.update(env)
    part, rank = new_part, os.environ.get("RANK", "alone")
    if part.startswith("killed"):
        killed()
    cases = [fifty_steps, targets_on_one_side, resumed, parts_of_weights]
    if part == "whole":
        cases += [other_world, no_place, disk_full_for_the_first_process]
        cases += [ctrl_c_in_one_process, nan_in_the_last_rows, one_row]
    else:
        cases += [ctrl_c_in_one_process, nan_without_a_place]
    if rank != "alone":
        cases += [after_the_kill]
    with open(f"{folder}/{part}-{rank}.json", "w") as file:
        json.dump({case.__name__: case() for case in cases}, file)
    training.distributed.leave()  # a fork ends without atexit

def fork(part, *environments):
    # How the processes end: 0, or what they died of. After the first death the others have 10 seconds.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    started = [context.Process(target=run, args=(part, env)) for env in environments]
    for process in started:
        process.start()
    for process in reversed(started):  # the second is the one that is killed
        process.join(120 if not any(p.exitcode for p in started) else 10)
        process.kill()
        process.join()
    return [process.exitcode for process in started]

def pair(part, **env):
    with socket.create_server(("127.0.0.1", 0)) as free:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    return fork(part, *({"RANK": rank, "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "none"} | place | env for rank in "01"))

if __name__ != "__main__":  # spawned
    pass
elif "RANK" in os.environ:  # under torchrun
    run("whole", {})
else:
    # What training imports on its way.
    import torch._dynamo, torch.distributed.checkpoint.state_dict, torch.distributed.fsdp

    ends = {
        "alone": fork("whole", {}),
        "killed": pair("killed"),
    }
    if training.distributed.shards_on_cpu():
        ends["killed_sharded"] = pair("killed_sharded", NORMLAB_SHARDED="1")
        ends["sharded"] = pair("sharded", NORMLAB_SHARDED="1")
    with open(f"{folder}/ends.json", "w") as file:
        json.dump(ends, file)
"""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="this torch has no gloo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What all processes left: their reports and checkpoints."""
    folder = tmp_path_factory.mktemp("distributed")
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")

    def start(*launcher):
        command = [sys.executable, *launcher, script, folder]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        return done.stderr

    said = start()
    ends = json.loads((folder / "ends.json").read_text("utf-8"))
    assert (ends["alone"], ends.get("sharded", [0, 0])) == ([0], [0, 0]), said
    for first, second in (end for name, end in ends.items() if name.startswith("killed")):
        assert first != 0 and second == (1 if os.name == "nt" else -signal.SIGKILL), said
    start(*TORCHRUN)  # goes on where the pair that was killed stood
    return folder


def read(folder, part, *ranks) -> tuple[dict, ...]:
    return tuple(json.loads((folder / f"{part}-{rank}.json").read_text("utf-8")) for rank in ranks)


@pytest.fixture(scope="module")
def reports(folder) -> tuple[dict, dict, dict]:
    """What the script reports alone, and in two processes that each hold the whole model (after a kill)."""
    return read(folder, "whole", "alone", "0", "1")


@pytest.fixture(scope="module")
def sharded(folder) -> tuple[dict, dict]:
    """What it reports in two processes that each hold a part of every weight (after a kill)."""
    if not distributed.shards_on_cpu():
        pytest.skip("this torch has FSDP2 for GPUs only")
    return read(folder, "sharded", "0", "1")


def close(values):
    return pytest.approx(values, rel=0, abs=1e-10)


def test_two_processes_give_the_losses_of_one(reports):
    alone, first, second = (report["fifty_steps"] for report in reports)
    assert min(alone["tokens"]) < 0.8 * max(alone["tokens"])  # the processes do not have equally many targets
    assert len(alone["loss"]) == 50 and alone["loss"][-1] < alone["loss"][0] - 0.5
    for key in ("loss", "norm", "weights"):
        assert first[key] == close(alone[key])
        assert second[key] == first[key]


def test_a_process_may_have_no_target_that_counts(reports):
    alone, first, second = (report["targets_on_one_side"] for report in reports)
    assert first == close(alone) and second == first


def test_a_checkpoint_resumes_in_all_processes(reports):
    alone, first, second = (report["resumed"] for report in reports)
    for report in (alone, first, second):
        assert report["steps"] == [5, 6, 7, 8, 9] and report["loss"] == report["whole"]
    assert first["loss"] == close(alone["loss"])


def test_a_checkpoint_of_fewer_processes_is_refused(reports):
    alone, first, second = (report["other_world"] for report in reports)
    assert alone is None
    assert "processes: 1 there, 2 here" in first and first == second


def test_a_place_that_only_the_first_process_tries_is_refused_by_all(reports):
    alone, first, second = (report["no_place"] for report in reports)
    assert "script.py is not a folder" in alone and alone == first == second


def test_a_save_that_fails_in_the_first_process_fails_in_all(reports):
    alone, first, second = (report["disk_full_for_the_first_process"] for report in reports)
    assert "full.pt: No space left on device" in alone[0] and alone[1] == 10 and alone == first == second


def test_ctrl_c_in_one_process_stops_all_after_the_same_step(reports):
    assert [report["ctrl_c_in_one_process"] for report in reports] == [[4, True]] * 3


def test_nan_is_found_by_the_process_that_has_it(reports):
    alone, first, second = (report["nan_in_the_last_rows"] for report in reports)
    culprit = "the output of token_embedding (Embedding, whose weight is not finite)"
    assert alone == f"the loss became nan at step 0; the first that is not finite: {culprit}"
    assert second == alone.replace(":", " (as process 1 of 2 sees it):")
    assert "process 0 of 2" in first and culprit not in first


def test_fewer_rows_than_processes_are_refused(reports):
    alone, first, second = (report["one_row"] for report in reports)
    assert len(alone) == 10
    assert first == second == "a batch of 1 rows cannot be shared among 2 processes"


def test_one_process_needs_no_world():
    world = distributed.join(torch.device("cpu"))
    assert (world.rank, world.size) == (0, 1) and not torch.distributed.is_initialized()
    assert world.gather("x") == ["x"] and world.any(True) and not world.any(False)


def test_after_a_kill_the_same_command_goes_on(reports):
    alone, first, second = reports
    for report in (first, second):
        assert report["after_the_kill"]["steps"] == [5, 6, 7, 8, 9]
        assert report["after_the_kill"]["loss"] == first["resumed"]["whole"]


def test_sharded_processes_give_the_losses_of_one(reports, sharded):
    alone = reports[0]
    for report in sharded:
        assert report["fifty_steps"]["loss"] == close(alone["fifty_steps"]["loss"])
        assert report["fifty_steps"]["norm"] == close(alone["fifty_steps"]["norm"])
        assert report["targets_on_one_side"] == close(alone["targets_on_one_side"])
        assert report["ctrl_c_in_one_process"] == [4, True]


def test_sharded_processes_hold_half_of_the_weights_each(reports, sharded):
    assert reports[1]["parts_of_weights"]["held"] == reports[1]["parts_of_weights"]["all"]
    first, second = (report["parts_of_weights"] for report in sharded)
    assert first["held"] + second["held"] == first["all"] and 0.4 < first["held"] / first["all"] < 0.6
    for report in (first, second):  # the model can be evaluated, and trained once more
        for key in ("validation", "again"):
            assert report[key] == close(reports[0]["parts_of_weights"][key])


def test_a_sharded_run_resumes_in_all_processes_after_a_kill_too(reports, sharded):
    for report in sharded:
        assert report["resumed"]["steps"] == [5, 6, 7, 8, 9] and report["resumed"]["loss"] == report["resumed"]["whole"]
        assert report["after_the_kill"] == {"steps": [5, 6, 7, 8, 9], "loss": report["resumed"]["whole"]}
        assert report["resumed"]["whole"] == close(reports[0]["resumed"]["whole"])


def test_a_sharded_run_says_that_it_does_not_look_for_the_place(sharded):
    for report in sharded:
        assert report["nan_without_a_place"].startswith("the loss became nan at step 0; the first that is not finite")
        assert "not looked for, since the weights are spread over the processes" in report["nan_without_a_place"]


def test_a_wrong_word_for_sharding(monkeypatch):
    monkeypatch.setenv("NORMLAB_SHARDED", "yes")
    with pytest.raises(ValueError, match="NORMLAB_SHARDED must be 0 or 1, got 'yes'"):
        distributed.join(torch.device("cpu"))


def test_a_torch_that_spreads_weights_on_gpus_only_is_named(monkeypatch):
    monkeypatch.setenv("NORMLAB_SHARDED", "1")
    monkeypatch.setattr(torch.cpu, "Stream", object)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(RuntimeError, match=f"torch {re.escape(torch.__version__)} cannot spread weights .* on a CPU"):
        distributed.join(torch.device("cpu"))
