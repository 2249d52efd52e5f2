"""What somebody meets who has just installed hmrnn: names that are wrong, texts of their own, the shipped models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib.image import imread as read_png
from support.commands import run, run_process
from support.explorer.server import running, talking

from hmrnn import StrokeModel, TextModel, __version__
from hmrnn.domains.strokes.config import WritingConfig
from hmrnn.domains.strokes.data.points import to_json, to_strokes
from hmrnn.domains.strokes.data.writing import write_lines
from hmrnn.domains.strokes.drawing import GIVEN
from hmrnn.domains.text.marks import Marked, mark_of_layer
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import Request
from hmrnn.storage.shipped import located

TEXT = "The value of the argument\nis a string.\n"
PLAIN = str.maketrans("", "", "|‖")


def without_torch(*arguments: str, **options):
    """The command in a process of its own, which must not have imported torch."""
    done = run_process(*arguments, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}, **options)
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE), "what makes it wait"
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("import time:"))
    return done


def test_the_version():
    assert run("--version").stdout == run("version").stdout == f"{__version__}\n"


@pytest.mark.parametrize("arguments", [["train", "text"], ["segment", "builtin"], ["figure", "builtin"], ["demo"]])
def test_help_speaks_of_files_and_numbers(arguments):
    shown = run(*arguments, "--help").stdout
    assert not re.search(r"\b(STR|INT|FLOAT|PATH)\b|\{None\}", shown)
    wanted = {"train": ["--out DIR", "--data NAME|FILE", "--epochs NUMBER", "--seed N "], "segment": ["[FILE ...]"]}
    for words in wanted.get(arguments[0], []):
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["segment", "builtin", "some text"], "some text: there is no such file or folder. .*pipe it, or use --text"),
        (["segment", "nowhere"], "nowhere: there is no config.json"),
        (["eval", "builtin", "--data", "nowhere"], "nowhere: there is no such file or folder, and it is not one of"),
        (["score", "builtin", "--gold", "nowhere"], "nowhere: there is no such file"),
        (["figure", "builtin", "--out", "x.png", "--kind", "norms", "--text", "nowhere"], "nowhere: there is no such"),
        (["train", "text", "--data", "nowhere", "--out", "r"], "nowhere: there is no such file or folder"),
        (["train", "series", "--data", "nowhere", "--out", "r"], "nowhere: there is no such file or folder"),
    ],
)
def test_a_wrong_name_is_told_before_torch_is_imported(arguments, what, tmp_path):
    done = without_torch(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert re.fullmatch(f"hmrnn: .*{what}.*\n", done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_prompt_needs_no_flag():
    flags = ["--max-new", "20", "--seed", "1"]
    shown = run("generate", "builtin", "The value", *flags).stdout
    assert shown.startswith("The value")
    assert shown == run("generate", "builtin", "--prompt", "The value", *flags).stdout
    assert run("generate", "builtin", "The", "--prompt", "The").returncode == 2


# segment


def test_a_text_on_the_command_line():
    given = run("segment", "builtin", "--text", TEXT)
    assert given.stdout == run("segment", "builtin", input=TEXT).stdout
    assert given.stdout.translate(PLAIN) == TEXT
    assert run("segment", "builtin", "file", "--text", TEXT).returncode == 2


def layer_of(text: str, layer: int) -> list[str]:
    return [segment.text for segment in TextModel.from_pretrained("builtin").segment(text).layers[layer - 1]]


def test_one_layer():
    for layer, mark in ((1, "|"), (2, "‖")):
        shown = run("segment", "builtin", "--text", TEXT, "--layer", str(layer)).stdout
        assert shown.replace(mark, "") == TEXT
        assert shown.count(mark) == len(layer_of(TEXT, layer)) - 1, "the last one goes on"
    found = json.loads(run("segment", "builtin", "--text", TEXT, "--layer", "2", "--format", "json").stdout)
    assert [segment["text"] for segment in found["segments"]] == layer_of(TEXT, 2)
    assert "boundaries in 2 layers" in run("segment", "builtin", "--text", TEXT, "--layer", "3").stderr


def test_separators_and_lines():
    assert layer_of("The value of", 1) == ["The ", "value ", "of"]
    assert run("segment", "builtin", "--text", "The value of", "--separator", "·").stdout == "The ·value ·of\n"
    tabs = run("segment", "builtin", "--text", "The value of", "--separator", "\\t").stdout
    assert tabs == "The \tvalue \tof\n"
    own = "The \\ value\nof it"
    for layer in (1, 2):
        shown = run("segment", "builtin", "--text", own, "--lines", "--layer", str(layer)).stdout.splitlines()
        written = [line.replace("\\n", "\n").replace("\\\\", "\\") for line in shown]
        assert written == layer_of(own, layer)
    assert run("segment", "builtin", "--text", own, "--lines", "--separator", "-").returncode == 2


def test_several_files_and_folders(tmp_path):
    folder = tmp_path / "folder"
    (folder / "deeper").mkdir(parents=True)
    (folder / "a.txt").write_text("The value")
    (folder / "deeper" / "b.txt").write_text("is a string")
    (folder / "c.bin").write_bytes(b"\xff\x00")
    (tmp_path / "d.txt").write_text("of it")
    arguments = ["segment", "builtin", "folder", "d.txt", "--out", "found.txt"]
    done = run(*arguments, cwd=tmp_path)
    assert done.stdout == "found.txt\n"
    assert "left out: folder/c.bin: not UTF-8\n" in done.stderr
    names, texts = ["folder/a.txt", "folder/deeper/b.txt", "d.txt"], ["The value", "is a string", "of it"]
    alone = [run("segment", "builtin", "--text", text).stdout for text in texts]
    written = "\n".join(f"==> {name} <==\n{own}" for name, own in zip(names, alone, strict=True))
    assert (tmp_path / "found.txt").read_text() == written
    both = json.loads(run("segment", "builtin", "folder", "d.txt", "--format", "json", cwd=tmp_path).stdout)
    assert [own["file"] for own in both["files"]] == names
    assert ["".join(s["text"] for s in own["segments"] if s["layer"] == 1) for own in both["files"]] == texts
    assert run("segment", "builtin", "folder", "--format", "html", cwd=tmp_path).returncode == 2


def test_bytes_that_are_no_characters(tmp_path):
    (tmp_path / "latin1.txt").write_bytes("The café is\n".encode("latin-1"))
    refused = run("segment", "builtin", "latin1.txt", cwd=tmp_path)
    assert "(--bytes reads any file)" in refused.stderr
    for arguments in (
        ["eval", "builtin", "--data"],
        ["figure", "builtin", "--kind", "norms", "--out", "n.svg", "--text"],
    ):
        told = run(*arguments, "latin1.txt", cwd=tmp_path).stderr
        assert "(only a run on bytes reads any file)" in told, "these have no flag for it"
    assert "the symbol 0xe9 at position 7" in run("segment", "builtin", "latin1.txt", "--bytes", cwd=tmp_path).stderr
    skipped = run("segment", "builtin", "latin1.txt", "--bytes", "--on-unknown", "skip", cwd=tmp_path)
    assert skipped.stdout.translate(PLAIN) == "The caf is\n"


@pytest.mark.parametrize("delay", [0, 1])
def test_what_separates_tokens_stands_in_place_of_the_space(delay):
    tokens, ends = ["a", " b", " c", " d"], {1, 2}  # the places after which segments end
    fires = [(t - delay in ends, False) for t in range(len(tokens))]
    for instead_of, expected in (("", "a b/ c/ d"), (" ", "a b/c/d")):
        marked = Marked(delay, mark_of_layer(1, "/"), instead_of)
        shown = "".join(marked(token, z) for token, z in zip(tokens, fires, strict=True)) + marked.rest()
        assert shown == expected


@pytest.mark.parametrize("delay", [0, 1])
def test_a_mark_is_never_at_the_start_of_the_next_line(delay):
    """`ends` are the places after which segments end, whenever the detector fires."""
    text, ends = "a b\n\ncd\n", {1, 3, 4, 7}
    fires = [(t - delay in ends, False) for t in range(len(text))]
    if delay:
        fires[0] = (True, False)  # which ends nothing
    marked = Marked(delay)
    shown = "".join(marked(symbol, z) for symbol, z in zip(text, fires, strict=True)) + marked.rest()
    assert shown == ("a |b|\n|\ncd|\n" if delay == 0 else "a |b|\n|\ncd\n")  # what ends with the last is not known


# What to learn from


FLAGS = "--epochs 1 --batch-size 4 --window 10 --hidden-sizes 4 4 --output-size 4 --embedding-size 4"
SMALL = FLAGS.split()


def test_training_on_standard_input(text_file, tmp_path):
    done = run("train", "text", "--data", "-", "--out", "run", *SMALL, input=text_file.read_text(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "data").read_text() == text_file.read_text()
    assert run("eval", "run", "--split", "all", cwd=tmp_path).returncode == 0
    resumed = run("train", "text", "--resume", "run", "--epochs", "2", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


def test_what_is_no_text_in_a_folder_is_left_out_and_named(text_file, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(text_file.read_text())
    (folder / "latin1").write_bytes(b"caf\xe9")
    (folder / "nul").write_bytes(b"\x7fELF\x00\x01")
    (folder / "dangling").symlink_to("nowhere")
    arguments = ["train", "text", "--data", "texts", "--out", "run", *SMALL]
    strict = run(*arguments, "--strict", cwd=tmp_path)
    assert strict.returncode == 1
    assert strict.stderr == f"hmrnn: {folder}/dangling: not a regular file\n"
    assert not (tmp_path / "run").exists()
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, why in (("dangling", "not a regular file"), ("latin1", "not UTF-8"), ("nul", "binary")):
        assert f"left out: {folder}/{name}: {why}" in done.stderr
    assert "left out: " in run("eval", "run", cwd=tmp_path).stderr
    (folder / "a.txt").unlink()
    assert "not a regular file" in run(*arguments[:-1], "4", "--out", "other", cwd=tmp_path).stderr


@pytest.mark.parametrize("data", ["empty", "short", "-"])
def test_a_refused_training_leaves_nothing(data, tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "short").write_text("abcd" * 9)
    before = sorted(tmp_path.iterdir())
    done = run("train", "text", "--data", data, "--out", "new/run", cwd=tmp_path)
    assert done.returncode == 1
    assert sorted(tmp_path.iterdir()) == before
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "note").write_text("keep me")
    run("train", "text", "--data", "short", "--out", "there", cwd=tmp_path)
    assert (tmp_path / "there" / "note").read_text() == "keep me"


def test_importing_hmrnn_is_quick():
    code = "import time; start = time.process_time(); import hmrnn; print(time.process_time() - start)"
    times = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(3)]
    assert min(map(float, times)) < 0.15


@pytest.mark.parametrize("name", ["builtin", "builtin-strokes"])
def test_a_model_is_loaded_without_the_compiler_of_torch(name):
    """To import that takes longer than all the rest of a short command."""
    code = "import sys, hmrnn; hmrnn.{}.from_pretrained('{}'); sys.exit('torch._dynamo' in sys.modules)"
    kind = "TextModel" if name == "builtin" else "StrokeModel"
    subprocess.run([sys.executable, "-c", code.format(kind, name)], check=True)


@pytest.mark.timed
def test_a_short_text_is_segmented_soon():
    """In processor time, so that a busy machine matters little."""
    assert min(seconds_of("segment", "builtin", "--text", TEXT) for _ in range(3)) < 3.0


def seconds_of(*arguments: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-m", "hmrnn", *arguments], check=True, capture_output=True, timeout=300)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


# The shipped model of handwriting


def test_the_shipped_model_of_handwriting_writes(tmp_path):
    done = run("generate", "builtin-strokes", "--max-new", "250", "--seed", "1", "--out", "hand.svg", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hand.svg\n")
    assert len(ET.parse(tmp_path / "hand.svg").findall(".//{*}path")) > 8, "letters, not one scribble"
    shipped = located("builtin-strokes")
    assert sum(path.stat().st_size for path in shipped.iterdir()) <= 2.5e6
    made = WritingConfig(lines=6, words=(2, 2), seed=99)  # which it was not trained on
    model = StrokeModel.from_pretrained("builtin-strokes")
    lines = write_lines(made)
    nats = sum(model.log_likelihood(line.points) for line in lines) / sum(len(line.points) - 1 for line in lines)
    assert nats > 2.0, "an untrained one has about -4"


def test_the_shipped_model_of_handwriting_finds_strokes():
    """In lines that it was not trained on."""
    model = StrokeModel.from_pretrained("builtin-strokes")
    lines = write_lines(WritingConfig(lines=6, words=(2, 2), seed=99))
    found = torch.cat([model.segment(line.points).steps.z[:, 0] for line in lines]).numpy() > 0.5
    ends = np.concatenate([line.points[:, 2] for line in lines]) > 0.5
    f1 = 2 * (found & ends).sum() / (found.sum() + ends.sum())
    assert f1 > 0.6, "at random it would be .1"


def test_what_was_given_has_another_colour_than_what_is_added(tmp_path):
    (line,) = write_lines(WritingConfig(lines=1, words=(1, 1)))
    (tmp_path / "mine.jsonl").write_text(to_json(line.points) + "\n")
    flags = ["--prime", "mine.jsonl", "--max-new", "60", "--seed", "1", "--out"]
    for out, more in (("line.svg", []), ("moving.svg", ["--animated"])):
        assert run("generate", "builtin-strokes", *flags, out, *more, cwd=tmp_path).returncode == 0
        paths = ET.parse(tmp_path / out).findall(".//{*}path")
        given = [path for path in paths if path.get("class") == "given"]
        assert {path.get("stroke") for path in given} == {GIVEN}
        assert {path.get("stroke") for path in paths if path not in given} == {None}
        # The line to the first new point is new; what was given ends with its own strokes.
        assert len(given) == len(to_strokes(line.points))
        assert len(paths) > len(given)
    assert run("generate", "builtin-strokes", *flags, "line.png", cwd=tmp_path).returncode == 0
    pixels = read_png(tmp_path / "line.png")[..., :3].reshape(-1, 3)
    colour = [int(GIVEN[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert (np.abs(pixels - colour).max(1) < 0.01).sum() > 50
    assert (pixels.max(1) < 0.01).sum() > 50, "and black"


def test_the_shipped_model_of_handwriting_is_explored():
    with running([located("builtin-strokes")]) as host, talking(host) as client:
        assert client.hello["runs"][0]["kind"] == "strokes"


def test_a_line_from_nothing_stands_on_the_line_of_the_sheet():
    (pen,) = load([located("builtin-strokes")], Memory())
    letter, heights = pen.described()["letter"], []
    for seed in range(3):
        torch.manual_seed(seed)
        asked = Request(json.dumps({"strokes": [], "made": [], "bias": 1, "new": 60, "slope": pen.model.rnn.slope}))
        heights += [y for told in pen.generate(asked) if told for y in told["y"]]
    above = 2.5 - np.quantile(heights, [0.05, 0.9]) / letter  # in tall letters, from the line up
    assert 0.6 < above[0] < 1.4, "the tops of letters"
    assert abs(above[1]) < 0.4, "their feet"
