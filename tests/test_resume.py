"""Going on exactly where a run stopped."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from support.small_runs import (
    REGULARISED,
    UPDATES,
    Killed,
    killed_at,
    metrics,
    same_weights,
    settings,
)

from hmrnn import TextModel
from hmrnn.config import ReadingConfig
from hmrnn.domains.text.config import PlantedConfig, TextDataConfig, TextModelConfig
from hmrnn.domains.text.data import corpora
from hmrnn.domains.text.data.corpora import builtin_text
from hmrnn.domains.text.task import TextTask
from hmrnn.engines import native
from hmrnn.errors import UsageError
from hmrnn.storage.pretrained import best_or_last
from hmrnn.storage.tensors import checksum_of
from hmrnn.training import checkpoint
from hmrnn.training.loop import Training
from hmrnn.training.run import train_run
from hmrnn.training.task import Validation

KINDS = [("hm-lstm", "step"), ("hm-lstm", "sample"), ("lstm", "step"), ("clockwork", "step"), ("hrnn", "step")]


@pytest.mark.parametrize(("model", "boundary"), KINDS)
@pytest.mark.parametrize("checkpoint_minutes", [1e-9, 99.0])
def test_a_killed_run_goes_on_exactly(text_file, tmp_path, monkeypatch, model, boundary, checkpoint_minutes):
    changes = {"model": model, "boundary": boundary, "checkpoint_minutes": checkpoint_minutes}
    run = settings(text_file, **changes, patience=1, validate_every=0.5, learning_rate=0.05, cooldown=0.7)
    train_run(run, tmp_path / "straight")
    resume = False
    for update in (1, 7, 8, UPDATES, UPDATES + 5):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "make_update", killed_at(update))
            with pytest.raises(Killed):
                train_run(run, tmp_path / "killed", resume=resume)
        resume = True
    outcome = train_run(run, tmp_path / "killed", resume=True)
    assert outcome.update == 2 * UPDATES
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert same_weights(tmp_path / "straight" / "best", tmp_path / "killed" / "best")
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "killed")


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "hrnn"])
def test_a_regularised_run_goes_on_exactly(text_file, tmp_path, monkeypatch, model):
    """Masks come from the checkpointed generator, the average from the checkpoint, offsets from the seed."""
    run = settings(text_file, model=model, **REGULARISED, validate_every=0.5, checkpoint_minutes=1e-9)
    train_run(run, tmp_path / "straight")
    for update in (1, 7, UPDATES, UPDATES + 5):
        with monkeypatch.context() as patch:
            patch.setattr(Training, "make_update", killed_at(update))
            with pytest.raises(Killed):
                train_run(run, tmp_path / "killed", resume=update > 1)
    train_run(run, tmp_path / "killed", resume=True)
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert same_weights(tmp_path / "straight" / "best", tmp_path / "killed" / "best")
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "killed")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_exact_also_at_a_size_that_keeps_all_threads_busy(text_file, tmp_path, monkeypatch, precision):
    run = settings(text_file, epochs=1.0, precision=precision)
    run = replace(run, model=replace(run.model, hidden_sizes=(160, 128, 144), output_size=96), data=TextDataConfig())
    run = replace(run, training=replace(run.training, batch_size=32, window=60, epochs=0.03))
    train_run(run, tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(Training, "make_update", killed_at(4))
        with pytest.raises(Killed):
            train_run(replace(run, training=replace(run.training, checkpoint_minutes=1e-9)), tmp_path / "killed")
    assert train_run(run, tmp_path / "killed", resume=True).update == 7
    assert same_weights(tmp_path / "straight", tmp_path / "killed")


def test_a_finished_run_given_more_epochs(text_file, tmp_path):
    train_run(settings(text_file, epochs=2.5), tmp_path / "straight")
    for epochs in (1.0, 1.5, 2.5):
        outcome = train_run(settings(text_file, epochs=epochs), tmp_path / "parts", resume=epochs > 1)
        assert outcome.epoch == epochs
    assert same_weights(tmp_path / "straight", tmp_path / "parts")


@pytest.mark.parametrize("name", ["training.safetensors", "model.safetensors", "config.json"])
def test_killed_inside_a_checkpoint(text_file, tmp_path, monkeypatch, name):
    """The process ends between writing a file and renaming it: the one before still stands."""
    run = settings(text_file, checkpoint_minutes=1e-9)
    train_run(run, tmp_path / "straight")
    count, replace_file = [0], os.replace

    def mortal(source, target, **folders):
        count[0] += Path(target).name == name
        if Path(target).name == name and count[0] == 5:
            raise Killed
        replace_file(source, target, **folders)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", mortal)
        patch.setattr(os, "unlink", lambda path, **folder: None)  # a killed process does not tidy up
        with pytest.raises(Killed):
            train_run(run, tmp_path / "killed")
    assert list((tmp_path / "killed").glob(f".{name}.*"))
    train_run(run, tmp_path / "killed", resume=True)
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(f".{name}.*"))


PARTS = ("config.json", "model.safetensors", "symbols.json", "training.safetensors")


@pytest.mark.parametrize("there", [there for n in range(5) for there in combinations(PARTS, n)], ids=str)
def test_killed_inside_the_first_checkpoint(text_file, tmp_path, monkeypatch, there):
    """Whichever of its files are there, in whatever order they are written: the run starts again, or goes on."""
    run = settings(text_file, epochs=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(Training, "make_update", killed_at(0))
        with pytest.raises(Killed):
            train_run(run, tmp_path / "killed")
    for part in set(PARTS) - set(there):
        (tmp_path / "killed" / part).unlink()
    try:
        train_run(run, tmp_path / "killed")
    except ValueError as error:
        assert "holds a run" in str(error)  # noqa: PT017
        train_run(run, tmp_path / "killed", resume=True)
    train_run(run, tmp_path / "straight")
    assert same_weights(tmp_path / "straight", tmp_path / "killed")


def test_validations_without_improvement_are_counted_on(text_file, tmp_path, monkeypatch):
    """Two in a row, between which the run is killed: the learning rate falls, and then training ends, as if nothing
    had happened."""
    monkeypatch.setattr(TextTask, "validate", lambda *_, **__: Validation(1.0, ()))
    run = settings(text_file, patience=2, validate_every=0.25, checkpoint_minutes=1e-9)
    outcome = train_run(run, tmp_path / "straight")
    assert outcome.ended == "validation has stopped improving"
    assert outcome.update == 15, "the best is at 3; the rate falls at 9"
    with monkeypatch.context() as patch:
        patch.setattr(Training, "make_update", killed_at(7))
        with pytest.raises(Killed):
            train_run(run, tmp_path / "killed")
    assert train_run(run, tmp_path / "killed", resume=True).update == 15
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "killed")


def test_what_was_restored_is_told(text_file, tmp_path, capfd):
    train_run(settings(text_file, epochs=1.0), tmp_path)
    capfd.readouterr()
    train_run(settings(text_file, epochs=1.5), tmp_path, resume=True)
    said = capfd.readouterr().err
    assert f"after update {UPDATES} (epoch 1.00" in said
    assert re.search(r"restored: .*weights.*optimiser.*recurrent state.*random state", said)


def test_what_can_not_be_resumed(text_file, tmp_path):
    run = settings(text_file, epochs=0.5)
    with pytest.raises(ValueError, match=r"no training\.safetensors"):
        train_run(run, tmp_path / "nothing", resume=True)
    train_run(run, tmp_path / "run")
    with pytest.raises(ValueError, match=r"run holds a run: resume=True goes on with it, or choose another directory$"):
        train_run(run, tmp_path / "run")
    for wrong, what in [
        (settings(text_file, learning_rate=0.5), r"^learning_rate 0.5 \(it has 0.01\) contradicts the run in .*run"),
        (settings(text_file, model="lstm", seed=4), r"^model lstm \(it has hm-lstm\), seed 4 \(it has 0\) contrad"),
        (replace(run, data=replace(run.data, planted=PlantedConfig(seed=7))), r"^planted\.seed 7 \(it has 0\)"),
    ]:
        with pytest.raises(UsageError, match=what):
            train_run(wrong, tmp_path / "run", resume=True)
    before = text_file.read_text()
    text_file.write_text(before[::-1])
    with pytest.raises(ValueError, match=r"text\.txt: .*run\b.*\bchanged"):
        train_run(run, tmp_path / "run", resume=True)
    text_file.write_text(before)


def test_a_directory_that_holds_something_is_not_overwritten(text_file, tmp_path):
    run = settings(text_file, epochs=0.5)
    train_run(run, tmp_path / "run")
    TextModel.from_pretrained(tmp_path / "run").save_pretrained(tmp_path / "model")
    kept = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="model holds a model already"):
        train_run(run, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == kept
    with pytest.raises(ValueError, match="not a training run"):
        checkpoint.load_run(tmp_path / "model")
    (tmp_path / "run" / "training.safetensors").unlink()
    with pytest.raises(ValueError, match="run holds a model already"):
        train_run(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "best")  # what a kill before the first checkpoint was whole leaves
    assert train_run(run, tmp_path / "run").update == UPDATES // 2
    with pytest.raises(ValueError, match="whose files are the data"):
        train_run(replace(run, data=TextDataConfig(str(tmp_path))), tmp_path / "inside")


def test_a_run_does_not_become_part_of_its_data(text_file, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(text_file.read_text())
    for where, words in ((tmp_path / "texts", "texts is "), (tmp_path / "texts" / "run", "run lies in ")):
        with pytest.raises(ValueError, match=f"{words}.*, whose files are the data"):
            train_run(settings(tmp_path / "texts", epochs=0.5), where)


def test_a_resumption_that_is_refused_forgets_nothing(text_file, tmp_path):
    """What was reported after the last checkpoint stays, until those updates are made again."""
    train_run(settings(text_file, epochs=0.5), tmp_path)
    later = json.dumps({"update": UPDATES, "bits": 1.0}) + "\n"
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(later)
    before = (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match="cuda"):
        train_run(settings(text_file, epochs=1.0), tmp_path, resume=True, device="cuda:99")
    assert (tmp_path / "metrics.jsonl").read_text() == before
    train_run(settings(text_file, epochs=1.0), tmp_path, resume=True)
    assert later not in (tmp_path / "metrics.jsonl").read_text()


def test_settings_in_lists_are_those_in_tuples(text_file, tmp_path):
    run = settings(text_file, epochs=0.5, hidden_sizes=[6, 5], boundary_bias=[0.5])
    train_run(run, tmp_path)
    longer = settings(text_file, epochs=1.0, hidden_sizes=[6, 5], boundary_bias=[0.5])
    assert train_run(longer, tmp_path, resume=True).update == UPDATES
    with pytest.raises(ValueError, match="boundary_bias must be one number"):
        settings(text_file, hidden_sizes=[6, 5], boundary_bias=[0.5, 0.5])


def test_a_best_model_that_was_just_being_written_hides_nothing(text_file, tmp_path):
    train_run(settings(text_file, epochs=0.5), tmp_path)
    (tmp_path / "best" / "config.json").unlink()
    assert best_or_last(tmp_path, ReadingConfig()) == tmp_path


def test_a_start_that_fails_leaves_no_run(text_file, tmp_path, monkeypatch):
    run = settings(text_file, epochs=0.5)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ValueError, match="tensorboard"):
        train_run(run, tmp_path / "run", tensorboard=True)
    assert train_run(run, tmp_path / "run").update == UPDATES // 2
    deep = replace(run, model=TextModelConfig("hrnn", hidden_sizes=(4, 4, 4, 4)))
    with pytest.raises(ValueError, match="3 layers at most"):
        train_run(deep, tmp_path / "deep")
    assert not (tmp_path / "deep" / "training.safetensors").exists()


def test_another_engine_or_number_of_threads_is_told(text_file, tmp_path, capfd):
    threads = torch.get_num_threads()
    train_run(settings(text_file, epochs=0.5), tmp_path, engine="events")
    capfd.readouterr()
    train_run(settings(text_file, epochs=1.0), tmp_path, resume=True)
    said = capfd.readouterr().err
    assert "engine events" in said, "the run's own, unless another is asked for"
    assert "warning" not in said
    torch.set_num_threads(threads + 1)
    try:
        train_run(settings(text_file, epochs=1.5), tmp_path, resume=True, engine="reference")
    finally:
        torch.set_num_threads(threads)
    said = capfd.readouterr().err
    assert re.search(r"warning: engine .*\bevents\b.*\breference\b", said)
    assert re.search(rf"warning: threads .*\b{threads}\b.*\b{threads + 1}\b", said)


def test_the_slope_is_restored(text_file, tmp_path):
    """A resumed run that is at its end is validated, and perhaps saved, with the slope that it had."""
    run = settings(text_file, boundary="soft", slope_per_epoch=1.0, epochs=1.5, validate_every=9.0)
    outcome = train_run(run, tmp_path)
    again = train_run(run, tmp_path, resume=True)
    assert again.best == outcome.best
    assert json.loads((tmp_path / "config.json").read_text())["slope"] == 2.0


def test_a_published_set_is_found_again(tmp_path, monkeypatch):
    """Where it lay is kept in the run."""
    content = builtin_text()[:3000].encode("ascii", "replace")
    published = replace(corpora.PUBLISHED["text8"], files=[("text8", hashlib.sha256(content).hexdigest())])
    monkeypatch.setitem(corpora.PUBLISHED, "text8", published)
    (tmp_path / "text8").write_bytes(content)
    run = replace(settings(tmp_path / "text8", epochs=0.1), data=TextDataConfig("text8"))
    train_run(run, tmp_path / "run", data_dir=tmp_path)
    more = replace(run, training=replace(run.training, epochs=0.2))
    assert train_run(more, tmp_path / "run", resume=True).epoch == pytest.approx(0.2, abs=0.02)
    assert checkpoint.load_run(tmp_path / "run").data_dir == tmp_path


class Bomb:
    def __reduce__(self):
        return (os.system, ("touch exploded",))


def fingerprint(progress):
    tensors = {}
    return checksum_of(tensors, json.dumps(checkpoint.without_tensors(progress, "", tensors))), checksum_of(tensors)


def test_a_flipped_bit_in_a_checkpoint_is_noticed(text_file, tmp_path):
    """Or is in what only fills it up."""
    train_run(settings(text_file, epochs=0.2), tmp_path)
    whole, chance, refused = (tmp_path / "training.safetensors").read_bytes(), random.Random(0), []
    expected = fingerprint(checkpoint.load_progress(tmp_path))
    for _ in range(120):
        spoilt = bytearray(whole)
        spoilt[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (tmp_path / "training.safetensors").write_bytes(spoilt)
        try:
            assert fingerprint(checkpoint.load_progress(tmp_path)) == expected, "silently another state"
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all("training.safetensors" in reason for reason in refused)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "flipped", "text", "pickle", "bomb", "list", "missing"])
def test_a_damaged_or_hostile_checkpoint_is_refused(text_file, tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = settings(text_file, epochs=0.5)
    train_run(run, tmp_path / "run")
    path = tmp_path / "run" / "training.safetensors"
    whole = path.read_bytes()
    contents = {"cut": whole[: len(whole) // 2], "zeros": bytes(100), "text": b"hello", "flipped": b"\1" + whole[1:]}
    contents |= {"empty": b"", "pickle": b"\x80\x02."}
    if damage in contents:
        path.write_bytes(contents[damage])
    else:
        progress = {"format_version": 1, **checkpoint.load_progress(tmp_path / "run")}
        progress.pop("optimizer")
        checkpoint.write_state(path, {"list": [1, 2], "missing": progress}.get(damage))
        if damage == "bomb":
            path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"training\.safetensors|can't be resumed"):
        train_run(run, tmp_path / "run", resume=True)
    assert not (tmp_path / "exploded").exists()


def test_two_processes_can_not_train_into_one_run(text_file, tmp_path):
    with (
        checkpoint.locked(tmp_path / "run"),
        pytest.raises(ValueError, match="run: another process"),
    ):
        train_run(settings(text_file), tmp_path / "run")


def test_tensorboard(text_file, tmp_path, monkeypatch):
    train_run(settings(text_file, epochs=0.5), tmp_path / "with", tensorboard=True)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "with" / "tensorboard"))
    events.Reload()
    records = [record for record in metrics(tmp_path / "with") if "bits" in record]
    shown = events.Scalars("bits")
    assert [event.step for event in shown] == [record["update"] for record in records]
    assert [event.value for event in shown] == pytest.approx([record["bits"] for record in records])
    assert len(events.Scalars("rates/2")) == len(records)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ValueError, match=r"pip install 'hmrnn\[tensorboard\]'"):
        train_run(settings(text_file, epochs=0.5), tmp_path / "without", tensorboard=True)


@pytest.mark.parametrize("without", [{"target_rate": None}, {}])
def test_a_run_from_before_guidance_goes_on_without(text_file, tmp_path, monkeypatch, without):
    """Its settings name no rate, or none at all."""
    train_run(settings(text_file, guided_updates=0, detector_radius=1.94), tmp_path)
    read = checkpoint.read_config

    def older(directory, **how):
        model, notes = read(directory, **how)
        new = ("target_rate", "uncertainty_weight", "guided_updates", "detector_radius")
        training = {name: value for name, value in notes["training"].items() if name not in new}
        return model, {**notes, "training": {**training, **without}}

    monkeypatch.setattr(checkpoint, "read_config", older)
    training = checkpoint.load_run(tmp_path).config.training
    assert (training.guided_updates, training.detector_radius) == (0, 1.94)


def test_a_run_keeps_the_precision_that_it_began_with(text_file, tmp_path, monkeypatch):
    """`auto` is settled once: where bfloat16 is fast it is taken, and a resumed run goes on in what it has."""
    for fast, chosen in ((True, "bfloat16"), (False, "float32")):
        run = settings(text_file, epochs=0.2, precision="auto")
        with monkeypatch.context() as patch:
            patch.setattr(native, "multiplies_bfloat16_fast", lambda fast=fast: fast)
            train_run(run, tmp_path / chosen)
            patch.setattr(native, "multiplies_bfloat16_fast", lambda fast=fast: not fast)
            longer = replace(run, training=replace(run.training, epochs=0.4))
            train_run(longer, tmp_path / chosen, resume=True)
        assert checkpoint.load_run(tmp_path / chosen).config.model.precision == chosen
        assert TextModel.from_pretrained(tmp_path / chosen).rnn.rounds_products == (chosen == "bfloat16")
        other = replace(longer, model=replace(run.model, precision="float32" if fast else "bfloat16"))
        with pytest.raises(UsageError, match="precision"):
            train_run(other, tmp_path / chosen, resume=True)
