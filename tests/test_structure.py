"""The structure of a text: operations, detector values, segments, trees, and how they are written."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hmrnn import COPY, Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.data.symbols import numbered
from hmrnn.domains.text.structure import Segmentation, follow
from hmrnn.domains.text.written import write_json, write_marked
from hmrnn.structure import segments as module
from hmrnn.structure.operations import Steps, Updates, updates
from hmrnn.structure.segments import Segment, segments
from hmrnn.structure.written import Counted

TEXT = "the cat sat on the mat. the dog sat too.\n" * 2
SYMBOLS = Symbols.of("ab")


def small(model="hm-lstm", symbols=None, **options) -> TextModel:
    torch.manual_seed(3)
    sizes = {"hidden_sizes": options.pop("hidden_sizes", (9, 8, 7)), "output_size": 7, "embedding_size": 4}
    return TextModel(symbols or Symbols.of(TEXT), TextModelConfig(model, **sizes, **options)).double()


def steps_of(model: TextModel, *cuts: int, hidden: bool = False) -> Steps:
    numbers = model.symbols.encode(TEXT)
    return Steps.joined(read.steps(hidden) for read in follow(model, numbers.tensor_split(cuts)))


@pytest.mark.parametrize("kind", ["hm-lstm", "lstm", "clockwork", "hrnn"])
def test_steps_are_what_the_model_put_out(kind):
    model = small(kind)
    numbers = model.symbols.encode(TEXT)
    out, _ = model(numbers.unsqueeze(1), boundaries=model.boundaries(numbers.unsqueeze(1)))
    steps = steps_of(model, hidden=True)
    assert torch.equal(steps.operations, out.rnn.operations[:, 0])
    assert torch.equal(steps.z, out.rnn.z[:, 0] > 0.5)
    torch.testing.assert_close(steps.norms, torch.stack([h[:, 0].norm(dim=-1) for h in out.rnn.h], dim=-1))
    for mine, h in zip(steps.h, out.rnn.h, strict=True):
        torch.testing.assert_close(mine, h[:, 0])
    assert math.isnan(steps.surprisal[0])
    assert steps.surprisal[1:].mean().item() == pytest.approx(model.bits_per_character(TEXT), rel=1e-6)
    log_p = out.logits[:-1, 0].log_softmax(-1)
    expected = [-log_p[t, numbers[t + 1]].item() / math.log(2) for t in range(len(TEXT) - 1)]
    assert steps.surprisal[1:].tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", ["hm-lstm", "hrnn"])
@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=4).map(sorted))
def test_a_text_in_pieces_is_the_same_text(kind, cuts):
    model = small(kind)
    whole, parts = steps_of(model, hidden=True), steps_of(model, *cuts, hidden=True)
    for name in ("inputs", "operations", "z", "z_tilde", "norms", "surprisal"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), equal_nan=True, rtol=1e-9, atol=1e-12)
    for a, b in zip(parts.h, whole.h, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("slope", [1.0, 2.5])
def test_detector_values(slope):
    """In a soft network that recomputes z in every step, z is z~: the reference engine's own value."""
    model = small(boundary="soft", copy_boundary="recompute", boundary_bias=(0.1, -0.2))
    model.rnn.slope = slope
    numbers = model.symbols.encode(TEXT)
    out, _ = model(numbers.unsqueeze(1))
    steps = steps_of(model, 13, 40)
    torch.testing.assert_close(steps.z_tilde, out.rnn.z[:, 0], rtol=0, atol=1e-12)
    assert out.rnn.z.std() > 0


@pytest.mark.parametrize("copy_boundary", ["hold", "recompute"])
def test_a_boundary_is_where_the_detector_is_above_one_half(copy_boundary):
    model = small(copy_boundary=copy_boundary, boundary_bias=0.05)
    steps = steps_of(model)
    active = steps.operations[:, :-1] != COPY if copy_boundary == "hold" else torch.ones_like(steps.z)
    assert torch.equal(steps.z, (steps.z_tilde > 0.5) & active)
    assert 0 < steps.z.double().mean() < 1


def test_updates_as_the_paper_counts():
    operations = torch.full((270, 3), COPY)
    operations[:, 0], operations[:56, 1], operations[:9, 2] = 0, 0, 2
    count = updates(operations)
    assert (count.layers, count.all) == ((270, 56, 9), 810)
    assert count.saved == pytest.approx(1 - 335 / 810)
    assert count + Updates((1, 1, 1), 1) == Updates((271, 57, 10), 271)


# Segments


def made(z: list[list[int]], text: str, *cuts: int) -> list[Steps]:
    """Steps with given boundaries."""
    numbers, fired = SYMBOLS.encode(text), torch.tensor(z, dtype=torch.bool).view(len(text), -1)
    parts, start = [], 0
    for part, ends in zip(numbers.tensor_split(cuts), fired.tensor_split(cuts), strict=True):
        rest = [torch.zeros(len(part), 1)] * 4
        parts.append(Steps(start, part, rest[0], ends, *rest[1:], h=None))
        start += len(part)
    return parts


BOUNDARIES = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=n, max_size=n),
        st.text("ab", min_size=n, max_size=n),
        st.lists(st.integers(0, n), max_size=3).map(sorted),
    )
)


@given(BOUNDARIES)
def test_segments_partition_the_text(case):
    z, text, cuts = case
    found = list(segments(made(z, text, *cuts), SYMBOLS.decode))
    assert found == [s for s in segments(made(z, text), SYMBOLS.decode)]
    for layer in (1, 2):
        own = [s for s in found if s.layer == layer]
        assert "".join(s.text for s in own) == text
        assert [s.start for s in own] == [0, *(s.end for s in own)][:-1]
        assert [s.end - 1 for s in own if s.closed] == [t for t, row in enumerate(z) if row[layer - 1]]
        assert all(s.closed for s in own[:-1])


@given(BOUNDARIES)
def test_the_tree_holds_every_segment_once_and_nests(case):
    z, text, _ = case
    (steps,) = made(z, text)
    found = list(segments([steps], SYMBOLS.decode))
    layers = tuple(tuple(s for s in found if s.layer == layer) for layer in (1, 2))
    seen = []

    def walk(segment: Segment) -> None:
        seen.append((segment.layer, segment.start, segment.end))
        for child in segment.children:
            assert child.layer < segment.layer
            assert segment.start <= child.start
            assert child.end <= segment.end
            walk(child)

    roots = Segmentation(steps, layers, SYMBOLS).tree()
    for root in roots:
        walk(root)
    assert sorted(seen) == sorted((s.layer, s.start, s.end) for s in found)
    for root in roots:
        if root.layer == 1:  # it lies in no segment of layer 2
            assert not any(s.start <= root.start and root.end <= s.end for s in layers[1])


def test_a_tree_by_hand():
    z = [[0, 0], [1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 0]]
    (steps,) = made(z, "abababa")
    found = list(segments([steps], SYMBOLS.decode))
    layers = tuple(tuple(s for s in found if s.layer == layer) for layer in (1, 2))
    tree = Segmentation(steps, layers, SYMBOLS).tree()
    shape = [(s.layer, s.start, s.end, [(c.start, c.end) for c in s.children]) for s in tree]
    # The second segment of layer 2 ends in the middle of one of layer 1, which then stands beside it.
    assert shape == [(2, 0, 4, [(0, 2), (2, 4)]), (1, 4, 6, []), (2, 4, 5, []), (2, 5, 7, [(6, 7)])]


def test_a_very_long_segment_has_no_text(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_TEXT", 5)
    z = [[0]] * 30
    z[3] = z[9] = z[14] = [1]
    found = list(segments(made(z, "ab" * 15, 2, 8, 20), SYMBOLS.decode))
    assert [s.text for s in found] == ["abab", None, "ababa", None]
    assert [(s.start, s.end) for s in found] == [(0, 4), (4, 10), (10, 15), (15, 30)]


def test_vectors_are_the_states_at_the_boundaries():
    model = small(boundary_bias=0.05)
    found = model.segment(TEXT, vectors=True)
    out, _ = model(model.symbols.encode(TEXT).unsqueeze(1))
    closed = [s for layer in found.layers for s in layer if s.closed]
    assert closed
    for s in closed:
        torch.testing.assert_close(s.vector, out.rnn.h[s.layer - 1][s.end - 1, 0])
    assert all(s.vector is None for layer in model.segment(TEXT).layers for s in layer)
    assert found.text == TEXT
    assert found.updates == updates(out.rnn.operations[:, 0])
    with pytest.raises(ValueError, match="empty"):
        model.segment("")


# Written out


def test_marked_text_and_json_say_the_same():
    model = small(boundary_bias=0.05)
    found = model.segment(TEXT)
    marked, written = io.StringIO(), io.StringIO()
    pieces = model.symbols.encode(TEXT).split(7)
    write_marked(model, Counted(follow(model, pieces)), marked)
    write_json(model, Counted(read.steps() for read in follow(model, pieces)), written)
    assert marked.getvalue().replace("|", "").replace("‖", "").rstrip("\n") == TEXT.rstrip("\n")
    marks = ["|" * row[0] + "‖" * row[1] for row in found.steps.z.tolist()]
    assert marked.getvalue().rstrip("\n") == "".join(a + b for a, b in zip(TEXT, marks, strict=True)).rstrip("\n")
    answer = json.loads(written.getvalue())
    assert (answer["format_version"], answer["unit"], answer["symbols"]) == (1, "character", len(TEXT))
    assert answer["updates"]["layers"] == list(found.updates.layers)
    assert answer["updates"]["all"] == 3 * len(TEXT)
    by_layer = [s for layer in found.layers for s in layer]
    keys = ("layer", "start", "end", "closed", "text")
    expected = sorted(({key: getattr(s, key) for key in keys} for s in by_layer), key=str)
    assert sorted(answer["segments"], key=str) == expected


def test_json_with_vectors_and_of_nothing():
    model, out = small(boundary_bias=0.05), io.StringIO()
    write_json(model, Counted(read.steps(hidden=True) for read in follow(model, [model.symbols.encode(TEXT)])), out)
    sizes = {(s["layer"], len(s["vector"])) for s in json.loads(out.getvalue())["segments"] if s["closed"]}
    assert sizes <= {(1, 9), (2, 8)}
    assert sizes
    out = io.StringIO()
    write_json(model, Counted([]), out)
    assert json.loads(out.getvalue())["segments"] == []


def test_bytes():
    content = "naïve café ".encode() * 5
    model = small(symbols=Symbols.of(content), boundary_bias=0.05)
    found = model.segment(content)
    assert found.layers[0][-1].end == len(content)
    out = io.StringIO()
    write_marked(model, Counted(follow(model, [model.symbols.encode(content)])), out)
    assert out.getvalue().replace("|", "").replace("‖", "").rstrip("\n") == content.decode()


def test_memory_does_not_grow_with_the_text(tmp_path):
    """Peak memory of processes that segment 16,000 and 200,000 symbols from a pipe, most in one segment of layer 2."""
    model = small(boundary_bias=(0.05, -3.0))
    model.float().save_pretrained(tmp_path)
    code = (
        "import sys; from hmrnn.cli import main; sys.argv = ['hmrnn', 'segment', sys.argv[1], '--format', 'json'];"
        "main(); status = open('/proc/self/status').read();"
        "print(int(status.split('VmHWM:')[1].split()[0]) // 1024, file=sys.stderr)"
    )
    peaks = []
    for times in (200, 2500):
        command = [sys.executable, "-c", code, str(tmp_path)]
        done = subprocess.run(command, input=(TEXT * times).encode(), capture_output=True, check=True)
        answer = json.loads(done.stdout)
        assert answer["symbols"] == len(TEXT) * times
        assert [s["text"] for s in answer["segments"] if s["layer"] == 2][-1] is None
        peaks.append(int(done.stderr.split()[-1]))
    assert peaks[1] < peaks[0] + 20


@given(st.text(st.sampled_from("abé雪"), max_size=30), st.integers(1, 5))
def test_numbers_from_a_stream(text, size):
    content, symbols = text.encode(), Symbols.of("abé雪")
    chunks = (content[i : i + size] for i in range(0, len(content), size))
    parts = list(numbered(chunks, symbols, "error", "it"))
    assert symbols.decode(torch.cat(parts)) == text
    spoilt = content + b"x"
    chunks = (spoilt[i : i + size] for i in range(0, len(spoilt), size))
    with pytest.raises(ValueError, match=rf"it: the symbol 'x' .* at position {len(text)} "):
        list(numbered(chunks, symbols, "error", "it"))


def found_in(z: list[list[int]], delay: int = 0) -> Segmentation:
    """Of boundaries that are given: (T, layers)."""
    fires = torch.tensor(z, dtype=torch.bool)
    steps = steps_with(fires)
    return Segmentation(steps, module.by_layer([steps], SYMBOLS.decode, delay), SYMBOLS)


def steps_with(fires: torch.Tensor) -> Steps:
    T, detectors = fires.shape
    each = torch.zeros(T, detectors + 1)
    return Steps(
        start=0,
        inputs=torch.zeros(T, dtype=torch.int64),
        z=fires,
        operations=each.to(torch.int8),
        z_tilde=fires.double(),
        norms=each,
        surprisal=torch.zeros(T),
        h=None,
    )


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_snapped_tree_nests(z):
    """Children fill their parent, and upper segments end where they did, or later, at the end of one below."""
    found = found_in([list(map(int, step)) for step in z])
    roots = found.tree(snap=True)
    assert roots[0].start == 0
    assert roots[-1].end == len(z)
    assert all(one.layer == 3 for one in roots)

    def check(segment):
        if segment.layer > 1:
            assert [child.layer for child in segment.children] == [segment.layer - 1] * len(segment.children)
            assert segment.children[0].start == segment.start
            assert segment.children[-1].end == segment.end
            ends = [child.end for child in segment.children]
            assert [child.start for child in segment.children[1:]] == ends[:-1]
        assert segment.text == "a" * (segment.end - segment.start)
        for child in segment.children:
            check(child)

    for root in roots:
        check(root)
    lowest = {one.end for one in found.layers[0]}
    for layer in (1, 2):
        snapped = {one.end for one in module.snapped(found.layers, found.text_of)[layer]}
        assert snapped <= lowest
    wanted = {min(end for end in lowest if end >= one.end) for one in found.layers[1]}
    assert {one.end for one in module.snapped(found.layers, found.text_of)[1]} == wanted


def test_layers_that_do_not_nest():
    """Layer 2 fires at the second step and, asked again, at the third, inside a segment of layer 1."""
    found = found_in([[0, 0], [1, 1], [0, 1], [0, 0], [1, 0], [1, 1]])
    assert [(s.start, s.end) for s in found.layers[1]] == [(0, 2), (2, 3), (3, 6)]
    assert [(s.layer, s.start, s.end) for s in found.tree()] == [(2, 0, 2), (1, 2, 5), (2, 2, 3), (2, 3, 6)]
    snapped = found.tree(snap=True)
    assert [(s.start, s.end, [(c.start, c.end) for c in s.children]) for s in snapped] == [
        (0, 2, [(0, 2)]),
        (2, 5, [(2, 5)]),
        (5, 6, [(5, 6)]),
    ]


def test_a_delay_moves_ends_before_the_symbol_on_which_detectors_fire():
    found = found_in([[1], [0], [0], [1], [0], [1]], delay=1)
    assert [(s.start, s.end, s.closed) for s in found.layers[0]] == [(0, 3, True), (3, 5, True), (5, 6, False)]
    model = small(symbols=SYMBOLS, boundary_delay=1)
    steps = steps_with(torch.tensor([[1, 0], [0, 0], [0, 0], [1, 1]], dtype=torch.bool))
    out = io.StringIO()
    write_marked(model, Counted([steps]), out)
    assert out.getvalue() == "aaa|‖a\n", "before the first symbol nothing has ended"
