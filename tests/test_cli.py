"""The command line as a user meets it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from support.commands import run, run_process
from support.small_runs import settings

from hmrnn import SeriesModel, StrokeModel, Symbols, TextModel
from hmrnn.cli.demo import demo
from hmrnn.domains import DOMAINS
from hmrnn.domains.text.config import PRESETS, PlantedConfig, TextModelConfig
from hmrnn.domains.text.data.corpora import builtin_text
from hmrnn.domains.text.data.streams import Streams
from hmrnn.storage.shipped import located
from hmrnn.training.checkpoint import load_run, save_model
from hmrnn.training.run import train_run

ROOT = Path(__file__).parent.parent


@pytest.mark.timed
def test_help_is_quick_and_explains():
    times = []
    for _ in range(3):
        before = os.times()
        done = run_process("--help")
        after = os.times()
        # of the processor: what others do beside it does not count
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert min(times) < 1.0


def test_importing_the_command_line_does_not_import_torch():
    code = "import sys, hmrnn, hmrnn.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there():
    import hmrnn

    assert all(getattr(hmrnn, name) is not None for name in hmrnn.__all__)
    with pytest.raises(AttributeError, match="warp"):
        _ = hmrnn.warp


@pytest.mark.parametrize(
    "command",
    ["train text", "train", "eval", "generate", "segment", "score", "figure", "plot", "demo", "bench", "build"],
)
def test_help_of_every_command_needs_no_torch(command):
    done = run_process(*command.split(), "--help", env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"})
    assert done.returncode == 0
    assert len(done.stdout) > 200
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE), "what makes --help slow"


def test_help_shows_the_settings_of_the_preset():
    shown = " ".join(run("train", "text", "--preset", "text8", "--help").stdout.replace("│", " ").split())
    assert "(default: 1024 1024 1024)" in shown
    assert "(default: 0.001)" in shown


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run on the start of the built-in text."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "text.txt").write_text(builtin_text()[:30_000])
    flags = "--epochs 2 --batch-size 8 --window 50 --hidden-sizes 16 16 16 --output-size 16 --json"
    done = run("train", "text", "--data", "text.txt", "--out", "run", *flags.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["ended"] == "all epochs are done"
    assert answer["update"] == 2 * (26_999 // 8 // 50)
    assert 2 < answer["best_bits"] < 5
    assert "%|" not in done.stderr, "no progress bar where there is no terminal"
    return folder / "run"


def test_eval(trained, tmp_path):
    done = run("eval", str(trained), "--json", cwd=tmp_path)  # from another folder: the run knows where its text is
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["split"], answer["symbols"], answer["streams"]) == ("test", 1500, 1)
    assert f"{answer['bits_per_character']:.4f} bits per character" in run("eval", str(trained)).stdout
    many = run("eval", str(trained), "--streams", "5", "--split", "valid").stdout
    assert re.search(r"\(5 streams\b", many)


def test_eval_knows_the_runs_own_text(trained, tmp_path):
    def answer(*more: str) -> dict:
        done = run("eval", str(trained), "--json", *more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    own = answer()
    named = answer("--data", str(trained.parent / "text.txt"))
    assert (named["split"], named["bits_per_character"]) == ("test", own["bits_per_character"])
    assert answer("--data", str(trained.parent / "text.txt"), "--split", "all")["symbols"] == 30_000
    planted = answer("--data", "planted")
    assert (planted["data"], planted["split"]) == ("planted", "test")
    assert planted["symbols"] > 40_000
    # best/ and the run itself hold different models once the run's is replaced
    shutil.copytree(trained, tmp_path / "copy")
    model = TextModel.from_pretrained(tmp_path / "copy")
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    save_model(tmp_path / "copy", model, load_run(tmp_path / "copy"))
    last = json.loads(run("eval", str(tmp_path / "copy"), "--checkpoint", "last", "--json").stdout)
    assert last["bits_per_character"] == pytest.approx(math.log2(len(model.symbols)))
    best = json.loads(run("eval", str(tmp_path / "copy"), "--json").stdout)
    assert best["bits_per_character"] == own["bits_per_character"]


@pytest.fixture
def parts_read(trained, monkeypatch) -> list[str]:
    """Which parts of the run's text are read, in turn."""
    text = (trained.parent / "text.txt").read_text()
    starts = {"train": text[:100], "valid": text[27_000:27_100], "test": text[28_500:28_600]}
    symbols, read, reading = TextModel.from_pretrained(trained).symbols, [], Streams.read

    def watched(self, start, end):
        begins = symbols.text(self.numbers[:100])
        read.append(next((name for name, start in starts.items() if start == begins), "other"))
        return reading(self, start, end)

    monkeypatch.setattr(Streams, "read", watched)
    return read


def test_eval_beside_the_plain_figure(trained, parts_read):
    plain = json.loads(run("eval", str(trained), "--json").stdout)
    assert (plain["temperature"], plain["dynamic"]) == (None, None)
    assert set(parts_read) == {"test"}
    parts_read.clear()

    done = run("eval", str(trained), "--dynamic", "auto", "--temperature", "auto", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["bits_per_character"] == plain["bits_per_character"], "the plain figure stays what it is"
    temperature, dynamic = answer["temperature"], answer["dynamic"]
    on = {"split": "valid", "first": 1500}
    assert (temperature["chosen"], temperature["chosen_on"]) == (["temperature"], on)
    assert (dynamic["chosen"], dynamic["chosen_on"], dynamic["window"]) == (["eta", "lambda"], on, 100)
    assert dynamic["bits_per_character"] < plain["bits_per_character"]
    assert dynamic["temperature"]["chosen_on"] == on
    assert re.search(r"eta and lambda .*\b1,500 symbols of the validation part", done.stderr)
    assert parts_read.index("test") > max(i for i, part in enumerate(parts_read) if part != "test"), "not to choose on"
    assert set(parts_read) == {"train", "valid", "test"}
    parts_read.clear()

    # What was chosen, given by hand, comes to the same, and nothing is chosen.
    given = ["--dynamic", str(dynamic["eta"]), "--decay", str(dynamic["lambda"])]
    given += ["--temperature", str(temperature["temperature"])]
    again = json.loads(run("eval", str(trained), *given, "--json").stdout)
    assert set(parts_read) == {"train", "test"}
    for name, figure in (("temperature", temperature), ("dynamic", dynamic)):
        assert again[name]["bits_per_character"] == pytest.approx(figure["bits_per_character"], rel=1e-9)
        assert (again[name]["chosen"], again[name]["chosen_on"]) == ([], None)

    shown = run("eval", str(trained), *given).stdout.splitlines()
    assert [line.split()[0] for line in shown] == [
        f"{bits:.4f}"
        for bits in (
            again["bits_per_character"],
            again["temperature"]["bits_per_character"],
            again["dynamic"]["bits_per_character"],
            again["dynamic"]["temperature"]["bits_per_character"],
        )
    ]
    assert "with temperature" in shown[1]
    assert "with dynamic evaluation" in shown[2]
    assert "temperature" not in shown[2]
    assert "with dynamic evaluation and temperature" in shown[3]


def test_eval_chooses_what_is_not_given(trained, parts_read):
    answer = json.loads(run("eval", str(trained), "--dynamic", "0.002", "--json").stdout)["dynamic"]
    assert (answer["eta"], answer["chosen"]) == (0.002, ["lambda"])
    answer = json.loads(run("eval", str(trained), "--dynamic", "auto", "--decay", "0", "--json").stdout)["dynamic"]
    assert (answer["lambda"], answer["chosen"]) == (0, ["eta"])


def test_eval_of_another_text_chooses_on_the_runs_own(trained, parts_read, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("The value of it is none.\n" * 10)
    flags = ["--data", str(other), "--dynamic", "auto", "--temperature", "auto", "--json"]
    answer = json.loads(run("eval", str(trained), *flags).stdout)
    assert (answer["data"], answer["split"], answer["dynamic"]["chosen_on"]["first"]) == (str(other), "all", 1500)
    assert "test" not in parts_read
    assert parts_read.index("other") > max(i for i, part in enumerate(parts_read) if part == "valid")


def test_what_learns_needs_the_text_that_the_model_was_trained_on(trained, tmp_path):
    """A model without a run, and a run whose text is gone: plain figures only, and one line that says why."""
    other = tmp_path / "other.txt"
    other.write_text("The value of it is none.\n" * 10)
    model, saved = TextModel.from_pretrained(trained), load_run(trained)
    model.save_pretrained(tmp_path / "model")
    gone = replace(saved, config=replace(saved.config, data=replace(saved.config.data, data=str(tmp_path / "gone"))))
    save_model(tmp_path / "run", model, gone)
    for directory, why in (("model", "it does not say how it was trained"), ("run", "gone: there is no such file")):
        arguments = ["eval", str(tmp_path / directory), "--data", str(other)]
        for flags in (["--dynamic", "0.001", "--decay", "0"], ["--temperature", "auto"]):
            done = run(*arguments, *flags)
            assert done.returncode == 1
            assert re.fullmatch(rf"hmrnn: .*--dynamic.*--temperature auto.*{why}.*\n", done.stderr)
            assert "Traceback" not in done.stderr
        assert json.loads(run(*arguments, "--temperature", "1.5", "--json").stdout)["temperature"]["temperature"] == 1.5


def test_eval_refuses_the_runs_own_text_once_it_has_changed(tmp_path):
    (tmp_path / "text.txt").write_text(builtin_text()[:3000])
    flags = "--epochs 0.5 --batch-size 2 --window 20 --hidden-sizes 4 4 --output-size 4"
    assert run("train", "text", "--data", "text.txt", "--out", "run", *flags.split(), cwd=tmp_path).returncode == 0
    (tmp_path / "text.txt").write_text("A " + builtin_text()[:3000])
    done = run("eval", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"text\.txt .*\bchanged\b", done.stderr)


def test_eval_of_another_text_with_unknown_symbols(trained, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("The value of 雪 is none.\n" * 10)
    refused = run("eval", str(trained), "--data", str(other))
    assert refused.returncode == 1
    assert re.search(rf"{re.escape(str(other))}: .*'雪' \(U\+96EA\) at position 13\b.*--on-unknown", refused.stderr)
    for policy, symbols in (("skip", 230), ("replace", 240)):
        done = run("eval", str(trained), "--data", str(other), "--on-unknown", policy, "--json")
        assert (json.loads(done.stdout)["symbols"], json.loads(done.stdout)["split"]) == (symbols, "all")


def test_generate(trained):
    flags = ["generate", str(trained), "--prompt", "The ", "--max-new", "60", "--seed", "3"]
    text = run(*flags).stdout
    assert text.startswith("The ")
    assert len(text) == 65
    assert run(*flags).stdout == text
    answer = json.loads(run(*flags, "--json").stdout)
    assert (answer["prompt"], answer["text"]) == ("The ", text[4:-1])
    assert len(answer["boundaries"]) == 64
    marked = run(*flags, "--show-boundaries").stdout
    assert sum(map(marked.count, "|‖")) - sum(map(text.count, "|‖")) == sum(map(sum, answer["boundaries"]))
    unknown = run("generate", str(trained), "--prompt", "雪")
    assert unknown.returncode == 1
    assert "'雪'" in unknown.stderr


@pytest.mark.parametrize("prompt", ["The", ""])
def test_generated_boundaries_lie_where_the_marks_are(prompt):
    """Also of a model whose detectors fire one symbol late."""
    assert TextModel.from_pretrained("builtin").delay == 1
    flags = ["generate", "builtin", "--prompt", prompt, "--max-new", "60", "--seed", "3"]
    answer = json.loads(run(*flags, "--json").stdout)
    text = answer["prompt"] + answer["text"]
    assert len(answer["boundaries"]) == len(text) == 60 + len(prompt)
    marked = ""
    for symbol, ends in zip(text, answer["boundaries"], strict=True):
        marks = "".join(mark for mark, fires in zip("|‖", ends, strict=True) if fires)
        marked += marks + symbol if symbol == "\n" else symbol + marks
    assert run(*flags, "--show-boundaries").stdout == marked + "\n"
    assert sum(map(sum, answer["boundaries"])) > 5
    assert "boundaries" in run("generate", "builtin", "--help").stdout


def test_json_of_a_generated_nothing_has_no_boundaries():
    assert json.loads(run("generate", "builtin", "--max-new", "0", "--json").stdout)["boundaries"] == []


def test_generated_bytes_are_those_of_the_library_also_where_a_character_is_cut(tmp_path):
    torch.manual_seed(3)
    model = TextModel(Symbols.of("é雪".encode()), TextModelConfig(hidden_sizes=(4, 4), output_size=4))
    model.save_pretrained(tmp_path / "run")
    cut = 0
    for seed in range(6):
        flags = ["generate", str(tmp_path / "run"), "--prompt", "é", "--max-new", "4", "--seed", str(seed)]
        made = model.generate("é", 4, seed=seed)
        assert json.loads(run(*flags, "--json").stdout)["text"] == made
        assert run(*flags).stdout == f"é{made}\n"
        cut += made.endswith("\ufffd")
    assert cut > 0


LSTM, ONE_LAYER = {"model": "lstm", "hidden_sizes": (6, 5)}, {"hidden_sizes": (6,)}


@pytest.mark.parametrize(("shape", "what"), [(LSTM, "lstm"), (ONE_LAYER, "hm-lstm of one layer")])
@pytest.mark.parametrize(
    ("kind", "first", "data"),
    [
        (TextModel, [Symbols.of("abc ")], "ab c"),
        (StrokeModel, [], "[[[1, 2], [3, 4]]]"),
        (SeriesModel, [("a", "b")], "a,b\n1,2\n3,4\n"),
    ],
)
def test_a_model_without_boundaries_has_no_segments(kind, first, data, shape, what, tmp_path):
    config = get_type_hints(kind)["config"](**shape, output_size=4)
    kind(*first, config).save_pretrained(tmp_path / "run")
    (tmp_path / "data").write_text(data)
    commands = ["segment run data", "segment run data --format json", "score run --data data"]
    for command in commands + ["generate run --show-boundaries"] * (kind is TextModel):
        done = run(*command.split(), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"hmrnn: run: this {what} has no boundaries\n"


def test_segment(trained, tmp_path):
    text = builtin_text()[1000:1400]
    (tmp_path / "text.txt").write_text(text)
    done = run("segment", str(trained), str(tmp_path / "text.txt"))
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"^400 / \d+ / \d+ updates of 1,200 \(400 steps × 3 layers\): \d+% saved by COPY$", done.stderr, re.MULTILINE
    )
    piped = run("segment", str(trained), input=text)
    assert piped.stdout == done.stdout
    answer = json.loads(run("segment", str(trained), "-", "--format", "json", input=text).stdout)
    assert "".join(s["text"] for s in answer["segments"] if s["layer"] == 1) == text
    for content, what in [("", "empty"), ("a雪", "standard input: the symbol '雪' .* at position 1")]:
        failed = run("segment", str(trained), input=content)
        assert failed.returncode == 1
        assert re.search(what, failed.stderr)
    assert "nowhere" in run("segment", str(trained), "nowhere").stderr


def test_a_run_may_come_after_a_flag_whose_value_is_the_name_of_another():
    done = run("eval", "--data", "nowhere", "builtin-strokes")
    assert done.stderr.startswith("hmrnn: nowhere: there is no such file"), "of strokes"
    done = run("score", "--data", "builtin", "builtin-strokes", "--json")
    assert done.returncode == 0, done.stderr
    assert run("eval", "--json", str(Path("builtin")), "--split", "x").returncode == 2, "but a run after a flag is one"


def test_score(trained, tmp_path):
    done = run("score", str(trained), "--first", "500", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["symbols"] == 500
    assert set(answer["scores"]) == {"layer 1", "layer 2"}
    assert set(answer["scores"]["layer 1"]) == {"before", "on", "after"}
    assert set(answer["scores"]["layer 1"]["on"]) == {"found", "never", "always", "random", "every k-th"}
    shown = run("score", str(trained), "--first", "500", "--all").stdout
    assert f"{answer['scores']['layer 1']['on']['found']['f1']:.3f}" in shown
    short = run("score", str(trained), "--first", "500").stdout
    best = max(rows["found"]["f1"] for rows in answer["scores"]["layer 1"].values())
    assert f"layer 1: F1 {best:.3f}" in short
    assert "every k-th" not in short, "that is in the table"
    planted = json.loads(run("score", str(trained), "--data", "planted", "--first", "300", "--json").stdout)
    assert "first of the next phrase" in planted["scores"]["layer 2"]
    (tmp_path / "gold.txt").write_text("the value of it\nis not there\n")
    gold = json.loads(run("score", str(trained), "--gold", str(tmp_path / "gold.txt"), "--json").stdout)
    assert gold["symbols"] == len("thevalueofit\nisnotthere\n")
    (tmp_path / "gold.txt").write_text("the value\x0cof\x85it\r\nis not\u2028there\r", newline="")
    again = json.loads(run("score", str(trained), "--gold", str(tmp_path / "gold.txt"), "--json").stdout)
    assert again == gold, "only \\n and \\r end a line"
    assert run("score", str(trained), "--gold", "x", "--data", "ptb").returncode == 2
    assert run("score", str(trained), "--gold", "x", "--on-unknown", "skip").returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        "thevalueofit\nisnotthere\nthevalue\n" * 9,
        "thevalueofit",
        "the\nvalue\nof\nit\n",
        "thevalue, ofit\nisnot\nthere\n" * 9,
    ],
)
def test_no_word_is_scored_that_the_text_does_not_show(trained, tmp_path, text):
    """Were line ends the words, a figure would say how often the detectors find those."""
    (tmp_path / "text.txt").write_text(text)
    done = run("score", str(trained), "--data", str(tmp_path / "text.txt"))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(r"text\.txt, all: it is not known where words end: .*--gold", done.stderr)


def test_nothing_to_find_is_no_score(trained, tmp_path):
    (tmp_path / "gold.txt").write_text("abc\nthe\n")
    done = run("score", str(trained), "--gold", str(tmp_path / "gold.txt"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "gold.txt: there is no known boundary to find" in done.stderr


def test_figure(trained, tmp_path):
    done = run("figure", str(trained), "--out", str(tmp_path / "all"))
    assert done.returncode == 0, done.stderr
    names = [f"{k}.{e}" for k in ("boundaries", "classes", "norms", "training") for e in ("pdf", "png", "svg")]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == names
    (tmp_path / "text.txt").write_text("The value of it.\n")
    one = run("figure", str(trained), "--out", "b.svg", "--kind", "norms", "--text", "text.txt", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert (tmp_path / "b.svg").exists()
    shutil.copytree(trained, tmp_path / "other")
    two = run("figure", str(trained), str(tmp_path / "other"), "--out", "t.svg", "--kind", "training", cwd=tmp_path)
    assert two.returncode == 0, two.stderr
    assert str(tmp_path / "other") in (tmp_path / "t.svg").read_text()
    assert run("figure", str(trained), "--out", "c.svg", cwd=tmp_path).returncode == 2
    for out, file in (("d.PNG", "d.PNG"), ("figures-0.5", "figures-0.5/norms.png")):
        assert run("figure", str(trained), "--kind", "norms", "--out", out, cwd=tmp_path).returncode == 0
        assert (tmp_path / file).is_file()


def test_a_reader_that_has_enough(trained):
    command = f"{sys.executable} -m hmrnn generate {trained} --max-new 100000 --seed 1 | head -c 100"
    done = subprocess.run(command, shell=True, capture_output=True, check=False, timeout=300)
    assert len(done.stdout) == 100
    assert done.stderr == b""


def test_a_terminal_without_unicode(trained):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run_process("generate", str(trained), "--seed", "1", "--show-boundaries", env=environment)
    assert done.returncode == 0, done.stderr


def test_bad_usage_exits_with_2(trained):
    for arguments, what in [
        (["fly"], "fly"),
        (["demo", "--epochs", "many"], "many"),
        ([], "subcommand"),
        (["train"], "text, strokes or series"),
        (["train", "--data", "a.txt", "--out", "a"], "text, strokes or series"),
        (["train", "txt", "--out", "a"], "text, strokes or series"),
        (["segment"], "no run is named"),
        (["segment", "--text", "hello"], "no run is named"),
        (["eval", "--json", "nosuch"], "no run is named.*; there is none in nosuch"),
        (["eval", "--data=a.txt"], "no run is named"),
        (["train", "text"], "--out"),
        (["train", "text", "--out", "a", "--resume", str(trained)], "--resume"),
        (["train", "text", "--out", "a", "--preset", "huge"], "huge"),
        (["train", "text", "--out", "a", "--batch-size", "0"], "batch_size must be a whole number from 1; got 0"),
        (["train", "text", "--out", "a", "--planted.letters", "99"], "letters"),
        (["train", "text", "--out", "a", "--minutes", "0"], "minutes must be positive"),
        (["train", "text", "--out", "a", "--epochs", "0"], "epochs must be positive"),
        (["demo", "--epochs", "0"], "epochs must be positive"),
        (["train", "text", "--resume", str(trained), "--preset", "ptb"], "--preset"),
        (
            ["train", "text", "--resume", str(trained), "--batch-size", "9"],
            r"--batch-size 9 \(it has 8\) contradicts",
        ),
        (["train", "text", "--resume", str(trained), "--model", "lstm"], r"--model lstm \(it has hm-lstm\)"),
        (["train", "text", "--out", "a", "--hidden-sizes", "4", "0"], "hidden_sizes"),
        (["train", "text", "--out", "a", "--boundary-bias", "1", "2", "3"], "boundary_bias"),
        (["train", "text", "--out", "a", "--data", "ptb", "--bytes"], "bytes is for files"),
        (["generate", str(trained), "--temperature", "-1"], "temperature"),
        (["generate", str(trained), "--max-new", "-1"], "--max-new"),
        (["generate", str(trained), "--seed", "9" * 23], "--seed must not be negative, and at most 9,223"),
        (["eval", str(trained), "--streams", "0"], "--streams"),
        (["eval", str(trained), "--dynamic", "0"], "--dynamic"),
        (["eval", str(trained), "--dynamic", "much"], "much"),
        (["eval", str(trained), "--dynamic", "0.1", "--streams", "2"], "--dynamic"),
        (["eval", str(trained), "--dynamic", "auto", "--decay", "2"], "--decay"),
        (["eval", str(trained), "--decay", "0.1"], "--dynamic"),
        (["eval", str(trained), "--temperature", "0"], "--temperature"),
        (["figure", str(trained), "--out", os.devnull], f"{os.devnull} is no folder"),
        (["figure", str(trained), "--kind", "norms", "--out", "a.jpg"], r"does not end in \.pdf, \.svg, \.png"),
        (["figure", str(trained), "builtin", "--kind", "norms", "--out", "a.png"], "one run, and these are 2"),
        (["figure", *["builtin-strokes"] * 2, "--strokes", "--out", "a"], "one run, and these are 2"),
        (["bench", "--hidden", "0"], "hidden must be a whole number from 1; got 0"),
        (["bench", "--repeats", "0"], "repeats must be"),
        (["bench", "--rates", "2", "0.1"], "rates is a share"),
    ]:
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert re.search(what, done.stderr + done.stdout), (what, done.stderr)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", ["--data", "--resume", "--preset", "--epochs", "--minutes"])
def test_a_flag_without_its_value_is_told_by_the_parser_of_all_flags(flag):
    done = run("train", "text", "--out", "a", flag)
    assert done.returncode == 2
    told = done.stderr + done.stdout
    assert f"Missing value for argument '{flag}" in " ".join(told.replace("│", " ").split())
    assert "[--preset PRESET]" not in told, "a usage of few flags"


@pytest.mark.parametrize(
    "told",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB",
        "CUDA error: out of memory",
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to",
    ],
)
def test_too_little_memory_is_told_in_one_line(monkeypatch, told):
    def exhausted(**_):
        raise torch.OutOfMemoryError(told)

    monkeypatch.setattr("hmrnn.cli.building.build_native", exhausted)
    done = run("build")
    assert done.returncode == 1
    assert done.stderr == "hmrnn: not enough memory: try smaller --hidden-sizes, --batch-size or --window\n"


def test_what_is_forgotten_is_told_in_one_line(tmp_path):
    for arguments in (["train", "--data", "a.txt", "--out", "a"], ["segment", "--text", "hello"]):
        assert len(run(*arguments, cwd=tmp_path).stderr.splitlines()) == 1
    shutil.copytree(located("builtin"), tmp_path / "run")
    assert run("segment", "--text", "hello", "run", cwd=tmp_path).returncode == 0
    assert run("segment", "--lines", "run", "--text", "hello", cwd=tmp_path).returncode == 0, "no value of the flag"


@pytest.mark.parametrize(
    "arguments", [["segment", "builtin-strokes", "--text", "x"], ["generate", "builtin-strokes", "x"]]
)
def test_an_error_names_the_help_of_the_run(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert f"hmrnn {arguments[0]} RUN --help" in done.stderr
    assert "usage: hmrnn segment [-h] [OPTIONS] RUN" in run("segment", "builtin-strokes", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["train", "text", "--data", "it", "--planted.words", "5"], "--planted.words is for --data planted"),
        (["train", "text", "--planted.word-length", "2", "3"], "--planted.word-length is for --data planted"),
        (["train", "strokes", "--data", "it", "--writing.lines", "5"], "--writing.lines is for --data builtin"),
        (["train", "series", "--data", "it", "--planted.stay", "1", "2"], "--planted.stay is for --data builtin"),
        (["train", "series", "--ends", "it"], "--ends is for files"),
        (["train", "text", "--data", "it", "--most-symbols", "20"], "--most-symbols is for tokens, not for characters"),
        (["segment", "builtin", "it", "--vectors"], "--vectors is for --format json, not for text"),
        (["segment", "builtin", "it", "--vectors", "--format", "html"], "--vectors is for --format json, not for html"),
        (["segment", "builtin-strokes", "it", "--vectors"], "--vectors is for --format json, not for text"),
    ],
)
def test_a_flag_without_effect_is_refused(arguments, what, tmp_path):
    (tmp_path / "it").write_text("the cat\n")
    done = run(*arguments, *(["--out", "r"] if arguments[0] == "train" else []), cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(rf"hmrnn: {what}.*--help\)\n", done.stderr)
    assert not (tmp_path / "r").exists()


def test_a_run_from_when_such_flags_were_accepted_goes_on(text_file, tmp_path):
    """Nor do settings of made data hinder a run from reading other data."""
    begun = settings(text_file, epochs=0.3)
    begun = replace(begun, data=replace(begun.data, most_symbols=20, planted=PlantedConfig(words=5)))
    train_run(begun, tmp_path / "run")
    done = run("train", "text", "--resume", str(tmp_path / "run"), "--epochs", "0.5")
    assert done.returncode == 0, done.stderr
    assert load_run(tmp_path / "run").config.data == begun.data
    (tmp_path / "other").write_text("the cat")
    reading = ["--data", str(tmp_path / "other"), "--on-unknown", "skip"]
    assert run("eval", str(tmp_path / "run"), *reading).returncode == 0


def test_a_folder_that_is_a_file_and_a_file_that_is_a_folder(trained, tmp_path):
    (tmp_path / "file").write_text("the cat\n")
    (tmp_path / "folder.png").mkdir()
    figure = ["figure", "builtin", "--kind", "norms", "--symbols", "9"]
    strokes = ["generate", "builtin-strokes", "--max-new", "2"]
    for arguments in [
        ["train", "text", "--data", str(trained.parent / "text.txt"), "--out", "file"],
        ["train", "text", "--data", str(trained.parent / "text.txt"), "--out", "file/run"],
        ["demo", "--out", "file"],
        ["segment", "builtin", "--text", "x", "--out", "file/x"],
        ["plot", str(trained), "--out", "file/x.png"],
        [*figure, "--out", "file/x.png"],
        [*figure, "--out", "file/x"],
        [*strokes, "--out", "file/x.svg"],
        [*strokes, "--out", "file/x.png"],
    ]:
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 1, arguments
        assert re.search(r"\bfile: this is a file, and must be a folder\n", done.stderr), (arguments, done.stderr)
    for arguments in [
        ["segment", "builtin", "--text", "x", "--out", "folder.png"],
        ["plot", str(trained), "--out", "folder.png"],
        [*strokes, "--out", "folder.png"],
        [*strokes, "--prime", "folder.png"],
        [*figure, "--out", "x.png", "--text", "folder.png"],
        ["score", "builtin", "--gold", "folder.png"],
    ]:
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 1, arguments
        assert re.fullmatch("hmrnn: folder.png: this is a folder, and must be a file\n", done.stderr), arguments
    assert (tmp_path / "file").read_text() == "the cat\n"


def test_a_refused_setting_is_told_in_one_line_that_names_the_command(tmp_path):
    for *command, flag, value in [
        ("train", "text", "--average", "2"),
        ("train", "strokes", "--writing.lines", "0"),
        ("eval", "builtin", "--device", "moon"),
    ]:
        done = run(*command, flag, value, cwd=tmp_path)
        asked = " ".join("RUN" if word == "builtin" else word for word in command)
        assert re.fullmatch(
            rf"hmrnn: .*{flag[2:].split('.')[-1]}.*{value}.*\(see hmrnn {asked} --help\)\n", done.stderr
        )
        assert done.returncode == 2


def test_a_model_without_a_record_of_training_has_its_other_figures(trained, tmp_path):
    done = run("figure", "builtin", "--out", "all", "--symbols", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "metrics.jsonl" in done.stderr
    assert sorted(path.stem for path in (tmp_path / "all").glob("*.svg")) == ["boundaries", "classes", "norms"]
    both = run("figure", "builtin", str(trained), "--out", "both", "--symbols", "9", cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert (tmp_path / "both" / "training.svg").exists()
    alone = run("figure", "builtin", "--out", "all", "--kind", "training", cwd=tmp_path)
    assert alone.returncode == 1
    assert re.fullmatch(r"hmrnn: .*metrics\.jsonl.*not a training run\n", alone.stderr)


def test_failures_exit_with_1_and_say_what_to_do(trained, tmp_path):
    files = {"empty": b"", "one": b"a", "same": b"a" * 90_000, "short": b"abcd" * 20, "bad": b"ab\xffcd" * 9000}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    for arguments, what in [
        (["train", "text", "--out", "r", "--data", "empty"], "empty: empty"),
        (["train", "text", "--out", "r", "--data", "one"], "one: too short"),
        (["train", "text", "--out", "r", "--data", "same"], "same: all symbols are the same"),
        (["train", "text", "--out", "r", "--data", "short"], "short: too short.*--batch-size or --window"),
        (["train", "text", "--out", "r", "--data", "bad"], "bad: not UTF-8: .*0xff at offset 2.*--symbols bytes"),
        (["train", "text", "--out", "r", "--data", "folder"], "folder: there is no file in this folder"),
        (["train", "text", "--out", "r", "--data", "nowhere"], "nowhere: there is no such file or folder"),
        (["train", "text", "--out", "r", "--data", "text8", "--data-dir", "."], "text8.zip"),
        (["train", "text", "--out", str(trained)], f"--resume {trained}"),
        (["train", "text", "--out", "short/run"], "short"),
        (["train", "text", "--resume", "nowhere"], "nowhere: there is no config.json"),
        (["train", "text", "--out", "r", "--hidden-sizes", "1000000", "4"], "not enough memory"),
        (["eval", "nowhere"], "nowhere: there is no config.json"),
        (["eval", str(trained), "--data", "empty"], "empty"),
        (["generate", "nowhere"], "nowhere: there is no config.json"),
        (["demo", "--out", "short/run"], "short"),
    ]:
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 1, (arguments, done.stderr)
        assert re.match(rf"hmrnn: .*{what}", done.stderr), (what, done.stderr)
        assert "Traceback" not in done.stderr


def test_any_file_as_bytes(tmp_path):
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 40)
    flags = "--bytes --epochs 1 --batch-size 2 --hidden-sizes 4 4 --output-size 4"
    done = run("train", "text", "--data", "noise", "--out", "run", *flags.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "256 distinct symbols" in done.stderr
    assert run("eval", "run", cwd=tmp_path).returncode == 0
    assert run("generate", "run", "--prompt", "雪", "--max-new", "20", cwd=tmp_path).returncode == 0


def test_demo_trains_saves_and_shows_segments_and_goes_on(tmp_path):
    arguments = ["demo", "--out", str(tmp_path / "run"), "--epochs"]
    done = run(*arguments, "0.05")
    assert done.returncode == 0, done.stderr
    bits, counted = (float(value) for value in re.findall(r"^(\d\.\d+) ", done.stdout, re.MULTILINE))
    assert 1 < bits < 8
    assert 1.5 < counted < 2.5
    assert "| in layer 1" in done.stdout
    assert f"hmrnn generate {tmp_path / 'run'}" in done.stdout
    assert (tmp_path / "run" / "page.html").stat().st_size > 100_000
    again = run(*arguments, "0.1")
    assert "restored" in again.stderr
    other = run(*arguments, "0.1", "--seed", "5")
    assert other.returncode == 2
    assert "--seed 5 (it has 0) contradicts" in other.stderr


def test_a_demo_that_an_older_version_began_goes_on_with_its_settings(tmp_path, monkeypatch):
    small = PRESETS["small"]
    older = replace(small, training=replace(small.training, patience=7, cooldown=0.0, guided_updates=10_000))
    with monkeypatch.context() as patch:
        patch.setattr("hmrnn.cli.demo.PRESETS", {"small": older})
        demo(tmp_path, epochs=0.02, seed=0)
    demo(tmp_path, epochs=0.04, seed=0)
    assert load_run(tmp_path).config.training == replace(older.training, epochs=0.04)


BEGUN = "--hidden-sizes 8 8 --output-size 8 --embedding-size 8 --batch-size 8 --epochs 0.01 --seed 3 --guided-updates 0"


def test_the_demo_goes_on_with_the_seed_and_the_settings_of_its_run(tmp_path):
    begun = run("train", "text", "--data", "builtin", "--out", "demo", *BEGUN.split(), cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    before = load_run(tmp_path / "demo").config
    done = run("demo", "--epochs", "0.02", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_run(tmp_path / "demo").config == replace(before, training=replace(before.training, epochs=0.02))
    other = run("demo", "--seed", "0", cwd=tmp_path)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "--seed 0 (it has 3) contradicts" in other.stderr


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--data planted --planted.symbols 2000", "is not a run on the characters of the built-in text"),
        ("--data builtin --symbols tokens", "is not a run on the characters of the built-in text"),
        ("--data builtin --model lstm", "is a run without boundaries"),
    ],
)
def test_the_demo_refuses_a_run_that_it_can_not_show(tmp_path, flags, what):
    begun = run("train", "text", "--out", "demo", *flags.split(), *BEGUN.split(), cwd=tmp_path)
    assert begun.returncode == 0, begun.stderr
    done = run("demo", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"hmrnn: demo {what}: choose another --out\n")


def headings(shown: str) -> dict[str, list[str]]:
    """The flags of a --help below each of its headings."""
    below: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if title := re.match(r"╭─ (.+?) ─", line):
            below[title[1]] = []
        elif flag := re.match(r"│ --([a-z.-]+)", line):
            below[list(below)[-1]].append(flag[1])
    return below


@pytest.mark.parametrize("kind", DOMAINS)
def test_settings_stand_below_the_heading_of_their_topic(kind):
    shown = headings(run("train", kind, "--help").stdout)
    assert list(shown)[:2] == ["options", "data options"]
    assert shown["options"][:3] == ["data", "out", "resume"]
    boundaries = {"target-rate", "uncertainty-weight", "guided-updates", "detector-radius", "slope-limit", "boundary"}
    assert boundaries <= set(shown["boundaries options"])
    assert {"learning-rate", "batch-size"} <= set(shown["optimisation options"])
    assert {"hidden-sizes", "dropout"} <= set(shown["model options"])
    flags = [flag for below in shown.values() for flag in below]
    assert len(flags) == len(set(flags))
    run_config = DOMAINS[kind].presets["small"]
    settings = {field.name for part in ("data", "model", "training") for field in fields(getattr(run_config, part))}
    # decided by training, by where data are, or of older runs; with flags of their own
    settings -= {"slope", "boundary_delay", "imitates_rate", "called", "planted", "writing"}
    assert settings <= {flag.replace("-", "_") for flag in flags}


def test_how_many_values_a_flag_takes_can_be_read():
    shown = "".join(run("train", kind, "--help").stdout for kind in DOMAINS)
    shown += "".join(run(*command, "--help").stdout for command in (["bench"], ["eval", "builtin"]))
    for flag in (
        "--hidden-sizes N …",
        "--boundary-bias NUMBER …",
        "--columns NAME …",
        "--late-window N N",
        "--planted.word-length N N",
        "--rates NUMBER NUMBER",
        "--target-rate NUMBER|{auto}",
    ):
        assert f"{flag} " in shown
    assert not re.search(r"--[a-z.-]+ \S*[\[{][A-Z\[]", shown), "brackets around kinds of values"


@pytest.mark.parametrize("command", ["demo", "train", "train text", "eval", "segment", "plot", "bench", "build"])
def test_help_ends_with_examples_and_says_what_happens_without_a_flag(command):
    shown = run(*command.split(), "--help").stdout
    assert "default: None" not in shown
    assert shown.partition("Examples:\n")[2].startswith(f"  hmrnn {command.split()[0]}")
    assert run(*command.split(), "-h").stdout == shown


def test_help_of_all_is_the_same_by_its_short_name():
    assert run("-h").stdout == run("--help").stdout
    assert "Examples:\n" in run("-h").stdout
