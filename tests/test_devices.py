"""Where a network is computed: naming devices, training without waiting for one, and going on with another."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from support.commands import printed
from support.small_runs import settings

from hmrnn import HMLSTM, TextModel
from hmrnn.cli import bench_gpu
from hmrnn.cli.bench import Setting
from hmrnn.config import ReadingConfig
from hmrnn.devices import fetched, on_cpu, resolve
from hmrnn.guidance.imitation import cross_entropy_of_all
from hmrnn.guidance.steering import passed_by
from hmrnn.sequence import COPY
from hmrnn.training.loop import Training
from hmrnn.training.run import train_run, went_on


def gpus(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "name", "process", "expected"),
    [
        (0, "auto", 0, "cpu"),
        (0, "cpu", 3, "cpu"),
        (2, "auto", 0, "cuda:0"),
        (2, "cuda", 1, "cuda:1"),
        (2, "cuda", 3, "cuda:1"),
        (2, "cuda:1", 0, "cuda:1"),
        (2, "cpu", 0, "cpu"),
    ],
)
def test_names(monkeypatch, count, name, process, expected):
    gpus(monkeypatch, count)
    assert resolve(name, process) == torch.device(expected)


@pytest.mark.parametrize(
    ("count", "name", "reason"),
    [
        (0, "cuda", "finds no CUDA GPU"),
        (0, "cuda:0", "finds no CUDA GPU"),
        (2, "cuda:2", "finds 2 on this machine"),
        (2, "gpu", "must be auto, cpu, cuda, cuda:N or mps"),
        (2, "cuda:-1", "must be auto"),
    ],
)
def test_what_is_not_there_is_refused(monkeypatch, count, name, reason):
    gpus(monkeypatch, count)
    with pytest.raises(ValueError, match=reason):
        resolve(name)


def test_a_device_that_is_misspelt_is_refused_before_anything_is_loaded():
    with pytest.raises(ValueError, match="device must be"):
        ReadingConfig(device="cuda0")


def test_numbers_are_fetched_as_they_are():
    values = [0.1, torch.tensor(0.1), torch.tensor(0.1, dtype=torch.float64), float("nan")]
    found = fetched(torch.device("cpu"), *values)
    assert found[:3] == [0.1, torch.tensor(0.1).item(), 0.1]
    assert found[3] != found[3]


def test_a_state_on_the_cpu_is_the_same():
    state = {"a": torch.ones(2), "b": [torch.zeros(1), 3], "c": None, 7: "text"}
    moved = on_cpu(state)
    assert list(moved) == list(state)
    assert moved["b"][1] == 3
    assert torch.equal(moved["a"], state["a"])


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.77])
def test_what_a_detector_must_pass_is_the_quantile_to_the_bit(share, rate):
    """Of the values at some places; nobody is asked how many they are."""
    generator = torch.Generator().manual_seed(0)
    rnn = HMLSTM(3, [4, 4])
    out, _ = rnn(torch.randn(40, 5, 3, generator=generator), lengths=[40, 30, 0, 7, 40])
    values = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    where = torch.rand(40, 5, generator=generator) < share
    picked = values[where]
    steps = int((out.operations[..., 0] != COPY).sum())
    expected = picked.quantile(max(0.0, 1 - rate * steps / len(picked))).item() if len(picked) else 0.0
    assert passed_by(rate, values, where, out).item() == expected


def test_the_loss_of_all_places_is_that_of_the_picked_ones():
    generator = torch.Generator().manual_seed(0)
    log_odds, wanted = torch.randn(2, 30, 4, generator=generator, dtype=torch.float64)
    wanted, where = (wanted > 0).double(), torch.rand(30, 4, generator=generator) < 0.3
    log_odds.requires_grad_()
    losses = (
        cross_entropy_of_all(log_odds, wanted, where),
        F.binary_cross_entropy_with_logits(log_odds[where], wanted[where]),
    )
    found, expected = ((loss, *torch.autograd.grad(loss, log_odds)) for loss in losses)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)
    assert cross_entropy_of_all(log_odds, wanted, torch.zeros_like(where)).item() == 0


def test_an_update_waits_for_a_gpu_once(text_file):
    """On a fake one, where whoever asks for a number fails; but for the one time, which is replaced."""
    pytest.importorskip("triton")
    (found,) = printed("fake_gpu.py", "updates", str(text_file))
    assert found == {"engine": "triton", "updates": 3, "fetched": 3}


class TestGoingOn:
    def test_the_device_of_the_run_is_taken_if_it_is_there(self, monkeypatch):
        gpus(monkeypatch, 1)
        assert went_on("auto", {}) == "auto"
        assert went_on("auto", {"engine": "native"}) == "cpu", "a run of before there was a choice"
        assert went_on("auto", {"device": "cuda (Some GPU)"}) == "cuda"
        assert went_on("auto", {"device": "cpu"}) == "cpu"
        assert went_on("cpu", {"device": "cuda (Some GPU)"}) == "cpu"
        gpus(monkeypatch, 0)
        assert went_on("auto", {"device": "cuda (Some GPU)"}) == "auto"

    def test_a_run_of_a_gpu_goes_on_on_a_cpu_and_says_so(self, text_file, tmp_path, monkeypatch, capsys):
        machine = Training.machine
        with monkeypatch.context() as patch:
            made_there = {"device": "cuda (Some GPU)", "engine": "triton"}
            patch.setattr(Training, "machine", lambda self: {**machine(self), **made_there})
            train_run(settings(text_file, epochs=0.5), tmp_path)
        capsys.readouterr()
        outcome = train_run(settings(text_file, epochs=1.0), tmp_path, resume=True)
        told = capsys.readouterr().err
        assert outcome.update == 12
        assert re.search(r"warning: device .*\bcuda \(Some GPU\).*\bcpu\b", told)
        assert "engine native" in told, "an engine of the GPU is not asked for on the CPU"

    def test_a_run_that_stays_where_it_is_says_nothing(self, text_file, tmp_path, capsys):
        train_run(settings(text_file, epochs=0.5), tmp_path, device="cpu")
        train_run(settings(text_file, epochs=1.0), tmp_path, resume=True)
        told = capsys.readouterr().err
        assert "on cpu" in told
        assert "warning: device" not in told


def test_a_model_is_loaded_where_it_is_wanted():
    model = TextModel.from_pretrained("builtin", device="meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_report_for_a_gpu(monkeypatch, capsys):
    """On the CPU, with Triton's interpreter in place of the GPU."""
    pytest.importorskip("triton")
    bench_gpu.main(Setting(hidden=6, batch=2, steps=3, rates=(0.5, 0.3)), torch.device("cpu"), repeats=1)
    told = capsys.readouterr().out
    for name in ("torch.nn.LSTM", "reference", "triton ", "triton bfloat16"):
        assert told.count(f"\n  {name}") >= 2, name
    assert re.search(r"not measured: triton graph: .*\bCUDA device", told)
    assert '"training": {"torch.nn.LSTM": ' in told.splitlines()[-1]
