"""Dropout and weight-drop: what is masked, for how long, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from support.networks import Case

from hmrnn import HMLSTM, LSTM, StrokeModel, StrokeModelConfig, Symbols, TextModel, TextModelConfig
from hmrnn.boundary import bound
from hmrnn.dropout import (
    drop,
    drop_weights,
    evaluating,
    mask,
)
from hmrnn.equations import LayerWeights, layer_step


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_a_mask_drops_its_share_and_keeps_the_mean(share):
    numbers = mask(torch.zeros((), dtype=torch.float64), (1000, 1001), share, seeded())
    kept = round((1 - share) * 65536) / 65536
    assert set(numbers.unique().tolist()) <= {0.0, 1 / kept}
    deviation = (share * (1 - share) / numbers.numel()) ** 0.5
    assert abs((numbers == 0).double().mean().item() - share) < 5 * deviation + 1e-5
    assert abs(numbers.mean().item() - 1) < 5 * deviation / (1 - share) + 1e-9
    for part in (numbers[:, :500], numbers[::7], numbers.T[:100]):  # no place is more likely than another
        assert abs((part == 0).double().mean().item() - share) < 5 * (share * (1 - share) / part.numel()) ** 0.5 + 1e-5


def test_the_same_seed_drops_the_same():
    like = torch.zeros(())
    assert torch.equal(mask(like, (5, 7), 0.5, seeded(3)), mask(like, (5, 7), 0.5, seeded(3)))
    assert not torch.equal(mask(like, (5, 7), 0.5, seeded(3)), mask(like, (5, 7), 0.5, seeded(4)))


def test_dropped_units_stay_dropped_for_a_call_or_are_others_at_each_step():
    x = torch.ones(20, 3, 50)
    constant, each = drop(x, 0.5, seeded()), drop(x, 0.5, seeded(), each_step=True)
    assert torch.equal(constant, constant[:1].expand_as(constant))
    assert not torch.equal(constant[0, 0], constant[0, 1])
    assert not torch.equal(each[0], each[1])


def test_weight_drop_leaves_detectors_gains_and_biases_alone():
    for layer in Case(4, [6, 5, 3], 1, 1, seed=0).network().weights():
        dropped = drop_weights(layer, 0.5, seeded())
        for name in LayerWeights._fields:
            before, after = getattr(layer, name), getattr(dropped, name)
            if name not in ("W", "U", "V") or before is None:
                assert after is before
            else:
                assert ((after == 0) | torch.isclose(after, 2 * before)).all()
                assert 0 < (after == 0).sum() < after.numel()


def test_a_call_multiplies_the_masked_weights_and_hidden_states():
    """The network with dropout in training mode is the one whose matrices and hand-overs were masked by hand."""
    case = Case(4, [6, 5, 3], 8, 3, seed=1, bias=0.3, options={"dropout": 0.4, "weight_drop": 0.5})
    rnn, x = case.network(), case.call()["x"]
    found, _ = rnn(x, generator=seeded())
    generator = seeded()
    masks = tuple(mask(x, (3, size), 0.4, generator) for size in (6, 5))
    weights = [drop_weights(layer, 0.5, generator) for layer in rnn.weights()]
    h, c = [x.new_zeros(3, size) for size in (6, 5, 3)], [x.new_zeros(3, size) for size in (6, 5, 3)]
    z = [x.new_zeros(3, 1) for _ in range(3)]
    for t in range(8):
        below, y = x[t], x.new_ones(3, 1)
        for l in range(3):
            # What W multiplies is masked by masking columns of W row by row: no call of the code under test.
            steps = []
            for row in range(3):
                own = weights[l] if l == 0 else weights[l]._replace(W=weights[l].W * masks[l - 1][row])
                above = h[l + 1][row : row + 1] if l < 2 else None
                part = slice(row, row + 1)
                steps.append(
                    layer_step(
                        own, h[l][part], c[l][part], z[l][part], below[part], y[part], above,
                        slope=1.0, bound=lambda tilde: bound(tilde, "step", None), hold=True,
                    )
                )  # fmt: skip
            h[l], c[l], z[l] = (torch.cat(parts) for parts in zip(*steps, strict=True))
            below, y = h[l], z[l]
            torch.testing.assert_close(found.h[l][t], h[l], rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["reference", "events", "native"])
def test_evaluation_mode_drops_nothing(engine):
    case = Case(4, [6, 5, 3], 8, 3, seed=1, bias=0.3, options={"dropout": 0.4, "weight_drop": 0.5})
    plain = Case(4, [6, 5, 3], 8, 3, seed=1, bias=0.3)
    ours, theirs = case.network(engine), plain.network(engine)
    x = case.call()["x"]
    assert not torch.equal(ours(x)[0].h[2], theirs(x)[0].h[2])
    with evaluating(ours):
        assert torch.equal(ours(x)[0].h[2], theirs(x)[0].h[2])
    assert ours.training


def test_a_single_step_in_training_mode_drops_even_without_a_gradient():
    rnn = HMLSTM(4, [16, 16], weight_drop=0.5)
    x = torch.randn(2, 4, generator=seeded())
    with torch.no_grad():
        for call in (lambda: rnn.step(x, generator=seeded(1)), lambda: rnn(x.unsqueeze(0), generator=seeded(1))):
            dropped = call()[1].h[0]
            with evaluating(rnn):
                assert not torch.allclose(dropped, call()[1].h[0])


def test_an_lstm_drops_between_its_layers_and_not_after_the_last():
    rnn = LSTM(4, [8, 8], dropout=0.5, dtype=torch.float64)
    x = torch.randn(6, 3, 4, dtype=torch.float64, generator=seeded())
    dropped, _ = rnn(x, generator=seeded(1))
    kept = mask(x, (3, 8), 0.5, seeded(1))
    with evaluating(rnn):
        plain, _ = rnn(x)
        second, _ = rnn.layers[1](plain.h[0] * kept)
    assert torch.equal(dropped.h[0], plain.h[0])
    torch.testing.assert_close(dropped.h[1], second.h[0], rtol=0, atol=1e-12)


def test_models_drop_embeddings_and_outputs_in_training_only():
    symbols = Symbols(tuple("abcd"))
    for name in ("embedding_dropout", "output_dropout", "weight_drop", "dropout"):
        torch.manual_seed(0)
        model = TextModel(symbols, TextModelConfig(embedding_size=8, hidden_sizes=(8, 8), output_size=8, **{name: 0.5}))
        numbers = torch.randint(4, (12, 2), generator=seeded())
        first, second = (model(numbers, generator=seeded(seed))[0].logits for seed in (1, 2))
        assert not torch.equal(first, second), name
        text = "abcdabca" * 4
        assert model.bits_per_character(text) == model.bits_per_character(text)
        assert model.segment(text).steps.z.tolist() == model.segment(text).steps.z.tolist()
        assert model.training
        model.eval()
        first, second = (model(numbers, generator=seeded(seed))[0].logits for seed in (1, 2))
        assert torch.equal(first, second), name


def test_the_output_embedding_is_masked_anew_at_each_step():
    torch.manual_seed(0)
    config = TextModelConfig(embedding_size=8, hidden_sizes=(8, 8), output_size=64, output_dropout=0.5)
    model = TextModel(Symbols(tuple("ab")), config)
    numbers = torch.zeros(2, 1, dtype=torch.int64)
    model.rnn.eval()
    h_e = model.output(model.rnn(model.embed(numbers))[0].steps)
    found = model(numbers, generator=seeded(5))[0].logits
    expected = model.head(h_e * mask(h_e, h_e.shape, 0.5, seeded(5)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_strokes_drop_in_training_only():
    torch.manual_seed(0)
    model = StrokeModel(StrokeModelConfig(embedding_size=8, hidden_sizes=(8, 8), output_size=8, embedding_dropout=0.5))
    points = torch.randn(12, 2, 3, generator=seeded())
    first, second = (model(points, generator=seeded(seed))[0].density.mu for seed in (1, 2))
    assert not torch.equal(first, second)
    line = points[:, 0].numpy()
    assert model.log_likelihood(line) == model.log_likelihood(line)


@pytest.mark.parametrize("name", ["dropout", "weight_drop"])
@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_what_is_no_share_is_refused(name, share):
    with pytest.raises(ValueError, match=f"{name} is a share"):
        HMLSTM(4, [8, 8], **{name: share})
    with pytest.raises(ValueError, match=f"{name} is a share"):
        TextModelConfig(**{name: share})


def test_a_clockwork_rnn_has_nothing_to_drop_between_layers():
    with pytest.raises(ValueError, match="clockwork"):
        TextModelConfig(model="clockwork", weight_drop=0.5)
