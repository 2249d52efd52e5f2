"""Runs that an older version began go on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.older_runs import keep_as_training_pt, older_state
from support.small_runs import REGULARISED, metrics, same_weights, settings, weights

from hmrnn import TextModel
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


def test_a_run_from_before_checksums_is_read_and_goes_on(text_file, tmp_path):
    """Nor does it name its files, its precision, its device, or what its symbols are."""
    untaught = {"target_rate": 0.2, "uncertainty_weight": 0.0}  # such runs had no teacher
    run, longer = (settings(text_file, epochs=epochs, precision="auto", **untaught) for epochs in (0.5, 1.0))
    train_run(run, tmp_path / "today", engine="reference")
    older = shutil.copytree(tmp_path / "today", tmp_path / "older")
    for folder in (older, older / "best"):
        config = json.loads((folder / "config.json").read_text())
        for name in ("checksum", "files", "precision", "data_dir", "weight_drop", "dropout", "boundary_delay"):
            del config[name]
        (folder / "config.json").write_text(json.dumps(config))
        symbols = json.loads((folder / "symbols.json").read_text())
        (folder / "symbols.json").write_text(json.dumps(without(symbols, "unit")))
        save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    state = older_state(older)
    keep_as_training_pt(older, {**without(state, "guide"), "machine": without(state["machine"], "device")})
    text = text_file.read_text()[:500]
    bits = [TextModel.from_pretrained(tmp_path / name / "best").bits_per_character(text) for name in ("today", "older")]
    assert bits[0] == bits[1]
    for name in ("today", "older"):
        train_run(longer, tmp_path / name, resume=True)
    assert same_weights(tmp_path / "today", older)


def without(content: dict[str, Any], name: str) -> dict[str, Any]:
    return {own: value for own, value in content.items() if own != name}


def test_a_run_from_before_the_auxiliary_loss_is_steered_as_it_was(text_file, tmp_path):
    """`guided_updates` had another name, and neither the weight of that loss nor the norm ball could be set."""
    train_run(settings(text_file, target_rate=0.2, uncertainty_weight=0.0, guided_updates=30), tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    training = config["training"]
    training["steered_updates"] = training.pop("guided_updates")
    for name in ("uncertainty_weight", "detector_radius", "imitates_rate"):
        del training[name]
    del config["checksum"]
    path.write_text(json.dumps(config))
    found = load_run(tmp_path / "run").config.training
    assert (found.guided_updates, found.uncertainty_weight, found.detector_radius) == (30, 0.0, 1.94)
    training["target_rate"] = None  # the default then: not steered
    path.write_text(json.dumps(config))
    assert load_run(tmp_path / "run").config.training.guided_updates == 0
