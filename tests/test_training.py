"""Training: the loop, its schedules, its guards, and going on exactly where a run stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import recorded_updates
import torch
from safetensors.torch import load_file

from hmrnn import TextModel
from hmrnn.config import PlantedConfig, TextDataConfig, TextModelConfig, TextRunConfig, TrainingConfig, UsageError
from hmrnn.data import corpora
from hmrnn.data.corpora import builtin_text, load_text
from hmrnn.evaluation import bits_per_character
from hmrnn.training import checkpoint
from hmrnn.training.loop import Diverged, Training
from hmrnn.training.metrics import LONG, CollapseWatch
from hmrnn.training.run import train_run
from hmrnn.training.schedules import LearningRate
from hmrnn.training.text import TextTask

UPDATES = 12  # in an epoch of the text below
CLOCKS = ("minutes", "symbols_per_second")


@pytest.fixture(scope="module")
def text_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(builtin_text()[: UPDATES * 4 * 10 * 20 // 18 + 40])
    return path


def settings(text_file: Path, **changes) -> TextRunConfig:
    model = TextModelConfig(
        changes.pop("model", "hm-lstm"),
        embedding_size=5,
        hidden_sizes=(8, 7, 6),
        output_size=9,
        boundary=changes.pop("boundary", "step"),
        boundary_bias=changes.pop("boundary_bias", 0.0),
    )
    defaults = {"batch_size": 4, "window": 10, "learning_rate": 0.01, "epochs": 2.0, "patience": 9}
    return TextRunConfig(TextDataConfig(str(text_file)), model, TrainingConfig(**{**defaults, **changes}))


def weights(directory: Path) -> dict[str, torch.Tensor]:
    return load_file(directory / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(directory: Path) -> list[dict]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name not in CLOCKS} for line in lines]


# The loop


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_a_run_learns_and_leaves_what_it_should(text_file, tmp_path, model):
    run = settings(text_file, model=model, epochs=5.0, validate_every=0.5)
    outcome = train_run(run, tmp_path)
    assert outcome.ended == "all epochs are done"
    assert outcome.update == 5 * UPDATES
    names = {"config.json", "model.safetensors", "symbols.json", "metrics.jsonl", "training.pt", "best", ".lock"}
    assert {path.name for path in tmp_path.iterdir()} == names
    records = metrics(tmp_path)
    updates = [record for record in records if "bits" in record]
    validations = [record for record in records if "valid_bits" in record]
    assert [record["update"] for record in updates] == list(range(1, 5 * UPDATES + 1))
    assert [record["update"] for record in validations] == list(range(6, 5 * UPDATES + 1, 6))
    assert updates[-1]["bits"] < updates[0]["bits"] - 0.5
    assert all(len(record["rates"]) == (0 if model == "lstm" else 2) for record in updates)
    assert outcome.best == min(record["valid_bits"] for record in validations)
    best = TextModel.from_pretrained(tmp_path / "best")
    streams = max(1, len(load_text(run.data).split("valid")) // 500)
    assert bits_per_character(best, load_text(run.data).split("valid"), streams) == outcome.best
    assert checkpoint.load_run(tmp_path).config == run


def test_the_slope_is_annealed_by_epoch_and_the_detectors_stay_in_their_ball(text_file, tmp_path):
    train_run(settings(text_file, slope_per_epoch=0.5, slope_limit=1.8, epochs=3.0), tmp_path)
    slopes = [record["slope"] for record in metrics(tmp_path) if "bits" in record]
    assert slopes == [1.0] * UPDATES + [1.5] * UPDATES + [1.8] * UPDATES
    model = TextModel.from_pretrained(tmp_path)
    assert model.rnn.slope == 1.8
    for layer in model.rnn.weights()[:-1]:
        assert torch.cat([layer.W_z, layer.U_z, layer.V_z]).norm() <= 1.94 + 1e-5


def test_the_gradient_is_clipped(text_file, tmp_path, monkeypatch):
    norms = []
    step = torch.optim.Adam.step

    def watched(self, *arguments, **options):
        gradients = [p.grad.norm() for group in self.param_groups for p in group["params"]]
        norms.append(torch.stack(gradients).norm().item())
        return step(self, *arguments, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    train_run(settings(text_file, gradient_clip=0.01, epochs=0.5), tmp_path)
    assert norms == pytest.approx([0.01] * (UPDATES // 2), rel=1e-3)
    assert all(record["gradient_norm"] > 0.01 for record in metrics(tmp_path) if "bits" in record)


def test_the_state_is_carried_within_an_epoch_and_reset_at_its_start(text_file, tmp_path, monkeypatch):
    states = []
    forward = TextModel.forward

    def watched(self, symbols, state=None, *arguments, **options):
        if torch.is_grad_enabled():
            states.append(state)
        return forward(self, symbols, state, *arguments, **options)

    monkeypatch.setattr(TextModel, "forward", watched)
    train_run(settings(text_file), tmp_path)
    assert [state is None for state in states] == ([True] + [False] * (UPDATES - 1)) * 2
    assert all(not h.requires_grad and h.abs().sum() > 0 for state in states if state is not None for h in state.h[:1])


def test_minutes_bound_a_run(text_file, tmp_path):
    start = time.monotonic()
    outcome = train_run(settings(text_file, epochs=1e6, minutes=0.02), tmp_path)
    assert outcome.ended == "the time is over"
    assert 0.02 <= outcome.minutes < 1
    assert time.monotonic() - start < 30
    assert "valid_bits" in metrics(tmp_path)[-1], "it is validated where it ends"
    again = train_run(checkpoint.load_run(tmp_path).config, tmp_path, resume=True)
    assert (again.ended, again.update) == ("the time is over", outcome.update), "minutes count in all, not anew"


def test_too_little_text_is_named_with_what_it_takes(tmp_path):
    for text, what in [
        ("abc", r"short.txt: too short: 3 symbols.*4 streams of one window of 10 steps take 41"),
        ("ab" * 22, "too short"),
        ("a" * 1000, "all symbols are the same"),
    ]:
        (tmp_path / "short.txt").write_text(text)
        with pytest.raises(ValueError, match=what):
            train_run(settings(tmp_path / "short.txt"), tmp_path / "run")


# Schedules and guards


def test_the_learning_rate_is_divided_once_and_then_training_ends():
    rate = LearningRate(TrainingConfig(learning_rate=0.5, learning_rate_divisor=50.0, patience=2))
    for bits, value in [(3.0, 0.5), (2.0, 0.5), (2.5, 0.5), (1.9, 0.5), (1.9, 0.5), (math.nan, 0.01), (1.8, 0.01)]:
        rate.after(bits)
        assert rate.value == value
        assert not rate.finished
    rate.after(1.81)
    assert not rate.finished
    rate.after(1.82)
    assert rate.finished
    copy = LearningRate(rate.config)
    copy.load_state_dict(rate.state_dict())
    assert copy == rate


def test_training_follows_the_schedule(text_file, tmp_path, monkeypatch):
    answers = iter([3.0, 2.0, 2.5, 1.0, 1.5])
    monkeypatch.setattr(TextTask, "validate", lambda self, show: next(answers))
    outcome = train_run(settings(text_file, patience=1, epochs=99.0), tmp_path)
    assert outcome.ended == "validation has stopped improving"
    assert outcome.update == 5 * UPDATES
    rates = [record["learning_rate"] for record in metrics(tmp_path) if "bits" in record]
    assert rates == [0.01] * 3 * UPDATES + [0.01 / 50] * 2 * UPDATES
    best = [record["best_bits"] for record in metrics(tmp_path) if "valid_bits" in record]
    assert best == [3.0, 2.0, 2.0, 1.0, 1.0]


def spoiled_loss(monkeypatch, when, how):
    loss = TextTask.loss

    def spoiled(self, update, generator):
        own = loss(self, update, generator)
        return replace(own, mean=own.mean * how) if update in when else own

    monkeypatch.setattr(TextTask, "loss", spoiled)


@pytest.mark.parametrize("how", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_changes_nothing_and_is_counted(text_file, tmp_path, monkeypatch, capfd, how):
    train_run(settings(text_file, epochs=3 / UPDATES), tmp_path / "three")
    spoiled_loss(monkeypatch, {3, 4}, how)
    outcome = train_run(settings(text_file, epochs=5 / UPDATES), tmp_path / "five")
    assert outcome.skipped == 2
    assert same_weights(tmp_path / "three", tmp_path / "five")
    assert "update 4: not applied" in capfd.readouterr().err
    records = [record for record in metrics(tmp_path / "five") if "bits" in record]
    assert [record["skipped"] for record in records] == [0, 0, 0, 1, 2]
    assert records[3]["bits"] is None
    outcome = train_run(settings(text_file, epochs=1.0), tmp_path / "on")
    assert outcome.update == UPDATES
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "on").values())


def test_a_run_that_diverges_ends_and_leaves_the_last_good_checkpoint(text_file, tmp_path, monkeypatch):
    """One update spoils the weights; all that follow give NaN. No checkpoint is written from then on."""
    train_run(settings(text_file, epochs=1.0), tmp_path / "one epoch")
    spoiled_loss(monkeypatch, set(range(UPDATES, 10 * UPDATES)), math.nan)
    make = Training.make_update

    def spoiling(self, stop, checkpoint):
        if self.update == UPDATES:
            with torch.no_grad():
                self.parameters[0].fill_(1e30)
        return make(self, stop, checkpoint)

    monkeypatch.setattr(Training, "make_update", spoiling)
    with pytest.raises(Diverged, match=rf"20 updates in a row .*update {UPDATES + 20}\).*--learning-rate"):
        train_run(settings(text_file, epochs=9.0, checkpoint_minutes=1e-9, validate_every=0.5), tmp_path / "diverged")
    assert same_weights(tmp_path / "one epoch", tmp_path / "diverged")
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "diverged").values())


def test_an_absurd_learning_rate_leaves_finite_weights_on_disk(text_file, tmp_path):
    with contextlib.suppress(Diverged):
        train_run(settings(text_file, learning_rate=1e10, epochs=4.0), tmp_path)
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path).values())


def test_the_collapse_watch_warns_once_for_each_detector():
    watch = CollapseWatch(4)
    said = []
    for update in range(1000):
        # Alive; dead, with an odd update now and then; always on; dead and alive in turn.
        rates = [0.2, 0.04 if update % 100 == 99 else 0.001, 1.0, 0.0 if update % 150 > 20 else 0.5]
        said += [(update, warning) for warning in watch.see(rates)]
    assert len(said) == 2
    dead, always = sorted(said, key=lambda item: "always" in item[1])
    assert LONG < dead[0] < 2 * LONG + 100
    assert "layer 2 has fired almost never" in dead[1]
    assert "higher --boundary-bias" in dead[1]
    assert LONG < always[0] < 2 * LONG
    assert "layer 3 has fired almost always" in always[1]
    assert "lower --boundary-bias" in always[1]


def test_a_collapsed_run_says_so(text_file, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("hmrnn.training.metrics.LONG", 10)
    train_run(settings(text_file, boundary_bias=-3.0, epochs=2.0, guided_updates=0), tmp_path)
    said = capfd.readouterr().err
    assert said.count("warning: the detector of layer 1 has fired almost never") == 1
    train_run(settings(text_file, boundary_bias=-3.0, epochs=3.0, guided_updates=0), tmp_path, resume=True)
    assert "warning" not in capfd.readouterr().err, "once is enough, also after a resume"


# Going on


class Killed(BaseException):
    """Stands for a process that ends on the spot."""


def killed_at(update):
    make = Training.make_update

    def mortal(self, stop, checkpoint):
        if self.update == update:
            raise Killed
        return make(self, stop, checkpoint)

    return mortal


KINDS = [("hm-lstm", "step"), ("hm-lstm", "sample"), ("lstm", "step"), ("clockwork", "step"), ("hrnn", "step")]


@pytest.mark.parametrize(("model", "boundary"), KINDS)
@pytest.mark.parametrize("checkpoint_minutes", [1e-9, 99.0])
def test_a_killed_run_goes_on_exactly(text_file, tmp_path, monkeypatch, model, boundary, checkpoint_minutes):
    changes = {"model": model, "boundary": boundary, "checkpoint_minutes": checkpoint_minutes}
    run = settings(text_file, **changes, patience=1, validate_every=0.5, learning_rate=0.05)
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


def test_exact_also_at_a_size_that_keeps_all_threads_busy(text_file, tmp_path, monkeypatch):
    run = settings(text_file, epochs=1.0)
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


@pytest.mark.parametrize("name", ["training.pt", "model.safetensors", "config.json"])
def test_killed_inside_a_checkpoint(text_file, tmp_path, monkeypatch, name):
    """The process ends between writing a file and renaming it: the one before still stands."""
    run = settings(text_file, checkpoint_minutes=1e-9)
    train_run(run, tmp_path / "straight")
    count, replace_file = [0], os.replace

    def mortal(source, target):
        count[0] += Path(target).name == name
        if Path(target).name == name and count[0] == 5:
            raise Killed
        replace_file(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", mortal)
        patch.setattr(os, "unlink", lambda path: None)  # a killed process does not tidy up
        with pytest.raises(Killed):
            train_run(run, tmp_path / "killed")
    assert list((tmp_path / "killed").glob(f".{name}.*"))
    train_run(run, tmp_path / "killed", resume=True)
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(f".{name}.*"))


def test_what_was_restored_is_told(text_file, tmp_path, capfd):
    train_run(settings(text_file, epochs=1.0), tmp_path)
    capfd.readouterr()
    train_run(settings(text_file, epochs=1.5), tmp_path, resume=True)
    said = capfd.readouterr().err
    assert f"after update {UPDATES} (epoch 1.00" in said
    assert "weights, optimiser, recurrent state and random state" in said


def test_what_can_not_be_resumed(text_file, tmp_path):
    run = settings(text_file, epochs=0.5)
    with pytest.raises(ValueError, match=r"no training\.pt"):
        train_run(run, tmp_path / "nothing", resume=True)
    train_run(run, tmp_path / "run")
    with pytest.raises(ValueError, match=r"holds a run: --resume .*run goes on"):
        train_run(run, tmp_path / "run")
    for wrong, what in [
        (settings(text_file, learning_rate=0.5), r"--learning-rate 0.5 \(it has 0.01\) contradicts the run in .*run"),
        (settings(text_file, model="lstm", seed=4), r"--model lstm \(it has hm-lstm\), --seed 4 \(it has 0\) contrad"),
        (replace(run, data=replace(run.data, planted=PlantedConfig(seed=7))), r"--planted\.seed 7 \(it has 0\)"),
    ]:
        with pytest.raises(UsageError, match=what):
            train_run(wrong, tmp_path / "run", resume=True)
    before = text_file.read_text()
    text_file.write_text(before[::-1])
    with pytest.raises(ValueError, match=r"text\.txt: this is not what .*run was trained on"):
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
    (tmp_path / "run" / "training.pt").unlink()
    with pytest.raises(ValueError, match="run holds a model already"):
        train_run(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "best")  # what a kill before the first checkpoint was whole leaves
    assert train_run(run, tmp_path / "run").update == UPDATES // 2
    with pytest.raises(ValueError, match="whose files are the text"):
        train_run(replace(run, data=TextDataConfig(str(tmp_path))), tmp_path / "inside")


def test_a_start_that_fails_leaves_no_run(text_file, tmp_path, monkeypatch):
    run = settings(text_file, epochs=0.5)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match="tensorboard"):
        train_run(run, tmp_path / "run", tensorboard=True)
    assert train_run(run, tmp_path / "run").update == UPDATES // 2
    deep = replace(run, model=TextModelConfig("hrnn", hidden_sizes=(4, 4, 4, 4)))
    with pytest.raises(ValueError, match="3 layers at most"):
        train_run(deep, tmp_path / "deep")
    assert not (tmp_path / "deep" / "training.pt").exists()


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
    assert "warning: engine was events and is reference now: the last bits will differ" in said
    assert f"warning: threads was {threads} and is {threads + 1} now" in said


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


def test_a_flipped_bit_in_a_checkpoint_is_noticed(text_file, tmp_path):
    """Flipped in what is read: names of the archive's parts stand twice, and some bytes only fill it up."""
    train_run(settings(text_file, epochs=0.2), tmp_path)
    whole, chance, refused = (tmp_path / "training.pt").read_bytes(), random.Random(0), []
    expected = checkpoint.checksum_of_all(checkpoint.load_progress(tmp_path))
    for _ in range(120):
        spoilt = bytearray(whole)
        spoilt[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (tmp_path / "training.pt").write_bytes(spoilt)
        try:
            assert checkpoint.checksum_of_all(checkpoint.load_progress(tmp_path)) == expected, "silently another state"
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 40
    assert all("training.pt" in reason for reason in refused)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "flipped", "text", "pickle", "bomb", "list", "missing"])
def test_a_damaged_or_hostile_checkpoint_is_refused(text_file, tmp_path, damage, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = settings(text_file, epochs=0.5)
    train_run(run, tmp_path / "run")
    path = tmp_path / "run" / "training.pt"
    whole = path.read_bytes()
    contents = {"cut": whole[: len(whole) // 2], "zeros": bytes(100), "text": b"hello", "flipped": b"\1" + whole[1:]}
    contents |= {"empty": b"", "pickle": b"\x80\x02."}
    if damage in contents:
        path.write_bytes(contents[damage])
    else:
        progress = torch.load(path, weights_only=True)
        progress.pop("optimizer")
        torch.save({"bomb": Bomb(), "list": [1, 2], "missing": progress}[damage], path)
    with pytest.raises(ValueError, match=r"training\.pt|can't be resumed"):
        train_run(run, tmp_path / "run", resume=True)
    assert not (tmp_path / "exploded").exists()


def test_two_processes_can_not_train_into_one_run(text_file, tmp_path):
    with (
        checkpoint.locked(tmp_path / "run"),
        pytest.raises(ValueError, match="run: another process is training into this run"),
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
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ValueError, match=r"pip install 'hmrnn\[tensorboard\]'"):
        train_run(settings(text_file, epochs=0.5), tmp_path / "without", tensorboard=True)


# In processes of their own, as users run it


def command(text_file: Path, *more: str) -> list[str]:
    flags = "--batch-size 4 --window 10 --learning-rate 0.01 --hidden-sizes 8 7 6 --output-size 9 --embedding-size 5"
    return [sys.executable, "-m", "hmrnn", "train", "text", *flags.split(), "--data", str(text_file), *more]


LONG_RUN = ("--epochs", "60", "--validate-every", "5", "--patience", "99", "--checkpoint-minutes", "0.0005")


def lines_in(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_for(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_kill_9_at_random_moments(text_file, tmp_path):
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run(command(text_file, *LONG_RUN, "--out", str(straight)), check=True, capture_output=True)
    chance = random.Random(1)
    for attempt in range(2):  # tests/faults has 40
        where = ["--resume", str(killed)] if attempt else [*LONG_RUN, "--out", str(killed)]
        arguments = [sys.executable, "-m", "hmrnn", "train", "text", *where] if attempt else command(text_file, *where)
        before = lines_in(killed / "metrics.jsonl")
        process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for(lambda: lines_in(killed / "metrics.jsonl") > before + 20 or process.poll() is not None)  # noqa: B023
        time.sleep(chance.random() * 0.2)
        assert process.poll() is None, "it was to be killed while it trains"
        process.kill()
        process.wait()
    done = subprocess.run(
        [sys.executable, "-m", "hmrnn", "train", "text", "--resume", str(killed)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "restored: weights" in done.stderr
    assert same_weights(straight, killed)
    assert same_weights(straight / "best", killed / "best")
    assert metrics(straight) == metrics(killed)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_by_a_signal(text_file, tmp_path, number):
    run = tmp_path / "run"
    arguments = command(text_file, "--epochs", "10000", "--checkpoint-minutes", "99", "--out", str(run))
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: lines_in(run / "metrics.jsonl") > 20)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    assert f"hmrnn train text --resume {run}" in out
    update = checkpoint.load_progress(run)["update"]
    assert update == max(record["update"] for record in metrics(run))
    assert update > 20
    epochs = str((update + 30) / UPDATES)
    resumed = [sys.executable, "-m", "hmrnn", "train", "text", "--resume", str(run), "--epochs", epochs]
    subprocess.run(resumed, check=True, capture_output=True)
    straight = command(text_file, "--epochs", epochs, "--checkpoint-minutes", "99", "--out", str(tmp_path / "straight"))
    subprocess.run(straight, check=True, capture_output=True)
    assert same_weights(run, tmp_path / "straight")


def torchrun(*arguments: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *arguments], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


@pytest.mark.parametrize("bias", ["0.0", "-3.0"])
def test_two_processes_take_the_steps_of_one(text_file, tmp_path, bias):
    """2 x 2 streams against 1 x 4, in float64: every gradient of every update, and the weights after them.

    With a bias of -3 no detector ever fires, and layers 2 and 3 only COPY: that must not hang it.
    """
    script = recorded_updates.__file__
    subprocess.run([sys.executable, script, str(text_file), str(tmp_path / "one.pt"), "4", bias], check=True)
    done = torchrun(script, str(text_file), str(tmp_path / "two.pt"), "2", bias)
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / name, weights_only=True) for name in ("one.pt", "two.pt"))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")
    fired = torch.stack([one[f"rates {update}"] for update in range(recorded_updates.UPDATES)])
    assert (fired == 0).all() if bias == "-3.0" else (fired > 0).any()


def test_two_processes_go_on_exactly(text_file, tmp_path):
    flags = ("--batch-size", "2", "--patience", "99", "--boundary", "sample")

    def train(*more: str, processes: int = 2) -> subprocess.CompletedProcess[str]:
        return torchrun(*command(text_file, *flags, *more)[1:], processes=processes)

    straight = train("--epochs", "1.5", "--out", str(tmp_path / "straight"))
    assert straight.returncode == 0, straight.stderr
    assert straight.stdout.count("all epochs are done") == 1, "one process speaks"
    assert train("--epochs", "0.7", "--out", str(tmp_path / "parts")).returncode == 0
    done = train("--epochs", "1.5", "--resume", str(tmp_path / "parts"))
    assert done.returncode == 0, done.stderr
    assert same_weights(tmp_path / "straight", tmp_path / "parts")
    refused = train("--epochs", "2", "--resume", str(tmp_path / "parts"), processes=1)
    assert refused.returncode != 0
    assert "trained by 2 processes" in refused.stderr
    taken = train("--epochs", "2", "--out", str(tmp_path / "parts"))
    assert taken.returncode != 0
    said = taken.stderr.split("torch.distributed")[0]  # then torchrun itself has its say
    assert "holds a run: --resume" in said
    assert "Traceback" not in said.split("holds a run")[0]
    assert "Connection closed" not in taken.stderr
