"""What is kept of long runs, and the tables made from it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path

import pytest
from support.small_runs import settings

from hmrnn.training.run import train_run

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "results.py"


@pytest.fixture
def results(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("results", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(module, "RUNS", tmp_path / "benchmarks" / "runs")
    return module


def test_a_run_is_finished_once_and_stands_in_the_tables(results, text_file, tmp_path, monkeypatch):
    run, folder = tmp_path / "run", tmp_path / "benchmarks" / "runs" / "ptb-hm"
    train_run(settings(text_file), run)
    (run / "commit").write_text("0123456789abcdef\n")
    asked = []

    def evaluated(command, **how):
        asked.append(command)
        answer = json.dumps({"split": "test", "bits_per_character": 1.23456})
        return subprocess.CompletedProcess(command, 0, f"something else\n{answer}\n")

    with monkeypatch.context() as patch:
        patch.setattr(results.subprocess, "run", evaluated)
        results.finish(run, "ptb-hm", "hmrnn train text …", cores=2)
        with pytest.raises(SystemExit, match="was read"):
            results.finish(run, "ptb-hm", "hmrnn train text …", cores=2)
    assert asked == [["hmrnn", "eval", str(run), "--json"]], "the test part is read once"
    result = json.loads((folder / "result.json").read_text())
    assert (result["bits_per_character"], result["updates"], result["epochs"]) == (1.23456, 24, 2.0)
    assert (result["weights"], result["commit"], result["cores"]) == (2660, "0123456789abcdef", 2)
    assert (folder / "config.json").read_bytes() == (run / "config.json").read_bytes()

    for name in ("docs/results.md", "README.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"before\n{results.BEGIN}\nold\n{results.END}\nafter\n")
    for _ in range(2):  # what was written before is replaced
        results.tables()
        for name in ("docs/results.md", "README.md"):
            text = (tmp_path / name).read_text()
            assert text.startswith(f"before\n{results.BEGIN}\n| ")
            assert text.endswith(f"\n{results.END}\nafter\n")
            assert text.count("1.235") == 1
            assert "old" not in text
    page = (tmp_path / "docs/results.md").read_text()
    assert "# ptb-hm, commit 0123456" in page
    assert "\nhmrnn train text …\n" in page


def test_rates_of_detectors_are_those_of_the_best_validation(results):
    folder = results.RUNS / "ptb-paper"
    folder.mkdir(parents=True)
    records: list[dict[str, object]] = [{"update": 1, "rates": [0.9, 0.9]}]
    records += [{"valid_bits": 1.5 + (n - 2) ** 2, "valid_rates": [n / 10, n / 1000]} for n in (1, 2, 3)]
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert results.detector_rates("ptb-paper") == "0.200, 0.002"
    (folder / "metrics.jsonl").write_text(json.dumps({"valid_bits": 1.5}))
    assert results.detector_rates("ptb-paper") == "–", "an LSTM has none"


def test_long_commands_continue_on_the_next_line(results):
    command = "hmrnn train strokes --data iam-ondb " + " ".join(f"--flag-{n} value" for n in range(12))
    lines = results.continued(command).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 120
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join(lines).replace("\\", "").split() == command.split()


def test_handwriting_is_told_at_both_floors(results, text_file, tmp_path, monkeypatch):
    run, folder = tmp_path / "run", tmp_path / "benchmarks" / "runs" / "iam-hm"
    train_run(settings(text_file), run)

    def evaluated(command, **how):
        nats = 900.0 if "--sigma-floor" in command else 1000.0
        return subprocess.CompletedProcess(command, 0, json.dumps({"split": "test", "log_likelihood": nats}))

    with monkeypatch.context() as patch:
        patch.setattr(results.subprocess, "run", evaluated)
        patch.setattr(results, "commit_of", lambda run: "0123456")
        results.finish(run, "iam-hm", "hmrnn train strokes …", cores=1)
    result = json.loads((folder / "result.json").read_text())
    assert (result["log_likelihood"], result["log_likelihood_at_usual_floor"]) == (1000, 900)
    assert "1000 nats a line (900 with" in results.measure(result)


def test_dynamic_evaluation_reads_the_test_part_in_the_same_command(results, text_file, tmp_path, monkeypatch):
    run, folder, asked = tmp_path / "run", tmp_path / "benchmarks" / "runs" / "ptb-best", []
    train_run(settings(text_file), run)

    def evaluated(command, **how):
        asked.append(command)
        dynamic = {"bits_per_character": 1.2, "eta": 0.001, "lambda": 0.01, "seconds": 60.0}
        answer = {"split": "test", "bits_per_character": 1.25, "dynamic": dynamic}
        return subprocess.CompletedProcess(command, 0, json.dumps(answer))

    with monkeypatch.context() as patch:
        patch.setattr(results.subprocess, "run", evaluated)
        patch.setattr(results, "commit_of", lambda run: "0123456")
        results.finish(run, "ptb-best", "hmrnn train text …", cores=2, dynamic=True)
    assert asked == [["hmrnn", "eval", str(run), "--json", "--dynamic", "auto"]]
    result = json.loads((folder / "result.json").read_text())
    assert result["dynamic"] == {"bits_per_character": 1.2, "eta": 0.001, "lambda": 0.01}
    assert results.measure(result) == "1.250 bits per character (1.200 with dynamic evaluation)"
    assert "| 1.250 (1.200 with dynamic evaluation) |" in results.short_table()


def test_few_updates_are_kept_and_every_validation(results, text_file, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "MOST", 6)
    train_run(settings(text_file, validate_every=0.25), tmp_path / "run")
    folder = results.keep(tmp_path / "run", "short")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum("valid_bits" in record for record in records) == 8
    assert [r["update"] for r in records if "learning_rate" in r] == [5, 10, 15, 20]
