"""`Guide` in loops that are not ours: what it does, in which order, with what else, and how it is misused."""

from __future__ import annotations

import gc
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support.small_runs import torchrun
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import hmrnn.guidance.guide as guide_module
from hmrnn import HMLSTM, HRNN, LSTM, Guide
from hmrnn.guidance.guide import FORCE, HELD_BACK, HELD_BACK_BY, MOST_WINDOWS
from hmrnn.guidance.imitation import imitation
from hmrnn.guidance.steering import Seen, excesses

RATES = [0.5, 0.125]


def network(seed: int = 0, engine: str = "reference", **options) -> HMLSTM:
    torch.manual_seed(seed)
    rnn = HMLSTM(5, [7, 6, 4], engine=engine, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    return rnn


def window(T: int = 8, B: int = 3, seed: int = 1) -> torch.Tensor:
    return torch.randn(T, B, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def biases(rnn: HMLSTM) -> list[float]:
    return [w.b_z.item() for w in rnn.weights()[:-1]]


def still(rnn: HMLSTM) -> torch.optim.Optimizer:
    """An optimizer that changes nothing, though its learning rate is 1."""
    return torch.optim.SGD([*rnn.parameters()], lr=1.0, maximize=False, foreach=False)


class Marks:
    """A teacher that knows: segments end with symbol 0."""

    rates, delay, past, future = (0.25,), 0, 2, 1

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def evidence(self, symbols):
        self.seen.append(symbols)
        return (symbols[2:-1] == 0).astype(np.float32)


class TestWhatItDoes:
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
        assert teacher.seen[0].tolist() == [rows[0]] * 2 + rows + [rows[-1]], "nobody knows what came before and after"
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


def one_update(rnn, optimizer, guide, forward, told, backward=torch.Tensor.backward):
    with guide:
        out, _ = forward(rnn)
    optimizer.zero_grad()
    last = out.last if isinstance(out.last, torch.Tensor) else out.last.data
    backward(last.float().square().mean() + guide.loss(**told))
    optimizer.step()
    return out


class TestWithOtherThings:
    def test_layouts_are_told_in_their_own_way(self):
        """Batch first, padded, packed, one sequence: the same loss and the same shifts."""
        x, lengths = window(8, 3), torch.tensor([8, 3, 5])
        symbols = torch.randint(0, 4, (8, 3), generator=torch.Generator().manual_seed(0))
        felt = torch.rand(8, 3, dtype=torch.float64)

        def found(forward, *told, **options):
            rnn = network(**options)
            guide = Guide(rnn, teacher=Marks())
            with guide:
                forward(rnn)
            loss = guide.loss(*told).item()
            guide.step()
            return [loss, *biases(rnn)]

        def packed(values):
            return pack_padded_sequence(values, lengths, enforce_sorted=False)

        padded = found(lambda rnn: rnn(x, lengths=lengths), symbols, felt)
        assert padded != found(lambda rnn: rnn(x), symbols, felt)
        assert found(
            lambda rnn: rnn(x.transpose(0, 1), lengths=lengths), symbols.T, felt.T, batch_first=True
        ) == pytest.approx(padded, abs=1e-12)
        assert found(lambda rnn: rnn(packed(x)), packed(symbols), packed(felt)) == pytest.approx(padded, abs=1e-12)
        single = found(lambda rnn: rnn(x[:, :1]), symbols[:, :1], felt[:, :1])
        assert found(lambda rnn: rnn(x[:, 0]), symbols[:, 0], felt[:, 0]) == pytest.approx(single, abs=1e-12)

    def test_a_state_that_is_given_by_name_counts(self):
        """s_z of the first step depends on it."""
        x = window()
        _, state = network()(window(seed=2))
        shifted = []
        for arguments, named in [
            ((x, state), {}),
            ((x,), {"state": state}),
            ((), {"x": x, "state": state}),
            ((x,), {}),
        ]:
            rnn = network()
            guide = Guide(rnn, rates=RATES)
            with guide:
                rnn(*arguments, **named)
            guide.step()
            shifted.append(biases(rnn))
        assert shifted[0] == shifted[1] == shifted[2]
        assert shifted[0] != shifted[3]

    def test_accumulated_gradients(self):
        """Detectors are steered by the mean of the windows, once."""
        rnn = network()
        optimizer = still(rnn)
        guide = Guide(rnn, optimizer, rates=RATES, weight=0.1, radius=0)
        before, excess = biases(rnn), []
        for i in range(3):
            with guide:
                out, _ = rnn(window(seed=i))
            sums = rnn.detector_sums(window(seed=i), None, out)
            excess.append(torch.stack(excesses(rnn, Seen(out, sums), RATES)))
            guide.loss(uncertainty=window(seed=i)[..., 0])
            assert guide.update == 0
        optimizer.step()
        mean = torch.stack(excess).mean(0)
        expected = [b - FORCE * float(e) for b, e in zip(before, mean, strict=True)]
        assert biases(rnn) == pytest.approx(expected, abs=1e-12)
        assert guide.update == 1
        assert rnn.slope == 1

    @pytest.mark.parametrize(
        "make",
        [
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
            lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
            lambda p: torch.optim.RMSprop(p, lr=0.01),
            lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
        ],
        ids=["sgd", "adamw-fused", "rmsprop", "tensor-lr"],
    )
    def test_other_optimizers(self, make):
        rnn = network(engine="native")
        optimizer = make([*rnn.parameters()])
        guide = Guide(rnn, optimizer, rates=[0.3, 0.1], weight=0.1)
        for i in range(80):
            x = window(20, 8, seed=i)
            out = one_update(rnn, optimizer, guide, lambda net, x=x: net(x), {"uncertainty": x[..., 0]})
        assert 0.15 < out.rates[0] < 0.45
        assert guide.update == 80

    def test_an_optimizer_that_calls_its_model(self):
        rnn = network(engine="native")
        optimizer = torch.optim.LBFGS(rnn.parameters(), max_iter=3)
        guide = Guide(rnn, optimizer, rates=RATES)

        def closure():
            optimizer.zero_grad()
            with guide:
                out, _ = rnn(window())
            loss = out.last.square().mean() + guide.loss()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert guide.update == 1

    @pytest.mark.parametrize("how", ["autocast", "bfloat16", "half weights"])
    def test_mixed_precision(self, how):
        torch.manual_seed(0)
        dtype = torch.bfloat16 if how == "half weights" else torch.float32
        rnn = HMLSTM(5, [32, 32, 32], precision="bfloat16" if how == "bfloat16" else "auto", dtype=dtype)
        optimizer = torch.optim.Adam(rnn.parameters(), lr=0.005)
        guide = Guide(rnn, optimizer, rates=[0.3, 0.1], weight=0.1)
        rates = []
        for i in range(60):
            x = window(20, 8, seed=i).to(dtype)
            with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
                assert rnn.rounds_products == (how != "half weights")
                with guide:
                    out, _ = rnn(x)
                sums = rnn.detector_sums(x, None, out)
                assert sums.dtype == dtype, "detectors are not rounded"
                where = out.operations[..., 0] != 1
                agree = ((sums[..., 0] > 0) == (out.z[..., 0] > 0.5))[where].float().mean()
                assert agree > (0.95 if how == "half weights" else 0.995)
                loss = out.last.float().square().mean() + guide.loss(uncertainty=x[..., 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.append(out.rates)
        assert torch.stack(rates[-10:]).mean(0).tolist() == pytest.approx([0.3, 0.1], abs=0.06)

    def test_a_window_that_is_not_finite_moves_no_detector(self):
        """A gradient scaler skips the step after it: then it is one of two windows."""

        def after(*windows):
            rnn = network()
            optimizer = still(rnn)
            guide = Guide(rnn, optimizer, rates=RATES, radius=0)
            for x in windows:
                with guide:
                    rnn(x)
            optimizer.step()
            return biases(rnn)[0]

        spoiled = window() * float("nan")
        assert after(spoiled) == biases(network())[0]
        assert after(spoiled, window()) == pytest.approx(after(window()), abs=1e-12)

    def test_checkpointed_activations(self):
        """What is recomputed in the backward pass has the same slope."""

        def gradients(run):
            rnn = network(engine="reference")
            guide = Guide(rnn, rates=RATES, weight=0.1)
            guide.update = HELD_BACK_BY // 2
            with guide:
                last = run(lambda x: rnn(x)[0].last, window())
            (last.square().sum() + guide.loss(uncertainty=window()[..., 0])).backward()
            guide.step()
            return [p.grad for p in rnn.parameters()]

        plain = gradients(lambda f, x: f(x))
        recomputed = gradients(lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False))
        torch.testing.assert_close(recomputed, plain, rtol=0, atol=1e-12)

    def test_several_processes(self, tmp_path):
        """Each sees other sequences; both steer alike, by the mean."""
        done = torchrun(__file__, str(tmp_path))
        assert done.returncode == 0, done.stderr
        one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[name], two[name]) for name in one)


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

    def test_an_optimizer_of_something_else(self):
        with pytest.raises(ValueError, match="trains no parameter of this network"):
            Guide(network(), torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0), rates=RATES)

    def test_evaluation(self):
        guide = Guide(network().eval(), rates=RATES)
        with pytest.raises(RuntimeError, match="evaluation mode"), guide:
            pass
        guide.rnn.train()
        with torch.no_grad(), pytest.raises(RuntimeError, match="gradients are disabled"), guide:
            pass

    def test_no_forward_pass(self):
        guide = Guide(network(), rates=RATES)
        with pytest.raises(RuntimeError, match="made no forward pass"), guide:
            guide.rnn.step(window()[0])

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
        rnn(window())
        with pytest.raises(RuntimeError, match="without a forward pass inside `with guide`"):
            optimizer.step()
        with guide:
            rnn(window())
        optimizer.step()
        with pytest.raises(RuntimeError, match="since the last one"):
            guide.step()


def train_in_this_process(folder: str) -> None:
    """One of two processes, with DistributedDataParallel."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    rnn = network(engine="native")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = rnn

        def forward(self, x):
            out, _ = self.rnn(x)
            return out.last, out.steps, out.z

    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    guide = Guide(rnn, optimizer, rates=RATES, weight=0.1)
    for i in range(4):
        x = window(seed=2 * i + rank)
        with guide:
            last, *_ = model(x)
        optimizer.zero_grad()
        (last.square().mean() + guide.loss(uncertainty=x[..., 0])).backward()
        optimizer.step()
    torch.save(rnn.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import sys

    train_in_this_process(sys.argv[1])
