"""Pen strokes: points, the plain format, IAM-OnDB as it is published, how lines are divided, and batches of them."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hmrnn.domains.strokes.config import StrokeDataConfig, WritingConfig
from hmrnn.domains.strokes.data import iam
from hmrnn.domains.strokes.data import lines as handwriting
from hmrnn.domains.strokes.data.lines import load_strokes
from hmrnn.domains.strokes.data.points import (
    from_strokes,
    read_json_lines,
    to_json,
    to_strokes,
)
from hmrnn.domains.vectors.data import shuffled
from hmrnn.training.batches import (
    NO_LINE,
    Epochs,
    LineBatches,
    cut,
    windows,
)

# Points

coordinates = st.floats(-1e6, 1e6, width=32)
strokes = st.lists(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=6), min_size=1, max_size=5)


@given(strokes)
def test_strokes_become_points_and_strokes_again(drawn):
    points = from_strokes(drawn)
    assert points.shape == (sum(map(len, drawn)), 3)
    assert points[0, :2].tolist() == [0, 0]
    assert points[:, 2].sum() == len(drawn)
    again = to_strokes(points)
    assert [len(stroke) for stroke in again] == [len(stroke) for stroke in drawn]
    first = np.array(drawn[0][0])
    for ours, theirs in zip(again, drawn, strict=True):
        assert np.abs(ours - (np.array(theirs) - first)).max() <= len(points) / 16, "each offset is one float32"


def test_points_by_hand():
    points = from_strokes([[[10, 20], [13, 24]], [[13, 30]], [], [[0, 0], [1, 1]]])
    expected = [[0, 0, 0], [3, 4, 1], [0, 6, 1], [-13, -30, 0], [1, 1, 1]]
    assert points.tolist() == expected
    assert [stroke.tolist() for stroke in to_strokes(points[:-1])][-1] == [[-10, -20]], "an open stroke is the last"


def test_json_lines():
    content = b"[[[1, 2], [3.5, 4]], [[0, 0]]]\n\n  [[[7, 7]]]  \n"
    first, second = read_json_lines(io.BytesIO(content), "mine.jsonl")
    assert first.tolist() == [[0, 0, 0], [2.5, 2, 1], [-3.5, -4, 1]]
    assert second.tolist() == [[0, 0, 1]]
    assert json.loads(to_json(first)) == [[[0, 0], [2.5, 2]], [[-1, -2]]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"[[[1, 2]", "line 2 is not a list of strokes"),
        (b'{"x": 1}', "must be a list of strokes"),
        (b"[[1, 2]]", "a point must be two numbers"),
        (b"[[[1, 2, 3]]]", "a point must be two numbers"),
        (b'[[["1", 2]]]', "a point must be two numbers"),
        (b"[[[true, 2]]]", "a point must be two numbers"),
        (b"[[[NaN, 2]]]", "coordinates must lie between"),
        (b"[[[1e300, 2]]]", "coordinates must lie between"),
        (b"[]", "there is no point in it"),
        (b"[[]]", "there is no point in it"),
        (b"\xff\xfe", "line 2 is not a list of strokes"),
        (b"[" * 100_000, "line 2 is not a list of strokes"),
        (b"[[[1" + b"0" * 5000 + b", 2]]]", "line 2 is not a list of strokes"),
    ],
)
def test_what_is_no_list_of_strokes_is_refused_by_its_line(tmp_path, line, what):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"[[[1, 2], [3, 4]]]\n" + line + b"\n")
    with pytest.raises(ValueError, match=what) as caught:
        load_strokes(StrokeDataConfig(str(path)))
    assert str(path) in str(caught.value)


@given(st.floats(1e-4, 1e4))
def test_json_lines_keep_any_unit(scale):
    points = from_strokes([[[scale * x, scale * x * x] for x in range(8)]])
    (again,) = read_json_lines([to_json(points).encode()], "")
    assert np.abs(again - points)[:, :2].max() <= 1e-5 * 49 * scale


# IAM-OnDB

XML = """<?xml version="1.0" encoding="ISO-8859-1"?>
<WhiteboardCaptureSession>
  <WhiteboardDescription><SensorLocation corner="top_left"/></WhiteboardDescription>
  <StrokeSet>{}</StrokeSet>
</WhiteboardCaptureSession>
"""


def xml(number: int, points: int) -> str:
    """A line of two strokes whose points tell its number."""
    marks = [f'<Point x="{900 + number * i}" y="{3000 + i}" time="1.{i}"/>' for i in range(points)]
    half = points // 2
    return XML.format(
        f"<Stroke colour='black'>{''.join(marks[:half])}</Stroke><Stroke>{''.join(marks[half:])}</Stroke>"
    )


@pytest.fixture
def unpacked(tmp_path) -> Path:
    """30 lines of 10 forms, as the archive unpacks them; every fifth is short."""
    for number in range(30):
        form = f"a{number // 10:02}-{number // 3:03}u"
        folder = tmp_path / "lineStrokes" / form[:3] / form[:7]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{form}-{number % 3 + 1:02}.xml").write_text(xml(number, 299 if number % 5 == 0 else 300 + number))
    (tmp_path / "lineStrokes" / ".DS_Store").write_bytes(b"\0\1")
    return tmp_path


@pytest.fixture
def packed(unpacked, tmp_path_factory, monkeypatch) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    with tarfile.open(folder / iam.ARCHIVE, "w:gz") as archive:
        archive.add(unpacked / "lineStrokes", "lineStrokes")
    trust(monkeypatch, folder)
    return folder


def trust(monkeypatch, folder: Path) -> None:
    monkeypatch.setattr(iam, "SHA256", hashlib.sha256((folder / iam.ARCHIVE).read_bytes()).hexdigest())


def iam_data(folder: Path, **changes) -> handwriting.StrokeData:
    return load_strokes(StrokeDataConfig("iam-ondb", **changes), folder)


def test_archive_and_folder_are_the_same(unpacked, packed):
    folder, archive = iam_data(unpacked), iam_data(packed)
    assert sorted(folder.lines.names) == sorted(archive.lines.names)
    assert len(folder.lines.names) == 30
    assert folder.short == archive.short == 6
    places = {name: i for i, name in enumerate(archive.lines.names)}
    for i, name in enumerate(folder.lines.names):
        assert np.array_equal(folder.lines.line(i), archive.lines.line(places[name]))
    names = [
        {part: {data.lines.names[i] for i in own} for part, own in data.splits.items()} for data in (folder, archive)
    ]
    assert names[0] == names[1], "the division does not hang on the order of the files"
    line = folder.lines.line(folder.lines.names.index("a00-000u-02"))
    assert line[:3].tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert np.flatnonzero(line[:, 2]).tolist() == [149, 300]
    assert not (packed / "lineStrokes").exists(), "nothing is unpacked"


def test_lines_are_read_once(packed, monkeypatch):
    first = iam_data(packed)
    assert isinstance(first.lines.points, np.memmap)
    with monkeypatch.context() as patch:
        patch.setattr(iam, "read", lambda path: pytest.fail("it is in the cache"))
        again = iam_data(packed)
    assert np.array_equal(first.lines.points, again.lines.points)
    assert again.fingerprint == first.fingerprint


def test_a_changed_line_in_the_folder_is_seen(unpacked):
    before = iam_data(unpacked).fingerprint
    path = next((unpacked / "lineStrokes").rglob("*.xml"))
    path.write_text(xml(77, 400))
    assert iam_data(unpacked).fingerprint != before


@pytest.mark.parametrize("damage", ["points.bin", "meta.json"])
def test_a_damaged_cache_is_made_again(packed, damage):
    before = np.array(iam_data(packed).lines.points)
    for path in Path(os.environ["HMRNN_CACHE"]).rglob(damage):
        with path.open("r+b") as file:
            file.truncate(10)
    assert np.array_equal(iam_data(packed).lines.points, before)


def test_a_damaged_line_is_named_and_counted(unpacked):
    files = sorted((unpacked / "lineStrokes").rglob("*.xml"))
    files[3].write_text(xml(3, 400)[:500])
    files[4].write_text(XML.format("<Stroke><Point x='1'/></Stroke>"))
    files[5].write_text(XML.format("<Stroke><Point x='1' y='high'/></Stroke>"))
    files[6].write_text(XML.format(""))
    files[7].write_text(XML.format("").replace("ISO-8859-1", "foo"))
    files[8].unlink()
    files[8].mkdir()
    data = iam_data(unpacked)
    assert len(data.lines.names) == 24
    assert len(data.lines.damaged) == 6
    told = data.description()
    assert "6 are damaged" in told
    for path in files[3:9]:
        assert str(path.relative_to(unpacked)) in told
    assert iam_data(unpacked).description() == told, "from the cache, too"
    files[8].rmdir()
    for path in files:
        path.write_text("<")
    with pytest.raises(ValueError, match="no line of handwriting can be read"):
        iam_data(unpacked)


def test_what_is_not_there_or_not_whole(tmp_path, packed, monkeypatch):
    with pytest.raises(ValueError, match=r"lineStrokes-all\.tar\.gz .*lineStrokes .*heia-fr\.ch.*data_dir"):
        iam_data(tmp_path / "nowhere")
    (tmp_path / "empty" / "lineStrokes").mkdir(parents=True)
    with pytest.raises(ValueError, match="no line of handwriting"):
        iam_data(tmp_path / "empty")
    content = (packed / iam.ARCHIVE).read_bytes()
    (packed / iam.ARCHIVE).write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match="not the published file: its sha256"):
        iam_data(packed)
    trust(monkeypatch, packed)
    with pytest.raises(ValueError, match="damaged"):
        iam_data(packed)


def test_division_by_writer(unpacked):
    lists = {
        "trainset.txt": "a00-000u\n a00-001u a00-002u",
        "testset_v.txt": " a01-003u\n",
        "testset_f.txt": "a01-004u",
    }
    with pytest.raises(ValueError, match=r"trainset\.txt.*by writer"):
        iam_data(unpacked, division="by-writer")
    for name, content in lists.items():
        (unpacked / name).write_text(content)
    data = iam_data(unpacked, division="by-writer")
    forms = {part: {data.lines.names[i][:8] for i in own} for part, own in data.splits.items()}
    assert forms == {"train": {"a00-000u", "a00-001u", "a00-002u"}, "valid": {"a01-003u"}, "test": {"a01-004u"}}
    assert data.unlisted == 24 - sum(map(len, data.splits.values()))
    assert f"{data.unlisted} are in none of the lists" in data.description()
    with pytest.raises(ValueError, match="by-writer is for iam-ondb"):
        StrokeDataConfig("builtin", division="by-writer")


def test_the_published_set(real_data):
    data = load_strokes(StrokeDataConfig("iam-ondb"), real_data / "iam_ondb")
    assert len(data.lines.names) == 12_195
    assert data.lines.damaged == []
    lengths = data.lines.lengths[data.numbers("all")]
    assert len(lengths) == 11_628
    assert lengths.mean() == pytest.approx(648.4, abs=0.05)
    assert lengths.min() == 300
    assert [len(own) for own in data.splits.values()] == [10_465, 581, 582]
    by_writer = load_strokes(StrokeDataConfig("iam-ondb", division="by-writer"), real_data / "iam_ondb")
    writers = {part: {by_writer.lines.names[i] for i in own} for part, own in by_writer.splits.items()}
    assert all(len(names) > 1000 for names in writers.values())
    assert sum(map(len, writers.values())) + by_writer.unlisted == 11_628


# How lines are divided


def test_shares_are_those_of_the_paper():
    parts = shuffled([f"line {i}" for i in range(11_628)], np.ones(11_628, dtype=bool), 0)
    assert [len(part) for part in parts.values()] == [10_465, 581, 582]
    assert np.array_equal(np.sort(np.concatenate([*parts.values()])), np.arange(11_628))
    other = shuffled([f"line {i}" for i in range(11_628)], np.ones(11_628, dtype=bool), 1)
    assert not np.array_equal(parts["test"], other["test"])


@pytest.mark.parametrize("lines", [3, 4, 19, 20, 21, 39, 100])
def test_few_lines_are_divided_too(lines):
    parts = shuffled([str(i) for i in range(lines)], np.ones(lines, dtype=bool), 0)
    assert all(len(part) for part in parts.values())
    assert sum(map(len, parts.values())) == lines


def test_too_few_lines_are_refused(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("[[[0, 0], [1, 1]]]\n" * 2 + "[[[0, 0]]]\n")
    with pytest.raises(ValueError, match=r"2 of 3 .*\btrain.*shortest"):
        load_strokes(StrokeDataConfig(str(path)))
    path.write_text("\n")
    with pytest.raises(ValueError, match="empty"):
        load_strokes(StrokeDataConfig(str(path)))
    with pytest.raises(ValueError, match=r"nothing: there is no such file .*iam-ondb, builtin"):
        load_strokes(StrokeDataConfig(str(tmp_path / "nothing")))
    with pytest.raises(ValueError, match="not a regular file"):
        load_strokes(StrokeDataConfig(str(tmp_path)))


def test_builtin_lines():
    data = load_strokes(StrokeDataConfig(writing=WritingConfig(lines=40)))
    assert [len(part) for part in data.splits.values()] == [36, 2, 2]
    assert data.short == data.unlisted == 0
    assert "left out" not in data.description()


# Batches


@given(st.integers(2, 5000), st.integers(1, 400))
def test_windows_cover_a_line_and_are_alike(longest, most):
    cuts = windows(longest, most)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == longest - 1, "every point but the first is predicted"
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(cuts))
    sizes = [end - start for start, end in cuts]
    assert max(sizes) <= most
    assert len(cuts) <= -(-(longest - 1) // most), "no more than needed"
    assert len(set(sizes[:-1])) <= 1


@given(
    st.lists(st.integers(2, 60), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(1, 25),
    st.integers(0, 99),
    st.none() | st.tuples(st.integers(0, 2), st.integers(1, 60)),
)
@settings(max_examples=80)
def test_an_epoch_predicts_every_point_of_every_line_once(lengths, rows, window, seed, late):
    lines = [np.full((length, 3), number, dtype=np.float32) for number, length in enumerate(lengths)]
    for number, line in enumerate(lines):
        line[:, 0] = np.arange(len(line))
        line[:, 1] = number
    batches = LineBatches(np.array(lengths), rows, window, seed, late)
    for epoch in range(4):
        seen, last = {number: 0 for number in range(len(lines))}, None
        for update in range(batches.epochs.updates(epoch), batches.epochs.updates(epoch + 1)):
            own, start, end = batches.at(update)
            assert end - start <= (window if late is None or epoch < late[0] else late[1])
            assert batches.epochs.place(update)[0] == epoch
            assert len(own) == rows
            assert start == 0 or (last is not None and np.array_equal(last[0], own) and last[1] == start)
            last = (own, end)
            part = cut([lines[i] if i != NO_LINE else lines[0][:0] for i in own], start, end)
            assert part.points.shape == (end - start + 1, rows, 3)
            for row, number in enumerate(own):
                n = int(part.lengths[row])
                if number == NO_LINE:
                    assert n == 0
                    continue
                assert part.points[: n + 1, row, 0].tolist() == list(range(start, start + n + 1)) or n == 0
                seen[int(number)] += n
            assert part.count == part.counted.sum()
        assert seen == {number: length - 1 for number, length in enumerate(lengths)}


def test_epochs_that_get_shorter():
    epochs = Epochs(10, late_from=3, late=4)
    assert [epochs.at(update) for update in (0, 5, 29, 30, 32, 34)] == [0, 0.5, 2.9, 3, 3.5, 4]
    assert [epochs.place(update) for update in (0, 29, 30, 33, 34)] == [(0, 0), (2, 9), (3, 0), (3, 3), (4, 0)]
    assert [epochs.updates(number) for number in (0, 2.95, 3, 3.5, 5)] == [0, 30, 30, 32, 38]
    assert [update for update in range(1, 39) if epochs.is_multiple(update, 0.5)] == [
        5,
        10,
        15,
        20,
        25,
        *range(30, 39, 2),
    ]
    assert [update for update in range(1, 39) if Epochs(10).is_multiple(update, 1.0)] == [10, 20, 30]
    assert all(Epochs(10).is_multiple(update, 0.001) for update in range(5)), "at most once an update"


def test_order_of_batches_changes_with_the_epoch_and_the_seed():
    lengths = np.arange(10, 200)
    batches = LineBatches(lengths, 4, 1000, 0)
    n = batches.epochs.first

    def order(batches: LineBatches, epoch: int) -> list[int]:
        return [int(batches.at(epoch * n + i)[0][0]) for i in range(n)]

    assert order(batches, 0) != order(batches, 1)
    assert sorted(order(batches, 0)) == sorted(order(batches, 1))
    assert order(batches, 0) == order(LineBatches(lengths, 4, 1000, 0), 0)
    assert order(batches, 0) != order(LineBatches(lengths, 4, 1000, 1), 0)


def test_lines_that_are_read_together_are_of_about_one_length():
    lengths = np.random.default_rng(0).integers(300, 1500, size=320)
    batches = LineBatches(lengths, 32, 100, 0)
    assert all(np.ptp(lengths[batch]) < 200 for batch in batches.batches)


def test_padding_is_zero():
    part = cut([np.ones((3, 3), dtype=np.float32), np.ones((5, 3), dtype=np.float32)], 0, 4)
    assert part.lengths.tolist() == [2, 4]
    assert torch.equal(part.points[:, 0, 0], torch.tensor([1.0, 1, 1, 0, 0]))
    late = cut([np.ones((3, 3), dtype=np.float32), np.ones((5, 3), dtype=np.float32)], 2, 4)
    assert late.lengths.tolist() == [0, 2]
