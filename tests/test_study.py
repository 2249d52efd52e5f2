"""benchmarks/detectors.py: what it has measured, it keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "detectors.py"


def study(folder: Path, symbols: int, *variants: str) -> str:
    command = [sys.executable, SCRIPT, "--out", folder / "out", "--results", folder / "results.jsonl"]
    command += ["--symbols", symbols, "--corpora", "planted", "--seeds", 0, "--variants", *variants]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_study_goes_on_with_what_it_has(tmp_path):
    first = study(tmp_path, 9600, "recipe", "lstm")
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert {json.loads(line)["variant"] for line in lines} == {"recipe", "lstm"}
    assert first == (tmp_path / "out" / "table.md").read_text() + "\n"
    assert "| planted | lstm | 1 |" in first
    assert "| planted | recipe | 1 |" in first
    assert (tmp_path / "out" / "figure.svg").exists()
    assert not list((tmp_path / "out").rglob("*.safetensors")), "models that are done are gone"

    marked = [json.dumps({**json.loads(line), "result": {"bits": 0.125}}) for line in lines if '"lstm"' in line]
    (tmp_path / "results.jsonl").write_text("\n".join(marked) + "\n")
    assert "| planted | lstm | 1 | 0.125 |" in study(tmp_path, 9600, "lstm"), "it is not measured again"

    other = study(tmp_path, 6400, "lstm")
    assert "0.125" not in other, "a result of other settings does not count"
    assert (tmp_path / "results.jsonl").read_text().splitlines()[0] == marked[0], "but stays"
