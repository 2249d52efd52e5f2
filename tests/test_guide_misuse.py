"""How `Guide` is misused: it raises, and says what to do."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from support.guided import RATES, Marks, biases, network, still, window
from torch import nn

import hmrnn.guidance.guide as guide_module
from hmrnn import HMLSTM, HRNN, LSTM, Branching, Guide
from hmrnn.guidance.guide import MOST_WINDOWS


class TestMisuse:
    def test_what_can_not_be_guided(self):
        for rnn, words in (
            (LSTM(5, [7, 6]), "LSTM is no HMLSTM"),
            (nn.Sequential(network()), "give the network itself"),
            (HRNN(5, [7, 6]), "do not learn"),
            (HMLSTM(5, [7]), "no detector"),
            (HMLSTM(5, [7, 6], boundary="sample"), "boundary='sample' can't be steered"),
            (HMLSTM(5, [7, 6], boundary="soft"), "boundary='soft' can't be steered"),
        ):
            with pytest.raises(ValueError, match=words):
                Guide(rnn, rates=[0.2])

    def test_what_does_not_tell_enough(self):
        with pytest.raises(ValueError, match="Give rates"):
            Guide(network())
        with pytest.raises(ValueError, match="between 0 and 1"):
            Guide(network(), rates=[0.2, 5])
        with pytest.raises(ValueError, match="must not be negative"):
            Guide(network(), rates=[0.2], weight=-1.0)
        for wrong in ({"updates": -1}, {"radius": -1.0}, {"radius": math.nan}, {"weight": math.nan}):
            with pytest.raises(ValueError, match=f"{next(iter(wrong))} must not be negative"):
                Guide(network(), rates=[0.2], **wrong)
        assert Guide(network(), rates=np.array([0.5, 0.25])).targets == [0.5, 0.25]

    @pytest.mark.parametrize("rates", [0.2, None, "often", ["often"], [None], torch.tensor(0.2)])
    def test_rates_that_are_no_list_of_numbers(self, rates):
        with pytest.raises(TypeError, match=r"^rates must be a list of numbers, .* as in \[0\.2, 0\.05\]; got "):
            Guide(network(), rates=rates, teacher=Marks())

    def test_more_rates_than_detectors(self):
        """They are a mistake where they are given. A teacher may tell of more layers than the network has."""
        with pytest.raises(
            ValueError, match=r"rates must be at most one for each detector \(2\); got \[0.2, 0.1, 0.1\]"
        ):
            Guide(network(), rates=[0.2, 0.1, 0.1])
        teacher = Marks()
        teacher.rates = (0.3, 0.2, 0.1)
        assert Guide(network(), teacher=teacher).targets == [0.3, 0.2]

    def test_an_optimizer_of_something_else(self):
        with pytest.raises(ValueError, match="trains no parameter of this network"):
            Guide(network(), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), rates=RATES)

    @pytest.mark.parametrize(
        ("update", "highest"),
        [
            *((update, 0.1) for update in (None, -1, 0.5, float("nan"), "x", True)),
            *((0, highest) for highest in (None, -1.0, float("nan"), float("inf"), "x", 1)),
        ],
    )
    def test_a_state_of_something_else(self, update, highest):
        guide, state = Guide(network(), rates=RATES), {"update": update, "highest": highest}
        with pytest.raises(ValueError, match="the state of a Guide has update"):
            guide.load_state_dict(state)
        assert guide.state_dict() == {"update": 0, "highest": 0.0}

    def test_a_state_of_another_module(self):
        with pytest.raises(ValueError, match="the state of a Guide has update"):
            Guide(network(), rates=RATES).load_state_dict(network().state_dict())

    def test_evaluation(self):
        guide = Guide(network().eval(), rates=RATES)
        with pytest.raises(RuntimeError, match="evaluation mode"), guide:
            pass
        guide.rnn.train()
        with torch.no_grad(), pytest.raises(RuntimeError, match="gradients are disabled"), guide:
            pass

    def test_no_forward_pass(self):
        guide = Guide(network(), rates=RATES, weight=0.1)
        guide.update = 100
        with pytest.raises(RuntimeError, match="made no forward pass"), guide:
            guide.rnn.step(window()[0])
        assert guide.rnn.slope == 1

    def test_a_second_forward_pass(self):
        guide = Guide(network(), rates=RATES)
        with guide, pytest.raises(RuntimeError, match="a second forward pass"):
            [guide.rnn(window()) for _ in range(2)]
        with guide:  # and then all is as it was
            guide.rnn(window())
        guide.step()
        assert guide.rnn.slope == 1

    @pytest.mark.parametrize("given", [{"boundaries": torch.zeros(8, 3, 2)}, {"slope": 2.0}])
    def test_a_forward_pass_that_takes_the_guides_place(self, given):
        guide = Guide(network(), rates=RATES, weight=0.1)
        with pytest.raises(RuntimeError, match=next(iter(given))), guide:
            guide.rnn(window(), **given)
        assert guide.rnn.slope == 1

    def test_two_guides(self):
        rnn = network()
        one, two = (Guide(rnn, rates=RATES) for _ in range(2))
        with pytest.raises(RuntimeError, match="two guides"), one, two:
            pass

    def test_a_loss_before_its_forward_pass(self):
        guide = Guide(network(), rates=RATES)
        with pytest.raises(RuntimeError, match="there was none before it"):
            guide.loss()
        with guide:
            guide.rnn(window())
        guide.loss()
        with pytest.raises(RuntimeError, match="asked for twice"):
            guide.loss()
        guide.step()
        with pytest.raises(RuntimeError, match="there was none before it"):
            guide.loss()

    def test_a_forgotten_loss(self):
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES, weight=0.1)
        with guide:
            rnn(window())
        with pytest.raises(RuntimeError, match=r"guide.loss\(\) was not asked for"):
            optimizer.step()
        with pytest.raises(RuntimeError, match=r"guide.loss\(\) was not asked for"), guide:
            pass

    def test_a_loss_without_what_it_is_told_by(self):
        for guide, words in (
            (Guide(network(), teacher=Marks()), "needs the symbols"),
            (Guide(network(), rates=RATES, weight=0.1), "needs the uncertainty"),
        ):
            with guide:
                guide.rnn(window())
            with pytest.raises(TypeError, match=words):
                guide.loss()

    def test_symbols_of_another_window(self):
        guide = Guide(network(), teacher=Marks())
        with guide:
            guide.rnn(window())
        with pytest.raises(ValueError, match=r"time and batch are \(8, 3\) and \(3, 8\)"):
            guide.loss(torch.zeros(3, 8, dtype=torch.int64))

    @pytest.mark.parametrize("wrong", [np.zeros((8, 3)), [[0] * 3] * 8])
    def test_a_loss_of_what_is_no_tensor(self, wrong):
        for name, guide in (
            ("symbols", Guide(network(), teacher=Marks())),
            ("uncertainty", Guide(network(), rates=RATES, weight=0.1)),
        ):
            with guide:
                guide.rnn(window())
            with pytest.raises(TypeError, match=f"{name} must be a tensor; got {type(wrong).__name__}"):
                guide.loss(**{name: wrong})

    @pytest.mark.parametrize(
        ("error", "symbols", "words"),
        [
            (ValueError, torch.full((8, 3), 4), "between 0 and 3, in the teacher's alphabet of 4; got 4"),
            (ValueError, torch.full((8, 3), -1), "between 0 and 3, in the teacher's alphabet of 4; got -1"),
            (TypeError, torch.rand(8, 3), "whole numbers; got torch.float32"),
            (TypeError, torch.ones(8, 3) > 0, "whole numbers; got torch.bool"),
        ],
    )
    def test_symbols_that_the_teacher_does_not_know(self, error, symbols, words):
        guide = Guide(network(), teacher=Branching.of([0, 1, 2, 3, 3] * 40, 4))
        with guide:
            guide.rnn(window())
        with pytest.raises(error, match=f"symbols must (be|lie) {words}"):
            guide.loss(symbols)

    def test_symbols_at_padded_steps_may_be_anything(self):
        losses = []
        for padding in (0, 4, -100):
            guide, symbols = Guide(network(), teacher=Branching.of([0, 1, 2, 3, 3] * 40, 4)), torch.ones(8, 3).long()
            symbols[5:, 1] = padding
            with guide:
                guide.rnn(window(), lengths=[8, 5, 8])
            losses.append(guide.loss(symbols).item())
        assert losses[0] == losses[1] == losses[2]

    def test_a_loss_that_is_0_may_be_left_out(self):
        """As docs/layer.md says of rates alone."""
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES)
        for _ in range(MOST_WINDOWS + 1):
            with guide:
                rnn(window(T=2))
            optimizer.step()
        assert guide.update == MOST_WINDOWS + 1

    @pytest.mark.parametrize("optimizer", [None, still])
    def test_a_forgotten_step(self, optimizer, monkeypatch):
        """With an optimizer it can't be forgotten, but another one may be used."""
        assert MOST_WINDOWS > 100, "gradients may be accumulated"
        monkeypatch.setattr(guide_module, "MOST_WINDOWS", 3)
        rnn = network()
        guide = Guide(rnn, optimizer and optimizer(rnn), rates=RATES)
        for _ in range(3):
            with guide:
                rnn(window())
        words = (
            r"3 windows without a step: call guide.step\(\)" if optimizer is None else "optimizer that the guide was"
        )
        with pytest.raises(RuntimeError, match=words), guide:
            pass

    def test_a_forgotten_block(self):
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES)
        for _ in range(guide_module.MOST_STEPS):
            rnn(window())
            optimizer.step()
        with pytest.raises(RuntimeError, match="without a forward pass inside `with guide`"):
            optimizer.step()
        with guide:
            rnn(window())
        optimizer.step()
        with pytest.raises(RuntimeError, match="since the last one"):
            guide.step()

    def test_an_optimizer_that_calls_the_step_that_it_inherits(self):
        """Torch tells of both."""

        class Own(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        shifted = []
        for kind in (torch.optim.SGD, Own):
            rnn = network()
            optimizer = kind(rnn.parameters(), lr=1.0)
            guide = Guide(rnn, optimizer, rates=RATES)
            for _ in range(2):
                with guide:
                    rnn(window())
                optimizer.step()
            assert guide.update == 2
            shifted.append(biases(rnn))
        assert shifted[0] == shifted[1]
