"""What a notebook shows: names, short reprs, segments in colour, tables; and the tour, which is executed."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from torch.nn.utils.rnn import pack_sequence

import hmrnn
from hmrnn import HMLSTM, LSTM, Operation, SeriesModel, StrokeModel, Symbols, TextModel, TextModelConfig
from hmrnn.domains.series.config import SeriesModelConfig
from hmrnn.domains.text.inline import SHOWN
from hmrnn.sequence import Piecewise

NOTEBOOKS = Path(__file__).parent.parent / "docs" / "notebooks"


@pytest.fixture(scope="module")
def model() -> TextModel:
    return TextModel.from_pretrained("builtin")


def test_dir_lists_the_public_names_without_torch():
    code = "import sys, hmrnn; print(*dir(hmrnn)); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted([*hmrnn.__all__, "__version__"])


def test_short_reprs():
    rnn = HMLSTM(3, [4, 5, 6])
    z = torch.zeros(100, 8, 2)
    z[:21, :, 0] = 1
    z[:4, :, 1] = 1
    out, state = rnn(torch.randn(100, 8, 3), boundaries=z)
    assert repr(out) == "HMLSTMOutput(100 x 8, layers 4/5/6, rates .21 .04)"
    assert repr(state) == "HMLSTMState(B=8, layers 4/5/6)"
    padded, _ = rnn(torch.randn(100, 8, 3), boundaries=z, lengths=torch.full((8,), 42))
    assert repr(padded).endswith("rates .50 .10)"), "of the steps that are no padding"
    assert repr(LSTM(3, [4])(torch.randn(7, 2, 3))[0]) == "HMLSTMOutput(7 x 2, layers 4)"
    assert repr(Piecewise(torch.zeros(5, 3), torch.zeros(7, 2, dtype=torch.int64))) == (
        "Piecewise(7 x 2 steps, 5 of 3 units)"
    )
    packed, _ = rnn(pack_sequence([torch.randn(4, 3), torch.randn(2, 3)]))
    assert re.fullmatch(r"PackedOutput\(6, layers 4/5/6, rates [01]?\.\d\d [01]?\.\d\d\)", repr(packed))
    with torch.device("meta"):
        assert "layers 4/5/6" in repr(HMLSTM(3, [4, 5, 6]).initial_state(2))


def test_the_repr_of_an_output_is_true_in_every_layout():
    rnn, x = HMLSTM(3, [4, 5]), torch.randn(7, 4, 3)
    turned = HMLSTM(3, [4, 5], batch_first=True)
    for out, steps in (
        (rnn(x)[0], "7 x 4"),
        (turned(x.transpose(0, 1))[0], "4 x 7"),
        (rnn(x[:, 0])[0], "7"),
        (rnn.step(x[0])[0], "4"),
    ):
        assert repr(out).startswith(f"HMLSTMOutput({steps}, layers 4/5, rates ")


def test_operations_have_names():
    assert (repr(Operation.COPY), str(Operation.FLUSH), f"{Operation.UPDATE}") == ("COPY", "FLUSH", "UPDATE")
    assert Operation.names(torch.tensor([[0, 1], [2, 1]], dtype=torch.int8)) == [["UPDATE", "COPY"], ["FLUSH", "COPY"]]


def test_segments_have_short_reprs(model):
    found = model.segment("The value of it", vectors=True)
    assert re.fullmatch(r"Segmentation\(15 steps, segments \d+/\d+\)", repr(found))
    assert repr(found.layers[0][1]) == "Segment(layer 1, 4 to 10, 'value ')"
    assert repr(found.layers[0][-1]).endswith(", open)")
    assert len(repr(found.tree())) < 500
    assert repr(found.steps) == "Steps(0 to 15, 3 layers)"


class Elements(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.layers: list[str] = []
        self.titles: list[str] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.inside = tag == "b"
        if tag == "div":
            self.layers.append("")
        if tag == "b":
            self.titles.append(dict(attrs)["title"])

    def handle_endtag(self, tag) -> None:
        self.inside = False

    def handle_data(self, data) -> None:
        if self.inside:
            self.layers[-1] += data


def test_segments_of_a_text_in_colour(model):
    text = 'if a <b> & "c" then\n  <script>alert(1)</script> is a value.'
    html = model.segment(text)._repr_html_()
    assert len(html) < 6_000
    assert not re.search(r"<script|https?:|url\(|@import", html)
    shown = Elements(html)
    assert set(shown.tags) == {"style", "div", "small", "b"}
    assert shown.layers == [text.replace("\n", "↵\n")] * 2, "all of it, once for each layer"
    found = model.segment(text)
    assert shown.titles[0].startswith(f"0 to {found.layers[0][0].end}: ")
    assert len(shown.titles) == sum(map(len, found.layers))
    long = model.segment("The value of the argument is a string. " * 100)._repr_html_()
    assert len(long) < 20_000
    assert f"… {3900 - SHOWN:,} more symbols" in long


def test_bytes_and_models_without_boundaries_in_colour():
    for symbols, kind in ((Symbols.of("naïve\x1b ".encode()), "hm-lstm"), (Symbols.of("naïve\x1b "), "lstm")):
        plain = TextModel(symbols, TextModelConfig(kind, hidden_sizes=(4, 4), output_size=4, embedding_size=4))
        html = plain.segment("naïve \x1b")._repr_html_()
        html.encode()  # no lone surrogates
        assert "\x1b" not in html


def test_lists_of_texts(model):
    texts = ["The value", "of the argument"]
    found = model.segment(texts)
    assert [one.text for one in found] == texts
    assert [one.layers for one in found] == [model.segment(text).layers for text in texts]


def test_tables(model, monkeypatch):
    found = model.segment("The value of it")
    table = found.to_dataframe()
    assert list(table.columns) == ["layer", "start", "end", "closed", "text", "surprisal"]
    assert len(table) == sum(map(len, found.layers)) > len(found.layers[0])
    places = list(zip(table.start, table.layer, strict=True))
    assert places == sorted(places)
    first = table[table.layer == 1]
    assert "".join(first.text) == "The value of it"
    assert first.surprisal.sum() == pytest.approx(found.steps.surprisal[1:].sum().item())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError):
        found.to_dataframe()


def test_strokes_and_series_as_drawings():
    pen = StrokeModel.from_pretrained("builtin-strokes")
    line = pen.generate(max_new=150, bias=1.0, seed=1)
    torch.manual_seed(0)
    series = SeriesModel(["x<1>", "y"], SeriesModelConfig(hidden_sizes=(8, 8), output_size=8, embedding_size=8))
    values = np.random.default_rng(0).normal(size=(400, 2)).astype(np.float32)
    series.normalise_as([values])
    for found, drawings in ((pen.segment(line), 3), (series.segment(values), 1)):
        assert repr(found).endswith("/".join(str(len(layer)) for layer in found.layers) + ")")
        html = found._repr_html_()
        assert len(html) < 60_000
        assert not re.search("<script|url", html)
        assert html.count("<svg") == drawings
        for drawing in re.findall("<svg.*?</svg>", html, re.DOTALL):
            ET.fromstring(drawing)
        assert html.count("<title>") >= sum(map(len, found.layers))
    assert "text" not in pen.segment(line).to_dataframe().columns


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_run(path, tmp_path):
    assert path.stat().st_size < 100_000, "outputs are kept small"
    notebook = nbformat.read(path, as_version=4)
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code"), "it was executed"
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    nbformat.write(notebook, tmp_path / "again.ipynb")
    assert (tmp_path / "again.ipynb").stat().st_size < 100_000
