"""Odd names, and escape sequences in all that is told."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.faults.runs import FLAGS, call, copy, reseal, succeeded

from hmrnn.storage.tensors import checksum_of
from hmrnn.training.checkpoint import load_progress, write_state

SLOW = pytest.mark.faults


def resume(run: Path, name: str) -> list[str | Path]:
    return ["train", name, "--resume", run, "--epochs", "2"]


# Names


ODD_NAMES: list[Any] = [b"\xff", b"$\\frac$", b"\x1b[31m"]
ODD_NAMES += [pytest.param(odd, marks=SLOW) for odd in (b"_", b"a\nb", b"-", b"%s {0}")]


@pytest.mark.parametrize("odd", ODD_NAMES)
def test_odd_names_of_runs(runs, folder, tmp_path, name, odd):
    """A run in a folder of any name is trained, used and drawn."""
    place = tmp_path / os.fsdecode(odd)
    place.mkdir()
    shutil.copy(folder / FLAGS[name][1], place / "data")
    run, out = place / f"run{os.fsdecode(odd)}", tmp_path / "out"
    succeeded("train", name, *FLAGS[name], "--data", place / "data", "--epochs", "0.3", "--out", run)
    succeeded("train", name, "--resume", run, "--epochs", "0.5")
    for command in (["eval"], ["score"], ["figure", "--out", out], ["plot", "--out", out / "curves.svg"]):
        assert "\x1b" not in "".join(succeeded(*command[:1], run, *command[1:]).stdout)
    lines = FLAGS[name][1] if name == "strokes" else place / "data"
    for form in ("text", "json", "html"):
        succeeded("segment", run, folder / lines, "--format", form)


# What is printed

ESCAPE = "\x1b]0;obey\x07\x9b31m\u202e"


def printed(*arguments: str | Path) -> str:
    done = call(*arguments)
    assert "obey" in done.stdout + done.stderr, "it is told, but can be read only"
    return done.stdout + done.stderr


def test_nothing_that_is_printed_is_obeyed(runs, folder, tmp_path, name):
    """Escape sequences in names of weights, settings, files and machines."""
    told = []
    run = copy(runs[name], tmp_path)
    reseal(run, **{ESCAPE: 1})
    told.append(printed("eval", run))
    run = copy(runs[name], tmp_path)
    for path in run.rglob("model.safetensors"):
        weights = {ESCAPE if i == 0 else key: value for i, (key, value) in enumerate(load_file(path).items())}
        save_file(weights, path, {"sha256": checksum_of(weights)})
    told.append(printed("eval", run))
    run = copy(runs[name], tmp_path)
    progress = load_progress(run)
    write_state(run / "training.safetensors", {"format_version": 1, **progress, "machine": {"torch": ESCAPE}})
    told.append(printed(*resume(run, name)))
    settings = json.loads((run / "config.json").read_text())["data"]
    reseal(run, data={**settings, "data": ESCAPE})
    told += [printed("train", name, "--resume", run, "--help"), printed("eval", run), printed(*resume(run, name))]
    data = tmp_path / f"data{ESCAPE}"
    shutil.copy(folder / FLAGS[name][1], data)
    run = tmp_path / f"run{ESCAPE}"
    told += [printed("train", name, *FLAGS[name], "--data", data, "--out", run), printed("eval", run)]
    told += [printed("score", run), printed("eval", tmp_path / f"nothing{ESCAPE}")]
    assert not [text for text in told for symbol in "\x1b\x07\x9b\u202e" if symbol in text]


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_text_that_is_asked_for_is_not_obeyed_by_a_terminal(tmp_path, folder, monkeypatch):
    """Into a file or a pipe it goes as it is."""
    (tmp_path / "data").write_text("\x1b]0;obey\x07 and\tso\u200d on\r\n" * 300)
    succeeded("train", "text", *FLAGS["text"], "--data", tmp_path / "data", "--out", tmp_path / "run")
    for command in (["generate", "--max-new", "3000", "--seed", "0"], ["segment", str(tmp_path / "data")]):
        arguments = [command[0], tmp_path / "run", *command[1:]]
        assert "\x1b" in succeeded(*arguments).stdout
        with monkeypatch.context() as patch:
            patch.setattr(io, "TextIOWrapper", Terminal)
            shown = succeeded(*arguments).stdout
        assert not {"\x1b", "\x07", "\r"} & set(shown)
        assert {"\t", "\n", "\u200d"} <= set(shown)
        assert "\\x1b" in shown


def test_the_name_of_an_output_is_not_obeyed_by_a_terminal(runs, folder, tmp_path, monkeypatch, name):
    """Into a pipe it goes as it is, so that another program can open it."""
    out, drawn = tmp_path / "\x1b]0;obey\x07.svg", [] if name == "text" else [["generate", "--max-new", "3"]]
    for command in (["plot"], ["figure", "--kind", "training"], ["segment", folder / FLAGS[name][1]], *drawn):
        arguments = [command[0], runs[name], *command[1:], "--out", out]
        assert str(out) in succeeded(*arguments).stdout
        with monkeypatch.context() as patch:
            patch.setattr(io, "TextIOWrapper", Terminal)
            shown = succeeded(*arguments).stdout
        assert "\\x1b]0;obey\\x07.svg" in shown
        assert not {"\x1b", "\x07"} & set(shown)
