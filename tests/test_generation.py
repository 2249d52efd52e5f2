"""Text from a model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.generation import Sampling, generate
from hmrnn.domains.text.marks import legend, mark

TEXT = "the cat sat on the mat. the dog sat too.\n"
LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=12).map(torch.tensor)


def small(model="hm-lstm", symbols=None, **options) -> TextModel:
    torch.manual_seed(3)
    config = TextModelConfig(model, hidden_sizes=(9, 8, 7), output_size=7, embedding_size=4, **options)
    return TextModel(symbols or Symbols.of(TEXT), config)


@pytest.mark.parametrize("wrong", [None, 3, ["The", "A"], [3]])
@pytest.mark.parametrize("model", ["hm-lstm", "lstm"])
def test_what_is_no_text_is_refused_by_name(wrong, model):
    model, got = small(model), f"must be a text \\(str or bytes\\); got {type(wrong).__name__}$"
    with pytest.raises(TypeError, match=f"^prompt {got}"):
        model.generate(wrong)
    for call in (model.bits_per_character, model.symbols.encode):
        with pytest.raises(TypeError, match=f"^text {got}"):
            call(wrong)
    for texts in (None, [None], [["a"]]):
        with pytest.raises(TypeError, match=r"^text must be a text"):
            model.segment(texts)


def test_a_tiny_temperature_is_not_too_small():
    p = Sampling(1e-310).probabilities(torch.tensor([3.0, 5.0, 4.0]))
    assert p.tolist() == [0, 1, 0]


@given(LOGITS, st.floats(0.05, 5))
def test_temperature(logits, temperature):
    expected = (logits.double() / temperature).softmax(-1)
    torch.testing.assert_close(Sampling(temperature).probabilities(logits), expected, rtol=1e-12, atol=1e-15)


@given(LOGITS)
def test_temperature_zero_takes_the_likeliest(logits):
    p = Sampling(0.0).probabilities(logits)
    assert p.sum() == 1
    assert p[logits.argmax()] == 1


@given(LOGITS, st.integers(1, 15), st.floats(0.01, 0.99))
def test_top_k_and_top_p_by_definition(logits, k, top_p):
    whole = logits.double().softmax(-1).tolist()
    ranked = sorted(range(len(whole)), key=lambda i: -whole[i])[:k]
    total = sum(whole[i] for i in ranked)
    kept: list[int] = []
    for i in ranked:  # the likeliest ones, until together they have the wanted share
        mass = sum(whole[j] for j in kept)
        assume(abs(mass - top_p * total) > 1e-9)  # at the very edge rounding decides
        if mass < top_p * total:
            kept.append(i)
    p = Sampling(1.0, k, top_p).probabilities(logits)
    assert p.nonzero().flatten().tolist() == sorted(i for i in kept if whole[i] > 0)
    for i in kept:
        assert p[i].item() == pytest.approx(whole[i] / sum(whole[j] for j in kept))


def test_top_p_by_hand():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    for top_p, kept in [(0.4, 1), (0.6, 2), (0.79, 2), (0.9, 3), (0.99, 4), (1.0, 4)]:
        assert Sampling(top_p=top_p).probabilities(logits).count_nonzero() == kept


def test_top_p_is_a_share_of_what_top_k_left():
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    # Of the first two, .5 / .8 = .625: that is enough for .6, and not for .65.
    assert Sampling(1.0, 2, 0.6).probabilities(logits).count_nonzero() == 1
    assert Sampling(1.0, 2, 0.65).probabilities(logits).count_nonzero() == 2


def test_top_p_takes_no_more_than_it_needs():
    """Two of four symbols that are alike have exactly half of the probability."""
    for top_p, many in [(0.25, 1), (0.5, 2), (0.75, 3), (1.0, 4)]:
        kept = Sampling(top_p=top_p).probabilities(torch.zeros(4))
        assert kept.tolist() == [1 / many] * many + [0.0] * (4 - many)


def test_bad_sampling_is_refused():
    for bad, what in [({"temperature": -1.0}, "temperature"), ({"top_k": 0}, "top_k"), ({"top_p": 0.0}, "top_p")]:
        with pytest.raises(ValueError, match=what):
            Sampling(**bad)
    with pytest.raises(ValueError, match="max_new"):
        list(generate(small(), max_new=-1))


@pytest.mark.parametrize("kind", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_the_likeliest_text_is_that_of_whole_forward_passes(kind):
    model = small(kind)
    text = "the cat"
    for _ in range(25):
        symbols = model.symbols.encode(text).unsqueeze(1)
        out, _ = model(symbols, boundaries=model.boundaries(symbols))
        text += model.symbols.decode([int(out.logits[-1, 0].argmax())])
    assert "the cat" + model.generate("the cat", 25, temperature=0) == text
    assert {len(symbol.z) for symbol in generate(model, text, 3)} == {0 if kind == "lstm" else 2}


def test_boundaries_are_those_of_the_model():
    model = small()
    made = list(generate(model, "the cat sat ", 30, seed=4))
    assert [symbol.new for symbol in made] == [False] * 12 + [True] * 30
    out, _ = model(torch.tensor([[symbol.number] for symbol in made]))
    assert [symbol.z for symbol in made] == [tuple(z) for z in (out.rnn.z[:, 0] > 0.5).tolist()]
    assert 0 < out.rnn.z.mean() < 1


def test_a_long_prompt_is_read_in_parts(monkeypatch):
    model = small("hrnn")
    whole = model.generate(TEXT * 3, 20, seed=1)
    monkeypatch.setattr("hmrnn.domains.text.generation.PIECE", 5)
    assert model.generate(TEXT * 3, 20, seed=1) == whole


def test_seeds():
    model = small()
    assert model.generate("the", 40, seed=7) == model.generate("the", 40, seed=7)
    assert model.generate("the", 40, seed=7) != model.generate("the", 40, seed=8)
    assert len({model.generate("the", 40) for _ in range(3)}) > 1
    sampled = small(boundary="sample")
    assert sampled.generate("the", 40, seed=7) == sampled.generate("the", 40, seed=7)


def test_frequencies_are_those_of_the_model():
    model = small(symbols=Symbols.of("abc"))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
    text = model.generate("a", 1000, seed=0)
    for symbol, p in zip("abc", [0.5, 0.3, 0.2], strict=True):
        assert text.count(symbol) / 1000 == pytest.approx(p, abs=4 * (p * (1 - p) / 1000) ** 0.5)


def test_an_empty_prompt_starts_a_line():
    model = small()
    assert model.generate("", 20, seed=2) == model.generate("\n", 20, seed=2)
    assert [symbol.new for symbol in generate(model, "", 2)] == [True, True]
    assert len(small(symbols=Symbols.of("xyz")).generate("", 5)) == 5


def test_unknown_symbols_in_the_prompt():
    model = small()
    with pytest.raises(ValueError, match="'Z'"):
        model.generate("theZ", 1)
    read = list(generate(model, "thZe", 0, on_unknown="skip"))
    assert model.symbols.decode(symbol.number for symbol in read) == "the"


def test_bytes():
    model = small(symbols=Symbols.of("naïve café ".encode()))
    made = list(generate(model, "naïve", 50, seed=1))
    assert sum(not symbol.new for symbol in made) == len("naïve".encode())
    assert isinstance(model.generate("naïve".encode(), 50, seed=1), str)


def test_marks():
    for z, shown in [((), ""), ((0, 0), ""), ((1, 0), "|"), ((0, 1), "‖"), ((1, 1), "|‖"), ((0, 0, 0, 1), "⦀")]:
        assert mark(z) == shown
    assert mark((1, 1, 1, 1, 1)) == "|‖⦀"
    assert legend(2) == "| in layer 1, ‖ in layer 2"
    assert legend(4) == "| in layer 1, ‖ in layer 2, ⦀ in layer 3 and above"
