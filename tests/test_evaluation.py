"""Bits per character, and what counting alone reaches."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.baselines.ngram import NGram
from hmrnn.evaluation import bits_per_character, dynamic_bits_per_character

TEXT = 'He said: "Go (now!)". She went.\nIt was late... and cold? Yes.\n' * 3
KINDS = ["hm-lstm", "lstm", "clockwork", "hrnn"]


def small(model: str, **options) -> TextModel:
    torch.manual_seed(1)
    config = TextModelConfig(model, hidden_sizes=(6, 5, 4), output_size=7, embedding_size=3, **options)
    return TextModel(Symbols.of(TEXT), config).double()


def bits_by_definition(model: TextModel, numbers: list[int], predicted: int) -> float:
    """Total bits of the last `predicted` symbols, from one forward pass over all of them."""
    symbols = torch.tensor(numbers).unsqueeze(1)
    out, _ = model(symbols[:-1], boundaries=model.boundaries(symbols[:-1]))
    log_p = out.logits[:, 0].log_softmax(-1)
    picked = [log_p[t, numbers[t + 1]].item() for t in range(len(numbers) - 1)]
    return -sum(picked[len(picked) - predicted :]) / math.log(2)


@pytest.mark.parametrize("model", KINDS)
@pytest.mark.parametrize("window", [1, 7, 1000])
def test_one_stream_is_exact_whatever_the_window(model, window):
    network = small(model)
    numbers = network.symbols.encode(TEXT)
    expected = bits_by_definition(network, numbers.tolist(), len(TEXT) - 1) / (len(TEXT) - 1)
    assert bits_per_character(network, numbers.numpy(), window=window) == pytest.approx(expected, rel=1e-6)
    assert network.bits_per_character(TEXT) == pytest.approx(expected, rel=1e-6)


@given(model=st.sampled_from(KINDS), streams=st.integers(1, 12), window=st.integers(1, 50), length=st.integers(2, 60))
def test_many_streams_each_without_a_past(model, streams, window, length):
    network = small(model)
    numbers = network.symbols.encode(TEXT[:length]).tolist()
    rows = min(streams, length - 1)
    steps = -(-(length - 1) // rows)
    total = 0.0
    for start in range(0, length - 1, steps):
        part = numbers[start : start + steps + 1]
        total += bits_by_definition(network, part, len(part) - 1)
    found = bits_per_character(network, np.array(numbers), streams, window)
    assert found == pytest.approx(total / (length - 1), rel=1e-6)


def test_sampled_boundaries_give_the_same_answer_every_time():
    network = small("hm-lstm", boundary="sample")
    torch.manual_seed(5)
    first = network.bits_per_character(TEXT)
    assert network.bits_per_character(TEXT) == first


def test_memory_is_constant():
    """However long the text, no call gets more than 8192 symbols of it."""
    network = small("hm-lstm")
    sizes = set()
    network.head.register_forward_hook(lambda _, __, out: sizes.add(out.numel()))
    numbers = network.symbols.encode(TEXT).numpy()
    for times, streams in [(60, 1), (60, 40)]:
        sizes.clear()
        bits_per_character(network, np.tile(numbers, times), streams)
        assert max(sizes) <= 8192 * len(network.symbols)


def test_bad_requests_are_named():
    network = small("hm-lstm")
    with pytest.raises(ValueError, match="at least 2 symbols"):
        bits_per_character(network, np.zeros(1, np.uint8))
    with pytest.raises(ValueError, match="streams must be a whole number from 1; got 0"):
        bits_per_character(network, np.zeros(9, np.uint8), streams=0)


# Dynamic evaluation


@pytest.mark.parametrize("model", KINDS)
def test_dynamic_evaluation_predicts_first_and_learns_then(model):
    network = small(model)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    numbers = network.symbols.encode(TEXT * 5).numpy()
    first = numbers[:101]
    plain = bits_per_character(network, first)
    assert dynamic_bits_per_character(network, first, 0.5) == pytest.approx(plain, rel=1e-6), "nothing learnt yet"
    still = bits_per_character(network, numbers)
    assert dynamic_bits_per_character(network, numbers, 1e-12) == pytest.approx(still, rel=1e-6)
    assert dynamic_bits_per_character(network, numbers, 0.5) < still - 0.05
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


def test_dynamic_evaluation_by_hand():
    network = small("hm-lstm")
    numbers = network.symbols.encode(TEXT)[:8]
    learner, symbols = copy.deepcopy(network), numbers.unsqueeze(1)
    total, state = 0.0, None
    for start, end in [(0, 3), (3, 6), (6, 7)]:
        out, state = learner(symbols[start:end], state)
        loss = torch.nn.functional.cross_entropy(out.logits[:, 0], symbols[start + 1 : end + 1, 0])
        learner.zero_grad()
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in learner.parameters()]).norm()
        with torch.no_grad():
            for p in learner.parameters():
                p -= 0.3 * p.grad * min(1.0, 1.0 / norm.item())
        learner.rnn.constrain_detectors()
        state = state.detach()
        total += loss.item() * (end - start)
    found = dynamic_bits_per_character(network, numbers.numpy(), 0.3, window=3)
    assert found == pytest.approx(total / math.log(2) / 7, rel=1e-5)


# n-grams


@given(text=st.text("abc", min_size=1, max_size=40), order=st.integers(1, 4), context=st.text("abcd", max_size=6))
def test_ngram_probabilities_sum_to_one(text, order, context):
    model = NGram(text, order, alphabet=4)
    assert sum(model.probability(symbol, context) for symbol in "abcd") == pytest.approx(1)


def test_ngram_by_hand():
    model = NGram("abab", order=2, alphabet=2)
    # One symbol: a and b twice each of 4, two kinds: (2 + 2 * 1/2) / (4 + 2) = 1/2.
    assert model.probability("a", "") == pytest.approx(1 / 2)
    # After a came b, twice, one kind: (2 + 1 * 1/2) / (2 + 1).
    assert model.probability("b", "a") == pytest.approx(2.5 / 3)
    assert model.probability("b", "bba") == pytest.approx(2.5 / 3)
    # After b came a, once.
    assert model.probability("a", "b") == pytest.approx(1.5 / 2)
    assert model.bits_per_character("ab") == pytest.approx(-math.log2(2.5 / 3))


def test_a_longer_past_helps_on_text():
    bits = [NGram(TEXT * 3, order, 40).bits_per_character(TEXT) for order in (1, 2, 3, 5)]
    assert bits == sorted(bits, reverse=True)
