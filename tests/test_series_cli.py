"""The command line for series, as a user meets it."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from support.commands import run

from hmrnn import SeriesModel
from hmrnn.domains.series.config import PlantedSeriesConfig, SeriesDataConfig, SeriesModelConfig
from hmrnn.domains.series.data.planted import plant
from hmrnn.domains.series.data.sequences import load_series
from hmrnn.domains.vectors.evaluation import log_likelihoods

PLANTED = "--planted.sequences 40 --planted.steps 80"
SIZES = "--hidden-sizes 12 12 12 --output-size 12 --components 4 --batch-size 8 --precision float32"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on the built-in series."""
    folder = tmp_path_factory.mktemp("series")
    flags = f"--data builtin --out run {PLANTED} {SIZES} --epochs 3 --json"
    done = run("train", "series", *flags.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "36 train, 2 valid, 2 test sequences of x1, x2, x3" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["ended"] == "all epochs are done"
    return folder / "run"


@pytest.fixture(scope="module")
def own_file(tmp_path_factory) -> Path:
    """A CSV file with more columns than the run knows, something missing, and where motifs end."""
    path = tmp_path_factory.mktemp("own") / "mine.csv"
    one = plant(PlantedSeriesConfig(sequences=1, steps=90, missing=0.05, seed=9))[0]
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "x3", "x1", "x2", "end"])
        for t, (a, b, c) in enumerate(one.values.tolist()):
            rows.writerow([t, *("" if np.isnan(v) else v for v in (c, a, b)), int(one.motifs[t])])
    return path


def ask(*words: str, **options) -> str:
    done = run(*words, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def answer(*words: str) -> dict:
    return json.loads(ask(*words, "--json").splitlines()[-1])


def test_help_is_that_of_the_domain(trained):
    shown = run("train", "series", "--help").stdout
    for flag in ("--columns", "--ends", "--piece", "--planted.motifs", "--components"):
        assert flag in shown
    assert "--margin" in run("score", str(trained), "--help").stdout
    assert run("generate", str(trained), "--temperature", "1").returncode == 2


def test_eval_tells_a_sequence_and_a_step(trained):
    told = answer("eval", str(trained))
    planted = PlantedSeriesConfig(sequences=40, steps=80)
    lines = load_series(SeriesDataConfig(planted=planted)).split("test")
    nats = log_likelihoods(SeriesModel.from_pretrained(trained / "best"), lines)
    assert (told["sequences"], told["steps"]) == (2, 2 * 79)
    assert told["log_likelihood"] == pytest.approx(nats.mean(), rel=1e-6)
    assert told["log_likelihood_per_step"] == pytest.approx(nats.sum() / 158, rel=1e-6)
    assert "average log-likelihood of a sequence" in ask("eval", str(trained))


def test_eval_of_another_file_takes_the_model_s_columns(trained, own_file):
    told = answer("eval", str(trained), "--data", str(own_file))
    assert (told["sequences"], told["steps"], told["split"]) == (1, 89, "all")
    assert run("eval", str(trained), "--data", str(own_file), "--split", "test").returncode == 2


def test_a_model_of_more_columns_than_layers_can_be_reads_a_file(tmp_path):
    shape = SeriesModelConfig(hidden_sizes=(4, 4), output_size=4, embedding_size=4, components=1)
    SeriesModel([f"x{i + 1}" for i in range(150)], shape).save_pretrained(tmp_path / "wide")
    np.save(tmp_path / "wide.npy", np.random.default_rng(0).normal(size=(5, 150)))
    assert "steps: 5" in ask("segment", str(tmp_path / "wide"), str(tmp_path / "wide.npy"))


def test_generate_writes_csv_and_pictures(trained, own_file, tmp_path):
    rows = list(csv.reader(io.StringIO(ask("generate", str(trained), "--max-new", "7", "--seed", "1"))))
    assert rows[0] == ["x1", "x2", "x3"]
    assert len(rows) == 8
    made = SeriesModel.from_pretrained(trained / "best").generate(max_new=7, seed=1)
    np.testing.assert_allclose(np.array(rows[1:], dtype=float), made, rtol=1e-5)
    for ending in ("csv", "PNG", "svg"):
        ask("generate", str(trained), "--max-new", "7", "--out", str(tmp_path / f"made.{ending}"))
    assert (tmp_path / "made.PNG").read_bytes().startswith(b"\x89PNG")
    ET.parse(tmp_path / "made.svg")
    told = answer("generate", str(trained), "--prime", str(own_file), "--max-new", "4")
    assert (told["primed"], len(told["steps"]), len(told["boundaries"])) == (90, 94, 94)
    assert run("generate", str(trained), "--out", "made.txt").returncode == 2
    assert run("generate", str(trained), "--bias", "-1").returncode == 2


def test_a_file_may_be_called_like_a_set(trained, own_file, tmp_path):
    (tmp_path / "builtin").write_bytes(own_file.read_bytes())
    assert "builtin: steps: 90;" in ask("segment", str(trained), "builtin", cwd=tmp_path)
    words = ("generate", str(trained), "--max-new", "2", "--prime")
    assert json.loads(ask(*words, "builtin", "--json", cwd=tmp_path))["primed"] == 90
    assert "builtin: there is no such file" in run(*words, "builtin").stderr


def test_segments_as_rows_as_json_and_as_a_page(trained, own_file):
    words = ("segment", str(trained), str(own_file), "--format")
    rows = list(csv.DictReader(io.StringIO(ask(*words, "csv"))))
    model = SeriesModel.from_pretrained(trained / "best")
    config = SeriesDataConfig(str(own_file), columns=("x1", "x2", "x3"))
    from hmrnn.domains.series.data.sequences import lines_of

    found = model.segment(lines_of(config).line(0))
    expected = [(str(s.layer), str(s.start), str(s.end)) for layer in found.layers for s in layer]
    assert [(row["layer"], row["start"], row["end"]) for row in rows] == expected
    told = json.loads(ask(*words, "json"))
    assert told["unit"] == "step"
    [sequence] = told["sequences"]
    assert (sequence["name"], sequence["steps"]) == ("mine.csv", 90)
    assert [(str(s["layer"]), str(s["start"]), str(s["end"])) for s in sequence["segments"]] == expected
    page = ask(*words, "html")
    drawing = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    bands = [e for e in drawing.iter() if e.tag.endswith("rect")]
    assert len(bands) == len(expected)
    assert len([e for e in drawing.iter() if e.tag.endswith("polyline")]) > 3, "missing values are gaps"
    assert ask(*words, "text").startswith("mine.csv: steps: 90; segments of layer 1:")
    piped = ask("segment", str(trained), "-", "--format", "csv", input=own_file.read_text())
    assert [row[1:] for row in csv.reader(io.StringIO(piped))][1:] == [
        [*map(str, (s.layer, s.start, s.end, int(s.closed)))] for layer in found.layers for s in layer
    ]


def test_score_within_a_margin(trained, own_file):
    exact = answer("score", str(trained), "--margin", "0")["scores"]["layer 1"]
    near = answer("score", str(trained))["scores"]["layer 1"]
    conventions = [f"{what} {name}" for name in ("motif", "regime") for what in ("last of a", "first of the next")]
    assert list(exact) == conventions
    for how in ("found", "random"):
        assert near["last of a motif"][how]["f1"] > exact["last of a motif"][how]["f1"]
    assert "within 2 steps" in ask("score", str(trained))
    own = answer("score", str(trained), "--data", str(own_file), "--ends", "end")
    assert "last of a segment" in own["scores"]["layer 1"]
    refused = run("score", str(trained), "--data", str(own_file))
    assert refused.returncode == 1
    assert "not known where segments end: --ends names the column" in refused.stderr
    assert run("score", str(trained), "--margin", "-1").returncode == 2


def test_figures(trained, tmp_path):
    ask("figure", str(trained), "--out", str(tmp_path / "figures"))
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        f"{name}.{ending}" for name in ("training", "segments") for ending in ("pdf", "png", "svg")
    }
    drawing = (tmp_path / "figures" / "segments.svg").read_text()
    for part in ("curve x1", "curve x3", "surprisal", "segments of layer 1", "segments of motifs (known)"):
        assert f'id="{part}"' in drawing
    assert run("figure", str(trained), "--out", str(tmp_path), "--sequence", "9").returncode == 2
    assert run("figure", str(trained), "--out", str(tmp_path), "--steps", "90", "99").returncode == 2


def test_training_on_ones_own_file(own_file, tmp_path):
    flags = f"--data {own_file} --ends end --out {tmp_path / 'run'} {SIZES} --epochs 1"
    done = run("train", "series", *flags.split())
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 train, 1 valid, 1 test .*\bx3, x1, x2; left out: time\b", done.stderr)
    assert "values are missing" in done.stderr
    told = answer("score", str(tmp_path / "run"), "--split", "train")
    assert "last of a segment" in told["scores"]["layer 1"]
    refused = run("train", "series", "--data", str(tmp_path / "none.csv"), "--out", str(tmp_path / "other"))
    assert refused.returncode == 1
    assert "no such file or folder" in refused.stderr


def test_a_run_reads_its_columns_from_files_that_have_more(tmp_path):
    """As of runs that were trained when a file with more columns than the first was read in part."""
    folder = tmp_path / "fold"
    folder.mkdir()
    for i in range(20):
        rows = [f"{(i + t) % 7},{t % 5}" for t in range(40)]
        (folder / f"{i:02}.csv").write_text("\n".join(["x,y", *rows, ""]))
    assert run("train", "series", "--data", "fold", "--out", "run", *FEW.split(), cwd=tmp_path).returncode == 0
    plain = answer("eval", str(tmp_path / "run"))
    text = (folder / "07.csv").read_text()
    (folder / "07.csv").write_text("".join(f"{i},{row}\n" for i, row in enumerate(text.splitlines())))
    after = answer("eval", str(tmp_path / "run"))
    assert after["log_likelihood"] == plain["log_likelihood"]
    refused = run("train", "series", "--data", "fold", "--out", "other", *FEW.split(), cwd=tmp_path)
    assert refused.returncode == 1
    assert "only the second has '0'. --columns chooses which to read" in refused.stderr


def test_only_score_needs_ends(tmp_path):
    """eval must not ask for them of data without labels."""
    for name, columns in (("own", "flow,end"), ("other", "flow")):
        rows = ",".join(["{}", "{}"][: columns.count(",") + 1])
        steps = [rows.format(t % len(columns), int(t == 50)) for t in range(300)]
        (tmp_path / f"{name}.csv").write_text("\n".join([columns, *steps, ""]))
    train = ["train", "series", "--data", "own.csv", "--ends", "end", "--out", "run", *FEW.split()]
    assert run(*train, cwd=tmp_path).returncode == 0
    assert answer("eval", str(tmp_path / "run"), "--data", str(tmp_path / "other.csv"))["split"] == "all"
    done = run("score", "run", "--data", "other.csv", cwd=tmp_path)
    assert (done.returncode, "other.csv has no column 'end'" in done.stderr) == (1, True)
    done = run("score", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert "own.csv, test: there is no known boundary to find" in done.stderr, "another part may have some"


FEW = "--hidden-sizes 8 8 --output-size 8 --components 2 --window 20 --epochs 0.2"


def test_more_columns_than_layers(tmp_path):
    """What was trained on is read again, however wide it is."""
    values = np.random.default_rng(0).normal(size=(60, 150))
    np.save(tmp_path / "mine.npy", values)
    np.save(tmp_path / "other.npy", values)
    assert run("train", "series", "--data", "mine.npy", "--out", "run", *FEW.split(), cwd=tmp_path).returncode == 0
    ask("eval", "run", "--data", "other.npy", cwd=tmp_path)
    ask("segment", "run", "other.npy", cwd=tmp_path)


def test_a_part_in_which_all_is_missing(tmp_path):
    """A loss of nothing is no loss of 0: training would end with its first weights as the best."""
    rows = [f"{i % 7}," if i < 350 else "," for i in range(400)]
    (tmp_path / "mine.csv").write_text(
        "\n".join(["a,b", *(row + str(i % 5) * (i < 350) for i, row in enumerate(rows))])
    )
    done = run("train", "series", "--data", "mine.csv", "--out", "run", *FEW.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert "all numbers are missing in the validation part" in done.stderr
    assert not (tmp_path / "run").exists()


def test_eval_of_nothing_but_gaps(trained, tmp_path):
    (tmp_path / "gaps.csv").write_text("x1,x2,x3\n" + ",,\n" * 50)
    done = run("eval", str(trained), "--data", "gaps.csv", cwd=tmp_path)
    assert done.returncode == 1
    assert "all its numbers are missing" in done.stderr


def test_no_step_is_generated(trained):
    assert ask("generate", str(trained), "--max-new", "0") == "x1,x2,x3\n"
