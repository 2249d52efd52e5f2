"""The built-in handwriting: that it draws its words in its font, and varies as it is asked to."""

from __future__ import annotations

import string
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args, get_type_hints

import numpy as np
import pytest
from HersheyFonts import HersheyFonts
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrnn.domains.strokes.config import WritingConfig
from hmrnn.domains.strokes.data.points import to_strokes
from hmrnn.domains.strokes.data.writing import LEAST, WORDS, write_lines

FONTS = get_args(get_type_hints(WritingConfig)["font"])
LOADED = {font: HersheyFonts(load_default_font=font) for font in FONTS}
STEADY = WritingConfig(lines=20, jitter=0, slant=0, size=0, speed=0)
CONFIGS = st.builds(
    WritingConfig,
    lines=st.integers(1, 3),
    words=st.tuples(st.integers(1, 3), st.integers(0, 3)).map(lambda both: (both[0], sum(both))),
    font=st.sampled_from(FONTS),
    spacing=st.floats(0.3, 300),
    jitter=st.floats(0, 3),
    slant=st.floats(0, 1),
    size=st.floats(0, 3),
    speed=st.floats(0, 3),
    seed=st.integers(0, 2**32),
)


def font_strokes(font, text):
    """The strokes as the package itself lays the text out."""
    return [np.array(stroke, dtype=float) for stroke in LOADED[font].strokes_for_text(text)]


def stroke_ends(strokes):
    return np.concatenate([stroke[[0, -1]] for stroke in strokes])


def length(stroke):
    return np.hypot(*np.diff(stroke, axis=0).T).sum()


def distances(places, corners):
    """Of each place from the nearest segment between two corners."""
    start, way = corners[:-1], np.diff(corners, axis=0)
    share = np.einsum("psd,sd->ps", places[:, None] - start, way) / (way**2).sum(axis=1)
    nearest = start + np.clip(share, 0, 1)[..., None] * way
    return np.sqrt(((places[:, None] - nearest) ** 2).sum(axis=2)).min(axis=1)


def shapes(config):
    """The font's strokes and the written ones, line by line, and each line's size and slant, found by a fit."""
    for line in write_lines(config):
        printed, drawn = font_strokes(config.font, line.text), to_strokes(line.points)
        known = stroke_ends(printed)
        fitted, *_ = np.linalg.lstsq(np.column_stack([known, np.ones(len(known))]), stroke_ends(drawn), rcond=None)
        size, slant = fitted[1, 1], -fitted[1, 0] / fitted[1, 1]
        assert fitted[0] == pytest.approx([size, 0], abs=1e-4)  # y grows downwards, and lines are level
        yield [stroke @ fitted[:2] + fitted[2] for stroke in printed], drawn, size, slant


@settings(max_examples=30)
@given(CONFIGS)
def test_marks_agree_with_the_text(config):
    lines = write_lines(config)
    assert len(lines) == config.lines
    for line in lines:
        words = line.text.split(" ")
        assert config.words[0] <= len(words) <= config.words[1]
        assert set(words) <= set(WORDS)
        assert line.points.dtype == np.float32
        assert line.points.shape == (*line.letters.shape, 3) == (*line.words.shape, 3)
        assert np.isfinite(line.points).all()
        assert not line.points[0, :2].any()
        assert set(line.points[:, 2]) <= {0, 1}
        assert line.points[line.letters, 2].all()
        assert line.letters[line.words].all()
        assert line.words[-1]
        letters = [int(marked.sum()) for marked in np.split(line.letters, np.flatnonzero(line.words) + 1)]
        assert letters == [*map(len, words), 0]
        # Letter by letter, as many strokes as the font has.
        strokes = [int(pen.sum()) for pen in np.split(line.points[:, 2], np.flatnonzero(line.letters) + 1)][:-1]
        assert strokes == [len(font_strokes(config.font, letter)) for letter in line.text.replace(" ", "")]


@pytest.mark.parametrize("font", FONTS)
def test_lines_come_from_the_seed_alone(font):
    config = WritingConfig(lines=8, font=font, seed=3)
    lines, fewer, other = (
        write_lines(config),
        write_lines(replace(config, lines=3)),
        write_lines(replace(config, seed=4)),
    )
    for line, again in zip(lines, fewer, strict=False):
        assert line.text == again.text
        for name in ("points", "letters", "words"):
            np.testing.assert_array_equal(getattr(line, name), getattr(again, name))
    assert [line.text for line in lines] != [line.text for line in other]
    assert len({len(line.points) for line in lines}) > 4


def test_the_vocabulary():
    assert len(WORDS) == len(set(WORDS)) >= 100
    assert all(2 <= len(word) <= 6 for word in WORDS)
    assert set("".join(WORDS)) == set(string.ascii_lowercase)


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("spacing", [0.7, 2.5, 1000.0])
def test_a_steady_hand_draws_the_font(font, spacing):
    for line in write_lines(replace(STEADY, font=font, spacing=spacing)):
        printed, drawn = font_strokes(font, line.text), to_strokes(line.points)
        assert len(drawn) == len(printed)
        for stroke, corners in zip(drawn, printed, strict=True):
            places = stroke + printed[0][0]
            assert distances(places, corners).max() < 1e-3
            assert places[[0, -1]] == pytest.approx(corners[[0, -1]], abs=1e-3)
            assert len(places) - 1 == max(1, round(length(corners) / spacing))
            steps = np.hypot(*np.diff(places, axis=0).T)
            assert steps.max() <= length(corners) / len(steps) + 1e-3  # equal ways along it; less across a corner


@pytest.mark.parametrize("font", FONTS)
def test_letters_keep_their_shape(font):
    """Whatever the slant, size and speed, points lie on the letters: only jitter leaves them."""
    for printed, drawn, _, _ in shapes(WritingConfig(lines=20, font=font, jitter=0)):
        for corners, stroke in zip(printed, drawn, strict=True):
            assert distances(stroke, corners).max() < 1e-3


def test_slant_and_size_vary_from_line_to_line():
    fits = shapes(replace(STEADY, lines=300, slant=0.15, size=0.1))
    sizes, slants = np.array([(size, slant) for _, _, size, slant in fits]).T
    assert np.mean(sizes) == pytest.approx(1, abs=0.03)
    assert np.std(sizes) == pytest.approx(0.1, rel=0.15)
    assert np.mean(slants) == pytest.approx(0, abs=0.04)
    assert np.std(slants) == pytest.approx(0.15, rel=0.15)
    assert abs(np.corrcoef(sizes, slants)[0, 1]) < 0.2
    for _, _, size, slant in shapes(replace(STEADY, size=5)):
        assert size >= LEAST - 1e-4
        assert slant == pytest.approx(0, abs=1e-4)


def test_speed_varies_from_line_to_line_and_within_a_line():
    config = replace(STEADY, lines=300, spacing=1, words=(6, 6), speed=0.2)
    length_drawn, steps_taken, densities, lines = 0.0, 0, [], []
    for printed, drawn, _, _ in shapes(config):
        lengths = np.array([length(stroke) for stroke in printed])
        steps = np.array([len(stroke) - 1 for stroke in drawn])
        length_drawn, steps_taken = length_drawn + lengths.sum(), steps_taken + steps.sum()
        lines.append(steps.sum() / lengths.sum())
        densities.append((steps / lengths / lines[-1])[lengths > 10])  # rounding spoils those of dots
    assert length_drawn / steps_taken == pytest.approx(config.spacing, rel=0.05)
    assert 0.17 < np.std(lines) < 0.25
    assert 0.14 < np.mean([density.std() for density in densities]) < 0.22
    # It varies slowly: strokes that follow each other are alike.
    before, after = (np.concatenate([density[part] for density in densities]) for part in (slice(-1), slice(1, None)))
    assert np.corrcoef(before, after)[0, 1] > 0.6


def test_jitter_moves_points_and_nothing_else():
    config = WritingConfig(lines=100, jitter=0.3)
    moves = []
    for still, shaken in zip(write_lines(replace(config, jitter=0)), write_lines(config), strict=True):
        assert still.text == shaken.text
        np.testing.assert_array_equal(still.letters, shaken.letters)
        np.testing.assert_array_equal(still.points[:, 2], shaken.points[:, 2])
        moves.append((shaken.points - still.points)[1:, :2])
    moves = np.concatenate(moves) / np.sqrt(2)  # an offset is between two points
    assert moves.std(axis=0) == pytest.approx([0.3, 0.3], rel=0.03)


def test_strokes_without_length_are_points(monkeypatch):
    """A font may have dots that are one point, or a point twice."""
    strokes = [[(0, 0)], [(1, 1), (1, 1)], [(0, 5), (0, 9)]]
    letter = SimpleNamespace(strokes=strokes, left_offset=-1, base_line=9, char_width=4)
    space = SimpleNamespace(strokes=[], left_offset=0, base_line=9, char_width=4)
    font = SimpleNamespace(all_glyphs={" ": space, **dict.fromkeys(string.ascii_lowercase, letter)})
    monkeypatch.setitem(sys.modules, "HersheyFonts", SimpleNamespace(HersheyFonts=lambda load_default_font: font))
    for line in write_lines(replace(STEADY, spacing=2)):
        drawn = to_strokes(line.points)
        assert [len(stroke) for stroke in drawn] == [1, 1, 3] * len(line.text.replace(" ", ""))
        np.testing.assert_allclose(np.concatenate(drawn[:3]), [[0, 0], [1, 1], [0, 5], [0, 7], [0, 9]], atol=1e-5)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "HersheyFonts", None)
    with pytest.raises(ValueError, match=r"needs the package Hershey-Fonts: pip install 'hmrnn\[strokes\]'"):
        write_lines(STEADY)
