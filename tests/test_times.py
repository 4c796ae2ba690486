"""Times: who is called how often and when the clock is read. No timing is tested."""

import pytest
import torch

from normlab import cost
from normlab.cost import times

TOKENS = 2**16  # of width 8: so many that one call is a turn


@pytest.fixture
def no_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda *_, **__: _raise)


def _raise(*_):
    raise RuntimeError("no compiler")


def test_quartiles_of_seconds_and_of_ratios():
    result = times.Race({"a": [2.0, 4.0, 6.0, 8.0, 10.0], "b": [1.0, 1.0, 2.0, 2.0, 5.0]})
    assert result.quartiles("a") == (4.0, 6.0, 8.0)
    assert result.quartiles("a", "b") == (2.0, 3.0, 4.0)  # of 2, 4, 3, 4, 2


def test_one_round_has_no_spread():
    assert times.Race({"a": [2.0]}).quartiles("a") == (2.0, 2.0, 2.0)


def test_the_clock_waits_for_the_device():
    """A GPU is only told what to do; the time is that until it is done."""
    now, told = [0.0], []

    def wait():
        now[0] += sum(told)
        told.clear()

    result = times.race({"a": lambda: told.append(3.0)}, 4, calls=2, clock=lambda: now[0], wait=wait)
    assert result.times["a"] == [3.0] * 4


def test_waiter_knows_cuda(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("cuda"))
    times.waiter("cuda")()
    times.waiter("cpu")()
    assert calls == ["cuda"]


def test_rounds_follow_from_the_seconds():
    now = [0.0]

    def spend():
        now[0] += 0.01

    for seconds, rounds in ((0.2, 20), (0.0, 5), (1e6, 101)):
        assert len(times.race_for(seconds, {"a": spend}, clock=lambda: now[0]).times["a"]) == rounds


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_all_implementations_race_on_any_device(training, device, no_compiler):
    """meta stands for an accelerator: whatever is left on the CPU fails there."""
    result = times.race_norms(TOKENS, 8, torch.bfloat16, training, device, seconds=0.0)
    assert set(result.times) == {"x.clone()", *cost.implementations(8)}
    addition = times.race_addition(TOKENS, 8, torch.float32, device, seconds=0.0)
    assert set(addition.times) == {"x.clone()", *(f"+, {name}" for name in cost.implementations(8))}


def test_compiled_norms_join_where_there_is_a_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    result = times.race_norms(TOKENS, 8, seconds=0.0)
    assert {"LayerNorm, compiled", "RMSNorm, compiled"} < set(result.times)
    assert "+, RMSNorm, compiled" in times.race_addition(TOKENS, 8, seconds=0.0).times


def test_an_addition_keeps_both_results():
    x, update = torch.ones(2, 8), torch.full((2, 8), 2.0)
    total, normed = cost.add_and_norm(lambda t: t * 10, x, update)
    assert (total == 3).all() and (normed == 30).all()


def test_the_machine_has_a_speed_and_no_name():
    assert times.bandwidth(1 << 10, rounds=1) > 0 < times.peak(16, rounds=1)
    assert torch.__version__ in times.machine()
