"""The benchmark measures what it says: small, but all of it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support.commands import run

from hmrnn import HMLSTM
from hmrnn.cli import bench
from hmrnn.cli.bench import Setting
from hmrnn.cli.bench_plot import sweep_figure
from hmrnn.cli.common import write_figure

SMALL = Setting(hidden=24, batch=8, steps=60, rates=(0.3, 0.1))


def test_rates_are_pinned():
    x = SMALL.input()
    rnn = HMLSTM(bench.INPUT_SIZE, [24] * 3, layer_norm=False)
    rnn.load_state_dict(bench.pinned(SMALL, x))
    assert rnn(x)[0].z.mean((0, 1)).tolist() == pytest.approx([0.3, 0.1], abs=0.01)


def test_cost_counts_events_and_multiply_adds():
    cost = bench.cost(SMALL)
    x = SMALL.input()
    rnn = HMLSTM(bench.INPUT_SIZE, [24] * 3, layer_norm=False)
    rnn.load_state_dict(bench.pinned(SMALL, x))
    z = rnn(x)[0].z.detach()
    before = torch.cat([torch.zeros(1, 8, 2), z[:-1]])
    second = int(((z[..., 0] + before[..., 1]) > 0).sum())
    assert cost["events"] == [480, second, int(z[..., 1].sum())]
    first_size, other_size = 4 * 24 * (128 + 24 + 24), 4 * 24 * 72
    last_size = 4 * 24 * 48
    done = 480 * first_size + cost["events"][1] * other_size + cost["events"][2] * last_size
    saved = 1 - done / (480 * (first_size + other_size + last_size))
    assert cost["multiply_adds_saved"] == pytest.approx(saved, abs=1e-4)


def test_work_is_done_in_turn_and_the_median_counts(monkeypatch):
    order, clock = [], iter([0, 0, 0, 1, 0, 10, 0, 3, 0, 30, 0, 2, 0, 20])  # the first two warm up
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    seconds = bench.in_turn({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 3)
    assert order == ["a", "b"] * 4
    assert seconds == {"a": 2, "b": 20}


def test_memory_and_products():
    setting = Setting(hidden=128, batch=64, steps=200)
    hidden_states = 4 * setting.steps * setting.batch * setting.hidden  # of the first layer, which never copies
    assert bench.peak_memory(setting, "native") > hidden_states
    assert 1 < bench.products_ratio(SMALL, 2) < 50


def test_the_command_prints_a_table_and_ends_with_json(tmp_path):
    options = ["--hidden", "16", "--batch", "4", "--steps", "10", "--repeats", "1", "--rates", "0.3", "0.1"]
    done = subprocess.run(
        [sys.executable, "-m", "hmrnn", "bench", *options], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    *table, last = done.stdout.splitlines()
    result = json.loads(last)
    assert result["setting"]["hidden"] == 16
    for kind in ("training", "evaluation", "streaming"):
        assert all(seconds > 0 for seconds in result[kind].values())
        assert any(line.startswith(kind) for line in table)
    networks = {"native", "native bfloat16", "events", "reference", "torch.nn.LSTM", "layer-norm LSTM"}
    assert networks == set(result["training"])


def test_the_figure_is_drawn(tmp_path):
    names = ("torch.nn.LSTM", "native", "native bfloat16", "events")
    series = {"at": [1.0, 2.0], **{name: [2.0, 1.5] for name in names}}
    for suffix in ("png", "svg"):
        write_figure(sweep_figure({axis: series for axis in "abcd"}), tmp_path / f"figure.{suffix}")
        assert (tmp_path / f"figure.{suffix}").stat().st_size > 5000


@pytest.fixture
def measured(monkeypatch) -> list[Setting]:
    """All that would be measured."""
    settings: list[Setting] = []
    monkeypatch.setattr(bench, "measure", lambda setting, repeats: settings.append(setting) or {})
    monkeypatch.setattr(bench, "table", lambda result: "")
    return settings


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--plot", "nosuffix"], "--plot nosuffix: its name must end in .pdf, .svg, .png"),
        (["--plot", "a.svg", "--rates", "0", "0.1"], "the first of --rates must be above 0"),
    ],
)
def test_what_can_not_be_drawn_is_refused_before_it_is_measured(measured, tmp_path, arguments, what):
    done = run("bench", *arguments, cwd=tmp_path)
    assert (done.returncode, measured) == (2, [])
    assert what in done.stderr


def test_without_matplotlib_nothing_is_measured(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "hmrnn.cli.bench_plot", raising=False)
    done = run("bench", "--plot", "a.svg", cwd=tmp_path)
    assert (done.returncode, measured) == (1, [])
    assert "pip install 'hmrnn[show]'" in done.stderr


def test_the_sweep_keeps_rates_possible_and_its_folder_is_made(measured, tmp_path, monkeypatch):
    def training_work(setting, *which, **more):
        measured.append(setting)
        return dict.fromkeys(("torch.nn.LSTM", "native", "native bfloat16", "events"), lambda: None)

    monkeypatch.setattr("hmrnn.cli.bench_plot.training_work", training_work)
    done = run("bench", "--rates", "0.03", "0.21", "--plot", "new/a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "a.svg").stat().st_size > 5000
    rates = [setting.rates for setting in measured]
    assert (0.1, pytest.approx(0.7)) in rates
    assert (0.7, 0.95) in rates
