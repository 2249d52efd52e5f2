"""The data of a run are known by their content, wherever they lie."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from support.commands import run
from support.small_runs import weights

from hmrnn.domains.text.data.corpora import builtin_text

SIZES = "--hidden-sizes 6 5 --output-size 6 --batch-size 2 --window 20 --cooldown 0"


def strokes(first: int) -> str:
    """Lines of a pen."""
    lines = [[[[x, 10 * math.sin(x + i)] for x in range(20)], [[30, i], [34, 5]]] for i in range(first, first + 24)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def csv(first: int) -> str:
    return "a,b\n" + "".join(f"{math.sin(i)},{i % 7}\n" for i in range(first, first + 800))


def write_arrays(path: Path, seed: int) -> None:
    """Sequences that are divided by their names, which begin with that of the file."""
    with path.open("wb") as file:
        np.save(file, np.random.default_rng(seed).normal(size=(40, 30, 2)))


def write_folder(path: Path, seed: int) -> None:
    path.mkdir(exist_ok=True)
    for i in range(3):
        (path / f"{i}.txt").write_text(builtin_text()[2000 * i :][: 2000 - 100 * seed])


def write_text(path: Path, seed: int) -> None:
    """With a seed, all but some of its end: the symbols are the same."""
    path.write_text(builtin_text()[: 12_000 - 100 * seed].rpartition(" ")[0])


def write_bytes(path: Path, seed: int) -> None:
    path.write_bytes(bytes(range(256)) * (30 + seed))


KINDS = MappingProxyType(
    {
        "text": ("text", "old.txt", write_text),
        "tokens": ("text --symbols tokens", "old.txt", write_text),
        "bytes": ("text --symbols bytes", "old.bin", write_bytes),
        "a folder": ("text", "old", write_folder),
        "strokes": ("strokes", "old.jsonl", lambda path, seed: path.write_text(strokes(seed))),
        "series": ("series", "old.csv", lambda path, seed: path.write_text(csv(seed))),
        "arrays": ("series", "old.npy", write_arrays),
    }
)


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    return request.param


@pytest.fixture
def trained(kind, tmp_path) -> tuple[list[str], Path, Path]:
    """How to train, a run, and its data."""
    flags, name, write = KINDS[kind]
    train, data = ["train", *flags.split()], tmp_path / name
    write(data, 0)
    done = run(*train, "--data", str(data), "--epochs", "0.5", *SIZES.split(), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    return train, tmp_path / "run", data


def moved(data: Path) -> Path:
    """To another folder, and with another name."""
    (data.parent / "there").mkdir()
    return data.rename(data.parent / "there" / f"new{data.suffix}")


def measured(directory: Path, *more: str) -> dict:
    done = run("eval", str(directory), "--json", *more)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return {name: value for name, value in answer.items() if name not in ("data", "seconds")} | {"said": done.stderr}


def test_data_that_were_moved_are_evaluated_in_the_parts_of_the_run(trained):
    _, directory, data = trained
    before = {split: measured(directory, "--split", split) for split in ("train", "valid", "test", "all")}
    assert before["test"] == measured(directory)
    data = moved(data)
    for split, expected in before.items():
        now = measured(directory, "--data", str(data), "--split", split)
        part = "all of it" if split == "all" else f"its {split} part"
        assert now.pop("said") == f"{data} is what {directory} was trained on: {part} is read\n"
        assert now == {name: value for name, value in expected.items() if name != "said"}
    assert measured(directory, "--data", str(data))["split"] == "test"


def test_other_data_in_the_same_place_are_no_part_of_the_run(kind, trained):
    _, directory, data = trained
    other = data.with_name(f"other{data.suffix}")
    KINDS[kind][2](other, 1)
    assert measured(directory, "--data", str(other))["split"] == "all"


def test_a_run_whose_data_are_gone_says_how_to_name_their_new_place(trained):
    train, directory, data = trained
    moved(data)
    for command in (["eval"], ["score"], [*train, "--epochs", "1", "--resume"]):
        done = run(*command, str(directory))
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"hmrnn: {data}: there is no such file or folder any more, and {directory} was")
        assert "--data NEW_PATH tells where it is now" in done.stderr
    assert "--data" not in run("figure", str(directory), "--out", "x").stderr, "a flag that it lacks"


def test_a_run_goes_on_with_data_that_were_moved(trained, tmp_path):
    train, directory, data = trained
    straight = tmp_path / "straight"
    assert run(*train, "--data", str(data), "--epochs", "1", *SIZES.split(), "--out", str(straight)).returncode == 0
    before = (directory / "config.json").read_bytes()
    data = moved(data)
    done = run(*train, "--resume", str(directory), "--data", str(data), "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert before != (directory / "config.json").read_bytes()
    for name, weight in weights(straight).items():
        assert weight.equal(weights(directory)[name])
    # from now on it knows the place
    expected = measured(directory)
    assert (expected["split"], expected["said"]) == ("test", "")
    done = run(*train, "--resume", str(directory), "--epochs", "1.5")
    assert done.returncode == 0, done.stderr


def test_a_run_does_not_go_on_with_other_data(kind, trained):
    train, directory, data = trained
    other = data.with_name(f"other{data.suffix}")
    KINDS[kind][2](other, 1)
    done = run(*train, "--resume", str(directory), "--data", str(other), "--epochs", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{other}: this is not what {directory} was trained on: its content differs from that of" in done.stderr
    gone = run(*train, "--resume", str(directory), "--data", "nowhere", "--epochs", "1")
    assert "nowhere: there is no such file" in gone.stderr
    assert run(*train, "--resume", str(directory), "--data", "builtin", "--epochs", "1").returncode == 2


CHANGES = MappingProxyType(
    {
        "a new symbol": ("text", lambda data: data.write_text(data.read_text() + "雪")),
        "not UTF-8": ("text", lambda data: data.write_bytes(data.read_bytes() + b"\xff")),
        "empty": ("text", lambda data: data.write_text("")),
        "no JSON": ("strokes", lambda data: data.write_text("[")),
        "another column": ("series", lambda data: data.write_text("a,c\n1,2\n" * 40)),
        "too short": ("series", lambda data: data.write_text("a,b\n1,2\n")),
    }
)


@pytest.mark.parametrize(("kind", "change"), [(CHANGES[name][0], name) for name in CHANGES])
def test_data_that_changed_into_what_no_model_can_read_have_changed(trained, change):
    train, directory, data = trained
    CHANGES[change][1](data)
    for command in (["eval"], ["score"], [*train, "--epochs", "1", "--resume"]):
        done = run(*command, str(directory))
        assert (done.returncode, done.stdout) == (1, "")
        assert str(data) in done.stderr
        assert "changed" in done.stderr
        assert "--" not in done.stderr, "no flag helps"
        reads_any_symbol = change == "a new symbol" and command[0] == "train"
        assert ("It can't be read as it was: " in done.stderr) != reads_any_symbol


@pytest.mark.parametrize(
    ("kind", "name", "text", "wrong", "why"),
    [
        ("text", "a (1).b c. d.txt", "the cat\n" * 90, b"\xff", "not UTF-8: invalid start byte, byte 0xff at offset 0"),
        ("series", "a (1).csv", csv(0), b"a,b\n1,x\n", "line 2 of column 'b' is no number: 'x'"),
    ],
)
def test_why_data_can_not_be_read_is_told_whole_and_without_advice(tmp_path, kind, name, text, wrong, why):
    """Also if the name of the file has brackets or an end of a sentence in it, as advice has."""
    (tmp_path / name).write_text(text)
    train = ["train", kind, "--data", name, *SIZES.split(), "--epochs", "0.1", "--out", "run"]
    assert run(*train, cwd=tmp_path).returncode == 0
    (tmp_path / name).write_bytes(wrong)
    done = run("eval", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith(f"It can't be read as it was: {tmp_path / name}: {why}\n")


@pytest.mark.parametrize("kind", ["text"])
def test_standard_input_contradicts_a_run_on_a_file(trained):
    train, directory, _ = trained
    done = run(*train, "--resume", str(directory), "--data", "-", input="the text")
    assert done.returncode == 2
    assert "contradicts" in done.stderr


def test_a_run_that_was_moved_takes_its_standard_input_along(tmp_path):
    text, settings = builtin_text()[:12_000], [*SIZES.split(), "--epochs", "0.5"]
    done = run("train", "text", "--data", "-", *settings, "--out", "run", input=text, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = measured(tmp_path / "run")
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    for directory in (moved, moved / "best"):
        assert measured(directory) == {**expected, "run": str(directory)}
    moved = moved.rename(tmp_path / "best")  # a run may have this name, too
    assert measured(moved) == {**expected, "run": str(moved)}
    done = run("train", "text", "--resume", str(moved), "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads((moved / "config.json").read_text())["data"]["data"] == str(moved / "data")
    (moved / "data").write_text(text[:-100])
    assert "has changed since" in run("eval", str(moved)).stderr


def test_a_set_that_another_release_makes_otherwise_is_not_said_to_have_changed(tmp_path):
    done = run("train", "text", "--data", "builtin", *SIZES.split(), "--epochs", "0.001", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for folder in (tmp_path / "run", tmp_path / "run" / "best"):
        config = json.loads((folder / "config.json").read_text())
        config |= {"fingerprint": "0" * 64}
        del config["checksum"]
        (folder / "config.json").write_text(json.dumps(config))
    for command in (["eval"], ["train", "text", "--epochs", "0.002", "--resume"]):
        done = run(*command, "run", cwd=tmp_path)
        assert (done.returncode, "differs between releases" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("kind", ["text"])
def test_what_learns_takes_its_own_text_from_where_it_is_now(trained):
    _, directory, data = trained
    data = moved(data)
    found = measured(directory, "--data", str(data), "--dynamic", "0.001", "--decay", "0.01")
    assert found["dynamic"]["bits_per_character"] > 0


@pytest.mark.parametrize("kind", ["text", "arrays"])
def test_a_run_that_has_ended_is_told_where_its_data_are(trained):
    train, directory, data = trained
    expected, data = measured(directory), moved(data)
    done = run(*train, "--resume", str(directory), "--data", str(data))
    assert (done.returncode, "nothing was done" in done.stdout) == (0, True)
    assert f"the data are what it was trained on, and are now at {data}\n" in done.stderr
    assert measured(directory) == expected
    assert measured(directory / "best") == {**expected, "run": str(directory / "best")}


@pytest.mark.parametrize("kind", ["text"])
def test_gold_needs_no_data(trained, tmp_path):
    _, directory, data = trained
    data.unlink()
    (tmp_path / "gold.txt").write_text("the value\nof it\n")
    assert run("score", str(directory), "--gold", str(tmp_path / "gold.txt")).returncode == 0
