"""The built-in handwriting: words in a font of single strokes, of which it is known where letters and words end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import numpy.typing as npt

from hmrnn.domains.strokes.config import WritingConfig
from hmrnn.domains.strokes.data.points import Points, from_strokes

# Frequent English words of two to six letters, with every letter of the alphabet among them.
WORDS = tuple(
    """
    of to in is it he as on by at be or we an if my do no up so
    the and you for was are his had not but all can her one our out day get has him how man new now old see two way who
    that with have this will your from they know want been good much some time very when come here just like long make
    many over such take than them well were next size
    there which their about would these other write could first after think where great right small quick
    people before should number little letter always world
    """.split()  # noqa: SIM905
)
LEAST = 0.5  # no line is smaller, and no pen leaves fewer points, than this share of the usual
WAVE = 120.0  # length drawn until the pen's speed has become another: about three letters


@dataclass(frozen=True)
class Written:
    text: str
    points: Points  # (T, 3)
    letters: npt.NDArray[np.bool_]  # (T,): whether a letter ends with this point
    words: npt.NDArray[np.bool_]  # (T,): whether a word ends with this point


@dataclass(frozen=True)
class _Shape:
    """A letter, a word or a line as the font has it: the corners of its strokes, and what ends at each."""

    corners: npt.NDArray[np.float64]  # (n, 2), from the left margin and the baseline
    ends: npt.NDArray[np.bool_]  # (n, 3): whether a stroke, a letter, a word ends at this corner
    width: float


def write_lines(config: WritingConfig) -> list[Written]:
    """Draws lines of words, each word alike often. The first lines are the same however many are asked for."""
    glyphs = _glyphs(config.font)
    shapes = {word: _word([glyphs[letter] for letter in word], glyphs[" "].width) for word in WORDS}
    random = np.random.default_rng(config.seed)
    return [_line(shapes, config, random) for _ in range(config.lines)]


def _glyphs(name: str) -> dict[str, _Shape]:
    try:
        font = import_module("HersheyFonts").HersheyFonts(load_default_font=name)
    except ImportError:
        raise ValueError(
            "the built-in handwriting needs the package Hershey-Fonts: pip install 'hmrnn[strokes]'"
        ) from None
    return {
        character: _glyph(glyph.strokes, (glyph.left_offset, glyph.base_line), glyph.char_width)
        for character, glyph in font.all_glyphs.items()
    }


def _glyph(strokes: Iterable[Iterable[tuple[int, int]]], origin: tuple[int, int], width: int) -> _Shape:
    """A glyph of the font, whose y grows downwards like ours."""
    drawn = [np.array(list(stroke), dtype=np.float64) for stroke in strokes]
    corners = np.concatenate([np.empty((0, 2)), *drawn]) - origin  # a space has no strokes
    ends = np.zeros((len(corners), 3), dtype=bool)
    ends[np.cumsum([len(stroke) for stroke in drawn], dtype=int) - 1, 0] = True
    ends[-1:, 1] = True
    return _Shape(corners, ends, width)


def _word(letters: list[_Shape], space: float) -> _Shape:
    """A word, and the space after it."""
    word = _joined(letters)
    word.ends[-1, 2] = True
    return _Shape(word.corners, word.ends, word.width + space)


def _joined(parts: list[_Shape]) -> _Shape:
    widths = np.array([part.width for part in parts])
    corners = np.concatenate([part.corners for part in parts])
    corners[:, 0] += np.repeat(np.cumsum(widths) - widths, [len(part.corners) for part in parts])
    return _Shape(corners, np.concatenate([part.ends for part in parts]), float(widths.sum()))


def _line(shapes: dict[str, _Shape], config: WritingConfig, random: np.random.Generator) -> Written:
    low, high = config.words
    words = [WORDS[i] for i in random.integers(len(WORDS), size=random.integers(low, high + 1))]
    line = _joined([shapes[word] for word in words])
    # The letters take their shape before the pen follows them, so that spacing and jitter are those of the points.
    slant, size, speed = random.normal(size=3)
    corners = line.corners * _share(config.size * size)
    corners[:, 0] -= config.slant * slant * corners[:, 1]

    ticks = _ticks(corners, line.ends[:, 0], config, speed, random)
    last = np.rint(ticks[line.ends[:, 0]]).astype(int)  # points at which strokes end
    ends = np.zeros((last[-1] + 1, 3), dtype=bool)
    ends[last] = line.ends[line.ends[:, 0]]
    places = np.stack([np.interp(np.arange(len(ends)), ticks, axis) for axis in corners.T], axis=1)
    places += config.jitter * random.normal(size=places.shape)
    return Written(" ".join(words), from_strokes(np.split(places, last + 1)), ends[:, 1], ends[:, 2])


def _ticks(
    corners: npt.NDArray[np.float64],
    lifted: npt.NDArray[np.bool_],
    config: WritingConfig,
    speed: float,
    random: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """(n,): when the pen is at each corner, in points. A stroke takes a whole number of them, so that its first and its
    last corner are points; to lift the pen takes one."""
    starts = np.roll(lifted, 1)  # the corner after a lift, and the first: the last ends a stroke
    lengths = np.hypot(*np.diff(corners, axis=0, prepend=corners[:1]).T)
    lengths[starts] = 0.0  # nothing is drawn on the way to a new stroke
    within = _wandering(np.cumsum(lengths) / WAVE, random)
    # Speed varies the points of a length, not the length of a step: so the mean distance of points stays the spacing.
    taken = lengths / config.spacing * _share(config.speed * speed) * _share(config.speed * within)
    stroke = np.cumsum(starts) - 1
    whole = np.bincount(stroke, taken)
    stretch = np.maximum(np.rint(whole), 1) / np.maximum(whole, np.finfo(float).tiny)  # a stroke may have no length
    return np.cumsum(taken * stretch[stroke] + starts) - 1


def _share(deviation: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.maximum(1.0 + np.asarray(deviation), LEAST)


def _wandering(places: npt.NDArray[np.float64], random: np.random.Generator) -> npt.NDArray[np.float64]:
    """Normal noise that is alike at near places: at 0, 1, … it is drawn, between them a blend of the same variance."""
    before, share = np.divmod(places, 1)
    drawn = random.normal(size=int(before.max()) + 2)
    left, angle = before.astype(int), share * np.pi / 2
    blend: npt.NDArray[np.float64] = drawn[left] * np.cos(angle) + drawn[left + 1] * np.sin(angle)
    return blend
