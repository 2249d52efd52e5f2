"""The planted hierarchy: a stream of symbols made of words and phrases that are known, with nothing between them."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hmrnn.domains.text.config import PlantedConfig


@dataclass(frozen=True)
class Planted:
    text: str
    ends: npt.NDArray[np.bool_]  # (T, depth): whether a word, a phrase, … ends with this symbol

    def boundaries(self, layers: int) -> npt.NDArray[np.bool_]:
        """(T, layers - 1): the ends as boundaries for a network; False for detectors beyond the planted depth."""
        wanted = np.zeros((len(self.text), layers - 1), dtype=bool)
        shared = min(layers - 1, self.ends.shape[1])
        wanted[:, :shared] = self.ends[:, :shared]
        return wanted


@dataclass(frozen=True)
class _Unit:
    """A word, a phrase, …: its letters, and which levels end on each."""

    letters: npt.NDArray[Any]  # (n,)
    ends: npt.NDArray[np.bool_]  # (n, depth)


def planted(config: PlantedConfig) -> Planted:
    """Plants a hierarchy: every level has its vocabulary, and the stream draws from the topmost, each alike often."""
    random = np.random.default_rng(config.seed)
    vocabulary = [
        _Unit(np.array([letter]), np.zeros((1, config.depth), dtype=bool)) for letter in range(config.letters)
    ]
    for level in range(config.depth):
        shortest, longest = config.word_length if level == 0 else config.phrase_length
        spellings: dict[tuple[int, ...], None] = {}  # an ordered set
        while len(spellings) < config.words:
            spellings[tuple(random.integers(len(vocabulary), size=random.integers(shortest, longest + 1)))] = None
        vocabulary = [_joined([vocabulary[part] for part in spelling], level) for spelling in spellings]

    mean = sum(len(unit.letters) for unit in vocabulary) / len(vocabulary)
    drawn = [vocabulary[i] for i in random.integers(len(vocabulary), size=max(1, round(config.symbols / mean)))]
    letters = np.concatenate([unit.letters for unit in drawn])
    noisy = random.random(len(letters)) < config.noise
    letters[noisy] = random.integers(config.letters, size=int(noisy.sum()))
    alphabet = np.array(list(string.ascii_lowercase))
    return Planted("".join(alphabet[letters]), np.concatenate([unit.ends for unit in drawn]))


def _joined(parts: list[_Unit], level: int) -> _Unit:
    ends = np.concatenate([part.ends for part in parts])
    ends[-1, level] = True
    return _Unit(np.concatenate([part.letters for part in parts]), ends)
