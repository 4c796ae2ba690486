"""The benchmark measures what it says; no timing is tested."""

import json

import pytest
import torch
from draw import normal

from normlab import bench, norms
from normlab.cost import times
from normlab.transformer import Transformer, TransformerConfig


@pytest.fixture
def ticking(monkeypatch):
    """A clock that moves only when told to, and a log of who ran."""
    now, log = [0.0], []

    def spend(name, seconds):
        def call():
            now[0] += seconds
            log.append(name)

        return call

    return lambda: now[0], spend, log


def test_contenders_take_turns_and_warm_up(ticking):
    clock, spend, log = ticking
    result = bench.race({"a": spend("a", 2.0), "b": spend("b", 3.0)}, rounds=20, warmup=1, clock=clock)
    rounds = [tuple(log[i : i + 2]) for i in range(0, len(log), 2)]
    assert len(rounds) == 21 and set(rounds) == {("a", "b"), ("b", "a")}
    assert result.times == {"a": [2.0] * 20, "b": [3.0] * 20}
    assert result.median("b") == 3.0 and result.ratio("b", "a") == 1.5


def test_a_ratio_is_taken_round_by_round():
    """In the second round the machine was ten times slower: the ratio of medians would be 1.1."""
    result = bench.Race({"a": [1.0, 10.0, 2.0], "b": [1.5, 15.0, 2.2]})
    assert result.ratio("b", "a") == 1.5


def test_tables_of_norms(monkeypatch, capsys):
    monkeypatch.setattr(bench, "_llama_norm", lambda weight: {})
    monkeypatch.setattr(bench, "_compiled_norms", lambda weight, bias: {})
    threads = torch.get_num_threads()
    bench.main(["norms", "--tokens=4", "--width=16", "--rounds=2"])
    torch.set_num_threads(threads)
    text = capsys.readouterr().out
    for words in ("x.clone()", "F.layer_norm", "fast.rms_norm", "4 × 16 float32", torch.__version__):
        assert words in text


def test_the_json_has_the_tables_that_were_printed(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "COST_SIZES", ((2**16, 8),))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(times, "peak", lambda *_, **__: 1e9)
    threads = torch.get_num_threads()
    path = tmp_path / "tables.json"
    for parts in (["counts"], ["counts", "times"]):  # the second call starts anew
        bench.main([*parts, "--width=8", "--seconds=0", "--device=cpu", f"--json={path}"])
    torch.set_num_threads(threads)
    found, text = json.loads(path.read_text("utf-8")), capsys.readouterr().out
    assert torch.__version__ in found["machine"]
    captions = [shown["caption"] for shown in found["tables"]]
    assert len(captions) == len(set(captions)) == 2 + 2 * 3 + 2
    for shown in found["tables"]:
        assert shown["caption"] in text
        for row in shown["rows"]:
            assert len(row) == len(shown["headers"]) and all(cell in text for cell in row)
    by_hand = next(row for row in found["tables"][0]["rows"] if row[0] == "RMSNorm, by hand")
    assert by_hand[1:3] == ["6", "1"]


def test_a_place_that_cannot_be_written_is_noticed_before_the_work(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "show_counts", lambda *_: pytest.fail("worked first"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        bench.main(["counts", f"--json={tmp_path / 'file' / 'tables.json'}"])


def test_without_a_gpu_the_cell_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bench.show_times_of_gpu()
    assert "CPU" in capsys.readouterr().out


def test_with_a_gpu_the_cell_measures_it(monkeypatch, capsys):
    """The device is a stand-in that has shapes and no numbers."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    shown = []
    monkeypatch.setattr(bench, "show_times", lambda on, sizes, seconds: shown.append((on.type, sizes)))
    bench.show_times_of_gpu()
    assert shown == [("cuda", ((1, 4096), (8192, 4096)))]
    monkeypatch.undo()
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(times, "bandwidth", lambda *_: 1e12)
    monkeypatch.setattr(times, "peak", lambda **_: 1e13)
    bench.show_times(torch.device("meta"), ((2**16, 8),), seconds=0.0)
    text = capsys.readouterr().out
    assert "1e+03 GB/s" in text and "meta" in text and "RMSNorm, compiled" in text


def test_the_table_of_modules_names_every_bar_and_every_miss(monkeypatch, capsys):
    """With bars at 0 all are missed, with bars at infinity none."""
    monkeypatch.setattr(bench, "SIZES", ((2, 8),))
    clock = iter(range(10**9)).__next__
    for most, words in ((0.0, "NOT MET"), (1e9, "≤ 1000000000.0")):
        monkeypatch.setattr(bench, "bar", lambda *_, most=most: most)
        assert bench.show_modules(2, clock) is (most > 0)
        text = capsys.readouterr().out
        assert words in text and ("NOT MET" in text) is (most == 0)
        assert all(ratio in text for ratio in bench.RATIOS) and "bfloat16" in text


@pytest.mark.parametrize("training", [False, True])
def test_the_modules_and_torchs_functions_agree(training, monkeypatch):
    """Or the race would be unfair."""
    seen = {}

    def keep(contenders, *_, **__):
        with torch.enable_grad() if training else torch.no_grad():
            seen.update({name: call() for name, call in contenders.items()})

    monkeypatch.setattr(bench, "race", keep)
    bench.race_modules(torch.float32, 3, 16, 1, None, training)
    for ours, theirs in (("LayerNorm", "F.layer_norm"), ("RMSNorm", "F.rms_norm")):
        torch.testing.assert_close(seen[ours], seen[theirs])


def test_the_contenders_agree(monkeypatch):
    monkeypatch.setattr(bench, "_compiled_norms", lambda weight, bias: {})
    monkeypatch.setattr(bench, "_llama_norm", lambda weight: {})
    contenders = bench.norm_contenders(48)
    x = normal(5, 48, dtype=torch.float32)
    results = {name: f(x) for name, (f, _) in contenders.items()}
    for name, y in results.items():
        torch.testing.assert_close(y, results[f"F.{name.split('.')[1]}"])


def test_without_statistics_only_the_gain_is_left():
    model = Transformer(TransformerConfig(vocab_size=11, context=8, layers=2, width=8))
    bare = bench.without_statistics(model)
    assert not any(isinstance(m, norms.RMSNorm) for m in bare.modules())
    assert sum(isinstance(m, bench.Gain) for m in bare.modules()) == 5
    assert any(isinstance(m, norms.RMSNorm) for m in model.modules())
    assert sum(p.numel() for p in bare.parameters()) == sum(p.numel() for p in model.parameters())
    ids = torch.arange(8)[None]
    assert not torch.allclose(bare(ids), model(ids))
    x = normal(3, 8, dtype=torch.float32)
    assert torch.equal(bench.Gain(torch.nn.Parameter(torch.full((8,), 2.0)))(x), 2 * x)


def test_a_training_step_changes_the_weights():
    model = Transformer(TransformerConfig(vocab_size=11, context=8, layers=1, width=8))
    before = model.head.weight.detach().clone()
    ids = torch.arange(8)[None]
    bench.training_step(model, ids, ids, True)()
    assert not torch.equal(before, model.head.weight)
