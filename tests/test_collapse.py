"""Detectors that fire never or always are warned of: once, in training only, and nobody waits for it."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.utils._pytree as pytree

import hmrnn.collapse
from hmrnn import HMLSTM, HRNN
from hmrnn.collapse import EVERY, LONG, CollapseAlarm, CollapseWarning


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(hmrnn.collapse, "LONG", 6)
    monkeypatch.setattr(hmrnn.collapse, "EVERY", 2)


def said(rnn: HMLSTM, passes: int = 60, **call) -> list[warnings.WarningMessage]:
    x = torch.randn(5, 3, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(passes):
            rnn(x, **call)
    return caught


@pytest.mark.parametrize(
    ("bias", "how", "remedy"),
    [(-9.0, "never", "a higher boundary_bias"), (9.0, "always", "a lower boundary_bias")],
)
def test_it_is_told_once_for_each_detector_with_what_to_do(bias, how, remedy):
    rnn = HMLSTM(4, [6, 5, 4], boundary_bias=bias)
    first, second = said(rnn)
    assert first.category is CollapseWarning
    assert f"layer 1 has fired almost {how}" in str(first.message)
    assert "hmrnn.Guide" in str(first.message)
    assert remedy in str(first.message)
    assert "layer 2" in str(second.message)
    assert said(rnn) == []


def test_the_span_is_long():
    assert LONG * EVERY == 2000
    assert CollapseAlarm(1).watch.span == "12 forward passes", "as the fixture above has it"


def test_detectors_that_decide_are_left_in_peace():
    torch.manual_seed(0)
    rnn = HMLSTM(4, [6, 5])
    assert 0.01 < rnn(torch.randn(5, 3, 4))[0].rates[0] < 0.99
    assert said(rnn) == []


def test_not_where_it_is_not_trained():
    assert said(HMLSTM(4, [6, 5], boundary_bias=-9.0).eval()) == []
    assert said(HRNN(4, [6, 5]), boundaries=torch.zeros(5, 3, 1)) == []
    silent = HMLSTM(4, [6, 5], boundary_bias=-9.0)
    silent.warn_collapse = False
    assert said(silent) == []


def test_numbers_that_may_not_be_asked_for_are_not(monkeypatch):
    """Inside torch.func, and on a device that has none."""
    monkeypatch.setattr(hmrnn.collapse, "EVERY", 1)
    rnn = HMLSTM(4, [6, 5], boundary_bias=-9.0, engine="reference")
    outs = torch.func.vmap(lambda x: pytree.tree_map(torch.Tensor.clone, rnn(x)[0]))(torch.randn(30, 5, 3, 4))
    assert outs.z.shape == (30, 5, 3, 1)
    away = HMLSTM(4, [6, 5], device="meta")
    for _ in range(30):
        away(torch.zeros(5, 3, 4, device="meta"))
