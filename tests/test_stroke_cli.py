"""The command line for pen strokes, as a user meets it."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from support.commands import run, run_process

from hmrnn import StrokeModel
from hmrnn.domains.strokes.config import StrokeDataConfig, WritingConfig
from hmrnn.domains.strokes.data.lines import load_strokes
from hmrnn.domains.strokes.data.points import read_json_lines, to_json
from hmrnn.domains.strokes.data.writing import write_lines
from hmrnn.domains.vectors.evaluation import log_likelihoods

FLAGS = "--writing.lines 60 --writing.words 1 2 --writing.spacing 6 --hidden-sizes 12 12 12 --output-size 12"
FLAGS += " --precision float32"  # the same numbers on every processor
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on the built-in handwriting."""
    folder = tmp_path_factory.mktemp("strokes")
    flags = f"{FLAGS} --components 4 --epochs 3 --batch-size 8 --json"
    done = run("train", "strokes", "--data", "builtin", "--out", "run", *flags.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "54 train, 3 valid, 3 test lines" in done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ended"] == "all epochs are done"
    assert -3 < answer["best_nats"] < 4
    return folder / "run"


@pytest.fixture(scope="module")
def own_lines(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "mine.jsonl"
    lines = write_lines(WritingConfig(lines=3, words=(1, 1), spacing=5.0, seed=9))
    path.write_text("".join(to_json(line.points) + "\n" for line in lines))
    return path


def test_help():
    done = run("train", "strokes", "--help")
    assert done.returncode == 0
    for flag in ("--components", "--division", "--target-rate", "--writing.slant", "--shortest"):
        assert flag in done.stdout
    assert "strokes" in run("train", "--help").stdout


def test_the_preset_follows_the_data():
    def shown(*flags: str) -> str:
        return " ".join(run("train", "strokes", *flags, "--help").stdout.replace("│", " ").split())

    ours = shown("--data", "iam-ondb")
    for setting in (
        "(default: 400 400 400)",
        "(default: 0.0003)",
        "(default: 3.0)",
        "(default: 0.004)",
        "(default: 20)",
    ):
        assert setting in shown("--preset", "paper-iam-ondb")
    assert "(default: 0.0003)" not in ours
    assert ours == shown("--preset", "iam-ondb")
    assert "(default: 128 128 128)" in shown("--data", "iam-ondb", "--preset", "small")
    assert "(default: 128 128 128)" in shown()


def test_eval(trained):
    done = run("eval", str(trained), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    data = load_strokes(StrokeDataConfig(writing=WritingConfig(lines=60, words=(1, 2), spacing=6.0)))
    lines = data.split("test")
    nats = log_likelihoods(StrokeModel.from_pretrained(trained / "best"), lines)
    assert answer["log_likelihood"] == pytest.approx(nats.mean(), rel=1e-6)
    assert answer["log_likelihood_per_point"] == pytest.approx(
        nats.sum() / sum(len(line) - 1 for line in lines), rel=1e-6
    )
    assert (answer["split"], answer["lines"]) == ("test", 3)
    told = run("eval", str(trained), "--split", "all").stdout
    assert re.search(r"^-?\d+\.\d nats: .*log-likelihood of a line.*of a point -?\d+\.\d+ nats", told)
    assert "60 lines" in told


def test_eval_at_another_floor(trained):
    """The floor is reported, raises deviations for real, and one below the model's own changes nothing."""

    def at(floor: str) -> dict[str, float]:
        return json.loads(run("eval", str(trained), "--json", "--sigma-floor", floor).stdout)

    own = json.loads(run("eval", str(trained), "--json").stdout)
    assert "sigma_floor" not in own
    assert at("0.0001")["log_likelihood"] == own["log_likelihood"]
    assert at("5")["sigma_floor"] == 5
    assert (
        "in normalised coordinates, with a sigma floor of 5;" in run("eval", str(trained), "--sigma-floor", "5").stdout
    )
    assert "floor" not in run("eval", str(trained)).stdout
    assert at("5")["log_likelihood"] < own["log_likelihood"] - 1
    assert run("eval", str(trained), "--sigma-floor", "-1").returncode == 2


def test_eval_of_ones_own_lines(trained, own_lines):
    answer = json.loads(run("eval", str(trained), "--data", str(own_lines), "--json").stdout)
    assert (answer["split"], answer["lines"]) == ("all", 3)
    refused = run("eval", str(trained), "--data", str(own_lines), "--split", "test")
    assert refused.returncode == 2
    assert "is not divided" in refused.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("eval", "--streams", "2"),
        ("eval", "--dynamic", "0.1"),
        ("eval", "--temperature", "auto"),
        ("eval", "--on-unknown", "skip"),
        ("generate", "--prompt", "a"),
        ("generate", "--top-k", "3"),
        ("generate", "--top-p", "0.5"),
        ("generate", "--temperature", "1"),
        ("generate", "--show-boundaries"),
        ("segment", "--on-unknown", "skip"),
    ],
)
def test_flags_of_another_domain_are_unknown(trained, flags):
    command, *rest = flags
    done = run(command, str(trained), *rest)
    assert done.returncode == 2
    assert "Unrecognized options" in done.stderr
    assert rest[0] in done.stderr


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (("--bias", "-1"), "--bias must not be negative"),
        (("--bias", "nan"), "--bias must not be negative"),
        (("--lines", "0"), "--lines must be a whole number"),
        (("--max-new", "-1"), "--max-new"),
        (("--out", "x.gif"), ".svg or .png"),
        (("--animated",), "--animated is for --out"),
        (("--animated", "--out", "x.png"), "--animated is for --out"),
    ],
)
def test_bad_usage_of_generate(trained, flags, what):
    done = run("generate", str(trained), *flags)
    assert done.returncode == 2
    assert what in done.stderr


def test_generate_a_drawing(trained, tmp_path):
    flags = ("--seed", "4", "--lines", "2", "--max-new", "60", "--bias", "1")
    for name, more in (("a.svg", ()), ("b.SVG", ()), ("moving.svg", ("--animated",)), ("c.PNG", ())):
        done = run("generate", str(trained), *flags, "--out", str(tmp_path / name), *more)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == str(tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.SVG").read_bytes(), "a seed repeats it"
    drawing = ET.parse(tmp_path / "a.svg").getroot()
    made = run("generate", str(trained), *flags).stdout.splitlines()
    assert len(made) == 2
    assert len(drawing.findall(f".//{SVG}path")) == sum(len(json.loads(line)) for line in made)
    assert "@keyframes" in (tmp_path / "moving.svg").read_text()
    assert (tmp_path / "c.PNG").read_bytes().startswith(b"\x89PNG")
    answer = json.loads(run("generate", str(trained), *flags, "--json").stdout)
    assert len(answer["lines"]) == 2
    assert len(answer["lines"][0]["boundaries"]) == 61, "the first point, and those made"


def test_generate_goes_on_from_a_file(trained, own_lines, tmp_path):
    with own_lines.open("rb") as file:
        first = next(read_json_lines(file, ""))
    done = run("generate", str(trained), "--prime", str(own_lines), "--max-new", "10", "--seed", "0")
    assert done.returncode == 0, done.stderr
    (line,) = read_json_lines([done.stdout.encode()], "")
    assert len(line) == len(first) + 10
    assert np.allclose(line[: len(first)], first, atol=0.01)
    (tmp_path / "empty").write_text("")
    done = run("generate", str(trained), "--prime", str(tmp_path / "empty"))
    assert done.returncode == 1
    assert "there is no line to go on from" in done.stderr


def test_segment(trained, own_lines):
    told = run("segment", str(trained), str(own_lines))
    assert told.returncode == 0, told.stderr
    line = r"line \d: points: \d+; pen strokes: \d+; segments of layer 1: \d+; segments of layer 2: \d+; .* by COPY\n"
    assert re.fullmatch(f"({line}){{3}}", told.stdout)
    answer = json.loads(run("segment", str(trained), str(own_lines), "--format", "json").stdout)
    assert answer["unit"] == "point"
    model = StrokeModel.from_pretrained(trained / "best")
    with own_lines.open("rb") as file:
        for points, line in zip(read_json_lines(file, ""), answer["lines"], strict=True):
            found = model.segment(points)
            expected = [(s.layer, s.start, s.end, s.closed) for layer in found.layers for s in layer]
            assert [(s["layer"], s["start"], s["end"], s["closed"]) for s in line["segments"]] == expected
            assert line["points"] == len(points)
    piped = run("segment", str(trained), "-", input=own_lines.read_text())
    assert piped.stdout == told.stdout
    vectors = json.loads(run("segment", str(trained), str(own_lines), "--format", "json", "--vectors").stdout)
    assert len(next(s for s in vectors["lines"][0]["segments"] if s["closed"])["vector"]) == 12
    page = run("segment", str(trained), str(own_lines), "--format", "html").stdout
    assert page.count("<svg") == 9, "3 lines, by the pen, z2 and z1"
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_segment_of_nothing(trained, tmp_path):
    done = run("segment", str(trained), "-", input="")
    assert done.returncode == 1
    assert "empty: there is nothing to segment" in done.stderr
    assert run("segment", str(trained), "-", "--format", "json", input="").stdout == ""
    done = run("segment", str(trained), "-", input="[[[1]]]")
    assert done.returncode == 1
    assert "standard input: line 1 " in done.stderr
    done = run("segment", str(trained), str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "nothing" in done.stderr
    done = run("segment", str(trained), str(tmp_path))
    assert done.returncode == 2
    assert f"{tmp_path}: this is a folder" in done.stderr


def curves(directory: Path) -> list[int]:
    """How many points each curve of the loss has."""
    from hmrnn.domains.strokes.config import MEASURE
    from hmrnn.show.training import training_figure
    from hmrnn.training.history import read_metrics

    loss = training_figure({"run": read_metrics(directory)}, MEASURE).axes[0]
    assert loss.get_title().startswith("nats a point")
    return [n for line in loss.lines if (n := len(line.get_xdata())) > 0]


def test_figures(trained, tmp_path):
    done = run("figure", str(trained), "--strokes", "--out", str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    kinds = ("pdf", "svg", "png")
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == sorted(
        f"{name}.{kind}" for name in ("segments", "density") for kind in kinds
    )
    assert run("figure", str(trained), "--out", str(tmp_path / "all")).returncode == 0
    assert (tmp_path / "all" / "training.svg").exists()
    assert len(curves(trained)) == 2, "training and validation"
    assert (
        run("figure", str(trained), "--kind", "segments", "--line", "2", "--out", str(tmp_path / "s.png")).returncode
        == 0
    )
    for flags, what in (
        (("--line", "99"), "--line must lie between 1 and 3"),
        (("--kind", "norms"), "invalid choice 'norms'"),
        (("--text", "x"), "Unrecognized options: --text"),
        (("--strokes", "--kind", "density"), "can't be combined"),
    ):
        refused = run("figure", str(trained), *flags, "--out", str(tmp_path / "no"))
        assert refused.returncode == 2
        assert what in refused.stderr


def test_resume(trained):
    done = run("train", "strokes", "--resume", str(trained), "--epochs", "4")
    assert done.returncode == 0, done.stderr
    assert "restored: weights" in done.stderr
    assert "4.00 epochs" in done.stdout
    refused = run("train", "strokes", "--resume", str(trained), "--components", "5")
    assert refused.returncode == 2
    assert "--components 5 (it has 4)" in refused.stderr
    other = run("train", "text", "--resume", str(trained))
    assert other.returncode == 2
    assert "hmrnn train strokes --resume" in other.stderr


def test_score(trained):
    done = run("score", str(trained), "--split", "all", "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    assert set(scores) == {"layer 1", "layer 2"}
    lines = write_lines(WritingConfig(lines=60, words=(1, 2), spacing=6.0))
    model = StrokeModel.from_pretrained(trained / "best")
    hits = found = gold = 0
    for line in lines:  # by hand: where letters end, but for the last of a line
        z = model.segment(line.points).steps.z[:-1, 0].numpy()
        hits, found, gold = hits + (z & line.letters[:-1]).sum(), found + z.sum(), gold + line.letters[:-1].sum()
    assert scores["layer 1"]["last of a letter"]["found"]["recall"] == pytest.approx(hits / gold)
    assert scores["layer 1"]["last of a letter"]["found"]["precision"] == pytest.approx(hits / found if found else 0)
    kinds = {f"{where} {what}" for where in ("last of a", "first of the next") for what in ("stroke", "letter", "word")}
    assert set(scores["layer 2"]) == kinds
    assert "last of a word" in run("score", str(trained), "--all").stdout
    assert "--all" in run("score", str(trained)).stdout
    refused = run("score", str(trained), "--first", "10")
    assert refused.returncode == 2
    assert "Unrecognized options: --first" in refused.stderr


def test_what_can_not_be_trained_on(tmp_path):
    done = run("train", "strokes", "--data", "iam-ondb", "--data-dir", str(tmp_path), "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert "lineStrokes-all.tar.gz" in done.stderr
    assert "Traceback" not in done.stderr
    done = run("train", "strokes", "--division", "by-writer", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "by-writer is for iam-ondb" in done.stderr
    for flags, what in (
        (("--seed", "-1"), "seed must not be negative"),
        (("--model", "hrnn"), "hidden_sizes must be two"),
    ):
        done = run("train", "strokes", *flags, "--out", str(tmp_path / "no"))
        assert done.returncode == 2
        assert what in done.stderr
        assert not (tmp_path / "no").exists()


def test_help_needs_no_torch():
    done = run_process("train", "strokes", "--help", env={"PYTHONPROFILEIMPORTTIME": "1", "PATH": ""})
    assert done.returncode == 0
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
