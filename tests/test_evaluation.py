"""Bits per character: plain, at another temperature, as a model goes on learning; and what counting alone reaches."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.cli.ngram import NGram
from hmrnn.domains.text.data.streams import Streams
from hmrnn.domains.text.dynamic import (
    FURTHEST,
    DynamicEvaluation,
    DynamicScore,
    Learner,
    Rates,
    Window,
    learnable,
    read_window,
)
from hmrnn.domains.text.evaluation import (
    TEMPERATURES,
    best_temperature,
    bits_at,
    bits_per_character,
)

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


# Temperature


def test_bits_at_a_temperature_by_definition():
    network = small("hm-lstm")
    numbers = network.symbols.encode(TEXT)
    out, _ = network(numbers[:-1].unsqueeze(1))
    for temperature, found in zip((0.5, 1.0, 3.0), bits_at((0.5, 1.0, 3.0), network, numbers.numpy()), strict=True):
        log_p = (out.logits[:, 0] / temperature).log_softmax(-1)
        expected = -log_p[torch.arange(len(TEXT) - 1), numbers[1:]].mean().item() / math.log(2)
        assert found == pytest.approx(expected, rel=1e-6)
    assert bits_at((1.0,), network, numbers.numpy(), streams=5) == [bits_per_character(network, numbers.numpy(), 5)]


def test_the_best_temperature_takes_back_what_was_done_to_the_logits():
    network = small("lstm")
    torch.nn.init.normal_(network.head.weight, std=0.01)
    numbers = network.symbols.encode(TEXT * 3).numpy()
    with torch.no_grad():  # frequencies, which are right as they are
        counts = torch.bincount(torch.from_numpy(numbers), minlength=len(network.symbols)).double()
        network.head.weight.zero_()
        network.head.bias.copy_((counts / counts.sum()).log())
    assert best_temperature(bits_at(TEMPERATURES, network, numbers)) == pytest.approx(1, abs=0.011)
    with torch.no_grad():
        network.head.bias *= 1.3
    assert best_temperature(bits_at(TEMPERATURES, network, numbers)) == pytest.approx(1.3, abs=0.02)


# Dynamic evaluation


@pytest.mark.parametrize("model", KINDS)
def test_dynamic_evaluation_predicts_first_and_learns_then(model):
    network = small(model).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    numbers = network.symbols.encode(TEXT * 5).numpy()
    dynamic = DynamicEvaluation(network, numbers, window=20)

    def bits(numbers, eta, decay=0.0):
        return dynamic.score(numbers, Rates(eta, decay)).bits[0]

    first = numbers[:21]
    assert bits(first, 0.003) == pytest.approx(bits_per_character(network, first), rel=1e-6), "nothing learnt yet"
    plain = bits_per_character(network, numbers)
    assert bits(numbers, 0.0) == pytest.approx(plain, rel=1e-6)
    assert bits(numbers, 0.0, 0.5) == pytest.approx(plain, rel=1e-6)
    assert bits(numbers, 0.003) < plain - 0.03
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())
    assert network.training


@pytest.mark.parametrize("boundary", ["sample", "soft"])
def test_boundaries_that_go_by_the_slope_stay_what_they_are(boundary):
    network = small("hm-lstm", boundary=boundary)
    numbers = network.symbols.encode(TEXT).numpy()
    found = DynamicEvaluation(network, numbers, window=20).score(numbers, Rates(0.0, 0.0)).bits[0]
    assert found == pytest.approx(bits_per_character(network, numbers), rel=1e-6)


def gradients_by_hand(network, symbols, state):
    """(N + 1, 1) symbols: loss, gradients by name, and the state after."""
    out, state = network(symbols[:-1], state, slope=network.rnn.slope / 100)
    loss = torch.nn.functional.cross_entropy(out.logits[:, 0], symbols[1:, 0])
    network.zero_grad()
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in network.named_parameters()}, state.detach()


def test_dynamic_evaluation_by_hand():
    """The equations, from scratch: 2 windows of the training text, each after one that only gives a past."""
    network, window, eta, decay, epsilon = small("hm-lstm"), 3, 0.002, 0.3, 2e-4
    train, text = network.symbols.encode(TEXT[:41]), network.symbols.encode(TEXT[60:68])
    squares = dict.fromkeys(dict(network.named_parameters()), 0.0)
    for start in (0, 20):
        past = train[start : start + window].unsqueeze(1)
        _, state = network(past)
        counted = train[start + window : start + 2 * window + 1].unsqueeze(1)
        _, gradients, _ = gradients_by_hand(network, counted, state.detach())
        squares = {name: squares[name] + gradients[name] ** 2 for name in gradients}
    rms = {name: (square / 2).sqrt() for name, square in squares.items() if not name.endswith("_z")}
    mean = torch.cat([r.flatten() for r in rms.values()]).mean()
    norm = {name: (r / mean).clamp(max=1 / decay) for name, r in rms.items()}
    assert any((n == 1 / decay).any() for n in norm.values()), "some weights are clipped"

    learner, total, state = copy.deepcopy(network), 0.0, None
    for start, end in [(0, 3), (3, 6), (6, 7)]:
        loss, gradients, state = gradients_by_hand(learner, text[start : end + 1].unsqueeze(1), state)
        total += loss * (end - start)
        with torch.no_grad():
            for name, theta in learner.named_parameters():
                if name in rms:
                    pull = decay * (network.get_parameter(name) - theta) * norm[name]
                    theta += -eta * gradients[name] / (rms[name] + epsilon) + pull
    network.zero_grad()

    dynamic = DynamicEvaluation(network, train.numpy(), window=window, sampled=2)
    assert dynamic.rms.keys() == rms.keys()
    for name in rms:
        torch.testing.assert_close(dynamic.rms[name], rms[name], rtol=1e-4, atol=1e-9)
    found = dynamic.score(text.numpy(), Rates(eta, decay), temperatures=(1.0, 2.0))
    assert found.bits[0] == pytest.approx(total / math.log(2) / 7, rel=1e-6)
    assert found.bits[1] != found.bits[0]
    assert dynamic.score(text.numpy(), Rates(eta, decay)).bits == found.bits[:1], "temperature is not learnt from"
    assert found.restarts == 0


def test_what_was_learnt_is_forgotten():
    network = small("hm-lstm")
    numbers = network.symbols.encode(TEXT).numpy()
    dynamic = DynamicEvaluation(network, numbers, window=20)
    mean = float(torch.cat([r.flatten() for r in dynamic.rms.values()]).mean())
    learner = Learner(network, dynamic.rms, Rates(0.0, 0.25))
    trained = learnable(network)
    with torch.no_grad():
        for p in learner.model.parameters():
            p += 0.01
    window = Window(Streams.to_evaluate(numbers, 1), 0, 20, torch.Generator())
    learner.learn(read_window(learner.model, window, None))
    returned = 0
    for name, p in learnable(learner.model).items():
        left = (1 - 0.25 * dynamic.rms[name] / mean).clamp(min=0)
        torch.testing.assert_close(p - trained[name], 0.01 * left, rtol=0, atol=1e-12)
        returned += int((left == 0).sum())
    assert returned > 0, "none goes further than back"
    for _ in range(30):
        learner.learn(read_window(learner.model, window, None))
    assert float((learner.model.head.bias - network.head.bias).detach().abs().max()) < 1e-4
    assert "rnn.layers.0.U_z" not in trained, "detectors do not learn"


@pytest.mark.parametrize("eta", [1.0, 1e30])
def test_weights_that_run_away_do_not_spoil_the_answer(eta):
    network = small("hm-lstm").float()
    numbers = network.symbols.encode(TEXT * 3).numpy()
    score = DynamicEvaluation(network, numbers, window=20).score(numbers, Rates(eta, 0.0))
    assert math.isfinite(score.bits[0])
    assert score.restarts > 0 or eta == 1.0


def test_a_gradient_that_is_not_finite_is_not_learnt_from(monkeypatch):
    network = small("hm-lstm")
    numbers = network.symbols.encode(TEXT).numpy()
    dynamic, grad = DynamicEvaluation(network, numbers, window=20), torch.autograd.grad
    plain = bits_per_character(network, numbers)

    def broken(loss, weights, **options):
        return [g * math.nan for g in grad(loss, weights, **options)]

    monkeypatch.setattr(torch.autograd, "grad", broken)
    assert dynamic.score(numbers, Rates(0.01, 0.1)).bits[0] == pytest.approx(plain, rel=1e-6)
    with pytest.raises(ValueError, match="not finite"):
        DynamicEvaluation(network, numbers, window=20)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_training_text_shorter_than_a_window(length):
    network = small("hm-lstm")
    numbers = network.symbols.encode(TEXT).numpy()
    assert math.isfinite(DynamicEvaluation(network, numbers[:length]).score(numbers, Rates()).bits[0])


@pytest.mark.parametrize(("eta", "decay"), [(None, None), (0.004, None), (None, 0.0), (0.004, 0.3)])
def test_rates_are_chosen_by_the_text_that_is_given_for_it(monkeypatch, eta, decay):
    """On a valley whose deepest point is known, among doubles and halves of the start."""
    network = small("lstm")
    numbers = network.symbols.encode(TEXT).numpy()
    dynamic, read, told = DynamicEvaluation(network, numbers, sampled=1), [], []

    def score(self, numbers, rates, **_):
        read.append(numbers)
        lowest = Rates(Rates().eta * 8, Rates().decay / 4)
        away = math.log2(rates.eta / lowest.eta) ** 2 + math.log2(max(rates.decay, 1e-9) / lowest.decay) ** 2
        return DynamicScore([away], 0)

    monkeypatch.setattr(DynamicEvaluation, "score", score)
    found = dynamic.choose(numbers[:50], eta, decay, tell=lambda rates, bits: told.append(rates))
    assert found.eta == (pytest.approx(Rates().eta * 8) if eta is None else eta)
    assert found.decay == (pytest.approx(Rates().decay / 4) if decay is None else decay)
    assert all(len(one) == 50 for one in read)
    assert len(told) == len(set(told)) == len(read) <= 25, "each is tried once"


def test_the_search_for_rates_ends(monkeypatch):
    network = small("lstm")
    dynamic = DynamicEvaluation(network, network.symbols.encode(TEXT).numpy(), sampled=1)
    monkeypatch.setattr(DynamicEvaluation, "score", lambda self, n, rates, **_: DynamicScore([-rates.eta], 0))
    assert dynamic.choose(np.zeros(9)).eta == Rates().eta * 2**FURTHEST
    monkeypatch.setattr(DynamicEvaluation, "score", lambda *_, **__: DynamicScore([math.nan], 0))
    assert dynamic.choose(np.zeros(9)) == Rates()


def test_bad_rates_are_named():
    for bad, what in [({"eta": -1.0}, "eta"), ({"eta": math.inf}, "eta"), ({"decay": 2.0}, "lambda")]:
        with pytest.raises(ValueError, match=what):
            Rates(**bad)


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
