"""Figures show what the tensors say."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import font_manager
from matplotlib.collections import LineCollection
from matplotlib.image import AxesImage

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.domains.text import figures
from hmrnn.domains.text.classes import CLASSES, rates_by_class, symbol_classes
from hmrnn.domains.text.config import MEASURE
from hmrnn.domains.text.page import page
from hmrnn.show.fonts import fonts_for, known_to
from hmrnn.show.training import training_figure
from hmrnn.training.history import read_metrics

TEXT = ("the cat sat on 2 mats. the dog, too.\n" * 6)[:200]


def read(**settings):
    torch.manual_seed(3)
    config = TextModelConfig(hidden_sizes=(9, 8, 7), output_size=7, embedding_size=4, boundary_bias=0.05, **settings)
    return TextModel(Symbols.of(TEXT), config).segment(TEXT)


@pytest.fixture(scope="module")
def found():
    return read()


def artists(axes, kind, gid):
    (one,) = [artist for artist in axes.get_children() if isinstance(artist, kind) and artist.get_gid() == gid]
    return one


def ends(rows, l: int) -> list[int]:
    """The symbols after which segments of layer l end in a figure."""
    ticks = [artists(axes, LineCollection, f"ends of layer {l + 1}").get_segments() for axes in rows]
    return [round(tick[0][0]) - 1 + 90 * row for row, own in enumerate(ticks) for tick in own]


def written(found, text: str):
    """The same segments of another text."""
    symbols = Symbols.of(text)
    return replace(found, table=symbols, steps=replace(found.steps, inputs=symbols.encode(text)))


def test_boundaries(found):
    figure = figures.boundaries_figure(found)
    assert len(figure.axes) == 3, "rows of 90"
    for l in range(2):
        drawn = ends(figure.axes, l)
        assert drawn == np.flatnonzero(found.steps.z[:, l].numpy()).tolist()
        assert drawn
    shown = [text.get_text() for axes in figure.axes for text in axes.texts if len(text.get_text()) == 1]
    assert "".join(shown) == TEXT.replace(" ", "␣").replace("\n", "↵")


def test_norms_and_operations(found):
    figure = figures.norms_figure(found)
    rows = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    for l in range(3):
        norms = [np.asarray(artists(axes, AxesImage, f"norms of layer {l + 1}").get_array())[0] for axes in rows]
        done = [np.asarray(artists(axes, AxesImage, f"operations of layer {l + 1}").get_array())[0] for axes in rows]
        assert np.allclose(np.concatenate(norms), found.steps.norms[:, l].numpy())
        assert np.array_equal(np.concatenate(done), found.steps.operations[:, l].numpy())
    for l in range(2):
        assert ends(rows, l) == np.flatnonzero(found.steps.z[:, l].numpy()).tolist()
    for l in range(3):
        scale = artists(rows[0], AxesImage, f"norms of layer {l + 1}").get_clim()
        own = found.steps.norms[:, l]
        assert scale == pytest.approx((own.min().item(), own.max().item())), "a scale of its own"
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [axes.get_title() for axes in bars] == ["h3", "h2", "h1"]
    image = artists(rows[0], AxesImage, "operations of layer 1")
    for operation, colour in figures.OPERATION_COLOURS.items():
        shown = image.cmap(image.norm(int(operation)))
        assert np.allclose(shown[:3], [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def test_segments_of_detectors_that_fire_one_symbol_late():
    late = read(boundary_delay=1)
    expected = [[segment.end - 1 for segment in layer if segment.closed] for layer in late.layers]
    assert expected[0] == [t - 1 for t in np.flatnonzero(late.steps.z[:, 0].numpy()).tolist() if t > 0]
    for figure in (figures.boundaries_figure(late), figures.norms_figure(late)):
        rows = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
        assert [ends(rows, l) for l in range(2)] == expected
    assert json.dumps(expected, separators=(",", ":")) in page(late, "late")


def test_classes(found):
    figure = figures.classes_figure(found)
    rates = rates_by_class(TEXT, found.steps.z.numpy())
    for l, axes in enumerate(figure.axes[::-1]):  # the highest layer on top
        (bars,) = axes.containers
        assert [bar.get_height() for bar in bars] == pytest.approx(rates[:, l].tolist())
        assert axes.get_ylim()[1] < 1.3 * rates[:, l].max(), "a scale of its own"
        assert [text.get_text() for text in axes.texts] == [f"{rate:.1%}" for rate in rates[:, l]]


def test_every_class_has_a_bar(found):
    letters = written(found, "x" * len(TEXT))
    top = figures.classes_figure(letters).axes[0]
    assert [bar.get_height() for bar in top.containers[0]].count(0.0) >= 3
    assert [text.get_text() for text in top.texts].count("not in the text") == 3
    assert next(label.get_text() for label in top.figure.axes[-1].get_xticklabels()) == "space"


def test_fonts_that_have_the_symbols(found, tmp_path, monkeypatch):
    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [font for font in font_manager.fontManager.ttflist if Path(font.fname).parent == own]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    plain, bold = (known_to(str(own / f"DejaVuSans{kind}.ttf")) for kind in ("Mono", ""))
    symbol = min(own for own in bold - plain if own.isprintable())
    assert fonts_for("abc") == (["DejaVu Sans Mono"], set())
    assert fonts_for(["a", symbol]) == (["DejaVu Sans Mono", "DejaVu Sans"], set())
    assert fonts_for(["a", symbol, "今"])[1] == {"今"}
    assert re.search(r"今 \(U\+4ECA\).*Noto Sans CJK", figures.font_hint("a今"))
    assert figures.font_hint(f"a{symbol}") == ""
    chinese = written(found, "今天$x$" * 40)
    figures.boundaries_figure(chinese).savefig(tmp_path / "dots.png")  # a warning would be an error


def test_a_font_that_was_just_installed_is_used(tmp_path, monkeypatch):
    """Though matplotlib has a list of fonts from before."""
    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    new = str(own / "DejaVuSans.ttf")
    fonts = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans Mono"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", fonts)
    symbol = min(known_to(new) - known_to(str(own / "DejaVuSansMono.ttf")))
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf")])
    assert fonts_for(["a", symbol]) == (["DejaVu Sans Mono"], {symbol})
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), new])
    assert fonts_for(["a", symbol]) == (["DejaVu Sans Mono", "DejaVu Sans"], set())


def test_symbol_classes():
    names = [CLASSES[k] for k in symbol_classes("I am 42, ok?\nÀ")]
    assert names == [
        *("first", "space", "first", "last", "space", "digit", "digit", "punctuation"),
        *("space", "first", "last", "punctuation", "space", "first"),
    ]
    z = np.array([[True], [False], [True], [True]])
    assert rates_by_class("a b ", z)[:2, 0].tolist() == [0.5, 1.0]
    assert np.isnan(rates_by_class("a b ", z)[2:]).all()


def test_training_curves(tmp_path):
    records = [
        {"update": u, "epoch": u / 10, "bits": 5 - u / 20, "rates": [0.3, u / 100], "slope": 1 + u / 100}
        for u in range(1, 41)
    ]
    records.insert(20, {"update": 20, "epoch": 2.0, "valid_bits": 4.2, "best_bits": 4.2})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    read = read_metrics(tmp_path)
    one = training_figure({"one": read}, MEASURE)
    bits, rates, slope = one.axes
    assert bits.lines[0].get_xdata().tolist() == [u / 10 for u in range(1, 41)]
    assert bits.lines[0].get_ydata()[-1] == pytest.approx(np.mean([5 - u / 20 for u in range(21, 41)]))
    assert (bits.lines[1].get_xdata().tolist(), bits.lines[1].get_ydata().tolist()) == ([2.0], [4.2])
    assert [line.get_label() for line in rates.lines] == ["z1", "z2"]
    assert slope.lines[0].get_ydata()[-1] == pytest.approx(1.4)
    both = training_figure({"one": read, "lstm": [{**r, "rates": []} for r in read if "bits" in r]}, MEASURE)
    assert len(both.axes[0].lines) == 4
    assert len(both.axes[1].lines) == 2
    (tmp_path / "metrics.jsonl").write_text("{\n")
    with pytest.raises(ValueError, match="line 1 is not a record"):
        read_metrics(tmp_path)
    with pytest.raises(ValueError, match="not a training run"):
        read_metrics(tmp_path / "nothing")


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_they_are_written(found, tmp_path, ending):
    for make in (figures.boundaries_figure, figures.norms_figure, figures.classes_figure):
        path = tmp_path / f"{make.__name__}.{ending}"
        make(found).savefig(path)
        assert path.stat().st_size > 3000
