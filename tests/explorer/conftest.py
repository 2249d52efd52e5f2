"""Models to explore, and servers that show them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.explorer.models import DRAWN, SMALL, TEXT
from support.explorer.server import running

from hmrnn import StrokeModel, StrokeModelConfig, Symbols, TextModel, TextModelConfig
from hmrnn.domains.strokes.data.points import from_strokes


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Models: two of text, one of bytes, one without anything to put for unknown symbols, and one of strokes.

    In double precision: untrained ones are so chaotic that the last bits of single precision decide on boundaries.
    """
    path = tmp_path_factory.mktemp("explorer")
    for seed, name in enumerate(("words", "other")):
        torch.manual_seed(seed)
        config = TextModelConfig(**SMALL, boundary="step", boundary_delay=seed)  # of the other, one symbol
        TextModel(Symbols.of(TEXT + "?"), config).double().save_pretrained(path / name)
    TextModel(Symbols.of("naïve ?".encode()), TextModelConfig(**SMALL)).double().save_pretrained(path / "bytes")
    TextModel(Symbols.of("abc"), TextModelConfig("hrnn", **SMALL)).double().save_pretrained(path / "letters")
    pen = StrokeModel(StrokeModelConfig(**SMALL, components=3)).double()
    pen.normalise_as([from_strokes(DRAWN), from_strokes([[[0, 0], [3, 5], [6, 1]]] * 20)])
    pen.save_pretrained(path / "pen")
    return path


@pytest.fixture(scope="session")
def host(folder):
    with running([folder / "words", folder / "other"]) as host:
        yield host


@pytest.fixture(scope="session")
def pen_host(folder):
    with running([folder / "pen"]) as host:
        yield host
