"""The output module, TextModel, and what it leaves on disk."""

from __future__ import annotations

import json
import math
import pickle
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from hmrnn import (
    HMLSTM,
    OutputEmbedding,
    Piecewise,
    StrokeModel,
    StrokeModelConfig,
    Symbols,
    TextModel,
    TextModelConfig,
)
from hmrnn.storage.files import sealed
from hmrnn.storage.tensors import checksum_of

TEXT = "the cat sat on the mat. the dog sat too.\n"
SMALL = {"hidden_sizes": (7, 6, 5), "output_size": 9, "embedding_size": 4}


def small(**options) -> TextModel:
    torch.manual_seed(0)
    return TextModel(Symbols.of(TEXT), TextModelConfig(**{**SMALL, **options}))


def test_output_embedding_by_its_definition():
    module = OutputEmbedding([3, 2], 4, dtype=torch.float64)
    h = [torch.randn(5, 2, 3, dtype=torch.float64), torch.randn(5, 2, 2, dtype=torch.float64)]
    out = module([Piecewise.from_dense(part) for part in h])
    for t in range(5):
        for row in range(2):
            both = torch.cat([h[0][t, row], h[1][t, row]])
            total = torch.zeros(4, dtype=torch.float64)
            for l in range(2):
                w = torch.cat([gate.weight[l] for gate in module.gates])
                total += torch.sigmoid(w @ both) * (module.embeddings[l].weight @ h[l][t, row])
            torch.testing.assert_close(out[t, row], total.clamp_min(0), rtol=0, atol=1e-14)


def test_output_embedding_works_once_a_distinct_value():
    module = OutputEmbedding([3], 4)
    rows = []
    module.embeddings[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    module([Piecewise(torch.randn(2, 3), torch.tensor([[0, 1], [0, 1], [0, 0]]))])
    assert rows == [2]


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_text_model_predicts_and_learns(model):
    text_model = small(model=model)
    symbols = text_model.symbols.encode(TEXT).unsqueeze(1)
    optimizer = torch.optim.Adam(text_model.parameters(), lr=0.02)
    before = text_model.bits_per_character(TEXT)
    for _ in range(60):
        out, _ = text_model(symbols[:-1], boundaries=text_model.boundaries(symbols[:-1]))
        loss = torch.nn.functional.cross_entropy(out.logits[:, 0], symbols[1:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        text_model.rnn.constrain_detectors()
    assert out.logits.shape == (len(TEXT) - 1, 1, len(text_model.symbols))
    after = text_model.bits_per_character(TEXT)
    assert after < 0.6 * before
    assert text_model.bits_per_character(TEXT, window=7) == pytest.approx(after, rel=1e-5)


def test_bits_per_character_of_an_untaught_head():
    model = small()
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    assert model.bits_per_character(TEXT) == pytest.approx(math.log2(len(model.symbols)))
    with pytest.raises(ValueError, match="at least 2 symbols"):
        model.bits_per_character("t")


def test_a_text_may_be_bytes():
    prompts = "the", b"the", bytearray(b"the")
    assert len({small().generate(prompt, max_new=5, seed=0) for prompt in prompts}) == 1


def test_unknown_symbols_are_named():
    with pytest.raises(ValueError, match=r"'ß' \(U\+00DF\) at position 4"):
        small().bits_per_character("the ß")


@pytest.mark.parametrize("model", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_saved_and_loaded_is_bit_exact(tmp_path, model):
    saved = small(model=model, boundary_bias=(0.5, -0.5))
    saved.rnn.slope = 3.0 if model == "hm-lstm" else 1.0
    saved.save_pretrained(tmp_path / "run")
    loaded = TextModel.from_pretrained(tmp_path / "run")
    assert loaded.symbols == saved.symbols
    assert loaded.rnn.slope == saved.rnn.slope
    assert {name: p.requires_grad for name, p in loaded.named_parameters()} == {
        name: p.requires_grad for name, p in saved.named_parameters()
    }
    for (name, a), (name_b, b) in zip(saved.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert name == name_b
        assert torch.equal(a, b)
    symbols = saved.symbols.encode(TEXT).unsqueeze(1)
    boundaries = saved.boundaries(symbols)
    assert torch.equal(
        saved(symbols, boundaries=boundaries)[0].logits, loaded(symbols, boundaries=boundaries)[0].logits
    )
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.json",
        "model.safetensors",
        "symbols.json",
    ]
    saved.save_pretrained(tmp_path / "run")  # over an older one


def spoil(path, **changes):
    """Changes settings, and the checksum with them."""
    content = {**json.loads(path.read_text()), **changes}
    del content["checksum"]
    path.write_text(json.dumps(sealed(content)))


def test_a_bad_checkpoint_is_refused_by_name(tmp_path):
    def fresh():
        small().save_pretrained(tmp_path)

    def refused(error, *words):
        with pytest.raises(error) as caught:
            TextModel.from_pretrained(tmp_path)
        assert all(word in str(caught.value) for word in words), str(caught.value)

    fresh()
    spoil(tmp_path / "config.json", format_version=99)
    refused(ValueError, "config.json", "99")
    fresh()
    spoil(tmp_path / "config.json", kind="strokes")
    refused(ValueError, "config.json")
    StrokeModel(StrokeModelConfig(hidden_sizes=(4, 4, 4))).save_pretrained(tmp_path)
    refused(ValueError, "config.json", "'strokes', not 'text'")
    fresh()
    spoil(tmp_path / "config.json", warp=1)
    refused(ValueError, "config.json", "warp")
    fresh()
    spoil(tmp_path / "config.json", hidden_sizes=[1_000_000, 1_000_000, 1_000_000])
    refused(ValueError, "model.safetensors", "config.json")
    fresh()
    spoil(tmp_path / "config.json", model="transformer")
    refused(ValueError, "transformer")
    fresh()
    spoil(tmp_path / "config.json", embedding_size="big")
    refused(ValueError, "embedding_size", "big")
    fresh()
    (tmp_path / "config.json").write_text("[1, 2]")
    refused(ValueError, "config.json")
    fresh()
    (tmp_path / "symbols.json").write_text("{}")
    refused(ValueError, "symbols.json")
    fresh()
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-10])
    refused(ValueError, "model.safetensors")
    fresh()
    (tmp_path / "model.safetensors").write_bytes(pickle.dumps({"head.weight": 1}))
    refused(ValueError, "model.safetensors")
    fresh()
    weights = load_file(tmp_path / "model.safetensors")
    del weights["head.bias"]
    save_file(weights, tmp_path / "model.safetensors", {"sha256": checksum_of(weights)})
    refused(ValueError, "model.safetensors", "head.bias")
    (tmp_path / "model.safetensors").unlink()
    refused(OSError, "model.safetensors")


def same(one: TextModel, other: TextModel) -> bool:
    a, b = one.state_dict(), other.state_dict()
    weights = a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    return weights and one.config == other.config and one.symbols == other.symbols


@pytest.mark.parametrize("name", ["config.json", "symbols.json", "model.safetensors"])
def test_a_flipped_bit_is_noticed(tmp_path, name):
    """Any of some hundred, in every part of the file. A flip in the name of the checksum itself may pass: there is none
    then, and the rest is whole."""
    model = small()
    model.save_pretrained(tmp_path)
    whole = (tmp_path / name).read_bytes()
    chance, passed, reasons = random.Random(0), 0, []
    for _ in range(150):
        spoilt = bytearray(whole)
        spoilt[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        (tmp_path / name).write_bytes(spoilt)
        try:
            assert same(TextModel.from_pretrained(tmp_path), model)
            passed += 1
        except ValueError as error:
            reasons.append(str(error))
    assert passed < 5
    assert all(name in reason for reason in reasons)
    (tmp_path / name).write_bytes(whole)
    assert torch.equal(TextModel.from_pretrained(tmp_path).head.weight, model.head.weight)


def test_hmlstm_inside_torch_modules():
    """A network is an ordinary module: its parameters are found, and train() and eval() reach it."""
    model = small()
    assert isinstance(model.rnn, HMLSTM)
    assert not model.eval().rnn.training
    assert sum(p.numel() for p in model.parameters()) == sum(t.numel() for t in model.state_dict().values())
