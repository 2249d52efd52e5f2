"""The reference engine against an oracle written from the paper."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from support import oracle
from support.networks import Case, cases

from hmrnn import Operation


def expected(case: Case):
    """The oracle's answer for each row of a case."""
    rnn, call = case.network(), case.call()
    layers = [
        {name: None if w is None else w.tolist() for name, w in weights._asdict().items()} for weights in rnn.weights()
    ]
    state = call["state"] or rnn.initial_state(case.B)
    uniforms = None
    if case.boundary == "sample":
        shape = (case.T, case.B, len(case.hidden_sizes) - 1)
        uniforms = torch.rand(shape, generator=call["generator"]).double()
    for row in range(case.B):
        length = case.T if call["lengths"] is None else int(call["lengths"][row])
        yield (
            row,
            length,
            oracle.run(
                layers,
                call["x"][:length, row].tolist(),
                [h[row].tolist() for h in state.h],
                [c[row].tolist() for c in state.c],
                state.z[row].tolist(),
                slope=case.slope,
                hold=case.options["copy_boundary"] == "hold",
                uniforms=None if uniforms is None else uniforms[:, row].tolist(),
                given=None if call["boundaries"] is None else call["boundaries"][:, row].tolist(),
            ),
        )


def close(ours: torch.Tensor, theirs: list[float]) -> bool:
    return torch.allclose(ours, torch.tensor(theirs, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@given(cases())
@settings(max_examples=300)
def test_reference_is_the_paper(case):
    out, state = case.network()(**case.call())
    for row, length, history in expected(case):
        for t, (h, _, z, operations) in enumerate(history):
            assert all(close(out.h[l][t, row], h[l]) for l in range(len(h)))
            assert out.z[t, row].tolist() == z
            assert [Operation(o).name for o in out.operations[t, row].tolist()] == operations
        if history:
            h, c, z, _ = history[-1]
            assert all(close(state.h[l][row], h[l]) and close(state.c[l][row], c[l]) for l in range(len(h)))
            assert state.z[row].tolist() == z
        assert (out.operations[length:, row] == Operation.COPY).all()


def test_the_cases_cover_every_operation_and_rate():
    """The comparison above means something only if all operations occur in all layers, at rates from 0 to 1."""
    seen, rates = set(), set()
    for seed in range(40):
        for bias in (-50.0, 0.0, 50.0):
            case = Case(4, [5, 4, 3], T=8, B=3, seed=seed, bias=bias, options={"copy_boundary": "recompute"})
            out, _ = case.network()(**case.call())
            seen |= {(l, int(o)) for l in range(3) for o in out.operations[..., l].unique()}
            rates.add(round(out.z.mean().item(), 1))
    first = {(0, Operation.UPDATE), (0, Operation.FLUSH)}
    last = {(2, Operation.UPDATE), (2, Operation.COPY)}
    assert seen == first | {(1, o) for o in Operation} | last
    assert {0.0, 0.5, 1.0} <= rates
