"""Checkpoint files: what is damaged, foreign or old is refused by name; what cannot be written costs no work."""

import errno
import hashlib
import os
import pickle
import random
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from normlab import data, files, training
from normlab.training import checkpoint

SETTINGS = {"steps": 6, "lr": 1e-2, "seed": 0, "save_every": 2}


def classifier(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2))


def points():
    generator = torch.Generator().manual_seed(5)
    return data.rows(torch.randn(40, 3, generator=generator), torch.arange(40) % 3, 4)


def train(model, path, **options):
    return training.train(model, options.pop("batches", points()), **{**SETTINGS, "checkpoint": path, **options})


def state(model):
    return {name: t.clone() for name, t in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The content of a checkpoint after 4 of 6 steps, and the settings that it is read with."""
    path = tmp_path_factory.mktemp("good") / "run.pt"

    class Killed(Exception):
        pass

    def kill(step, history):
        if step == 4:
            raise Killed

    with pytest.raises(Killed):
        train(classifier(), path, each_step=kill)
    content = path.read_bytes()
    settings = checkpoint._from_bytes(content[content.index(b"\n") + 1 :])["settings"]
    assert len(checkpoint.load(path, settings)["history"]["loss"]) == 4
    return content, settings


@pytest.fixture
def run_file(tmp_path):
    return tmp_path / "run.pt"


def refusal(path, settings):
    """The message with which a file is refused: one line with its name."""
    with pytest.raises(ValueError) as error:
        checkpoint.load(path, settings)
    assert type(error.value) is ValueError and str(path) in str(error.value)
    assert "Move it away, or choose another file." in str(error.value) and "\n" not in str(error.value)
    return str(error.value)


def refused(path, content, settings):
    path.write_bytes(content)
    return refusal(path, settings)


# --- damaged ---------------------------------------------------------------------------------------------------------


def test_cut_off_at_any_byte(good, run_file):
    content, settings = good
    run_file.write_bytes(content)
    for size in reversed(range(len(content))):
        os.truncate(run_file, size)  # much faster than writing it anew
        assert ("it is cut off" if size else "it is empty") in refusal(run_file, settings), size


def test_one_flipped_bit_anywhere(good, run_file):
    """Each bit of the head, one bit of each byte of the rest."""
    content, settings = good
    run_file.write_bytes(content)
    draw, head = random.Random(0), content.index(b"\n") + 1
    with open(run_file, "r+b", buffering=0) as file:
        for at, byte in enumerate(content):
            for bit in range(8) if at < head else [draw.randrange(8)]:
                file.seek(at)
                file.write(bytes([byte ^ 1 << bit]))
                message = refusal(run_file, settings)
                assert at < head or "it is damaged" in message, (at, bit)
            file.seek(at)
            file.write(bytes([byte]))
    assert checkpoint.load(run_file, settings)


def test_something_added_or_exchanged(good, run_file):
    content, settings = good
    half = len(content) // 2
    for other in (content + b"\0", content + content, content[1:], content[:half] + bytes(len(content) - half)):
        refused(run_file, other, settings)


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_training_refuses_and_touches_nothing(good, run_file, place):
    content, _ = good
    at = int(place * len(content))
    for damaged in (content[:at], content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :]):
        run_file.write_bytes(damaged)
        model = classifier(seed=1)
        before, numbers = state(model), torch.get_rng_state()
        with pytest.raises(ValueError, match="run.pt is not a checkpoint to resume from: it is"):
            train(model, run_file)
        assert same(model, before) and torch.equal(torch.get_rng_state(), numbers)
        assert run_file.read_bytes() == damaged


def test_a_flipped_bit_in_a_weight_does_not_resume(good, run_file):
    """The whole file stays readable by torch: only the digest knows."""
    content, settings = good
    stored = checkpoint._from_bytes(content[content.index(b"\n") + 1 :])["model"]["0.weight"].numpy().tobytes()
    at = content.index(stored)
    damaged = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    assert "it is damaged" in refused(run_file, damaged, settings)


# --- foreign or old --------------------------------------------------------------------------------------------------


def with_head(payload, version=checkpoint.FORMAT):
    """A checkpoint whose digest is right, whatever is in it."""
    return (
        f"normlab checkpoint, format {version:04}, {len(payload):015} bytes, "
        f"sha256 {hashlib.sha256(payload).hexdigest()}\n"
    ).encode() + payload


def torch_file(content):
    return checkpoint._to_bytes(content)


def test_the_head_is_as_the_tests_write_it(good):
    content, _ = good
    assert with_head(content[content.index(b"\n") + 1 :]) == content


@pytest.mark.parametrize("lacking", checkpoint.PARTS)
@pytest.mark.parametrize("headless", [True, False], ids=["format 1", "format 2"])
def test_an_older_version(good, run_file, lacking, headless):
    content, settings = good
    parts = checkpoint._from_bytes(content[content.index(b"\n") + 1 :])
    assert set(parts) == set(checkpoint.PARTS)
    del parts[lacking]
    old = torch_file(parts) if headless else with_head(torch_file(parts))
    assert ("of an older version" if headless else f"it lacks {lacking}.") in refused(run_file, old, settings)


@pytest.mark.parametrize("part, name", [("history", "lr"), ("history", "new"), ("before_draw", "generator")])
def test_parts_of_another_version(good, run_file, part, name):
    content, _ = good
    parts = checkpoint._from_bytes(content[content.index(b"\n") + 1 :])
    if name == "new":
        parts[part][name] = []
    elif part == "history":
        parts[part]["step"] = parts[part].pop(name)
    else:
        del parts[part][name]
    run_file.write_bytes(with_head(torch_file(parts)))
    with pytest.raises(ValueError, match="run.pt is not a checkpoint.* of another version of normlab"):
        train(classifier(), run_file)


def test_another_format(good, run_file):
    content, settings = good
    newer = with_head(content[content.index(b"\n") + 1 :], version=3)
    assert "has format 3, and this version of normlab reads 2" in refused(run_file, newer, settings)


class Code:
    """Unpickling it runs code: it leaves a file."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("wrap", [bytes, with_head], ids=["bare", "with a right digest"])
@pytest.mark.parametrize("pack", [pickle.dumps, torch_file], ids=["pickle", "torch"])
def test_code_is_not_run(good, run_file, tmp_path, pack, wrap):
    _, settings = good
    trace = tmp_path / "trace"
    message = refused(run_file, wrap(pack(Code(trace))), settings)
    assert not trace.exists() and "weights_only" not in message  # torch's message says how to run it


FOREIGN = {
    "nothing": b"",
    "text": b"nothing of the kind\n",
    "zeros": bytes(5000),
    "weights": torch_file({"weights": torch.ones(2)}),
    "a tensor": torch_file(torch.ones(2)),
    "a tensor with a head": with_head(torch_file(torch.ones(2))),
    "a whole model": torch_file(torch.nn.Linear(2, 2)),
    "a whole model with a head": with_head(torch_file(torch.nn.Linear(2, 2))),
    "text with a head": with_head(b"nothing of the kind"),
    "nothing with a head": with_head(b""),
    "the old way of torch.save": pickle.dumps({"settings": {}}),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_file(good, run_file, content):
    refused(run_file, content, good[1])


def test_a_folder_and_what_is_no_file(tmp_path):
    for path in [tmp_path, *(["/dev/zero"] if os.path.exists("/dev/zero") else [])]:
        with pytest.raises(ValueError, match=f"{path} is not a checkpoint .*: it is (a folder|not an ordinary file)"):
            train(classifier(), path)


@pytest.mark.parametrize("problem", [errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read(good, run_file, monkeypatch, problem):
    content, settings = good

    def fail(path, mode):
        raise OSError(problem, os.strerror(problem), path)

    monkeypatch.setattr(checkpoint, "open", fail, raising=False)
    assert os.strerror(problem) in refused(run_file, content, settings)


# --- what cannot be written ------------------------------------------------------------------------------------------


def fail_from(call, until=10**6):
    """An ``os.fsync`` that finds the disk full from its ``call``-th call on; the first one tries the place."""
    calls, fsync = iter(range(10**6)), os.fsync

    def sync(descriptor):
        if call <= next(calls) < until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    return sync


def never(generator):
    raise AssertionError("a batch was drawn")


def test_a_place_that_cannot_be_written_is_refused_before_the_first_step(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    model = classifier()
    before = state(model)
    with pytest.raises(files.NotWrittenError, match=f"cannot write {tmp_path}/file/run.pt: .* is not a folder"):
        train(model, tmp_path / "file" / "run.pt", batches=never)
    monkeypatch.setattr(os, "fsync", fail_from(0))
    with pytest.raises(OSError, match=f"cannot write {tmp_path}/new/run.pt: No space left on device"):
        train(model, tmp_path / "new" / "run.pt", batches=never)
    assert same(model, before)


def test_the_space_for_weights_and_moments_is_asked_for(run_file, monkeypatch):
    model, asked = classifier(), []
    model[0].bias.requires_grad_(False)
    monkeypatch.setattr(files, "check_writable", lambda path, size: asked.append(size))
    for optimizer in ("adamw", "sgd"):
        train(model, run_file.with_suffix(f".{optimizer}"), optimizer=optimizer)
    weights = 4 * (12 + 4 + 4 + 4)
    assert asked == [3 * weights - 2 * 4 * 4, weights]


def test_before_a_resumed_run_goes_on_the_place_is_tried(good, run_file, monkeypatch):
    run_file.write_bytes(good[0])
    monkeypatch.setattr(os, "fsync", fail_from(0))
    steps = []
    with pytest.raises(files.NotWrittenError, match="run.pt: No space"):
        train(classifier(), run_file, each_step=lambda step, history: steps.append(step))
    assert not steps and run_file.read_bytes() == good[0]


def test_a_finished_run_needs_no_place(run_file, monkeypatch):
    history = train(classifier(), run_file)
    monkeypatch.setattr(os, "fsync", fail_from(0))
    assert train(classifier(seed=1), run_file) == history


def test_a_save_that_fails_on_the_way_costs_nothing(good, run_file, monkeypatch):
    """The disk is full at the save after step 4 and free again after step 6."""
    whole, model, contents = classifier(), classifier(), []
    torch.manual_seed(3)
    expected = training.train(whole, points(), **SETTINGS)
    torch.manual_seed(3)
    monkeypatch.setattr(os, "fsync", fail_from(2, until=3))
    words = "cannot write .*run.pt: No space left on device. The run goes on after step 4"
    with pytest.warns(UserWarning, match=words):
        history = train(model, run_file, each_step=lambda step, history: contents.append(read(run_file)))
    assert history == expected and same(model, whole.state_dict())
    assert contents[2] == contents[5] is not None  # the checkpoint of step 2 stood until the last one was written
    run_file.write_bytes(contents[5])
    assert len(checkpoint.load(run_file, good[1])["history"]["loss"]) == 2


def read(path):
    return path.read_bytes() if path.exists() else None


@pytest.mark.parametrize("stop", [None, 2])
def test_the_last_save_fails(run_file, monkeypatch, stop):
    """At the end, or after Ctrl-C: an error, which has the history; the model has its last state."""

    def press(step, history):
        if step == stop:
            signal.raise_signal(signal.SIGINT)

    whole, model = classifier(), classifier()
    torch.manual_seed(3)
    expected = training.train(whole, points(), each_step=press, **SETTINGS)
    torch.manual_seed(3)
    monkeypatch.setattr(os, "fsync", fail_from(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(training.NotSavedError, match="run.pt: No space left") as error:
            train(model, run_file, each_step=press)
    assert error.value.history == expected and expected.interrupted == (stop is not None)
    assert same(model, whole.state_dict())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    copied = pickle.loads(pickle.dumps(error.value))
    assert copied.history == expected and str(copied) == str(error.value)
    # The checkpoint of step 2 is whole, and leads to the same end.
    monkeypatch.undo()
    again, full = classifier(seed=1), classifier()
    torch.manual_seed(3)
    rest = training.train(full, points(), **SETTINGS)
    assert train(again, run_file) == rest and same(again, full.state_dict())


# --- what could be written but not read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "numbers",
    [
        {"lr": np.float64(0.01), "weight_decay": np.float32(0), "clip": np.float64(1), "floor": np.float64(0.5)},
        {"steps": np.int64(6), "seed": np.int32(0), "warmup": np.int64(2)},
        {"lr": torch.tensor(0.01), "seed": torch.tensor(0), "betas": [np.float64(0.9), torch.tensor(0.95)]},
    ],
)
def test_numbers_of_numpy_and_torch_resume(run_file, numbers):
    def stop(step, history):
        if step == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train(classifier(), run_file, each_step=stop, **numbers)
    torch.manual_seed(0)
    assert len(train(classifier(), run_file, **numbers).loss) == 6
    plain = {k: [float(b) for b in v] if k == "betas" else v.item() for k, v in numbers.items()}
    assert len(train(classifier(), run_file, **plain).loss) == 6


@pytest.mark.parametrize("kept", [np.float64(1), lambda: 1, Path("a")], ids=["numpy", "lambda", "object"])
def test_batches_whose_state_could_not_be_read_again(run_file, kept):
    class Batches:
        def __call__(self, generator):
            never(generator)

        def state_dict(self):
            return {"kept": kept}

        def load_state_dict(self, state):
            pass

    with pytest.raises(ValueError, match=r"what batches.state_dict\(\) returns holds what a checkpoint cannot hold"):
        train(classifier(), run_file, batches=Batches())
    assert not run_file.exists()
