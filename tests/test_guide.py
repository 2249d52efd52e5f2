"""`Guide` in loops that are not ours: what it does, and for how long."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.guided import RATES, Marks, biases, network, still, window
from torch import nn

from hmrnn import HMLSTM, LSTM, Branching, Guide
from hmrnn.guidance.guide import FORCE, HELD_BACK, HELD_BACK_BY
from hmrnn.guidance.imitation import imitation
from hmrnn.guidance.steering import Seen, excesses


class TestWhatItDoes:
    def test_a_text_in_which_every_symbol_is_a_segment(self):
        teacher = Branching.of(np.random.default_rng(0).integers(0, 20, 300), 20)
        assert teacher.rates == (1.0,)
        assert Guide(network(), teacher=teacher).targets[0] == 0.99

    def test_detectors_are_steered_after_each_step_of_the_optimizer(self):
        """By a share of what their biases were too high, in the window that was read with the weights of before."""
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES, radius=0)
        x = window()
        expected = biases(rnn)
        for _ in range(3):
            with torch.no_grad():
                out, _ = rnn(x)
                excess = excesses(rnn, Seen(out, rnn.detector_sums(x, None, out)), RATES)
            with guide:
                out, _ = rnn(x)
            out.last.sum()
            optimizer.step()
            expected = [b - FORCE * float(e) for b, e in zip(expected, excess, strict=True)]
            assert biases(rnn) == pytest.approx(expected, abs=1e-12)
        assert guide.update == 3

    def test_it_leads_detectors_to_their_rates(self):
        rnn = network(3)
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=[0.4, 0.1])
        for i in range(60):
            with guide:
                out, _ = rnn(window(40, 8, seed=i))
            optimizer.step()
        assert out.rates.tolist() == pytest.approx([0.4, 0.1], abs=0.05)

    @pytest.mark.parametrize("radius", [None, 0.5, 0])
    def test_the_norm_ball(self, radius):
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES, radius=radius)
        with guide:
            rnn(window())
        optimizer.step()
        w = rnn.weights()[0]
        norm = torch.cat([w.W_z, w.U_z, w.V_z]).norm().item()
        assert norm == pytest.approx({None: 1.94, 0.5: 0.5}[radius]) if radius != 0 else norm > 2

    @pytest.mark.parametrize("engine", ["reference", "events", "native"])
    def test_while_it_teaches_the_straight_through_gradient_is_held_back(self, engine):
        """Whatever the engine, and boundaries are the same. Steering alone does not tell where."""
        x = window(2, 30)  # two steps: through a third, gradients would cross two boundaries

        def boundaries_and_gradient(update, weight, guided=True):
            rnn = network(4, engine)
            with torch.no_grad():
                for layer in rnn.weights()[:-1]:
                    for parameter in (layer.W_z, layer.U_z, layer.V_z):
                        parameter.mul_(0.05)  # so that every s_z lies in the window
            guide = Guide(rnn, rates=RATES, weight=weight)
            guide.update = update
            with guide if guided else nullcontext():
                out, _ = rnn(x)
            out.h[1][-1].sum().backward()
            if guided:
                guide.loss(uncertainty=x[..., 0])
                guide.step()
            assert rnn.slope == 1
            return out.z.detach(), rnn.layers[1].W_z.grad

        z, free = boundaries_and_gradient(0, 0.1, guided=False)
        assert free.norm() > 0
        for update, left in ((0, 1.0), (HELD_BACK_BY // 4, 0.75), (2 * HELD_BACK_BY, HELD_BACK)):
            same, held_back = boundaries_and_gradient(update, 0.1)
            assert torch.equal(same, z)
            torch.testing.assert_close(held_back, left * free, rtol=1e-12, atol=1e-14)
            assert torch.equal(boundaries_and_gradient(update, 0.0)[1], free)

    def test_the_loss_is_that_of_what_the_teacher_and_the_model_tell(self):
        rnn, x, teacher = network(), window(), Marks()
        symbols = torch.randint(0, 4, (8, 3))
        uncertainty = torch.rand(8, 3, dtype=torch.float64)
        guide = Guide(rnn, teacher=teacher, weight=2.0)
        assert guide.targets == [0.25, 0.0625]

        def loss(*told):
            with guide:
                rnn(x)
            found = guide.loss(*told)
            guide.skip()
            return found

        out, _ = rnn(x)
        seen = Seen(out, rnn.detector_sums(x, None, out))
        marks = (symbols == 0).double()
        expected = imitation(rnn, seen, marks.unsqueeze(-1) + 1e-4 * seen.sums.detach().sigmoid(), guide.targets)
        assert loss(symbols).item() == pytest.approx(2 * expected.item(), abs=1e-12)
        rows = symbols.tolist()
        assert teacher.seen[0].tolist() == [rows[0]] * 2 + rows, "nobody knows what came before"
        kinds = torch.stack([marks + 1e-4 * uncertainty, uncertainty], dim=-1)
        expected = 2 * imitation(rnn, seen, kinds, guide.targets)
        found = loss(symbols, uncertainty)
        assert found.item() == pytest.approx(expected.item(), abs=1e-12)
        assert loss(symbols, lambda: uncertainty).item() == found.item()
        wrt = [w for layer in rnn.weights()[:-1] for w in (layer.W_z, layer.U_z, layer.b_z)]
        torch.testing.assert_close(torch.autograd.grad(found, wrt), torch.autograd.grad(expected, wrt))

    def test_without_a_teacher_all_detectors_learn_from_the_uncertainty(self):
        rnn, x, felt = network(), window(), torch.rand(8, 3, dtype=torch.float64)
        guide = Guide(rnn, rates=RATES, weight=1.0)
        with guide:
            out, _ = rnn(x)
        seen = Seen(out, rnn.detector_sums(x, None, out))
        assert guide.loss(uncertainty=felt).item() == imitation(rnn, seen, felt.unsqueeze(-1), RATES).item()

    def test_a_teacher_that_waits_for_the_next_symbol(self):
        """What the model finds hard is then felt a step later, too."""
        rnn, x, felt, teacher = network(), window(), torch.rand(8, 3, dtype=torch.float64), Marks()
        teacher.delay = 1
        guide = Guide(rnn, teacher=teacher, weight=1.0)
        with guide:
            out, _ = rnn(x)
        later = torch.cat([felt[:1], felt[:-1]])
        kinds = torch.stack([1e-4 * felt, later], dim=-1)
        seen = Seen(out, rnn.detector_sums(x, None, out))
        found = guide.loss(torch.ones(8, 3, dtype=torch.int64), felt)
        assert found.item() == pytest.approx(imitation(rnn, seen, kinds, guide.targets).item())

    def test_steering_alone_has_no_loss(self):
        guide = Guide(network(), rates=RATES)
        for _ in range(2):
            with guide:
                guide.rnn(window())
            assert guide.loss().item() == 0
            guide.step()

    def test_no_rates_leave_detectors_alone_but_for_the_ball(self):
        for rnn in (LSTM(5, [7, 6]), HMLSTM(5, [7, 6], boundary="sample")):
            guide = Guide(rnn, rates=[], weight=0.1)
            with guide:
                rnn(torch.randn(4, 2, 5))
            assert guide.loss().item() == 0
            before = {name: p.clone() for name, p in rnn.named_parameters() if "b_z" in name}
            guide.step()
            assert all(torch.equal(p, before[name]) for name, p in rnn.named_parameters() if name in before)


class TestHowLong:
    def strengths(self, guide, updates, scheduler=None):
        found = []
        for _ in range(updates):
            with guide:
                guide.rnn(window(3, 2))
            found.append(guide.strength)
            if guide.optimizer is None:
                guide.step()
            else:
                guide.optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return found

    def test_it_falls_with_the_learning_rate(self):
        rnn = network()
        optimizer = still(rnn)
        falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / 4)
        guide = Guide(rnn, optimizer, rates=RATES)
        assert self.strengths(guide, 5, falling) == pytest.approx([1.0, 0.75, 0.5, 0.25, 0.0])

    def test_it_does_not_wait_for_a_learning_rate_that_rises(self):
        rnn = network()
        optimizer = still(rnn)
        cycle = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: [0, 0.5, 1, 0.5, 0.1][i])
        guide = Guide(rnn, optimizer, rates=RATES)
        assert self.strengths(guide, 4, cycle) == pytest.approx([1.0, 1.0, 1.0, 0.5])

    def test_of_several_groups_that_of_the_network_counts(self):
        rnn, head = network(), nn.Linear(4, 3)
        optimizer = torch.optim.SGD([{"params": head.parameters()}, {"params": rnn.parameters(), "lr": 2.0}], lr=1.0)
        guide = Guide(rnn, optimizer, rates=RATES)
        self.strengths(guide, 1)
        assert guide.highest == 2.0

    def test_a_number_of_updates(self):
        guide = Guide(network(), rates=RATES, updates=8)
        assert self.strengths(guide, 10) == pytest.approx([1.0] * 5 + [0.75, 0.5, 0.25, 0.0, 0.0])

    def test_a_strength_of_ones_own(self):
        assert self.strengths(Guide(network(), rates=RATES, strength=lambda: 0.3), 2) == [0.3, 0.3]

    def test_without_optimizer_and_end_it_stays(self):
        assert self.strengths(Guide(network(), rates=RATES), 2) == [1.0, 1.0]

    def test_what_is_kept_is_enough_to_go_on(self):
        def begun():
            rnn = network()
            optimizer = torch.optim.Adam(rnn.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=6)
            return rnn, optimizer, schedule, Guide(rnn, optimizer, rates=RATES, weight=0.1)

        def train(parts, updates):
            rnn, optimizer, schedule, guide = parts
            for i in updates:
                with guide:
                    out, _ = rnn(window(seed=i))
                optimizer.zero_grad()
                (out.last.square().mean() + guide.loss(uncertainty=window(seed=i)[..., 0])).backward()
                optimizer.step()
                schedule.step()

        straight, half, rest = begun(), begun(), begun()
        train(straight, range(6))
        train(half, range(3))
        for new, old in zip(rest, half, strict=True):
            new.load_state_dict(old.state_dict())
        train(rest, range(3, 6))
        assert rest[3].state_dict() == straight[3].state_dict() == {"update": 6, "highest": 0.01}
        assert all(torch.equal(a, b) for a, b in zip(rest[0].parameters(), straight[0].parameters(), strict=True))

    def test_a_guide_that_nobody_holds_is_gone(self):
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES)
        del guide
        gc.collect()
        before = biases(rnn)
        optimizer.step()
        assert biases(rnn) == before
