"""`hmrnn plot` shows what metrics.jsonl says."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from support.commands import run

from hmrnn.config import TrainingConfig
from hmrnn.domains.strokes.config import StrokeDataConfig, StrokeModelConfig
from hmrnn.domains.text.config import TextDataConfig, TextModelConfig
from hmrnn.show import curves
from hmrnn.storage.files import sealed
from hmrnn.training.history import read_history

BENCHMARKS = Path(__file__).parents[1] / "benchmarks" / "runs"
SECONDS = 6.0  # an update


def updates(losses, measure="bits", speed=None) -> list[dict]:
    """A record for each. By default one process reads 4 x 10 symbols in each update."""
    speed = 40 / SECONDS if speed is None else speed
    return [
        {"update": u, "epoch": u / 10, measure: loss, "symbols_per_second": speed, "minutes": u * SECONDS / 60}
        for u, loss in enumerate(losses, 1)
    ]


def validation(update, loss, measure="bits") -> dict:
    return {"update": update, "epoch": update / 10, f"valid_{measure}": loss, "minutes": update * SECONDS / 60}


def make(folder: Path, records: list[dict], kind="text", sizes=(8, 8, 8)) -> Path:
    """A run of which only its settings and metrics were kept."""
    shape, data = (TextModelConfig, TextDataConfig) if kind == "text" else (StrokeModelConfig, StrokeDataConfig)
    config = {"format_version": 1, "kind": kind, **asdict(shape(hidden_sizes=sizes))}
    config |= {"data": asdict(data()), "training": asdict(TrainingConfig(batch_size=4, window=10))}
    config |= {"fingerprint": "", "data_dir": None, "files": {"symbols.json": "0" * 64}}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(sealed(config)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def drawn(*directories: Path) -> Figure:
    return curves.curves_figure([read_history(directory) for directory in directories])


def line(axes, label, what):
    (one,) = [line for line in axes.lines if line.get_gid() == f"{label}: {what}"]
    return one


def names(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[1].get_texts()]


def test_two_panels(tmp_path):
    losses = [5 - u / 40 for u in range(1, 101)]
    records = [*updates(losses)[:50], validation(50, 4.1), *updates(losses)[50:], validation(100, 3.2)]
    make(tmp_path / "one", records)
    make(tmp_path / "two", updates(losses[:30]), sizes=(8, 4))
    figure = drawn(tmp_path / "one", tmp_path / "two")
    assert names(figure) == ["one (hm-lstm, 3 × 8)", "two (hm-lstm, 8 + 4)"]
    read, time = figure.axes
    assert (read.get_xlabel(), time.get_xlabel()) == ("thousand symbols read", "minutes of training")
    assert read.get_ylabel() == "bits per character"
    seen = line(read, "one (hm-lstm, 3 × 8)", "validation")
    assert (seen.get_xdata().tolist(), seen.get_ydata().tolist()) == ([2.0, 4.0], [4.1, 3.2])  # 50 and 100 x 4 x 10
    assert line(time, "one (hm-lstm, 3 × 8)", "validation").get_xdata().tolist() == pytest.approx([5, 10])
    training = line(read, "one (hm-lstm, 3 × 8)", "training")
    assert training.get_xdata().tolist() == pytest.approx([u * 0.04 for u in range(1, 101)])
    assert training.get_ydata()[50] == pytest.approx(losses[50]), "a mean of what comes before and after"
    assert training.get_ydata()[-1] == pytest.approx(np.mean(losses[-11:]))
    assert line(time, "two (hm-lstm, 8 + 4)", "training").get_xdata()[-1] == pytest.approx(3)
    assert len(line(time, "two (hm-lstm, 8 + 4)", "validation").get_xdata()) == 0, "there is none yet"
    assert {a.get_color() for a in (training, seen)} == {seen.get_color()}
    assert training.get_alpha() < 1
    assert training.get_linewidth() < seen.get_linewidth()


def test_strokes(tmp_path):
    make(tmp_path / "pen", [*updates([1.0, 0.0, -1.0], "nats"), validation(3, -1.5, "nats")], "strokes")
    read, _ = drawn(tmp_path / "pen").axes
    assert (read.get_xlabel(), read.get_ylabel()) == ("epochs", "nats a point (-log p: less is better)")
    assert line(read, "pen (hm-lstm, 3 × 8)", "training").get_xdata().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert read.get_ylim()[0] < -1.5


@pytest.mark.parametrize("processes", [1, 2, 7])
def test_symbols_of_several_processes(tmp_path, processes):
    """config.json has one process's share."""
    make(tmp_path / "run", updates([3.0] * 5, speed=1.004 * processes * 40 / SECONDS))
    assert read_history(tmp_path / "run").steps_per_update == processes * 40


def test_symbols_where_the_speed_is_not_known(tmp_path):
    for i, first in enumerate([{"symbols_per_second": None}, {"update": 2}, {"symbols_per_second": "fast"}]):
        directory = make(tmp_path / str(i), [{**updates([3.0])[0], "symbols_per_second": 80 / SECONDS, **first}])
        assert read_history(directory).steps_per_update == 40


@pytest.mark.parametrize(("most", "label"), [(1, "symbols read"), (3000, "thousand"), (30_000, "million")])
def test_the_unit_of_the_axis(tmp_path, most, label):
    make(tmp_path / "run", [*updates([3.0]), validation(most, 2.0)])
    assert label in drawn(tmp_path / "run").axes[0].get_xlabel()


def height(*directories: Path) -> tuple[float, float]:
    return drawn(*directories).axes[1].get_ylim()


def test_huge_losses_do_not_squash_the_picture(tmp_path):
    usual = [2 - u / 1000 for u in range(990)]
    make(tmp_path / "start", [*updates([1e6, 1e9, *usual]), validation(500, 1.5)])
    make(tmp_path / "short", updates([1e6, *usual[:40], *usual[-40:]]))  # one of 81 is in an eighth of the means
    make(tmp_path / "spike", [*updates([*usual[:500], 1e6, *usual[500:]]), validation(500, 1.5), validation(900, 1e5)])
    for name in ("start", "short", "spike"):
        low, high = height(tmp_path / name)
        assert 0.8 < low < 1.02
        assert 1.9 < high < 2.2, name


def test_losses_that_scatter_do_not_widen_the_picture(tmp_path):
    """Their means are drawn."""
    make(tmp_path / "run", updates([2 + (-1) ** u for u in range(1000)]))
    low, high = height(tmp_path / "run")
    assert 1.8 < low < 2 < high < 2.2


def test_spikes_in_every_mean(tmp_path):
    make(tmp_path / "run", updates([1000.0 if u % 21 == 0 else 2.0 for u in range(600)]))
    low, high = height(tmp_path / "run")
    assert low < (1000 + 20 * 2) / 21 < high


def test_a_run_of_validations_alone(tmp_path):
    make(tmp_path / "run", [validation(1, 2.0), validation(2, 1.0)])
    low, high = height(tmp_path / "run")
    assert low < 1 < 2 <= high


def test_validations_that_rise_are_seen(tmp_path):
    falling = [2 - u / 1000 for u in range(1000)]
    make(tmp_path / "overfits", [*updates(falling), *(validation(u, 1.8 + u / 1000) for u in range(100, 1001, 100))])
    low, high = height(tmp_path / "overfits")
    assert 0.8 < low < 1.02
    assert 2.8 < high < 3


def test_every_run_has_room(tmp_path):
    make(tmp_path / "good", updates([1.5] * 40))
    make(tmp_path / "bad", updates([4.5] * 40))
    low, high = height(tmp_path / "good", tmp_path / "bad")
    assert 1.2 < low < 1.5
    assert 4.5 < high < 5
    low, high = height(tmp_path / "good")  # all losses alike
    assert low < 1.5 < high


def test_losses_that_are_not_finite_are_left_out(tmp_path):
    records = updates([3.0, None, math.nan, 2.0, math.inf, 10**400])
    records += [validation(3, None), validation(4, 2.5), validation(5, math.nan)]
    make(tmp_path / "run", records)
    done = run("plot", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert (told["update"], told["valid_bits"], told["best_bits"]) == (6, None, 2.5)
    read, _ = drawn(tmp_path / "run").axes
    assert line(read, "run (hm-lstm, 3 × 8)", "training").get_xdata().tolist() == pytest.approx([40, 160])
    assert line(read, "run (hm-lstm, 3 × 8)", "validation").get_ydata().tolist() == [2.5]


def test_a_long_run_has_few_points(tmp_path):
    make(tmp_path / "long", updates([3 - u / 20_000 for u in range(20_000)]))
    training = line(drawn(tmp_path / "long").axes[0], "long (hm-lstm, 3 × 8)", "training")
    assert len(training.get_xdata()) <= 1000
    assert training.get_xdata()[[0, -1]].tolist() == pytest.approx([0.04, 800]), "the first and the last"


def test_names(tmp_path, monkeypatch):
    """Whatever a folder is called, the legend has it, and tells it from the others."""
    odd = ["a/run", "b/run", "$\\x$", "_hidden", "line\nend", os.fsdecode(b"not utf-8 \xff"), "x" * 200]
    for name in odd:
        make(tmp_path / name, updates([2.0]))
    done = run("plot", *odd, "--out", "out.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "out.svg").read_text()
    monkeypatch.chdir(tmp_path)
    found = [name.removesuffix(" (hm-lstm, 3 × 8)") for name in names(drawn(*map(Path, odd)))]
    assert found[:-1] == ["a/run", "b/run", "$\\x$", "_hidden", "line·end", "not utf-8 ·"]
    assert len(found[-1]) <= 60
    assert all(f"<!-- {name} (hm-lstm" in shown for name in found)
    monkeypatch.chdir(tmp_path / "a" / "run")
    assert names(drawn(Path())) == names(drawn(Path("../../b/run"))) == ["run (hm-lstm, 3 × 8)"]


FORMATS = [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"), ("PNG", b"\x89PNG")]


@pytest.mark.parametrize(("ending", "start"), FORMATS)
def test_formats(tmp_path, ending, start):
    make(tmp_path / "run", updates([3.0, 2.0]))
    done = run("plot", "run", "--out", f"new/folder/c.{ending}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "folder" / f"c.{ending}").read_bytes().startswith(start)
    assert done.stdout.splitlines()[-1] == f"new/folder/c.{ending}"


def test_what_it_tells(tmp_path):
    make(tmp_path / "one", [*updates([3.0] * 20), validation(10, 2.5), validation(20, 2.75)])
    make(tmp_path / "two", updates([3.0] * 7))
    done = run("plot", "one", "two", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curves.png").stat().st_size > 3000
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "out": "curves.png",
        "measure": "bits",
        "runs": [
            {"run": "one", "update": 20, "epoch": 2.0, "minutes": 2.0, "valid_bits": 2.75, "best_bits": 2.5},
            {"run": "two", "update": 7, "epoch": 0.7, "minutes": 0.7, "valid_bits": None, "best_bits": None},
        ],
    }
    one, two, out = run("plot", "one", "two", cwd=tmp_path).stdout.splitlines()
    assert re.fullmatch(r"one: update 20, epoch 2\.00, 2\.0 min: .*\b2\.7500 bits.*\bbest 2\.5000", one)
    assert re.fullmatch(r"two: update 7, epoch 0\.70, 0\.7 min: no validation.*", two)
    assert out == "curves.png"


def test_bad_usage(tmp_path):
    make(tmp_path / "text", updates([3.0]))
    make(tmp_path / "pen", updates([3.0], "nats"), "strokes")
    for arguments, what in [
        (["text", "pen"], "text is a run on text (bits per character) and pen is a run on strokes (nats a point"),
        ([], "say which runs to draw"),
        (["text", "--out", "curves.gif"], "--out curves.gif: its name must end in .pdf, .svg, .png"),
        (["text", "--out", "pen"], "--out pen: its name must end in"),
    ]:
        done = run("plot", *arguments, cwd=tmp_path)
        assert done.returncode == 2, arguments
        assert what in done.stderr
        assert not (tmp_path / "curves.png").exists()


RECORD = updates([3.0])[0]
NOTHING = "metrics.jsonl: there is no loss in bits in it yet"
DAMAGED = {
    "empty": (b"", NOTHING),
    "validations of strokes": (b'{"valid_nats": 1}\n', NOTHING),
    "nothing finite": (json.dumps({**RECORD, "bits": None}).encode(), NOTHING),
    "torn": (b'{"update": 1, "ep\n{}\n', "metrics.jsonl: line 1 is not a record"),
    "a list": (b"{}\n[]\n", "metrics.jsonl: line 2 is not a record"),
    "binary": (b"\xff\xfe\x00\n", "metrics.jsonl: line 1 is not a record"),
    "deep": (b"[" * 200_000 + b"\n", "metrics.jsonl: line 1 is not a record"),
    "a text for a loss": (json.dumps({**RECORD, "bits": "3"}).encode(), "metrics.jsonl: line 1: bits can't be '3'"),
    "true": (json.dumps({**RECORD, "minutes": True}).encode(), "metrics.jsonl: line 1: minutes can't be 'True'"),
    "no epoch": (b'{"update": 1, "minutes": 1, "bits": 3}', "metrics.jsonl: line 1: epoch can't be 'None'"),
    "before the start": (json.dumps({**RECORD, "update": -1}).encode(), "metrics.jsonl: line 1: update can't be '-1'"),
    "as long as time": (json.dumps({**RECORD, "update": 1e300}).encode(), "metrics.jsonl: line 1: update can't be '1e"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_metrics(tmp_path, damage):
    content, what = DAMAGED[damage]
    make(tmp_path / "good", updates([3.0]))
    make(tmp_path / "run", [])
    (tmp_path / "run" / "metrics.jsonl").write_bytes(content)
    done = run("plot", "good", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"hmrnn: run/{what}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "curves.png").exists()


def test_damaged_and_missing_files(tmp_path):
    for name in ("metrics", "config", "changed", "settings"):
        make(tmp_path / name, updates([3.0]))
    (tmp_path / "metrics" / "metrics.jsonl").unlink()
    (tmp_path / "config" / "config.json").write_text("{")
    config = json.loads((tmp_path / "changed" / "config.json").read_text())
    (tmp_path / "changed" / "config.json").write_text(json.dumps({**config, "output_size": 7}))
    (tmp_path / "settings" / "config.json").unlink()
    for name, what in [
        ("nowhere", "nowhere: there is no config.json"),
        ("metrics", "metrics: there is no metrics.jsonl"),
        ("config", "config/config.json is not the config"),
        ("changed", "changed/config.json: damaged"),
        ("settings", "settings: there is no config.json"),
        ("builtin", "builtin: there is no metrics.jsonl"),
    ]:
        done = run("plot", name, cwd=tmp_path)
        assert done.returncode == 1, name
        assert re.match(f"hmrnn: .*{what}.*\n$", done.stderr), done.stderr


def test_a_line_that_is_just_being_written(tmp_path):
    make(tmp_path / "run", updates([3.0, 2.0]))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"update": 3, "epo')
    assert json.loads(run("plot", "run", "--json", cwd=tmp_path).stdout)["runs"][0]["update"] == 2


def test_a_picture_is_whole_or_not_there(tmp_path, monkeypatch):
    make(tmp_path / "run", updates([3.0]))
    (tmp_path / "curves.png").write_text("the one before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    done = run("plot", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert (tmp_path / "curves.png").read_text() == "the one before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "run"]


def test_without_matplotlib(tmp_path, monkeypatch):
    make(tmp_path / "run", updates([3.0]))
    monkeypatch.setitem(sys.modules, "hmrnn.show.curves", None)
    done = run("plot", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "pip install 'hmrnn[show]'" in done.stderr


@pytest.mark.parametrize(("kind", "unit", "best"), [("ptb", "bits", 1.3983), ("iam", "nats", -1.275)])
def test_runs_of_the_benchmarks(tmp_path, kind, unit, best):
    runs = [str(BENCHMARKS / f"precision-{kind}-{precision}") for precision in ("float32", "bfloat16")]
    done = run("plot", *runs, "--out", "c.svg", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["runs"][0][f"best_{unit}"] == pytest.approx(best, abs=1e-4)
    assert (tmp_path / "c.svg").stat().st_size < 500_000
    assert {read_history(Path(directory)).processes for directory in runs} == {1}
