"""`Guide` with what else a training loop has: layouts, optimizers, precisions, processes."""

from __future__ import annotations

import gc

import pytest
import torch
from support.guided import RATES, Marks, biases, network, still, window
from support.small_runs import torchrun
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from hmrnn import HMLSTM, Guide
from hmrnn.guidance.guide import FORCE, HELD_BACK_BY
from hmrnn.guidance.steering import Seen, excesses


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
    torch.distributed.barrier()
    del model, optimizer, guide, last  # what wraps a module keeps gloo's threads, which must not outlive the group
    gc.collect()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import sys

    train_in_this_process(sys.argv[1])
