"""Runs that an older version began go on."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.older_runs import keep_as_training_pt, older_state
from support.small_runs import REGULARISED, metrics, same_weights, settings, weights

from hmrnn.training.checkpoint import load_run, resumable
from hmrnn.training.run import train_run

KEPT = Path(__file__).parent / "data" / "run_with_training_pt"  # after 7 updates, and the weights of it after 14


def test_a_run_of_an_older_version_goes_on(tmp_path):
    """Its checkpoint, and what it came to when nothing stopped it, were made by that version, on another machine
    perhaps, whose last bits differ."""
    run = shutil.copytree(KEPT, tmp_path / "run")
    config = load_run(run).config
    outcome = train_run(replace(config, training=replace(config.training, epochs=0.6)), run, resume=True)
    assert outcome.update == 14
    expected = load_file(KEPT / "weights_at_the_end.safetensors")
    assert weights(run).keys() == expected.keys()
    for name, weight in weights(run).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-6)
    assert [path.name for path in run.glob("training.*")] == ["training.safetensors"], "it is migrated"
    assert [record["update"] for record in metrics(run)] == [*range(1, 8), 7, *range(8, 15), 14]


@pytest.mark.parametrize("changes", [{"model": "hm-lstm", "boundary": "sample", **REGULARISED}, {"model": "lstm"}])
def test_it_comes_to_the_same_weights(text_file, tmp_path, changes):
    """Bit for bit."""
    run, half = (settings(text_file, epochs=epochs, **changes) for epochs in (1.5, 0.7))
    train_run(run, tmp_path / "straight")
    train_run(half, tmp_path / "older")
    keep_as_training_pt(tmp_path / "older", older_state(tmp_path / "older"))
    assert resumable(tmp_path / "older") == tmp_path / "older" / "training.pt"
    with pytest.raises(ValueError, match="holds a run: resume"):
        train_run(run, tmp_path / "older")
    train_run(run, tmp_path / "older", resume=True)
    assert same_weights(tmp_path / "straight", tmp_path / "older")


def test_the_newer_checkpoint_counts(text_file, tmp_path):
    """A process that was killed between writing the one and removing the other has left both."""
    for epochs in (0.5, 1.0):
        train_run(settings(text_file, epochs=epochs), tmp_path / "run", resume=epochs == 1.0)
        if epochs == 0.5:
            state = older_state(tmp_path / "run")
    newer = (tmp_path / "run" / "training.safetensors").read_bytes()
    keep_as_training_pt(tmp_path / "run", state)
    (tmp_path / "run" / "training.safetensors").write_bytes(newer)
    train_run(settings(text_file, epochs=1.5), tmp_path / "run", resume=True)
    train_run(settings(text_file, epochs=1.5), tmp_path / "straight")
    assert same_weights(tmp_path / "straight", tmp_path / "run")
