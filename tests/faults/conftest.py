from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.faults.runs import FLAGS, kind, succeeded

from hmrnn.domains.text.data.corpora import builtin_text


def line(number: int) -> list[list[list[float]]]:
    """Two strokes, a little different in each line."""
    return [[[x, (x * (number + 2)) % 7] for x in range(15)], [[20 + x, (x + number) % 5] for x in range(12)]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Something to learn from, for each kind of run."""
    made = tmp_path_factory.mktemp("faults")
    (made / "text.txt").write_text(builtin_text()[:4000])
    (made / "bytes.bin").write_bytes(bytes(range(256)) * 16)
    (made / "steps.csv").write_text(
        "a,b,end\n" + "".join(f"{i % 7},{i * i % 11},{int(i % 7 == 6)}\n" for i in range(400))
    )
    (made / "lines.jsonl").write_text("".join(json.dumps(line(i)) + "\n" for i in range(24)))
    return made


@pytest.fixture(scope="session")
def runs(folder) -> dict[str, Path]:
    """A finished run of each kind: never to be changed, but to be copied."""
    for name, flags in FLAGS.items():
        succeeded("train", kind(name), *flags, "--out", name, cwd=folder)
    return {name: folder / name for name in FLAGS}


@pytest.fixture(params=["text", "strokes", pytest.param("series", marks=pytest.mark.faults)])
def name(request) -> str:
    """A kind of run."""
    return str(request.param)
