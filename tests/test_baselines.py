"""The baselines: against torch.nn.LSTM, against their definitions written plainly, and with the call of HMLSTM."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from hmrnn import COPY, HMLSTM, HRNN, LSTM, UPDATE, ClockworkRNN, text_boundaries

EXACT = {"rtol": 0, "atol": 1e-13}
MAKERS = [LSTM, ClockworkRNN, HRNN, lambda *a, **k: LSTM(*a, layer_norm=False, **k)]


def test_lstm_without_layer_norm_is_torchs():
    ours = LSTM(3, [4, 4], layer_norm=False, dtype=torch.float64)
    theirs = torch.nn.LSTM(3, 4, num_layers=2).double()
    with torch.no_grad():
        for l, layer in enumerate(ours.layers):
            w = layer.weights()[0]
            w.b.normal_()
            for name, matrix in [("weight_ih", w.W), ("weight_hh", w.U), ("bias_ih", w.b)]:
                f, i, o, g = matrix.chunk(4)
                getattr(theirs, f"{name}_l{l}").copy_(torch.cat([i, f, g, o]))
            getattr(theirs, f"bias_hh_l{l}").zero_()
    x = torch.randn(7, 2, 3, dtype=torch.float64)
    out, state = ours(x)
    expected, (h, c) = theirs(x)
    torch.testing.assert_close(out.h[1], expected, **EXACT)
    torch.testing.assert_close((state.h, state.c), (tuple(h), tuple(c)), **EXACT)
    assert (out.operations == UPDATE).all()
    assert out.z.shape == (7, 2, 0)


def test_layer_norm_lstm_by_its_definition():
    rnn = LSTM(3, [4], dtype=torch.float64)
    w = rnn.layers[0].weights()[0]
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    h = c = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(5):
        s = F.layer_norm(x[t] @ w.W.T + h @ w.U.T, (16,)) * w.gain + w.b
        f, i, o, g = s.chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * (F.layer_norm(c, (4,)) * w.gain_c + w.bias_c).tanh()
    torch.testing.assert_close(rnn(x)[0].h[0][-1], h, **EXACT)


def test_clockwork_by_its_definition():
    """Element by element: a big matrix whose entries from faster to slower modules are zero, and a modulus."""
    sizes = [3, 2, 4]
    rnn = ClockworkRNN(2, sizes, dtype=torch.float64)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    full = torch.zeros(9, 9, dtype=torch.float64)
    starts = [0, 3, 5, 9]
    for i in range(3):
        full[starts[i] : starts[i + 1], starts[i] :] = rnn.U[i].detach()
    x = torch.randn(11, 2, 2, dtype=torch.float64)
    out, _ = rnn(x)
    h = torch.zeros(2, 9, dtype=torch.float64)
    for t in range(11):
        s, new = x[t] @ rnn.W.T + h @ full.T, h.clone()
        for i in range(3):
            if t % 2**i == 0:
                part = slice(starts[i], starts[i + 1])
                new[:, part] = (F.layer_norm(s[:, part], (sizes[i],)) * rnn.gain[i] + rnn.b[i]).tanh()
            assert (out.operations[t, :, i] == (UPDATE if t % 2**i == 0 else COPY)).all()
        h = new
        torch.testing.assert_close(torch.cat([layer[t] for layer in out.h], -1), h, **EXACT)
    assert out.z[:, 0].tolist() == [[float(t % 2 == 0), float(t % 4 == 0)] for t in range(11)]


def test_hrnn_is_the_hm_lstm_with_boundaries_given():
    rnn = HRNN(3, [4, 3, 2])
    other = HMLSTM(3, [4, 3, 2])
    other.load_state_dict(rnn.state_dict())
    x, z = torch.randn(6, 2, 3), torch.randint(0, 2, (6, 2, 2))
    torch.testing.assert_close(rnn(x, boundaries=z)[0].h, other(x, boundaries=z)[0].h, rtol=0, atol=0)
    with pytest.raises(ValueError, match="boundaries must be given"):
        rnn(x)
    trained = {name for name, parameter in rnn.named_parameters() if parameter.requires_grad}
    assert trained == {name for name, _ in rnn.named_parameters() if not name.endswith("_z")}


@pytest.mark.parametrize("make", MAKERS)
def test_baselines_take_the_call_of_hmlstm(make):
    """Sequences and steps, a carried state, rows of unequal length, batch_first."""
    rnn = make(3, [4, 3, 5], dtype=torch.float64)
    x = torch.randn(7, 3, 3, dtype=torch.float64)
    z = torch.randint(0, 2, (7, 3, 2)) if isinstance(rnn, HRNN) else None

    def part(time):
        return None if z is None else z[time]

    whole, end = rnn(x, boundaries=z, slope=2.0)
    assert [h.shape for h in whole.h] == [(7, 3, 4), (7, 3, 3), (7, 3, 5)]
    assert whole.operations.shape == (7, 3, 3)
    state = None
    for t in range(7):
        out, state = rnn.step(x[t], state, boundaries=part(t))
        torch.testing.assert_close(out.h, tuple(h[t] for h in whole.h), **EXACT)
        assert torch.equal(out.operations, whole.operations[t])
    first, state = rnn(x[:3], boundaries=part(slice(3)))
    second, state = rnn(x[3:], state, boundaries=part(slice(3, 7)))
    torch.testing.assert_close(torch.cat([first.h[2], second.h[2]]), whole.h[2], **EXACT)
    torch.testing.assert_close((state.h, state.c, state.z), (end.h, end.c, end.z), **EXACT)

    lengths = [0, 4, 7]
    padded, state = rnn(x, lengths=lengths, boundaries=z)
    for row, length in enumerate(lengths):
        if length:
            row_z = None if z is None else z[:length, row : row + 1]
            alone, alone_state = rnn(x[:length, row : row + 1], boundaries=row_z)
            torch.testing.assert_close(padded.h[2][:length, row : row + 1], alone.h[2], **EXACT)
            torch.testing.assert_close(state.select([row]).h, alone_state.h, **EXACT)
            assert torch.equal(state.select([row]).z, alone_state.z)
        assert (padded.operations[length:, row] == COPY).all()
    rnn.batch_first = True
    turned, _ = rnn(x.transpose(0, 1), boundaries=None if z is None else z.transpose(0, 1))
    torch.testing.assert_close(turned.h[1], whole.h[1].transpose(0, 1), **EXACT)

    sum(h.sum() for h in whole.h).backward()
    assert all(parameter.grad is not None for parameter in rnn.parameters() if parameter.requires_grad)
    rnn.constrain_detectors()


@pytest.mark.parametrize("make", [LSTM, ClockworkRNN])
def test_networks_without_boundaries_refuse_them(make):
    with pytest.raises(ValueError, match="boundaries can't be given"):
        make(3, [4, 4])(torch.zeros(2, 1, 3), boundaries=torch.zeros(2, 1, 1))


def test_text_boundaries():
    text = 'One two.  "Three?" Four\nfive'
    words, sentences = text_boundaries(text).unbind(1)
    ends = {index for index, z in enumerate(words) if z}
    assert ends == {3, 8, 18, 23}, "on the white space after each word; not in the run that follows, nor at an open end"
    assert {index for index, z in enumerate(sentences) if z} == {8, 18, 23}
    assert text_boundaries("").shape == (0, 2)


CLOSING = [("", True), ('"', True), ('!")', True), ("'\"" * 4, True), (")" * 9, False)]


@pytest.mark.parametrize(("closing", "ends"), CLOSING)
def test_closing_quotes_at_the_end_of_a_sentence(closing, ends):
    """Up to eight of them, and brackets."""
    text = f"Stop.{closing} Then"
    assert text_boundaries(text)[5 + len(closing)].tolist() == [1, float(ends)]


def test_text_boundaries_do_not_look_ahead():
    text = "a bc. d\ne  f"
    whole = text_boundaries(text)
    for end in range(len(text) + 1):
        assert torch.equal(text_boundaries(text[:end]), whole[:end])
