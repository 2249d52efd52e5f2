"""Scores of boundaries, their baselines, and where known boundaries come from."""

from __future__ import annotations

import math
import re
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from nltk.metrics.segmentation import pk as nltk_pk
from nltk.metrics.segmentation import windowdiff

from hmrnn import HMLSTM
from hmrnn.domains.text.classes import CLASSES, symbol_classes
from hmrnn.domains.text.config import PlantedConfig
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.symbols import as_symbols
from hmrnn.domains.text.known import at_separators, from_planted, from_words
from hmrnn.structure.scores import (
    Gold,
    baselines,
    from_lines,
    matched,
    r_value,
    score,
    score_summary,
    score_table,
    scores_of,
    window_errors,
)


def ends(places, length):
    array = np.zeros(length, dtype=bool)
    array[list(places)] = True
    return array


def at_the_end(known):
    """Known ends of a text whose last symbol alone is given."""
    last = ends([len(known) - 1], len(known))
    return Gold(np.asarray(known), last, last)


def places(array):
    return np.flatnonzero(array).tolist()


def test_by_hand():
    gold = at_the_end(ends([2, 5, 8], 10))
    one = score(ends([2, 6, 8, 9], 10), gold)
    assert (one.precision, one.recall, one.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    # Words end at 2, 5, 8, 9; found ones at 2, 6, 8, 9: the first and the last are the same.
    assert one.token_f1 == pytest.approx(2 / 4)
    # Hit rate 2/3, over-segmentation 0.
    assert one.r_value == pytest.approx(1 - (1 / 3 + (1 / 3) / math.sqrt(2)) / 2)
    assert one.rate == pytest.approx(3 / 9)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=60))
def test_window_errors_are_nltks(rows):
    found, known = (np.array(column) for column in zip(*rows, strict=True))
    known[0] |= not known.any()
    window = max(1, round(len(known) / (int(known.sum()) + 1) / 2))
    ours, theirs = ("".join(map(str, array.astype(int))) for array in (found, known))
    expected = (nltk_pk(theirs, ours, window), windowdiff(theirs, ours, window))
    assert window_errors(found, known) == pytest.approx(expected)


def test_the_r_value_punishes_firing_everywhere():
    gold = at_the_end(ends([4, 9], 20))
    # Hit rate 1, over-segmentation 19 / 2 - 1 = 8.5.
    assert score(np.ones(20, dtype=bool), gold).r_value == pytest.approx(1 - (8.5 + 8.5 / math.sqrt(2)) / 2)
    assert score(ends([4, 9], 20), gold).r_value == 1


@pytest.mark.parametrize(
    ("hits", "found", "gold", "r1", "r2"),
    [(1, 4, 2, math.hypot(0.5, 1), -1.5), (1, 1, 4, math.hypot(0.75, 0.75), 0.0), (0, 2, 2, 1.0, -1.0)],
)
def test_the_r_value_by_hand(hits, found, gold, r1, r2):
    """Too many found, of which some are wrong; too few, all of them right; and as many as there are, all wrong."""
    assert r_value(hits, found, gold) == pytest.approx(1 - (r1 + abs(r2) / math.sqrt(2)) / 2)


def test_lines_by_hand():
    """Two lines, of 5 and 4 points: strokes end at 1 and 4, and at 2 and 3. The ends of lines are told to all."""
    known = from_lines([{"stroke": ends([1, 4], 5)}, {"stroke": ends([2, 3], 4)}])
    last, first = known["last of a stroke"], known["first of the next stroke"]
    assert (places(last.ends), places(last.given), places(last.bounds)) == ([1, 7], [4, 8], [4, 8])
    assert (places(first.ends), places(first.given), places(first.bounds)) == ([2, 8], [0, 5, 8], [5, 8])
    assert score(ends([1, 7], 9), last).f1 == score(ends([2, 8], 9), first).token_f1 == 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_by_definition(rows):
    found, known = (np.array(column) for column in zip(*rows, strict=True))
    length = len(rows)
    one = score(found, at_the_end(known))
    a, b = (set(places(array[:-1])) for array in (found, known))
    assert one.precision == pytest.approx(len(a & b) / len(a) if a else 0)
    assert one.recall == pytest.approx(len(a & b) / len(b) if b else 0)
    f1 = 2 * one.precision * one.recall / (one.precision + one.recall) if a & b else 0
    assert one.f1 == pytest.approx(f1)

    def words(cuts):
        edges = [0, *(cut + 1 for cut in sorted(cuts)), length]
        return {tuple(range(edges[i], edges[i + 1])) for i in range(len(edges) - 1)}

    mine, theirs = words(a), words(b)
    assert one.token_f1 == pytest.approx(2 * len(mine & theirs) / (len(mine) + len(theirs)))


def test_forced_true_boundaries_of_the_planted_hierarchy_score_one():
    """A network that is given the true boundaries reports them, and they are all right."""
    made = planted(PlantedConfig(symbols=2000))
    rnn = HMLSTM(3, [4, 4, 4])
    forced = torch.from_numpy(made.boundaries(3)).unsqueeze(1)
    out, _ = rnn(torch.randn(len(made.text), 1, 3), boundaries=forced)
    z = out.z[:, 0].bool().numpy()
    known = from_planted(made, 0, len(made.text))
    for layer, name in enumerate(["word", "phrase"]):
        perfect = score(z[:, layer], known[f"last of a {name}"])
        assert astuple(perfect)[:5] == (1, 1, 1, 1, 1)
        shifted = np.roll(z[:, layer], 1)
        shifted[0] = False
        assert astuple(score(shifted, known[f"first of the next {name}"]))[:5] == (1, 1, 1, 1, 1)
    # Words have 3 letters or more, so none of the shifted ends is an end, and no word is whole.
    late = np.roll(z[:, 0], 1)
    late[0] = False
    wrong = score(late, known["last of a word"])
    assert (wrong.precision, wrong.recall, wrong.f1) == (0, 0, 0)
    assert wrong.token_f1 == 0
    # As many as there are: no over-segmentation, hit rate 0.
    assert wrong.r_value == pytest.approx(1 - (1 + 1 / math.sqrt(2)) / 2)
    # Every second one shifted: the others are hits.
    half = z[:, 0].copy()
    for place in places(z[:-1, 0])[::2]:
        half[place], half[place + 1] = False, True
    n = int(z[:-1, 0].sum())
    assert score(half, known["last of a word"]).recall == pytest.approx((n // 2) / n)


def test_a_stretch_of_the_planted_hierarchy():
    made = planted(PlantedConfig(symbols=3000))
    known = from_planted(made, 1000, 1500)
    assert np.array_equal(known["last of a word"].ends, made.ends[1000:1500, 0])
    assert places(known["first of the next phrase"].ends) == [p + 1 for p in places(made.ends[1000:1499, 1])]


def test_separators_by_three_conventions():
    known = at_separators(" the cat, sat_on 2 mats. ")
    # Runs between words: after the, cat, sat, on, 2. Those at the start and at the end lie between none.
    assert places(known["before"].ends) == [3, 7, 12, 15, 17]
    assert places(known["on"].ends) == [4, 9, 13, 16, 18]
    assert places(known["after"].ends) == [5, 10, 14, 17, 19]
    assert places(known["on"].given) == [24]
    assert all(len(gold.ends) == 0 for gold in at_separators("").values())


@given(st.text("ab ,.é雪\n", max_size=40))
def test_separators_by_definition(text):
    known = at_separators(text)
    before, on, after = (set(places(known[name].ends)) for name in ("before", "on", "after"))
    for i in range(1, len(text)):
        word_ends = text[i - 1].isalnum() and not text[i].isalnum() and any(c.isalnum() for c in text[i:])
        assert (i - 1 in before) == word_ends
        begins = text[i].isalnum() and not text[i - 1].isalnum() and any(c.isalnum() for c in text[:i])
        assert (i in after) == begins == (i - 1 in on)


def test_a_gold_file():
    lines = ["you want to", "", "  see the book "]
    text, known = from_words(lines, newline=False)
    assert text == "youwanttoseethebook"
    assert places(known["last of a word"].ends) == [2, 6, 11, 14]
    assert places(known["first of the next"].ends) == [3, 7, 12, 15]
    assert places(known["last of a word"].given) == [8, 18]
    text, known = from_words(lines, newline=True)
    assert text == "youwantto\nseethebook\n"
    assert places(known["last of a word"].ends) == [2, 6, 12, 15]
    assert places(known["last of a word"].given) == [8, 9, 19, 20]
    perfect = score(known["last of a word"].ends, known["last of a word"])
    assert astuple(perfect)[:5] == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("newline", [False, True])
def test_a_gold_file_is_fair_to_both_conventions(newline):
    text, known = from_words(["ab cd", "ef gh i"], newline)
    words = [(m.start(), m.end()) for m in re.finditer("ab|cd|ef|gh|i", text)]
    on_last, on_first = ends([e - 1 for _, e in words], len(text)), ends([s for s, _ in words], len(text))
    if newline:  # what is fired on a newline does not count
        on_last[text.index("\n")] = on_first[text.index("\n")] = True
    assert astuple(score(on_last, known["last of a word"]))[:5] == (1, 1, 1, 1, 1)
    assert astuple(score(on_first, known["first of the next"]))[:5] == (1, 1, 1, 1, 1)
    for gold in known.values():
        nothing = score(ends([], len(text)), gold)
        assert (nothing.f1, nothing.token_f1) == (0, 0), "no word comes for free"


def test_bytes_beyond_ascii_are_letters():
    content = as_symbols("le café naïve été.".encode())
    found = at_separators(content)["before"]
    upto = [content[: p + 1].encode("ascii", "surrogateescape").decode() for p in places(found.ends)]
    assert upto == ["le", "le café", "le café naïve"]
    assert [CLASSES[k] for k in symbol_classes(as_symbols("été".encode()))] == ["first", *["middle"] * 3, "last"]


@given(st.integers(30, 200), st.integers(1, 20), st.integers(0, 10))
def test_baselines(length, wanted, seed):
    random = np.random.default_rng(seed)
    gold = at_the_end(random.random(length) < 0.3)
    assume(gold.ends[:-1].any())
    found = ends(random.choice(length - 1, wanted, replace=False), length)
    rows = baselines(found, gold)
    rate = gold.ends[:-1].mean()
    assert rows["never"].f1 == 0
    assert (rows["always"].precision, rows["always"].recall) == pytest.approx((rate, 1))
    # The mean of 100 draws of a hypergeometric share
    error = math.sqrt(rate * (1 - rate) / wanted / 100)
    assert rows["random"].precision == pytest.approx(rate, abs=5 * error + 1e-9)
    assert rows["every k-th"].rate == pytest.approx(wanted / (length - 1))
    assert rows["random"].rate == pytest.approx(wanted / (length - 1))
    assert baselines(found, gold) == rows
    assert baselines(np.zeros_like(found), gold)["random"].f1 == 0


def test_a_table_and_a_wrong_length():
    gold = at_the_end(ends([2], 5))
    one = score(ends([2], 5), gold)
    table = score_table({"layer 1": {"on": {"found": one, "never": score(ends([], 5), gold)}}})
    assert "layer 1, on" in table
    assert table.count("1.000") == 5
    assert "window diff" in table
    with pytest.raises(ValueError, match="4 symbols"):
        score(ends([2], 4), gold)


def test_a_line_for_each_layer_names_what_fits_best():
    ends = np.array([False, True, False, True, False, True])
    known = {"last": gold_at(ends), "first": gold_at(np.roll(ends, 1))}
    lines = score_summary(scores_of(np.stack([ends, ~ends], axis=1), known)).splitlines()
    assert lines[0].startswith("layer 1: F1 1.000 (last; random 0.")
    assert lines[1].startswith("layer 2: F1 1.000 (first; random 0.")


def gold_at(ends):
    nothing = np.zeros_like(ends)
    return Gold(ends, nothing, nothing)


def gold_of(length: int, *at: int, bounds: tuple[int, ...] = ()) -> Gold:
    given = ends(bounds, length)
    return Gold(ends(at, length), given, given)


def test_a_margin_takes_what_is_near_and_each_known_end_once():
    gold = gold_of(30, 10, 20)
    found = ends([8, 12, 23], 30)
    assert score(found, gold, 0).f1 == 0
    within = score(found, gold, 2)
    assert (within.precision, within.recall) == pytest.approx((1 / 3, 1 / 2))
    assert score(found, gold, 3).recall == 1
    assert score(gold.ends, gold, 5) == score(gold.ends, gold, 0)


def test_chance_has_the_same_margin():
    gold = gold_of(100, *range(9, 99, 10))
    without, within = (
        scores_of(gold.ends[:, None], {"a": gold}, margin)["layer 1"]["a"]["random"].f1 for margin in (0, 3)
    )
    assert within > 3 * without > 0


def most_pairs(near: np.ndarray) -> int:
    """The size of the largest matching, by trying."""
    if near.shape[0] == 0:
        return 0
    taken = [1 + most_pairs(np.delete(near[1:], column, axis=1)) for column in np.flatnonzero(near[0])]
    return max([most_pairs(near[1:]), *taken])


def test_with_a_margin_there_are_as_many_pairs_as_there_can_be():
    random = np.random.default_rng(0)
    for _ in range(200):
        found, known, margin = random.random(14) < 0.4, random.random(14) < 0.4, int(random.integers(0, 4))
        near = np.abs(np.flatnonzero(found)[:, None] - np.flatnonzero(known)) <= margin
        ours, theirs = matched(found, known, np.zeros(14, dtype=bool), margin)
        assert len(ours) == len(theirs) == most_pairs(near)
        assert len(set(ours.tolist())) == len(set(theirs.tolist())) == len(ours)
        assert (np.abs(ours - theirs) <= margin).all()
        assert found[ours].all()
        assert known[theirs].all()


def test_no_pair_reaches_over_the_end_of_a_line():
    gold = gold_of(20, 11, bounds=(9, 19))
    assert score(ends([8], 20), gold, 3).recall == 0
    assert score(ends([10], 20), gold, 3).recall == 1


def test_a_whole_segment_may_have_its_ends_within_the_margin():
    gold = gold_of(30, 10, 20, bounds=(29,))
    assert score(ends([9, 21], 30), gold, 1).token_f1 == 1
    assert score(ends([9, 21], 30), gold, 0).token_f1 == 0
