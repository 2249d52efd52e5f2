"""The teacher of runs that were begun before `Branching`: how many ways a text goes on, against counting by hand."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.small_runs import settings

from hmrnn.domains.text.config import PlantedConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.guidance import last_three
from hmrnn.guidance.imitation import TIE
from hmrnn.guidance.last_three import ORDER, LastThree
from hmrnn.training.checkpoint import SavedRun
from hmrnn.training.distributed import Processes
from hmrnn.training.run import prepare


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
    bits = LastThree(np.array(text, dtype=np.uint8), 4).evidence(np.array([read, read]).T)
    by_hand = counted(text)
    mean = sum(by_hand.values()) / max(1, len(by_hand))
    for i in range(len(read) - ORDER + 1):
        expected = by_hand.get(tuple(read[i : i + ORDER]), mean)
        assert bits[i].tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_a_large_alphabet():
    """Contexts of any three Unicode characters are told apart."""
    last = 0x10FFFF
    text = np.array([last, last, last, 0, last, last, last, 1, last, last, last - 1, 2] * 2, dtype=np.int64)
    found = LastThree(text, last + 1).evidence(np.array([[last], [last], [last], [0], [last], [last], [last - 1]]))
    assert found.flatten().tolist() == [1.0, 0.0, 0.0, 0.0, 0.0], "four follow the first, two of each kind"


def test_a_long_text_is_counted_in_part(monkeypatch):
    monkeypatch.setattr(last_three, "COUNTED", 50)
    text = np.array([0, 1, 2, 0] * 20, dtype=np.uint8)
    text[60:] = 3
    assert (LastThree(text, 4).contexts == LastThree(text[:50], 4).contexts).all()


def test_planted_words_end_where_it_is_highest():
    made = planted(PlantedConfig(symbols=100_000))
    numbers = np.frombuffer(made.text.encode(), dtype=np.uint8) - ord("a")
    bits = LastThree(numbers, 26).evidence(numbers.astype(np.int64)[:, None])[:, 0]
    ends = made.ends[ORDER - 1 :, 0]
    found = bits > np.quantile(bits, 1 - ends.mean())
    assert 2 * (found & ends).sum() / (found.sum() + ends.sum()) > 0.85


def test_a_task_counts_in_the_past_of_each_window(text_file):
    """Each step's context is what the text has up to it, across windows and streams."""
    run = settings(text_file, target_rate=0.18)
    data = load_text(run.data)
    task = prepare(SavedRun(run, data.fingerprint, None), data, "auto", Processes()).task
    train = data.split("train").astype(np.int64)
    by_hand = counted(train.tolist())
    for update in range(2):
        told = task.loss(update, torch.Generator()).uncertainty()
        assert told.shape == (10, 4, 2)
        entropy = told[..., 1]
        assert (entropy > 0).all()
        for row, start in enumerate(task.streams(0).starts + 10 * update):
            for step in range(10):
                end = start + step + 1
                if end >= ORDER:
                    expected = by_hand[tuple(train[end - ORDER : end])] + TIE * entropy[step, row].item()
                    assert told[step, row, 0].item() == pytest.approx(expected, abs=1e-5)
