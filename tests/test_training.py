"""Training: the loop, its schedules and its guards."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace

import pytest
import torch
from support.small_runs import (
    UPDATES,
    metrics,
    same_weights,
    settings,
    weights,
)

from hmrnn import TextModel
from hmrnn.collapse import LONG, CollapseWatch
from hmrnn.config import TrainingConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.evaluation import bits_per_character
from hmrnn.domains.text.task import TextTask
from hmrnn.guidance.guide import Guide
from hmrnn.training import checkpoint
from hmrnn.training.checkpoint import SavedRun, load_progress
from hmrnn.training.distributed import Processes
from hmrnn.training.loop import Diverged, Training
from hmrnn.training.run import prepare, train_run
from hmrnn.training.schedules import LearningRate
from hmrnn.training.task import Validation

# The loop


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_a_run_learns_and_leaves_what_it_should(text_file, tmp_path, model):
    run = settings(text_file, model=model, epochs=5.0, validate_every=0.5)
    outcome = train_run(run, tmp_path)
    assert outcome.ended == "all epochs are done"
    assert outcome.update == 5 * UPDATES
    names = {
        "config.json",
        "model.safetensors",
        "symbols.json",
        "metrics.jsonl",
        "training.safetensors",
        "best",
        ".lock",
    }
    names |= {"teacher.safetensors"} if model == "hm-lstm" else set()
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
    saved = checkpoint.load_run(tmp_path).config
    assert saved == replace(run, model=replace(run.model, boundary_delay=saved.model.boundary_delay))  # the teacher's


def test_a_directory_may_be_a_string(text_file, tmp_path):
    outcome = train_run(settings(text_file, epochs=0.2), str(tmp_path / "run"), data_dir=str(tmp_path))
    assert outcome.directory == tmp_path / "run"
    assert train_run(settings(text_file, epochs=0.4), str(tmp_path / "run"), resume=True).update > outcome.update


def test_the_slope_is_annealed_by_epoch_and_the_detectors_stay_in_their_ball(text_file, tmp_path):
    train_run(settings(text_file, slope_per_epoch=0.5, slope_limit=1.8, epochs=3.0), tmp_path)
    slopes = [record["slope"] for record in metrics(tmp_path) if "bits" in record]
    assert slopes == [1.0] * UPDATES + [1.5] * UPDATES + [1.8] * UPDATES
    model = TextModel.from_pretrained(tmp_path)
    assert model.rnn.slope == 1.8
    for layer in model.rnn.weights()[:-1]:
        assert torch.cat([layer.W_z, layer.U_z, layer.V_z]).norm() <= 1.94 + 1e-5


@pytest.mark.parametrize(("radius", "kept_in"), [(0.1, True), (0.0, False)])
def test_the_radius_of_the_detectors_ball(text_file, tmp_path, radius, kept_in):
    train_run(settings(text_file, detector_radius=radius, epochs=0.5), tmp_path)
    layers = TextModel.from_pretrained(tmp_path).rnn.weights()[:-1]
    norms = [torch.cat([layer.W_z, layer.U_z, layer.V_z]).norm().item() for layer in layers]
    assert [norm <= 0.1 + 1e-6 for norm in norms] == [kept_in] * 2


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
    monkeypatch.setattr("hmrnn.domains.text.task.RENEWAL", 6)
    train_run(settings(text_file), tmp_path)
    assert [state is None for state in states] == ([True] + [False] * (UPDATES - 1)) * 2
    for update, state in enumerate(states):
        if state is not None:
            assert not state.h[0].requires_grad
            new = [update % 6 == row for row in range(4)]
            assert (state.h[0] == 0).all(1).tolist() == new, "each row starts anew in one of six windows"
            assert not any(tensor[new].any() for tensor in (*state.h, *state.c, state.z))


def test_a_text_that_only_repeats_can_be_trained_on(tmp_path):
    """To a code, each of its symbols is a segment."""
    (tmp_path / "cycle.txt").write_text("".join(map(chr, range(256, 512))) * 16)
    assert train_run(settings(tmp_path / "cycle.txt", epochs=0.1), tmp_path / "run").update > 0


def test_minutes_bound_a_run(text_file, tmp_path):
    start, processor = time.monotonic(), time.process_time()
    outcome = train_run(settings(text_file, epochs=1e6, minutes=0.02, patience=10**6), tmp_path)
    assert outcome.ended == "the time is over"
    assert 0.02 <= outcome.minutes <= (time.monotonic() - start) / 60
    assert time.process_time() - processor < 30  # not time on the clock: others may be busy
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
    monkeypatch.setattr(TextTask, "validate", lambda self, model, show: Validation(next(answers), ()))
    outcome = train_run(settings(text_file, patience=1, epochs=99.0), tmp_path)
    assert outcome.ended == "validation has stopped improving"
    assert outcome.update == 5 * UPDATES
    rates = [record["learning_rate"] for record in metrics(tmp_path) if "bits" in record]
    assert rates == [0.01] * 3 * UPDATES + [0.01 / 50] * 2 * UPDATES
    best = [record["best_bits"] for record in metrics(tmp_path) if "valid_bits" in record]
    assert best == [3.0, 2.0, 2.0, 1.0, 1.0]


def test_the_learning_rate_cools_down_to_0(text_file, tmp_path):
    train_run(settings(text_file, epochs=2.0, cooldown=0.5), tmp_path)
    rates = [record["learning_rate"] for record in metrics(tmp_path) if "bits" in record]
    assert rates == pytest.approx([0.01] * UPDATES + [0.01 * (1 - i / UPDATES) for i in range(UPDATES)])


def test_steering_falls_with_the_learning_rate(text_file, tmp_path, monkeypatch):
    steered, step = [], Guide.step

    def recorded(self):
        steered.append(self.strength)
        step(self)

    monkeypatch.setattr(Guide, "step", recorded)
    answers = iter([3.0, 3.1, 2.0])
    monkeypatch.setattr(TextTask, "validate", lambda self, model, show: Validation(next(answers), ()))
    train_run(settings(text_file, epochs=3.0, cooldown=0.25, patience=1), tmp_path)
    rates = [record["learning_rate"] for record in metrics(tmp_path) if "bits" in record]
    assert steered == pytest.approx([rate / 0.01 for rate in rates])
    assert steered[2 * UPDATES - 1] == 1
    assert steered[2 * UPDATES] == pytest.approx(1 / 50), "divided"
    assert 0 < steered[-1] < 1 / 50 / 2, "and cooled"


def test_the_slope_in_force_falls_while_detectors_are_guided(text_file, tmp_path, monkeypatch):
    """Over a resume, too; what is told and kept is the schedule's."""
    monkeypatch.setattr("hmrnn.guidance.guide.HELD_BACK_BY", 4)
    own, in_force = TextTask.loss, []

    def watched(self, update, generator):
        in_force.append(self.model.rnn.slope)
        return own(self, update, generator)

    monkeypatch.setattr(TextTask, "loss", watched)
    run = settings(text_file, epochs=3 / UPDATES, guided_updates=6, slope_per_epoch=0.5)
    train_run(run, tmp_path)
    longer = replace(run.training, epochs=(UPDATES + 1) / UPDATES)
    train_run(replace(run, training=longer), tmp_path, resume=True)
    assert in_force == [1.0, 0.75, 0.5, 0.25, 0.01, 0.01] + [1.0] * (UPDATES - 6) + [1.5]
    assert [record["slope"] for record in metrics(tmp_path) if "bits" in record] == [1.0] * UPDATES + [1.5]
    assert TextModel.from_pretrained(tmp_path).rnn.slope == 1.5


def test_it_cools_down_by_the_clock_where_that_comes_first(text_file, monkeypatch):
    run = settings(text_file, epochs=99.0, minutes=10.0, cooldown=0.2)
    data = load_text(run.data, None)
    training = prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes())
    for minutes, share in [(0.0, 1.0), (8.0, 1.0), (9.0, 0.5), (10.0, 0.0), (10.1, 0.0)]:
        training.minutes = minutes
        assert training.learning_rate() == pytest.approx(0.01 * share)
    monkeypatch.setattr(Processes, "of_first", lambda self, value: 0.95)
    assert training.learning_rate() == pytest.approx(0.01 / 4), "by the first process's clock"


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


def test_an_update_that_is_not_applied_leaves_the_average(text_file, tmp_path, monkeypatch):
    train_run(settings(text_file, epochs=3 / UPDATES, average=0.5), tmp_path / "three")
    spoiled_loss(monkeypatch, {1, 3}, math.nan)
    train_run(settings(text_file, epochs=5 / UPDATES, average=0.5), tmp_path / "five")
    three, five = (load_progress(tmp_path / name)["average"] for name in ("three", "five"))
    assert five["n_averaged"] == three["n_averaged"] == 3


def test_the_state_is_forgotten_after_a_loss_that_is_not_finite(text_file, tmp_path, monkeypatch):
    """It may be what made it so."""
    spoiled_loss(monkeypatch, {3, 4}, math.nan)
    states, loss = [], TextTask.loss

    def watched(self, update, generator):
        states.append(self.state)
        return loss(self, update, generator)

    monkeypatch.setattr(TextTask, "loss", watched)
    train_run(settings(text_file, epochs=7 / UPDATES), tmp_path)
    assert [state is None for state in states] == [True, False, False, False, True, True, False]


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
    with pytest.raises(Diverged, match=rf"20 updates in a row .*update {UPDATES + 20}\).*lower learning_rate"):
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
    assert "higher boundary_bias" in dead[1]
    assert LONG < always[0] < 2 * LONG
    assert "layer 3 has fired almost always" in always[1]
    assert "lower boundary_bias" in always[1]


def test_a_collapsed_run_says_so(text_file, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("hmrnn.collapse.LONG", 10)
    train_run(settings(text_file, boundary_bias=-3.0, epochs=2.0, guided_updates=0), tmp_path)
    said = capfd.readouterr().err
    assert said.count("warning: the detector of layer 1 has fired almost never") == 1
    train_run(settings(text_file, boundary_bias=-3.0, epochs=3.0, guided_updates=0), tmp_path, resume=True)
    assert "warning" not in capfd.readouterr().err, "once is enough, also after a resume"
