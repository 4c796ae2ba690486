"""Which device and which 16-bit type are taken, on a table of faked GPUs; none is needed here."""

import contextlib
import re
import warnings

import pytest
import torch

from normlab import device, record

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")

# Card, compute capability, whether this is AMD's build, the type to train in. The capabilities are those of NVIDIA's
# list of cards; bfloat16 came with 8.0.
CARDS = [
    ("P100", (6, 0), False, torch.float16),
    ("V100", (7, 0), False, torch.float16),
    ("T4", (7, 5), False, torch.float16),
    ("A100", (8, 0), False, torch.bfloat16),
    ("RTX 3090", (8, 6), False, torch.bfloat16),
    ("L4", (8, 9), False, torch.bfloat16),
    ("H100", (9, 0), False, torch.bfloat16),
    ("B200", (10, 0), False, torch.bfloat16),
    ("an AMD card, numbered otherwise", (7, 5), True, torch.bfloat16),
]


class Gpu:
    """A machine with one GPU, played on the CPU: ``torch.ones`` on it gives tensors whose products autocast.

    Like torch 2.6 and later it says that it supports bfloat16, on a card that only emulates it too.
    """

    def __init__(self, monkeypatch, kind="cuda", capability=(8, 0), hip=False, autocasts=(torch.bfloat16, torch.float16)):
        self.capability, self.autocasts, self.dtype, self.asked, self.failure = capability, autocasts, torch.float32, [], None
        monkeypatch.delenv("NORMLAB_DEVICE", raising=False)
        monkeypatch.delenv("NORMLAB_LARGER", raising=False)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: kind == "cuda")
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: kind == "mps")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda where: self.capability)
        monkeypatch.setattr(torch.version, "hip", "6.2" if hip else None)
        monkeypatch.setattr(torch, "autocast", self.autocast)
        self.ones = torch.ones
        monkeypatch.setattr(torch, "ones", self.on_device)

    @contextlib.contextmanager
    def autocast(self, kind, dtype):
        self.dtype = dtype if dtype in self.autocasts else torch.float32
        yield
        self.dtype = torch.float32

    def on_device(self, *shape, device):
        if torch.device(device).type == "cpu":
            return self.ones(*shape)
        if self.failure:
            raise self.failure
        self.asked.append(torch.device(device))
        return Matrix(self)


class Matrix:
    def __init__(self, gpu):
        self.gpu = gpu

    def __matmul__(self, other):
        return torch.full((8, 8), 8.0, dtype=self.gpu.dtype)


# --- the 16-bit type ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("card, capability, hip, wanted", CARDS, ids=[card[0] for card in CARDS])
def test_the_half_type_is_one_that_the_card_computes_in(monkeypatch, card, capability, hip, wanted):
    Gpu(monkeypatch, capability=capability, hip=hip)
    assert torch.cuda.is_bf16_supported()  # which is not what is asked
    assert device.half_type(CUDA) is wanted
    assert device.supports_autocast(CUDA, torch.bfloat16) is (wanted is torch.bfloat16)
    assert device.supports_autocast(CUDA, torch.float16)


@pytest.mark.parametrize("autocasts, wanted", [((torch.float16,), torch.float16), ((), None)])
def test_the_half_type_where_autocast_is_poor(monkeypatch, autocasts, wanted):
    Gpu(monkeypatch, kind="mps", autocasts=autocasts)
    assert device.half_type(MPS) is wanted


def test_the_half_type_of_this_processor_is_one_that_it_computes_in():
    chosen = device.half_type(CPU)
    assert chosen is None or device.supports_autocast(CPU, chosen)


# --- the device ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_chapters_train_on_the_cpu_with_a_gpu_in_the_machine(monkeypatch, kind):
    gpu = Gpu(monkeypatch, kind)
    assert device.pick() == CPU and gpu.asked == []
    assert device.fastest() == torch.device(kind)
    monkeypatch.setenv("NORMLAB_LARGER", "1")
    assert device.pick() == torch.device(kind)
    monkeypatch.setenv("NORMLAB_DEVICE", "cpu")  # what is named goes first
    assert device.pick() == CPU
    monkeypatch.setenv("NORMLAB_LARGER", "0")
    monkeypatch.setenv("NORMLAB_DEVICE", kind)
    assert device.pick() == torch.device(kind)


def test_every_process_of_torchrun_has_its_gpu(monkeypatch):
    gpu = Gpu(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device.pick() == torch.device("cuda:3")
    assert {*gpu.asked} == {torch.device("cuda:3")}


def test_torchrun_without_a_gpu_is_on_the_cpu(monkeypatch):
    Gpu(monkeypatch, "none")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device.pick() == CPU


# What torch raises on a card that its build has no kernels for, one that is lost, and where it has no CUDA at all.
FAILURES = [
    RuntimeError("CUDA error: no kernel image is available for execution on the device\nCompile with ..."),
    AssertionError("Torch not compiled with CUDA enabled"),
    NotImplementedError("no product on this device"),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_gpu_that_cannot_compute_is_not_taken(monkeypatch, failure):
    gpu = Gpu(monkeypatch)
    gpu.failure = failure
    monkeypatch.setenv("NORMLAB_LARGER", "1")
    said = re.escape(str(failure).splitlines()[0])
    with pytest.warns(UserWarning, match=rf"torch lists cuda, but cannot compute on it \({said}\)"):
        assert device.pick() == CPU
    monkeypatch.setenv("NORMLAB_DEVICE", "cuda")  # somebody who asks for it is not given another one
    with pytest.raises(ValueError, match=f"NORMLAB_DEVICE is 'cuda', but torch cannot compute there: {said}"):
        device.pick()


def test_a_gpu_that_computes_wrongly_is_not_taken(monkeypatch):
    Gpu(monkeypatch)
    monkeypatch.setattr(Matrix, "__matmul__", lambda self, other: torch.zeros(8, 8))
    with pytest.warns(UserWarning, match="a product came out wrong"):
        assert device.fastest() == CPU


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "CPU!", "0.5"])
def test_a_name_that_is_no_device_is_refused(monkeypatch, name):
    monkeypatch.setenv("NORMLAB_DEVICE", name)
    with pytest.raises(ValueError, match=f"NORMLAB_DEVICE must be a device such as cpu, .*, got '{name}'"):
        device.pick()


def test_the_switch_is_0_or_1(monkeypatch):
    for text, on in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("NORMLAB_LARGER", text)
        assert device.larger() is on
    monkeypatch.setenv("NORMLAB_LARGER", "yes")
    with pytest.raises(ValueError, match="NORMLAB_LARGER must be 0 or 1, got 'yes'"):
        device.larger()


@pytest.mark.parametrize("before", [None, "0", "1"])
def test_larger_settings_hold_for_a_block(monkeypatch, before):
    monkeypatch.delenv("NORMLAB_LARGER", raising=False)
    if before is not None:
        monkeypatch.setenv("NORMLAB_LARGER", before)
    was = device.larger()
    with pytest.raises(KeyError), device.larger_settings():
        assert device.larger()
        raise KeyError
    assert device.larger() is was


def test_a_record_at_its_larger_size_asks_for_the_gpu(monkeypatch):
    Gpu(monkeypatch)
    recipe = record.Recipe("where", "the device", [{}], lambda **_: {"at": device.pick().type}, larger=[{"steps": 1}])
    assert recipe.run() == {"at": "cpu"}
    assert recipe.at_larger_size().run(steps=1) == {"at": "cuda"}
    assert recipe.run() == {"at": "cpu"}


def test_no_warning_where_all_is_well(monkeypatch):
    Gpu(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device.fastest() == CUDA
