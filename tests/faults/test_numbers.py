"""Numbers that training must survive, or refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.faults.runs import FLAGS, SIZES, all_finite, call, reason, refused, succeeded

from hmrnn import SeriesModel, StrokeModel, TextModel

MODELS = {"text": TextModel, "strokes": StrokeModel, "series": SeriesModel}
MEASURES = {"text": "bits_per_character", "strokes": "log_likelihood_per_point", "series": "log_likelihood_per_step"}


def guarded(name: str, run: Path, *flags: str | Path, cwd: Path) -> str:
    """Trains. Whatever comes of it, the weights on disk are finite, and it says so if they would not have been."""
    done = call("train", name, *flags, "--out", run, cwd=cwd)
    assert done.returncode in (0, 1, 2), done.stderr
    if done.returncode:
        assert "finite" in reason(done.stderr)
    if run.exists():
        assert all_finite(run)
    return done.stderr


@pytest.mark.parametrize(
    ("rate", "epochs"),
    [
        ("10", "2"),
        ("1e38", "0.01"),
        *(pytest.param(rate, "0.01", marks=pytest.mark.faults) for rate in ("10", "1e10", "1e300")),
        *(pytest.param(rate, "2", marks=pytest.mark.faults) for rate in ("1e10", "1e38", "1e300")),
    ],
)
def test_an_absurd_learning_rate(folder, tmp_path, name, rate, epochs):
    flags = [*FLAGS[name], "--learning-rate", rate, "--epochs", epochs, "--checkpoint-minutes", "1e-9"]
    guarded(name, tmp_path / "run", *flags, cwd=folder)


def test_the_guard_says_what_happened(folder, tmp_path, name, monkeypatch):
    monkeypatch.setattr("hmrnn.training.loop.GIVE_UP", 3)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: torch.tensor(float("nan")))
    told = refused("train", name, *FLAGS[name], "--out", tmp_path / "run", cwd=folder, because="3 updates in a row")
    assert "Try a lower --learning-rate" in told
    assert all_finite(tmp_path / "run")
    records = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(record)["gradient_norm"] for record in records] == [None] * 3


@pytest.mark.parametrize("minimum", ["1e-30", pytest.param("1", marks=pytest.mark.faults)])
def test_absurd_clips_and_slopes(folder, tmp_path, name, minimum):
    flags = ["--gradient-clip", minimum, "--slope-per-epoch", "1e30", "--slope-limit", "1e30", "--epochs", "2"]
    guarded(name, tmp_path / "run", *FLAGS[name], *flags, cwd=folder)


def test_bfloat16(runs, tmp_path, name):
    """A model that was made smaller can be used."""
    model = MODELS[name].from_pretrained(runs[name] / "best")
    model.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    data = runs[name].parent / FLAGS[name][1]
    measure = MEASURES[name]
    model.float().save_pretrained(tmp_path / "whole")
    half, whole = (
        json.loads(succeeded("eval", tmp_path / size, "--data", data, "--json").stdout)[measure]
        for size in ("half", "whole")
    )
    assert half == pytest.approx(whole, abs=0.1)
    succeeded("generate", tmp_path / "half", "--max-new", "5")


def test_training_in_bfloat16(folder, tmp_path, name):
    torch.set_default_dtype(torch.bfloat16)
    try:
        guarded(name, tmp_path / "run", *FLAGS[name], "--epochs", "0.3", cwd=folder)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("content", "because"),
    [
        (b"a" * 9000, "all symbols are the same"),
        (b"", "empty"),
        (b"a", "too short"),
        (b"a" * 8999 + b"b", None),
        (b"\0" * 8999 + b"\n", None),
        (b"ab" * 4500, None),
    ],
    ids=["one symbol", "nothing", "a letter", "one in 9000", "NUL", "two"],
)
def test_texts_with_little_in_them(tmp_path, content, because):
    (tmp_path / "text.txt").write_bytes(content)
    flags = [*FLAGS["text"], "--learning-rate", "0.1"]
    if because:
        refused("train", "text", *flags, "--out", "run", cwd=tmp_path, because=because)
    else:
        guarded("text", tmp_path / "run", *flags, cwd=tmp_path)


def strokes(*coordinates: float) -> list[list[list[float]]]:
    return [[[x, y] for x in coordinates for y in coordinates]]


@pytest.mark.parametrize(
    ("line", "because"),
    [
        ([[[3, 3]] * 30], "nothing to predict"),
        ([[[x, 0] for x in range(30)]], "nothing to predict"),
        ([[[3, 3]]], "too few lines"),
        (strokes(0, 1e6, -1e6), None),
        (strokes(0, 1e-30, -1e-30), None),
        (strokes(0, 1e-44, 2e-44), None),
        (strokes(0, 1e6, 1e-44), None),
        ([*strokes(0, 1), [[1e6, 1e6]]], None),
    ],
    ids=["a dot", "a straight line", "a point", "huge", "tiny", "smallest", "huge and tiny", "far away"],
)
def test_strokes_that_are_hardly_any(tmp_path, line, because):
    (tmp_path / "lines.jsonl").write_text((json.dumps(line) + "\n") * 24)
    flags = f"--data lines.jsonl --batch-size 4 --window 20 {SIZES} --components 3 --epochs 2".split()
    if because:
        refused("train", "strokes", *flags, "--out", "run", cwd=tmp_path, because=because)
    else:
        guarded("strokes", tmp_path / "run", *flags, "--learning-rate", "0.1", cwd=tmp_path)


@pytest.mark.parametrize(
    ("a", "because"),
    [
        (lambda i: 3, "never changes"),
        (lambda i: "", "never changes"),
        (lambda i: i % 7 if i < 350 else "", None),
        (lambda i: 1e30 * (i % 2), None),
        (lambda i: 1e31 * (i % 2), "beyond 1e+30"),
        (lambda i: 1e-40 * (i % 7), None),
        (lambda i: 1e-300 * (i % 7), "less than float32 can tell"),
        (lambda i: 1e9 + i % 7, "less than float32 can tell"),
        (lambda i: 1e29 if i == 399 else i % 7, None),
        (lambda i: 1e29 if i == 9 else i % 7, None),
    ],
    ids=["constant", "missing", "gaps", "huge", "too huge", "smallest", "nothing", "offset", "far away", "an outlier"],
)
def test_series_that_are_hardly_any(tmp_path, a, because):
    (tmp_path / "steps.csv").write_text(
        "a,b,end\n" + "".join(f"{a(i)},{i * i % 11},{int(i % 7 == 6)}\n" for i in range(400))
    )
    if because:
        refused("train", "series", *FLAGS["series"], "--out", "run", cwd=tmp_path, because=because)
    else:
        guarded("series", tmp_path / "run", *FLAGS["series"], cwd=tmp_path)
