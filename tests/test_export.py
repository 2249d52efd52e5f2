"""Networks and models as torch.export keeps them: traced by the reference engine, saved, loaded and run again."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree

from hmrnn import HMLSTM, Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.model import TextModelOutput

TEXT = "the cat sat on the mat. "


def kept(module, arguments, path):
    """Exported, saved and loaded."""
    with torch.no_grad():
        torch.export.save(torch.export.export(module, arguments), path)
    return torch.export.load(path).module()


def agree(found, expected):
    """But for `steps`, in which each engine keeps what is distinct in its own way."""
    (out, state), (own, after) = found, expected
    rnn, own_rnn = (out.rnn, own.rnn) if isinstance(out, TextModelOutput) else (out, own)
    pairs = [(rnn.h, own_rnn.h), (rnn.z, own_rnn.z), (rnn.operations, own_rnn.operations), (state.c, after.c)]
    for a, b in [*pairs, (state.z, after.z), *([(out.logits, own.logits)] if rnn is not out else [])]:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("T", [1, 3])
def test_a_network(T, tmp_path):
    torch.manual_seed(0)
    rnn = HMLSTM(3, [6, 5, 4], dtype=torch.float64).eval()
    x, other = torch.randn(2, T, 2, 3, dtype=torch.float64)
    _, state = rnn(torch.randn(4, 2, 3, dtype=torch.float64))
    program = kept(rnn, (x, state.detach()), tmp_path / "rnn.pt2")
    with torch.no_grad():
        assert rnn.engine == "native"
        agree(program(other, state.detach()), rnn(other, state.detach()))


@pytest.mark.parametrize("T", [1, 3])
def test_a_text_model(T, tmp_path):
    torch.manual_seed(0)
    config = TextModelConfig(embedding_size=4, hidden_sizes=(6, 5, 4), output_size=5)
    model = TextModel(Symbols.of(TEXT), config).double().eval()
    symbols = model.symbols.encode(TEXT).unsqueeze(1)
    with torch.no_grad():
        _, state = model(symbols[:4])
        program = kept(model, (symbols[:T], state), tmp_path / "model.pt2")
        for start in range(8):  # step by step, or window by window
            window = symbols[start : start + T]
            found, expected = program(window, state), model(window, state)
            agree(found, expected)
            state = found[1]


def test_a_file_of_states_loads_without_running_code(tmp_path):
    _, state = HMLSTM(3, [4, 4])(torch.randn(2, 2, 3))
    torch.save(state.detach(), tmp_path / "state.pt")
    again = torch.load(tmp_path / "state.pt", weights_only=True)
    assert all(map(torch.equal, pytree.tree_leaves(again), pytree.tree_leaves(state)))
