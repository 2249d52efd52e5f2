"""The teacher that reads rates, delay and layers off a text: against counting by hand, and on texts whose words are
known."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_runs import UPDATES, Killed, killed_at, metrics, same_weights
from support.small_runs import settings as run_settings

from hmrnn import TextModel
from hmrnn.domains.text.config import PlantedConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.guidance import branching
from hmrnn.guidance.branching import PAST, Branching, bits_of_ends, tables_of
from hmrnn.guidance.cuts import DOUBT, Text, cheapest, entropy_after, keys_of
from hmrnn.guidance.last_three import LastThree
from hmrnn.training import run as runs
from hmrnn.training.checkpoint import load_run
from hmrnn.training.loop import Training
from hmrnn.training.run import train_run
from hmrnn.training.teachers import TEACHER, load_teacher

texts = st.lists(st.integers(0, 2), min_size=2, max_size=40)


def no_hard_ends(symbols):
    return Text(np.array(symbols), 3, np.zeros(len(symbols), dtype=bool))


def f1(found, known):
    return 2 * (found & known).sum() / (found.sum() + known.sum())


@given(texts, st.integers(1, 4))
def test_the_entropy_of_what_follows(symbols, length):
    follows: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    padded = [3] * (length - 1) + symbols
    contexts = [tuple(padded[i : i + length]) for i in range(len(symbols))]
    for context, after in zip(contexts, symbols[1:], strict=False):
        follows[context][after] += 1
    expected = [
        -sum(n / after.total() * math.log2(n / after.total()) for n in after.values())
        for after in (follows[context] for context in contexts)
    ]
    assert entropy_after(np.array(symbols), length, 3).tolist() == pytest.approx(expected)


@given(texts, st.data())
def test_the_bits_of_a_cut(symbols, data):
    """The text as tokens, and each distinct segment spelled once: its symbols and its end, each after the one before
    it, in counts of all spellings that leave this pair out."""
    cut = np.array(data.draw(st.lists(st.booleans(), min_size=len(symbols), max_size=len(symbols))))
    cut[-1] = True
    segments, start = [], 0
    for end in np.flatnonzero(cut) + 1:
        segments.append(tuple(symbols[start:end]))
        start = end
    tokens = Counter(segments)
    bits = sum(-n * math.log2(n / len(segments)) for n in tokens.values())
    spelled = [part for segment in tokens for part in (*segment, "end")]
    parts, pairs, befores = Counter(spelled), Counter(pairwise(["end", *spelled])), Counter(["end", *spelled[:-1]])
    for before, part in pairwise(["end", *spelled]):
        share = (parts[part] - 1 + DOUBT / 4) / (len(spelled) - 1 + DOUBT)
        bits -= math.log2((pairs[before, part] - 1 + DOUBT * share) / (befores[before] - 1 + DOUBT))
    assert no_hard_ends(symbols).bits(cut) == pytest.approx(bits)


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 10**6))
def test_the_cheapest_cut_of_all(steps, longest, seed):
    """Against every cut that there is, in two stretches of unequal length."""
    draw = np.random.default_rng(seed)
    costs = draw.random((steps + 3, longest)).astype(np.float32)
    stops = [3, steps + 3]
    found = cheapest(costs, np.array([0, 3]), np.array(stops))

    def cost(ends):
        total = 0.0
        for end, start in zip(ends, [0, *(e for e in ends)], strict=False):
            if end - start > longest or any(start < stop < end for stop in stops):
                return math.inf
            total += float(costs[end - 1, end - start - 1])
        return total

    inside = [i for i in range(1, steps + 3) if i != 3]
    every = (sorted([*some, *stops]) for n in range(len(inside) + 1) for some in combinations(inside, n))
    assert cost((np.flatnonzero(found) + 1).tolist()) == pytest.approx(min(map(cost, every)), rel=1e-5)


@settings(max_examples=30)
@given(texts, st.data())
def test_to_cut_again_uses_segments_of_the_first_cut_or_single_symbols(symbols, data):
    cut = np.array(data.draw(st.lists(st.booleans(), min_size=len(symbols), max_size=len(symbols))))
    hard = np.array(data.draw(st.lists(st.booleans(), min_size=len(symbols), max_size=len(symbols))))
    text = Text(np.array(symbols), 3, hard)
    cut |= text.hard

    def segments(ends):
        places = (np.flatnonzero(ends) + 1).tolist()
        return {tuple(symbols[a:b]) for a, b in zip([0, *places], places, strict=False)}

    again = text.cut_again(cut, with_lexicon=data.draw(st.booleans()))
    assert again[text.hard].all()
    assert all(len(one) == 1 or one in segments(cut) for one in segments(again))


def test_a_symbol_that_is_no_segment_costs_what_it_would_cost_to_add_it():
    """Pairs of independent symbols: as tokens they have as many bits as their symbols, so that alone decides."""
    pairs = np.random.default_rng(0).permutation(np.arange(16).repeat(8))
    symbols = np.stack([pairs // 4, pairs % 4], axis=1).ravel()
    cut = np.arange(len(symbols)) % 2 == 1
    text = Text(symbols, 4, np.zeros(len(symbols), dtype=bool))
    assert (text.cut_again(cut, with_lexicon=False) == cut).all()


def test_ends_that_nothing_predicts_cost_a_bit_each():
    """Though no run of symbols occurs twice, so that each would be predicted by itself."""
    random = np.random.default_rng(0)
    numbers, ends = random.integers(0, 10**6, 2000), random.random(2000) < 0.5
    assert bits_of_ends(numbers, ends, 10**6) == pytest.approx(1, abs=0.02)


def test_a_rare_segment_falls_apart_where_its_spelling_counts():
    draw = np.random.default_rng(0)
    words, tokens = draw.integers(0, 20, size=(40, 5)), draw.integers(0, 40, size=600)
    tokens[[0, 1, 300, 301]] = 0, 1, 0, 1
    symbols = words[tokens].ravel()
    cut = np.arange(len(symbols)) % 5 == 4
    joined = np.array([4, 1504])  # twice, these two words are one segment
    cut[joined] = False
    text = Text(symbols, 20, np.zeros(len(symbols), dtype=bool))
    assert not text.cut_again(cut, with_lexicon=False)[joined].any()
    again = text.cut_again(cut, with_lexicon=True)
    assert again[joined].all()
    assert text.bits(again) < text.bits(cut)


def test_a_run_of_one_symbol_may_be_a_segment():
    """Blanks of a table: with one symbol of context an end follows each of them, or none."""
    draw = np.random.default_rng(0)
    words = draw.integers(1, 20, size=(30, 4))
    lines = [np.append(words[draw.integers(30)], np.zeros(draw.choice([1, 8]))) for _ in range(800)]
    symbols = np.concatenate(lines).astype(np.int64)
    text = Text(symbols, 20, np.zeros(len(symbols), dtype=bool))
    evidence = {key: bits for key, bits in branching.all_evidence(text).items() if key == (1, "forward")}
    start = branching.best_start(text, evidence, 0.3)
    assert start.cut[symbols == 0].any()
    assert not start.cut[:-1][(symbols[:-1] == 0) & (symbols[1:] == 0)].any()


@given(st.lists(st.integers(0, 0x10FFFF), min_size=1, max_size=30), st.integers(1, 4))
def test_runs_of_any_alphabet_are_told_apart(symbols, length):
    keys = keys_of(np.array(symbols), length).tolist()
    spelled = [tuple(symbols[i : i + length]) for i in range(len(symbols) - length + 1)]
    assert len(set(zip(keys, spelled, strict=True))) == len(set(keys)) == len(set(spelled))


@given(texts, st.data())
def test_evidence_is_how_often_a_segment_ended_after_the_last_symbols(symbols, data):
    """Of the longest run that occurred twice, each share drawn towards that of the run shorter by one."""
    ends = data.draw(st.lists(st.booleans(), min_size=len(symbols), max_size=len(symbols)))
    read = data.draw(st.lists(st.integers(0, 2), min_size=PAST, max_size=12))
    tables = tables_of(np.array(symbols), np.array(ends), 3)
    teacher = Branching((0.3,), 0, 1, "forward", 1.0, tables)
    padded = [3] * PAST + symbols

    def share(run):
        """After a run, by hand."""
        if not run:
            return sum(ends) / len(ends)
        seen = [e for i, e in enumerate(ends) if tuple(padded[i + 1 + PAST - len(run) : i + 1 + PAST]) == run]
        shorter = share(run[1:])
        return shorter if len(seen) < 2 else (sum(seen) + DOUBT * shorter) / (len(seen) + DOUBT)

    found = teacher.evidence(np.array([read, read]).T)
    for i, row in enumerate(found):
        run = tuple(read[i : i + PAST])
        known = [n for n in range(1, PAST + 1) if share_is_known(run[-n:], padded, len(symbols))]
        expected = share(run[-max(known) :]) if known else 0.0
        assert row.tolist() == pytest.approx([expected] * 2, abs=1e-6)


def share_is_known(run, padded, count):
    return sum(tuple(padded[i + 1 + PAST - len(run) : i + 1 + PAST]) == run for i in range(count)) > 1


def made_words(seed: int, letters: int, lengths: tuple[int, int], words: int = 200, tokens: int = 6_000):
    """A text of words drawn by Zipf's law, some to a line, with nothing between them: symbols, and where words end."""
    draw = np.random.default_rng(seed)
    lexicon = [draw.integers(letters, size=draw.integers(lengths[0], lengths[1] + 1)) for _ in range(words)]
    share = 1 / np.arange(1, words + 1)
    symbols, ends = [], []
    for word in draw.choice(words, tokens, p=share / share.sum()):
        symbols += lexicon[word].tolist()
        ends += [False] * (len(lexicon[word]) - 1) + [True]
        if draw.random() < 0.2:
            symbols.append(letters)  # the line's end
            ends.append(True)
    return np.array(symbols), np.array(ends)


@pytest.mark.parametrize(
    ("letters", "lengths", "least"),
    [(30, (2, 6), 0.85), (40, (1, 4), 0.8), (3000, (1, 3), 0.85), (25, (6, 14), 0.85)],
    ids=["letters", "phonemes", "thousands of characters", "long words"],
)
def test_words_of_any_language_are_found_without_being_told_how_long_they_are(letters, lengths, least):
    symbols, ends = made_words(1, letters, lengths)
    hierarchy = branching.best_hierarchy(symbols, letters + 1, letters, branching.RATES)
    assert f1(hierarchy.cuts[0], ends) > least
    assert hierarchy.cuts[0][symbols == letters].all(), "nothing goes on after a line's end"
    assert hierarchy.rates[0] == pytest.approx(ends.mean(), rel=0.35)


@pytest.mark.parametrize("words", [15, None], ids=["phrases of words", "phrases of letters"])
def test_the_lowest_layer_spells_the_lexicon_above_it_with_the_fewest_bits(words):
    """Or there is none."""
    draw = np.random.default_rng(0)
    letters = draw.integers(0, 20, size=(words, 5))[draw.integers(0, words, size=(60, 3))] if words else None
    phrases = draw.integers(0, 20, size=(60, 15)) if letters is None else letters.reshape(60, 15)
    symbols = phrases[draw.integers(0, 60, size=900)].ravel()
    text = Text(symbols, 20, np.zeros(len(symbols), dtype=bool))
    place = np.arange(len(symbols)) % 15
    cuts = [np.isin(place, ends) for ends in ([14], [7, 14], [4, 9, 14], [2, 4, 7, 9, 12, 14])]
    assert branching.best_below(text, cuts[0], cuts) == (2 if words else None)


def test_the_bits_of_a_hierarchy_whose_lowest_layer_is_that_of_another():
    """Its own: tokens of the upper layer, their distinct segments in tokens of the lower one, and those in symbols."""
    symbols = np.random.default_rng(0).integers(0, 4, size=(9, 12))[np.random.default_rng(1).integers(0, 9, 80)].ravel()
    text, place = Text(symbols, 4, np.zeros(len(symbols), dtype=bool)), np.arange(len(symbols)) % 12
    fine, coarse, top = (np.isin(place, ends) for ends in ([3, 7, 11], [5, 11], [11]))
    start = branching.Start(text, coarse, 1, "forward")
    two = branching.Hierarchy(start, (coarse, top))
    found = branching.with_lowest(two, branching.Hierarchy(start, (fine,)))
    below = text.lexicon(fine)
    above = Text(below.tokens, len(below.keys), np.zeros(len(below.tokens), dtype=bool))
    expected = sum(above.code(above.lexicon(top[below.places]))) + text.code(below)[1]
    assert found.bits == pytest.approx(expected / len(text)) != pytest.approx(two.bits)
    assert branching.with_lowest(two, None).bits == pytest.approx(text.bits(top) / len(text))


@pytest.mark.parametrize("seed", [0, 1])
def test_words_and_phrases_of_the_planted_hierarchy(seed):
    made = planted(PlantedConfig(symbols=60_000, seed=seed))
    numbers = np.frombuffer(made.text.encode(), dtype=np.uint8) - ord("a")
    found = branching.best_hierarchy(numbers.astype(np.int64), 20, None, branching.RATES)
    assert f1(found.cuts[0], made.ends[:, 0]) > 0.88
    assert f1(found.cuts[1], made.ends[:, 1]) > 0.93
    assert found.rates[1] == pytest.approx(made.ends[:, 1].mean(), rel=0.1)


def test_words_with_spaces_have_no_layer_above_them_and_end_on_the_space():
    symbols, ends = made_words(2, 26, (2, 7))
    between = ends[:-1] & (symbols[:-1] != 26) & (symbols[1:] != 26)
    spaced = np.insert(symbols, np.flatnonzero(between) + 1, 27)
    teacher = Branching.of(spaced, 28, line_end=26)
    assert len(teacher.rates) == 1
    assert teacher.delay == 0
    evidence = teacher.evidence(spaced[:, None])[:, 0]
    assert (evidence[spaced[PAST - 1 :] == 27] > 0.9).all()


def test_a_detector_waits_for_the_next_symbol_only_where_that_tells_much():
    symbols, ends = made_words(1, 40, (1, 4))
    teacher = Branching.of(symbols, 41, line_end=40)
    assert teacher.delay == 1
    evidence = teacher.evidence(np.concatenate([np.full(PAST - 1, 41), symbols])[:, None])[:, 0]
    first_of_the_next = np.roll(ends, 1)
    assert evidence[first_of_the_next].mean() > 2 * evidence[~first_of_the_next].mean(), "it is taught to fire there"


def test_a_rate_that_is_given_stays():
    symbols, _ = made_words(1, 30, (2, 6), tokens=3000)
    assert Branching.of(symbols, 31, line_end=30, rate=0.1).rates == (0.1,)


def test_detectors_of_a_rate_that_is_given_learn_its_own_layer_and_not_the_one_above():
    symbols, _ = made_words(1, 30, (2, 6))
    ends = branching.build(branching.starts(Text(symbols, 31, symbols == 30), [0.52])[0]).cuts
    assert len(ends) == 2
    taught = Branching.of(symbols, 31, line_end=30, rate=0.52).evidence(symbols[:, None])
    assert taught.mean() == pytest.approx(ends[0].mean(), rel=0.05)


@settings(max_examples=30, deadline=None)
@given(texts)
def test_short_texts_are_taken_too(symbols):
    teacher = Branching.of(np.array(symbols, dtype=np.uint8), 3)
    assert 0 < teacher.rates[0] <= 1
    evidence = teacher.evidence(np.array(symbols * PAST)[:, None])
    assert ((evidence >= 0) & (evidence <= 1)).all()


def test_a_text_of_nothing_is_refused():
    with pytest.raises(ValueError, match="symbols must not be empty"):
        Branching.of(np.zeros(0, dtype=np.uint8), 3)


TEXT = [0, 1, 2, 2] * 50


@pytest.mark.parametrize(
    "symbols", [TEXT, tuple(TEXT), torch.tensor(TEXT), torch.tensor(TEXT, dtype=torch.uint8), np.array(TEXT, np.uint16)]
)
def test_a_text_may_be_an_array_a_tensor_or_a_list(symbols):
    expected, found = Branching.of(np.array(TEXT), 3), Branching.of(symbols, np.int64(3))
    assert found.description() == expected.description()
    assert found.alphabet == expected.alphabet == 3


@pytest.mark.parametrize(
    ("error", "symbols", "words"),
    [
        (ValueError, np.array([0, 5] * 300), "lie between 0 and 2, in an alphabet of 3; got 5"),
        (ValueError, [0, -1], "lie between 0 and 2, in an alphabet of 3; got -1"),
        (ValueError, torch.zeros(4, 2).long(), r"as Symbols.encode gives them; got shape \(4, 2\)"),
        (ValueError, 3, r"got shape \(\)"),
        (ValueError, [], "not be empty"),
        (TypeError, torch.rand(9), "as Symbols.encode gives them; got Tensor of float32"),
        (TypeError, [True, False], "got list of bool"),
        (TypeError, "the cat", "got str of <U7"),
        (TypeError, None, "got NoneType of object"),
    ],
)
def test_what_is_no_text_is_refused(error, symbols, words):
    with pytest.raises(error, match=f"^symbols must .*{words}"):
        Branching.of(symbols, 3)


@pytest.mark.parametrize("alphabet", [0, 2.5, "3", None])
def test_what_is_no_alphabet_is_refused(alphabet):
    with pytest.raises(ValueError, match="alphabet must be a whole number"):
        Branching.of(TEXT, alphabet)


def test_its_state_is_all_of_it():
    symbols, _ = made_words(1, 30, (2, 6), tokens=2000)
    teacher = Branching.of(symbols, 31, line_end=30)
    again = Branching.from_state_dict(teacher.state_dict())
    assert again.description() == teacher.description()
    assert (again.evidence(symbols[:500, None]) == teacher.evidence(symbols[:500, None])).all()
    keys, empty = teacher.state_dict()["keys2"], {"keys": np.zeros(0, np.int64), "shares": np.zeros(0, np.float32)}
    for wrong in (
        {"chosen": np.array([7.0, 1, 0, 1, 0.2])},
        {"chosen": np.array([0.0, np.inf, 0, 1, 0.2])},
        {"shares1": teacher.tables[0].shares + 2},
        {"keys2": keys[::-1].copy()},
        {f"{name}{length}": own for name, own in empty.items() for length in range(PAST + 1, 1000)},
    ):
        with pytest.raises(ValueError, match="teacher"):
            Branching.from_state_dict({**teacher.state_dict(), **wrong})


# In a run


def test_a_run_keeps_what_was_chosen_and_does_not_choose_again(text_file, tmp_path, monkeypatch):
    run = run_settings(text_file)
    train_run(run, tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(Training, "make_update", killed_at(UPDATES // 2))
        with pytest.raises(Killed):
            train_run(run, tmp_path / "killed")
    kept = (tmp_path / "killed" / TEACHER).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Branching, "of", None)  # whoever chooses again fails
        train_run(run, tmp_path / "killed", resume=True)
    assert same_weights(tmp_path / "straight", tmp_path / "killed")
    assert metrics(tmp_path / "straight") == metrics(tmp_path / "killed")
    assert (tmp_path / "killed" / TEACHER).read_bytes() == kept == (tmp_path / "straight" / TEACHER).read_bytes()
    teacher = load_teacher(tmp_path / "killed", run)
    assert TextModel.from_pretrained(tmp_path / "killed" / "best").delay == teacher.delay


def test_detectors_are_steered_to_the_rates_that_were_found(text_file, tmp_path):
    run = run_settings(text_file, epochs=0.1)
    train_run(run, tmp_path / "run")
    saved, data = load_run(tmp_path / "run"), load_text(run.data)
    teacher = load_teacher(tmp_path / "run", run)
    training = runs.prepare(saved, data, "auto", runs.Processes())
    assert training.guide.targets[0] == teacher.rates[0]
    told = training.task.loss(0, torch.Generator()).uncertainty()
    train = data.split("train").astype(np.int64)
    for row, start in enumerate(training.task.streams(0).starts[1:], start=1):
        expected = teacher.evidence(train[start - PAST + 1 : start + 10, None])[:, 0]
        entropy = told[:, row, 1]
        assert told[:, row, 0].numpy() == pytest.approx(expected, abs=1e-3 + 1e-4 * float(entropy.max()))


def test_a_text_may_have_more_layers_than_the_network(text_file, tmp_path, monkeypatch):
    teacher = replace(Branching.of(TEXT, 60), rates=(0.5, 0.3, 0.2, 0.1))
    monkeypatch.setattr(Branching, "of", lambda *_: teacher)
    train_run(run_settings(text_file, hidden_sizes=(8, 7), epochs=0.1), tmp_path / "run")
    assert len(load_teacher(tmp_path / "run", run_settings(text_file)).rates) == 4


def test_a_run_from_before_there_were_teachers_goes_on_with_three_symbols(text_file, tmp_path, monkeypatch):
    run = run_settings(text_file, target_rate=0.18, epochs=1.0)
    monkeypatch.setattr(branching, "WORTH", math.inf)  # no delay: there was none
    train_run(run, tmp_path / "run")
    (tmp_path / "run" / TEACHER).unlink()
    seen = []
    make = Training.make_update

    def watched(self, stop, checkpoint):
        seen.append((type(self.task.teacher), self.guide.targets))
        return make(self, stop, checkpoint)

    monkeypatch.setattr(Training, "make_update", watched)
    train_run(run_settings(text_file, target_rate=0.18, epochs=1.5), tmp_path / "run", resume=True)
    assert seen[0] == (LastThree, [0.18, 0.045])


def test_a_run_without_its_teacher_is_refused(text_file, tmp_path):
    run = run_settings(text_file, epochs=0.1)
    train_run(run, tmp_path / "run")
    path = tmp_path / "run" / TEACHER
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match=f"{TEACHER}.*damaged"):
        train_run(run, tmp_path / "run", resume=True)
    path.unlink()
    with pytest.raises(ValueError, match=f"{TEACHER} is missing"):
        train_run(run, tmp_path / "run", resume=True)


@pytest.mark.parametrize("changes", [{"guided_updates": 0}, {"model": "lstm"}, {"boundary": "sample"}])
def test_what_is_not_guided_needs_no_teacher(text_file, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(Branching, "of", None)
    train_run(run_settings(text_file, epochs=0.1, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / TEACHER).exists()
