"""How many ways a text goes on, against counting by hand."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmrnn.config import PlantedConfig
from hmrnn.data import branching
from hmrnn.data.branching import ORDER, Branching
from hmrnn.data.planted import planted


def counted(symbols: list[int]) -> dict[tuple[int, ...], float]:
    follows: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for i in range(len(symbols) - ORDER):
        follows[tuple(symbols[i : i + ORDER])][symbols[i + ORDER]] += 1
    return {
        context: -sum(n / after.total() * math.log2(n / after.total()) for n in after.values())
        for context, after in follows.items()
    }


@given(st.lists(st.integers(0, 2), max_size=80), st.lists(st.integers(0, 3), min_size=ORDER, max_size=20))
def test_it_is_the_entropy_of_what_follows(text, read):
    bits = Branching(np.array(text, dtype=np.uint8), 4).entropy(torch.tensor([read, read]).T)
    by_hand = counted(text)
    mean = sum(by_hand.values()) / max(1, len(by_hand))
    for i in range(len(read) - ORDER + 1):
        expected = by_hand.get(tuple(read[i : i + ORDER]), mean)
        assert bits[i].tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_a_large_alphabet():
    """Contexts of any three Unicode characters are told apart."""
    last = 0x10FFFF
    text = np.array([last, last, last, 0, last, last, last - 1, 1] * 2, dtype=np.int64)
    bits = Branching(text, last + 1).entropy(torch.tensor([[last], [last], [last], [0], [last], [last], [last - 1]]))
    assert bits.flatten().tolist() == [0.0] * 5
    assert len(Branching(text, last + 1).contexts) == 8


def test_a_long_text_is_counted_in_part(monkeypatch):
    monkeypatch.setattr(branching, "COUNTED", 50)
    text = np.array([0, 1, 2, 0] * 20, dtype=np.uint8)
    text[60:] = 3
    assert (Branching(text, 4).contexts == Branching(text[:50], 4).contexts).all()


def test_planted_words_end_where_it_is_highest():
    made = planted(PlantedConfig(symbols=100_000))
    numbers = np.frombuffer(made.text.encode(), dtype=np.uint8) - ord("a")
    bits = Branching(numbers, 26).entropy(torch.from_numpy(numbers.astype(np.int64)).unsqueeze(1))[:, 0].numpy()
    ends = made.ends[ORDER - 1 :, 0]
    found = bits > np.quantile(bits, 1 - ends.mean())
    assert 2 * (found & ends).sum() / (found.sum() + ends.sum()) > 0.85
