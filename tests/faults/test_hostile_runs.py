"""Runs from someone who means harm: refused before they cost memory or run code."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import older_runs
from support.faults.runs import PARTS, all_finite, bounded, call, copy, reason, refused, reseal, succeeded
from support.faults.strangers import ODD, changed, paths_in

from hmrnn.storage.tensors import checksum_of
from hmrnn.training.checkpoint import load_progress, write_state

SLOW = pytest.mark.faults
COMMANDS = {"eval": ["eval"], "resume": ["train", "{name}", "--epochs", "2", "--resume"]}


SIZES = [10**5, 10**9, *(pytest.param(size, marks=SLOW) for size in (10**6, 10**18, 10**30))]


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return os.system, (f"touch '{self.witness}'",)


class Allocation:
    """Takes memory when it is unpickled, by a name that torch.load lets pass."""

    def __reduce__(self) -> tuple[Any, tuple[int]]:
        return bytearray, (4 << 30,)


def resume(run: Path, name: str) -> list[str | Path]:
    return ["train", name, "--resume", run, "--epochs", "2"]


def older(run: Path, content: bytes | None = None) -> Path:
    """A run with a training.pt; with this content, if it is given."""
    older_runs.keep_as_training_pt(run, older_runs.older_state(run))
    if content is not None:
        (run / "training.pt").write_bytes(content)
    return run


def saved_by_torch(content: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **how)
    return buffer.getvalue()


# Code


def test_nothing_in_a_checkpoint_is_executed(runs, tmp_path, name):
    witness, run = tmp_path / "executed", copy(runs[name], tmp_path)
    bomb = {"format_version": 1, "update": 1, "machine": {}, "model": Bomb(witness)}
    forms = [pickle.dumps(bomb), saved_by_torch(bomb), saved_by_torch(bomb, _use_new_zipfile_serialization=False)]
    for form in forms:
        (run / "training.safetensors").write_bytes(form)
        refused(*resume(run, name), because="training.safetensors")
        older(copy(runs[name], tmp_path), form)
        refused(*resume(older(copy(runs[name], tmp_path), form), name), because="training.pt")
    for path in run.rglob("model.safetensors"):
        path.write_bytes(pickle.dumps(bomb))
    refused("eval", run, because="model.safetensors")
    assert not witness.exists()
    assert pickle.loads(pickle.dumps(bomb))["model"] == 0, "the bomb is a real one"
    assert witness.exists()


def test_no_module_that_a_checkpoint_names_is_imported(runs, tmp_path, monkeypatch):
    """Importing one is to run its code."""
    (tmp_path / "named.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    run = older(copy(runs["text"], tmp_path))
    whole = (run / "training.pt").read_bytes()
    older(run, changed_pickle(whole, "archive/data.pkl", b"\x80\x02cnamed\nthing\n."))
    refused(*resume(run, "text"), because="it names named thing")
    assert not (tmp_path / "executed").exists()


# Memory


def laughs() -> list[Any]:
    """A billion laughs: a few lists that hold each other, 10 to the power of 40 if one walks through them."""
    content: list[Any] = ["ha"] * 10
    for _ in range(40):
        content = [content] * 10
    return content


HUGE = {
    "laughs": laughs,
    "a tensor of one number, 10 to the power of 12 times": lambda: torch.zeros(1).expand(10**6, 10**6),
    "a tensor of one number, 10 to the power of 9 times": lambda: torch.zeros(1).expand(10**9),
    "a deep list": lambda: json.loads("[" * 100 + "]" * 100),
    "an allocation": Allocation,
    "a text, 20,000 times": lambda: ["x" * (1 << 18)] * 20_000,
    "a name, 20,000 times": lambda: [{"x" * (1 << 18): 0}] * 20_000,
    "a tensor, 20,000 times": lambda: [torch.zeros(1 << 16)] * 20_000,
}


@pytest.mark.parametrize("what", HUGE)
@pytest.mark.parametrize("where", ["model", *(pytest.param(w, marks=SLOW) for w in ("more", "update", "recurrent"))])
def test_a_checkpoint_that_unfolds(runs, tmp_path, name, what, where):
    run = copy(runs[name], tmp_path)
    content = {"format_version": 1, **older_runs.older_state(run), where: HUGE[what](), "sha256": "0" * 64}
    older(run, saved_by_torch(content))
    assert (run / "training.pt").stat().st_size < 1 << 20
    with bounded():
        told = refused(*resume(run, name), because="training.pt")
    assert "emory" not in told, "refused before memory is asked for"
    assert "unfolds to more" in told or not what.endswith("20,000 times"), "nor is all of it looked at"


def changed_pickle(whole: bytes, name: str, pickled: bytes) -> bytes:
    """The archive with another pickle, of another name."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as before, zipfile.ZipFile(made, "w") as after:
        for entry in before.namelist():
            if not entry.endswith("data.pkl"):
                after.writestr(entry, before.read(entry))
        after.writestr(name, pickled)
    return made.getvalue()


@pytest.mark.parametrize("trick", ["another case", "a memo", "a name", "an old form", "one behind the other"])
def test_a_checkpoint_that_two_readers_read_differently(runs, tmp_path, name, trick):
    """What is checked must be what is read."""
    run = older(copy(runs[name], tmp_path))
    whole = (run / "training.pt").read_bytes()
    laughing = pickle.dumps({"format_version": 1, "more": laughs()}, protocol=2)
    spoilt = {
        "another case": changed_pickle(whole, "archive/data.PKL", laughing),
        # "put what is on the stack into place 2^31 - 1 of the memo", which is an array in C
        "a memo": changed_pickle(whole, "archive/data.pkl", b"\x80\x02}r\xff\xff\xff\x7f."),
        # pairs of pairs of … as the name of something: 2^60 of them if one hashes it
        "a name": changed_pickle(whole, "archive/data.pkl", b"\x80\x02})" + b"q\x00h\x00\x86" * 60 + b"K\x00s."),
        "an old form": saved_by_torch(Allocation(), _use_new_zipfile_serialization=False) + whole,
        "one behind the other": laughing + whole,
    }[trick]
    with bounded():
        done = call(*resume(older(run, spoilt), name))
    # A zip archive may have anything before it: then that is not read.
    assert done.returncode == (0 if trick in ("an old form", "one behind the other") else 1), done.stderr


@pytest.mark.parametrize("megabytes", [16, pytest.param(1024, marks=SLOW)])
def test_a_checkpoint_that_is_packed(runs, tmp_path, name, megabytes):
    """A zip bomb: 1 GB of zeros in 1 MB."""
    run = older(copy(runs[name], tmp_path))
    whole = (run / "training.pt").read_bytes()
    with zipfile.ZipFile(run / "training.pt") as archive:
        records = {entry: archive.read(entry) for entry in archive.namelist()}
    largest = max(records, key=lambda entry: len(records[entry]))
    with zipfile.ZipFile(run / "training.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, content in records.items():
            with archive.open(entry, "w", force_zip64=True) as file:
                if entry == largest:
                    for _ in range(megabytes):
                        file.write(bytes(1 << 20))
                else:
                    file.write(content)
    with bounded():
        refused(*resume(run, name), because="training.pt")
    (run / "training.pt").write_bytes(whole)
    succeeded(*resume(run, name))


def test_a_checkpoint_that_is_packed_and_yet_not_larger(runs, tmp_path):
    """Unpacking may take memory of its own: LZMA as much as the file asks for."""
    run = older(copy(runs["text"], tmp_path))
    whole = (run / "training.pt").read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as before, zipfile.ZipFile(run / "training.pt", "w") as after:
        for entry in before.namelist():
            after.writestr(entry, before.read(entry), zipfile.ZIP_LZMA)
        after.writestr("filling", bytes(len(whole)))
    refused(*resume(run, "text"), because="it is packed")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("setting", ["hidden_sizes", "output_size", "embedding_size", "components"])
@pytest.mark.parametrize("command", COMMANDS)
def test_absurd_sizes(runs, tmp_path, name, setting, size, command):
    if setting == "components" and name == "text":
        pytest.skip("a model of text has none")
    run = copy(runs[name], tmp_path)
    reseal(run, **{setting: [size] * 3 if setting == "hidden_sizes" else size})
    with bounded():
        told = refused(*(part.format(name=name) for part in COMMANDS[command]), run)
    assert "memory" not in told, "refused before memory is asked for"


@pytest.mark.parametrize("command", COMMANDS)
def test_absurdly_many_layers(runs, tmp_path, name, command):
    run = copy(runs[name], tmp_path)
    reseal(run, hidden_sizes=[1] * 200_000)
    with bounded():
        refused(*(part.format(name=name) for part in COMMANDS[command]), run, because="hidden_sizes")


@pytest.mark.parametrize("setting", ["batch_size", "window"])
@pytest.mark.parametrize("size", SIZES[1:])
def test_absurd_batches(runs, tmp_path, name, setting, size):
    run = copy(runs[name], tmp_path)
    training = json.loads((run / "config.json").read_text())["training"]
    reseal(run, training={**training, setting: size})
    with bounded():
        done = call(*resume(run, name))
    assert done.returncode == 0 or "memory" not in reason(done.stderr)


@pytest.mark.parametrize(
    ("name", "made", "changes"),
    [
        *(("text", "planted", change) for change in ({"symbols": 10**12}, {"words": 10**9}, {"depth": 10**6})),
        *(("text", "planted", {which: [1, 10**9]}) for which in ("word_length", "phrase_length")),
        *(("strokes", "writing", change) for change in ({"lines": 10**9}, {"words": [1, 10**9]}, {"spacing": 1e-9})),
        ("strokes", "writing", {"size": 1e9}),
        *(("series", "planted", {which: 10**9}) for which in ("sequences", "steps", "columns", "motifs", "regimes")),
        ("series", "planted", {"length": [3, 10**9]}),
        ("series", "planted", {"sequences": 10**6, "steps": 10**6, "columns": 10**4}),
        ("series", "planted", {"motifs": 1000, "length": [3, 1000], "columns": 10**4}),
    ],
)
def test_absurd_data(runs, tmp_path, name, made, changes):
    """What is made, and not read, could go on for ever."""
    run = copy(runs[name], tmp_path)
    settings = json.loads((run / "config.json").read_text())["data"]
    reseal(run, data={**settings, "data": "planted" if name == "text" else "builtin", made: settings[made] | changes})
    for command in (["eval", run], resume(run, name)):
        with bounded():
            refused(*command, because=f"config.json: data: {made}")


# Paths


@pytest.mark.parametrize("trick", ["../secret", "/etc/passwd", "a/../../secret", "\0", "", ".", "config.json"])
def test_no_name_leads_out_of_a_run(runs, tmp_path, name, trick):
    run = copy(runs[name], tmp_path)
    (tmp_path / "secret").write_text("secret")
    reseal(run, files={trick: "0" * 64})
    assert "secret" not in refused("generate", run, because="config.json").replace("/secret", "")


@pytest.mark.parametrize("part", [*PARTS, "training.safetensors", "metrics.jsonl"])
@pytest.mark.parametrize(
    "what", ["a pipe", *(pytest.param(w, marks=SLOW) for w in ("a device", "a folder", "a loop", "nothing"))]
)
def test_what_is_no_file_is_not_read(runs, tmp_path, name, part, what):
    """A pipe would hang it, a device never ends."""
    run = copy(runs[name], tmp_path)
    for path in run.rglob(part):
        path.unlink()
        if what == "a pipe":
            os.mkfifo(path)
        elif what == "a folder":
            path.mkdir()
        elif what != "nothing":
            path.symlink_to("/dev/zero" if what == "a device" else path.name)
    for command in (["eval", run], ["generate", run, "--max-new", "2"], resume(run, name)):
        with bounded():
            done = call(*command)
        if done.returncode:
            assert part in reason(done.stderr) or "not a run" in done.stderr


@pytest.mark.parametrize("what", ["a link", "a pipe"])
def test_a_lock_that_is_none(runs, tmp_path, name, what):
    """No link is followed, and no pipe waited for."""
    run, own = copy(runs[name], tmp_path), tmp_path / "own"
    own.write_text("dear to me")
    (run / ".lock").unlink()
    if what == "a link":
        (run / ".lock").symlink_to(own)
    else:
        os.mkfifo(run / ".lock")
    with bounded():
        refused(*resume(run, name), because=".lock")
    assert own.read_text() == "dear to me"


@pytest.mark.parametrize(
    "data",
    [
        "/dev/zero",
        "/proc/kmsg",
        "/proc/self/mem",
        "/proc/self/maps",
        "\0",
        "../" * 99 + "etc/passwd",
        "/",
        "a\nb",
        "~",
        "-",
        "\ud800",
    ],
)
def test_a_run_that_names_other_data(runs, tmp_path, name, data, monkeypatch):
    """What a run says it was trained on is read only if it is that."""
    # not the whole disk, of /
    monkeypatch.setattr("hmrnn.domains.text.data.corpora.files_below", lambda path, *_: ([path], []))
    run = copy(runs[name], tmp_path)
    settings = json.loads((run / "config.json").read_text())["data"]
    reseal(run, data={**settings, "data": data})
    for command in (["eval", run], resume(run, name)):
        with bounded():
            done = call(*command)
        assert done.returncode in (1, 2)
        reason(done.stderr)


# Settings and states of the wrong kind, with checksums that fit


def attempt(run: Path, name: str, what: Any) -> bool:
    """Whether a changed run is refused. If it is not, it must be a run that can go on."""
    refusals = 0
    for command in (["eval", run], resume(run, name)):
        with bounded():
            done = call(*command)
        assert done.returncode in (0, 1, 2), (what, done.stderr)
        if done.returncode:
            reason(done.stderr)
        refusals += done.returncode > 0
    assert all_finite(run), what
    return refusals > 0


@pytest.mark.parametrize("many", [6, pytest.param(250, marks=SLOW)])
def test_settings_of_the_wrong_kind(runs, tmp_path, name, many):
    config, chance = json.loads((runs[name] / "config.json").read_text()), random.Random(0)
    places = [path for path in paths_in(config) if path and path[0] not in ("checksum", "fingerprint")]
    refusals = 0
    for i in range(many):
        path, value = places[i % len(places)], chance.choice(ODD)
        run = copy(runs[name], tmp_path)
        reseal(run, **{path[0]: changed(config[path[0]], path[1:], value)})
        refusals += attempt(run, name, (path, value))
    assert refusals > many / 2


@pytest.mark.parametrize("many", [6, pytest.param(250, marks=SLOW)])
@pytest.mark.parametrize("form", ["training.safetensors", pytest.param("training.pt", marks=SLOW)])
def test_a_state_of_the_wrong_kind(runs, tmp_path, name, many, form):
    is_older = form == "training.pt"
    progress = older_runs.older_state(runs[name]) if is_older else load_progress(runs[name])
    chance = random.Random(0)
    places = [path for path in paths_in(progress) if path]
    tensors = [torch.zeros(3), torch.full((8, 8), math.nan), torch.zeros(2, 2, dtype=torch.int64), torch.zeros(0)]
    refusals = read = 0
    for _ in range(many):
        path, value = chance.choice(places), chance.choice([*ODD, *tensors])
        run = copy(runs[name], tmp_path)
        state = changed(progress, path, value)
        if is_older:
            older_runs.keep_as_training_pt(run, state)
        else:
            write_state(run / form, {"format_version": 1, **state})
        refusals += attempt(run, name, (path, value))
        # Where it was made is only told, and what Adam was set to follows from the config.
        read += path[0] != "machine" and path[:2] != ("optimizer", "param_groups")
    assert refusals > read / 2 > 0


@pytest.mark.parametrize(
    "device", ["", " ", [], None, torch.zeros(0)], ids=["empty", "blank", "list", "none", "tensor"]
)
def test_a_machine_of_the_wrong_kind(runs, tmp_path, name, device):
    run = copy(runs[name], tmp_path)
    state = changed(load_progress(run), ("machine", "device"), device)
    write_state(run / "training.safetensors", {"format_version": 1, **state})
    assert attempt(run, name, device) == (not isinstance(device, str))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("which", ["one", "all"])
def test_weights_of_another_type(runs, tmp_path, name, dtype, which):
    """They are refused, or used: nothing in between."""
    run = copy(runs[name], tmp_path)
    for path in run.rglob("model.safetensors"):
        weights = load_file(path)
        chosen = [next(key for key in weights if key.startswith("rnn"))] if which == "one" else list(weights)
        weights |= {key: weights[key].to(dtype) for key in chosen}
        save_file(weights, path, {"sha256": checksum_of(weights)})
    with bounded():
        done = call("eval", run)
        if done.returncode:
            reason(done.stderr, "model.safetensors")


def test_json_without_end(runs, tmp_path, name):
    """Brackets within brackets, and a checksum that fits."""
    deep = "[" * 200_000
    for part in ("config.json", "metrics.jsonl", *json.loads((runs[name] / "config.json").read_text())["files"]):
        run = copy(runs[name], tmp_path)
        if part not in ("config.json", "metrics.jsonl"):
            reseal(run, files={part: hashlib.sha256(deep.encode()).hexdigest()})
        for path in run.rglob(part):
            path.write_text(deep)
        for command in (["eval", run], resume(run, name)):
            done = call(*command)
            # A run goes on without its metrics, and without what follows from its data.
            needed = part == "config.json" or (command[0] == "eval" and part != "metrics.jsonl")
            expected = (1,) if needed else (0,) if part == "metrics.jsonl" else (0, 1)
            assert done.returncode in expected, done.stderr
            if done.returncode:
                reason(done.stderr, part)


@pytest.mark.parametrize("megabytes", [256, pytest.param(1024, marks=SLOW)])
def test_metrics_are_read_line_by_line(runs, tmp_path, megabytes):
    """With holes, and up to the largest size that they may have: they take time, but no memory."""
    run = copy(runs["text"], tmp_path)
    os.truncate(run / "metrics.jsonl", megabytes << 20)
    with bounded(megabytes=192):
        refused("plot", run, "--out", tmp_path / "curves.png", because="metrics.jsonl: line")
        succeeded(*resume(run, "text"))
    assert (run / "metrics.jsonl").stat().st_size < 1 << 20, "what is no record is dropped"


@pytest.mark.parametrize("form", ["zeros", pytest.param("one line", marks=SLOW)])
@pytest.mark.parametrize("part", [*PARTS, "training.safetensors", "training.pt", "metrics.jsonl"])
def test_files_without_end(runs, tmp_path, name, part, form):
    """6 GB, which cost their maker nothing: a file with holes."""
    run = copy(runs[name], tmp_path)
    if part == "training.pt":
        older(run)
    for path in run.rglob(part):
        content = path.read_bytes() if form == "one line" else b""
        path.write_bytes(content.rstrip(b"\n}") + b' "' * (form == "one line"))
        os.truncate(path, 6 << 30)
    for command in (["eval", run], ["plot", run, "--out", tmp_path / "curves.png"], resume(run, name)):
        with bounded():
            done = call(*command)
        if done.returncode:
            assert "memory" not in reason(done.stderr), "refused before memory is asked for"
    assert not [path for path in run.rglob(".*") if path.name != ".lock"], "what was half written"
