"""What a user of torch.nn.LSTM reaches for by habit: it works, or says what to do instead."""

from __future__ import annotations

import inspect
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.nn.parallel import gather, replicate
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence, unpack_sequence

import hmrnn
from hmrnn import HMLSTM, HRNN, LSTM, ClockworkRNN, HMLSTMOutput, HMLSTMState, PackedOutput, Piecewise

ENGINES = ["reference", "events", "native"]
LENGTHS = [4, 7, 1, 5]


def network(engine: str = "native", **options) -> HMLSTM:
    torch.manual_seed(1)
    rnn = HMLSTM(3, [6, 5, 4], engine=engine, dtype=torch.float64, **options)
    with torch.no_grad():
        for parameter in rnn.parameters():
            parameter.normal_()
    rnn.shift_detectors([0.5 - w.b_z for w in rnn.weights()[:-1]])  # so that they fire now and then
    return rnn


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(length, 3, generator=generator, dtype=torch.float64) for length in LENGTHS]


def close(found, expected) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


class TestPacked:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("in_order", [False, True])
    def test_it_is_the_sequences_one_by_one(self, engine, in_order):
        """Outputs, states in and out, boundaries, and every gradient."""
        rnn = network(engine)
        rows = sorted(sequences(), key=len, reverse=True) if in_order else sequences()
        before = rnn(torch.randn(3, 4, 3, dtype=torch.float64))[1].detach()
        x = pack_sequence(rows, enforce_sorted=in_order)
        x = x._replace(data=x.data.requires_grad_())
        out, state = rnn(x, before)
        assert isinstance(out, PackedOutput)
        assert isinstance(out.last, PackedSequence)
        weights = [torch.randn_like(h.data) for h in out.h]
        loss = sum((h.data * w).sum() for h, w in zip(out.h, weights, strict=True)) + state.c[1].square().sum()
        found = torch.autograd.grad(loss, [x.data, *rnn.parameters()])

        weights = [unpack_sequence(x._replace(data=w)) for w in weights]
        expected = 0
        for i, row in enumerate(unpack_sequence(x)):
            own, after = rnn(row.unsqueeze(1), before.select([i]))
            for l, h in enumerate(own.h):
                close(unpack_sequence(out.h[l])[i], h[:, 0])
                expected = expected + (h[:, 0] * weights[l][i]).sum()
            close(unpack_sequence(out.z)[i], own.z[:, 0])
            close(unpack_sequence(out.operations)[i], own.operations[:, 0])
            close(state.select([i]).h, after.h)
            expected = expected + after.c[1].square().sum()
        close(found, torch.autograd.grad(expected, [x.data, *rnn.parameters()]))

    def test_what_a_user_of_lstm_does_next_works(self):
        """`pad_packed_sequence` of what it gave, as with torch.nn.LSTM."""
        x = pack_sequence(sequences(), enforce_sorted=False)
        ours, theirs = network().double()(x)[0].last, nn.LSTM(3, 4, dtype=torch.float64)(x)[0]
        (a, lengths), (b, expected) = pad_packed_sequence(ours), pad_packed_sequence(theirs)
        assert a.shape == b.shape
        assert lengths.tolist() == expected.tolist() == LENGTHS

    def test_an_output_module_reads_its_steps(self):
        from hmrnn import OutputEmbedding

        rnn, embedding = network(), OutputEmbedding([6, 5, 4], 2, dtype=torch.float64)
        out, _ = rnn(pack_sequence(sequences(), enforce_sorted=False))
        close(embedding(out.steps), embedding([Piecewise.from_dense(h.data) for h in out.h]))

    def test_boundaries_that_are_given_are_packed_too(self):
        rnn = HRNN(3, [4, 4], dtype=torch.float64)
        rows = sequences()
        marks = [(torch.arange(len(row)) % 2).double().unsqueeze(1) for row in rows]
        x, given = (pack_sequence(own, enforce_sorted=False) for own in (rows, marks))
        out, _ = rnn(x, boundaries=given)
        close(out.z.data, given.data)
        with pytest.raises(TypeError, match="boundaries must be a PackedSequence"):
            rnn(x, boundaries=given.data)
        with pytest.raises(TypeError, match="pack both"):
            rnn(torch.zeros(2, 4, 3, dtype=torch.float64), boundaries=given)
        with pytest.raises(ValueError, match="batch_sizes differ"):
            rnn(x, boundaries=pack_sequence(marks[:2], enforce_sorted=False))

    def test_lengths_are_not_given_twice(self):
        with pytest.raises(ValueError, match="which knows them"):
            network()(pack_sequence(sequences(), enforce_sorted=False), lengths=LENGTHS)

    def test_a_state_of_another_batch_is_refused(self):
        rnn = network()
        with pytest.raises(ValueError, match=r"state\.h must have shapes"):
            rnn(pack_sequence(sequences(), enforce_sorted=False), rnn.initial_state(5))

    @pytest.mark.parametrize("kind", [LSTM, ClockworkRNN])
    def test_baselines_take_it_too(self, kind):
        rnn = kind(3, [4, 4], dtype=torch.float64)
        out, _ = rnn(pack_sequence(sequences(), enforce_sorted=False))
        close(unpack_sequence(out.last)[1], rnn(sequences()[1])[0].last)


class TestOneSequence:
    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("batch_first", [False, True])
    def test_it_is_a_batch_of_one(self, engine, batch_first):
        rnn, x = network(engine, batch_first=batch_first), sequences()[1]
        out, state = rnn(x[:4])
        out, state = rnn(x[4:], state)
        batch = x.unsqueeze(0) if batch_first else x.unsqueeze(1)
        whole, after = rnn(batch)
        close(out.last, (whole.last[0] if batch_first else whole.last[:, 0])[4:])
        close(out.z, (whole.z[0] if batch_first else whole.z[:, 0])[4:])
        close((state.h, state.c, state.z), (after.select(0).h, after.select(0).c, after.select(0).z))
        assert out.operations.shape == (3, 3)

    def test_symbols(self):
        """A table of vectors and numbers into it."""
        rnn, table = network(), torch.randn(5, 3, dtype=torch.float64)
        numbers = torch.tensor([0, 4, 4, 2])
        close(rnn(Piecewise(table, numbers))[0].last, rnn(table[numbers])[0].last)

    def test_boundaries(self):
        given = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
        assert torch.equal(network()(sequences()[0], boundaries=given)[0].z, given)

    def test_what_belongs_to_a_batch_is_refused(self):
        rnn, x = network(), sequences()[0]
        with pytest.raises(ValueError, match="lengths are those of a batch"):
            rnn(x, lengths=[4])
        with pytest.raises(ValueError, match=r"give state.select\(0\)"):
            rnn(x, rnn.initial_state(1))


class TestSizes:
    @pytest.mark.parametrize("kind", [HMLSTM, HRNN, LSTM, ClockworkRNN])
    def test_one_size_and_a_number_of_layers(self, kind):
        assert kind(16, 64, num_layers=3).hidden_sizes == kind(16, 64, 3).hidden_sizes == (64, 64, 64)
        assert kind(16, [8, 9], num_layers=2).hidden_sizes == (8, 9)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((16, 64), "num_layers"),
            ((16, 64, 0), "num_layers must be a whole number"),
            ((16, [8, 9], 3), "num_layers must be the number of hidden_sizes, 2"),
        ],
    )
    def test_what_does_not_fit(self, arguments, words):
        with pytest.raises(ValueError, match=words):
            HMLSTM(*arguments)

    @pytest.mark.parametrize(
        ("habit", "words"),
        [
            ({"hidden_size": 64}, "give hidden_sizes"),
            ({"proj_size": 8}, "Linear behind the network"),
            ({"bidirectional": True}, "reversed sequence"),
            ({"bias": False}, "detectors need theirs"),
            ({"nonlinearity": "relu"}, "unexpected argument 'nonlinearity'"),
        ],
    )
    def test_habits_that_are_refused_say_why_in_a_line(self, habit, words):
        with pytest.raises(TypeError, match=words) as caught:
            HMLSTM(16, [64, 64], **habit)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", [HMLSTM, LSTM, HRNN, ClockworkRNN])
    @pytest.mark.parametrize("more", [{}, {"num_layers": 3}, {"hidden_sizes": [4, 4]}, {"batch_first": True}])
    def test_the_size_of_lstm_is_refused_with_what_to_give(self, kind, more):
        with pytest.raises(TypeError, match=f"^{kind.__name__} has no hidden_size: give hidden_sizes"):
            kind(input_size=8, hidden_size=16, **more)
        with pytest.raises(TypeError, match="hidden_sizes"):
            kind(8)
        assert inspect.signature(kind).parameters["hidden_sizes"].default is inspect.Parameter.empty

    def test_a_network_of_ones_own_may_have_a_hidden_size(self):
        class Own(HMLSTM):
            def __init__(self, inputs, hidden_size):
                super().__init__(inputs, [hidden_size] * 2)

        class Passing(HMLSTM):
            def __init__(self, **options):
                super().__init__(4, [options["hidden_size"]] * 2)

        assert Own(4, hidden_size=8).hidden_sizes == Passing(hidden_size=8).hidden_sizes == (8, 8)

    def test_defaults_of_lstm_are_taken(self):
        HMLSTM(16, 64, num_layers=2, bias=True, batch_first=True, dropout=0.1, bidirectional=False, proj_size=0)


class TestOutput:
    def test_last_is_the_top_layer(self):
        out, _ = network()(torch.randn(6, 2, 3, dtype=torch.float64))
        last = out.last
        assert torch.equal(last, out.h[-1])
        again, _ = network()(torch.randn(6, 2, 3, dtype=torch.float64))
        assert again.h[-1] is again.last, "written out once"

    @pytest.mark.parametrize("use", [list, lambda out: out[0], lambda out: out[:, -1], lambda out: dict([*out])])
    @pytest.mark.parametrize("packed", [False, True])
    def test_who_takes_it_for_a_tensor_is_told(self, use, packed):
        x = pack_sequence(sequences(), enforce_sorted=False) if packed else sequences()[0]
        with pytest.raises(TypeError, match=r"no tensor: \.last .*\.h\b"):
            use(network()(x)[0])

    @pytest.mark.parametrize("packed", [False, True])
    def test_so_is_who_computes_with_it(self, packed):
        x = pack_sequence(sequences(), enforce_sorted=False) if packed else sequences()[0]
        out, _ = network()(x)
        for use in (nn.Linear(4, 2), torch.relu, lambda out: torch.cat([out])):
            with pytest.raises(TypeError, match=r"is no tensor: \.last"):
                use(out)
        for use in (lambda out: out.shape, lambda out: out.size(0), lambda out: out.contiguous()):
            with pytest.raises(AttributeError, match=r"is no tensor: \.last"):
                use(out)
        with pytest.raises(AttributeError, match=r"Output has no attribute 'lats'$"):
            getattr(out, "lats")  # noqa: B009

    def test_a_state_is_no_pair(self):
        rnn, x = network(), sequences()[0]
        with pytest.raises(TypeError, match=r"no pair \(h, c\): \.h and \.c"):
            _, (_h, _c) = rnn(x)
        with pytest.raises(TypeError, match=r"must be an HMLSTMState, as initial_state\(\) gives it; got tuple"):
            rnn(x.unsqueeze(1), (torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)))

    def test_rates_count_steps_that_are_not_padded(self):
        rnn = network()
        x = torch.randn(9, 3, 3, dtype=torch.float64)
        out, _ = rnn(x)
        assert out.rates.tolist() == pytest.approx(out.z.mean((0, 1)).tolist())
        assert ((out.rates > 0) & (out.rates < 1)).all()
        lengths = [9, 2, 5]
        out, _ = rnn(x, lengths=lengths)
        assert out.rates.tolist() == pytest.approx((out.z.sum((0, 1)) / 16).tolist())
        packed, _ = rnn(nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False))
        assert torch.equal(packed.rates, out.rates)
        step, _ = rnn.step(x[0])
        assert step.rates.shape == (2,)
        assert LSTM(3, [4, 4])(torch.randn(5, 3))[0].rates.shape == (0,)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_outputs_and_states_are_trees(self, engine):
        out, state = network(engine)(torch.randn(6, 2, 3, dtype=torch.float64))
        for node, kind in ((out, HMLSTMOutput), (state, HMLSTMState), (out.steps[1], Piecewise)):
            leaves, spec = pytree.tree_flatten(node)
            assert leaves
            assert all(isinstance(leaf, torch.Tensor) for leaf in leaves), "None and settings are no leaves"
            again = pytree.tree_unflatten(leaves, spec)
            assert type(again) is kind
            assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec
            assert str(pytree.tree_flatten_with_path(node)[0][0][0][0]).startswith(".")
        detached = pytree.tree_map(torch.Tensor.detach, out)
        close(detached.h, out.h)
        assert not detached.z.requires_grad
        assert detached.steps[0].in_order == out.steps[0].in_order
        packed, _ = network(engine)(pack_sequence(sequences(), enforce_sorted=False))
        close(pytree.tree_map(lambda leaf: leaf, packed).last.data, packed.last.data)


class Tensors(nn.Module):
    """A model that gives tensors."""

    def __init__(self, rnn: HMLSTM) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out, state = self.rnn(x)
        return out.last, state.c[0]


class TestSurroundings:
    """What else a program does to a module and its thread."""

    def gradients(self, rnn, run) -> list[torch.Tensor]:
        rnn.zero_grad()
        run(rnn, torch.randn(9, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)))
        return [parameter.grad.clone() for parameter in rnn.parameters()]

    @staticmethod
    def plainly(rnn, x):
        out, state = rnn(x)
        (out.last.square().sum() + state.c[0].sum()).backward()

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_checkpointed_activations(self, engine, reentrant):
        """Computed again in the backward pass: the same gradients, also with dropout."""

        def run(rnn, x):
            torch.manual_seed(3)
            if reentrant:  # torch sees tensors only, and not what an output holds
                last, c = torch.utils.checkpoint.checkpoint(tensors, rnn, x.requires_grad_(), use_reentrant=True)
            else:
                out, state = torch.utils.checkpoint.checkpoint(rnn, x, use_reentrant=False)
                last, c = out.last, state.c[0]
            (last.square().sum() + c.sum()).backward()

        def tensors(rnn, x):
            out, state = rnn(x)
            return out.last, state.c[0]

        def kept(rnn, x):
            torch.manual_seed(3)
            self.plainly(rnn, x)

        rnn = network(engine, dropout=0.3, weight_drop=0.2)
        close(self.gradients(rnn, run), self.gradients(rnn, kept))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_another_number_of_threads_between_forward_and_backward(self, engine):
        def run(rnn, x):
            before = torch.get_num_threads()
            try:
                torch.set_num_threads(3)
                out, state = rnn(x)
                torch.set_num_threads(1)
                (out.last.square().sum() + state.c[0].sum()).backward()
            finally:
                torch.set_num_threads(before)

        rnn = network(engine)
        close(self.gradients(rnn, run), self.gradients(rnn, self.plainly))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_called_with_other_weights(self, engine):
        rnn, other = network(engine), HMLSTM(3, [6, 5, 4], engine=engine, dtype=torch.float64)
        x = sequences()[1]
        found, _ = torch.func.functional_call(rnn, dict(other.named_parameters()), (x,))
        close(found.last, other(x)[0].last)
        found.last.sum().backward()
        assert all(parameter.grad is None for parameter in rnn.parameters())
        assert other.layers[0].W.grad is not None

    @pytest.mark.parametrize("engine", ENGINES)
    def test_replicas_of_data_parallel(self, engine, monkeypatch):
        """As it makes them on several GPUs, here on the CPU: each reads a part of the rows, in a thread of its own."""

        def copies(tensors, devices, detach=False):
            return [[tensor.clone() for tensor in tensors] for _ in devices]

        monkeypatch.setattr(sys.modules["torch.nn.parallel.replicate"], "_broadcast_coalesced_reshape", copies)

        def run(rnn, x):
            model = Tensors(rnn)
            with ThreadPoolExecutor(2) as pool:
                parts = list(pool.map(lambda m, x: m(x), replicate(model, [0, 1]), x.split([1, 2], dim=1)))
            last, c = (torch.cat(part, dim) for part, dim in zip(zip(*parts, strict=True), (1, 0), strict=True))
            (last.square().sum() + c.sum()).backward()

        rnn = network(engine)
        close(self.gradients(rnn, run), self.gradients(rnn, self.plainly))

    def test_data_parallel_gathers_tensors_only(self):
        rnn, x = network(), torch.randn(4, 2, 3, dtype=torch.float64)
        alone = nn.DataParallel(rnn, dim=1)(x)[0]  # without GPUs it calls the network
        close(alone.last, rnn(x)[0].last)
        for part, told in ((0, "is no tensor"), (1, "is no pair")):
            with pytest.raises(TypeError, match=told):
                gather([rnn(x)[part], rnn(x)[part]], torch.device("cpu"))

    def test_backward_in_another_thread(self):
        from threading import Thread

        def run(rnn, x):
            out, state = rnn(x)
            worker = Thread(target=(out.last.square().sum() + state.c[0].sum()).backward)
            worker.start()
            worker.join()

        rnn = network()
        close(self.gradients(rnn, run), self.gradients(rnn, self.plainly))


def documented() -> list[tuple[str, Any]]:
    """The public names, and what the public classes have of their own."""
    found = [(name, getattr(hmrnn, name)) for name in hmrnn.__all__]
    for name, kind in list(found):
        if inspect.isclass(kind):
            found += [(f"{name}.{own}", getattr(kind, own)) for own in vars(kind) if not own.startswith("_")]
    kinds = (inspect.isroutine, inspect.isclass, inspect.isdatadescriptor)
    return [(name, one) for name, one in found if any(is_one(one) for is_one in kinds)]


def test_docstrings_are_sentences():
    for name, one in documented():
        text = inspect.getdoc(one) or ""
        assert not re.match(r"(Of|Those|The same|That of|In a line)\b", text), (name, text)
        assert text or name.split(".")[-1] not in ("forward", "step", "loss", "generate", "segment"), name
