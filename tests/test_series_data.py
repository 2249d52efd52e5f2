"""Series: the files, what is left out and what is missing, how they are divided, and the built-in ones."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from hmrnn.domains.series.config import PlantedSeriesConfig, SeriesDataConfig
from hmrnn.domains.series.data.planted import plant
from hmrnn.domains.series.data.sequences import lines_of, load_series
from hmrnn.domains.series.task import pieces
from hmrnn.errors import SettingError

HEADER = "time,flow,level\n"


def write(path, text):
    path.write_text(text)
    return str(path)


def rows(count: int) -> str:
    return "".join(f"2024-01-01 00:{i:02d},{i},{i * i}\n" for i in range(count))


def test_a_csv_file_without_its_time(tmp_path):
    lines = lines_of(SeriesDataConfig(write(tmp_path / "a.csv", HEADER + rows(5))))
    assert (lines.columns, lines.left_out) == (("flow", "level"), ("time",))
    assert lines.line(0).tolist() == [[i, i * i] for i in range(5)]


@pytest.mark.parametrize("date", ["2024-01-31", "31/01/2024 12:00", "2024-01-31T12:00:00Z", "12:30:01"])
def test_a_column_of_dates_is_left_out_whatever_its_name(tmp_path, date):
    lines = lines_of(SeriesDataConfig(write(tmp_path / "a.csv", f"when,flow\n{date},1\n{date},2\n")))
    assert (lines.columns, lines.left_out) == (("flow",), ("when",))


@pytest.mark.parametrize("missing", ["", "NA", " nan ", "null", "None", "n/a"])
def test_missing_values_are_masked(tmp_path, missing):
    lines = lines_of(SeriesDataConfig(write(tmp_path / "a.csv", f"a,b\n1,2\n{missing},4\n")))
    assert np.isnan(lines.points).tolist() == [[False, False], [True, False]]


WRITTEN = {
    "a byte order mark": b"\xef\xbb\xbfa,b\n1,2\n3,4\n",
    "lines of Windows": b"a,b\r\n1,2\r\n3,4\r\n",
    "lines of old Macs": b"a,b\r1,2\r3,4\r",
    "no last end": b"a,b\n1,2\n3,4",
    "blank lines": b"\na,b\n\n1,2\n\n\n3,4\n\n",
    "spaces": b" a ,\tb\n 1 , 2\n3 ,4 \n",
    "quotes": b'"a","b"\n"1","2"\n3,"4"\n',
    "an end within quotes": b'a,b\n"1\n",2\n3,4\n',
}


@pytest.mark.parametrize("content", WRITTEN.values(), ids=WRITTEN)
def test_a_csv_file_however_it_is_written(tmp_path, content):
    (tmp_path / "a.csv").write_bytes(content)
    lines = lines_of(SeriesDataConfig(str(tmp_path / "a.csv")))
    assert (lines.columns, lines.line(0).tolist()) == (("a", "b"), [[1, 2], [3, 4]])


def test_columns_are_picked_in_their_order(tmp_path):
    config = SeriesDataConfig(write(tmp_path / "a.csv", HEADER + rows(3)), columns=("level", "flow"))
    assert lines_of(config).line(0).tolist() == [[0, 0], [1, 1], [4, 2]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("a,b\n", "empty"),
        ("1,2\n3,4\n", "names of the columns"),
        ("a,a\n1,2\n", "same name"),
        ("a,b\n1,2\n3\n", "line 3 has 1 values, and the header has 2"),
        ("a,b\n\n1,2\n\n3\n", "line 5 has 1 values"),
        ("a,b\n1,2\n3,many\n", "line 3 of column 'b' is no number: 'many'. columns says which"),
        ('a,"b\n"\n"1\n",2\n\n3,many\n', "line 6 of column 'b' is no number: 'many'"),
        ("a,b\n1,2\n3,inf\n", "beyond 1e+30"),
        ("a,b\n1,2\n3,2024_05\n", "line 3 of column 'b' is no number: '2024_05'"),
        ("time;flow\n0;1.5\n", "commas must separate the columns, and its header has none: 'time;flow'"),
        ("time;flow\n2024-01-01 00:00;1,5\n", "commas must separate the columns"),
        ("time\tflow\n0\t1.5\n", "commas must separate the columns"),
        ("time flow\n0 1.5\n", "line 2 of column 'time flow' is no number: '0 1.5'. Commas must separate columns"),
        ("flow\n1\nx\n", "line 3 of column 'flow' is no number: 'x'$"),
        ("time\n1\n2\n", "no column to read"),
    ],
)
def test_what_is_no_series_is_refused(tmp_path, text, told):
    with pytest.raises(ValueError, match=told.replace("+", r"\+")) as refused:
        lines_of(SeriesDataConfig(write(tmp_path / "a.csv", text)))
    assert str(refused.value).count("a.csv") == 1, "where it is wrong is told once"


@pytest.mark.parametrize(
    ("wrong", "got"),
    [("2", "2.0"), (".7", "0.7"), ("-1", "-1.0"), ("", "nothing"), ("NA", "nothing"), ("True", "'True'")],
)
def test_ends_are_0_or_1(tmp_path, wrong, got):
    """Any other column would be scored as if it told ends."""
    config = SeriesDataConfig(write(tmp_path / "a.csv", "a,b\n1,0\n2,1.0\n3,0.0\n4,1\n"), ends="b")
    assert lines_of(config).known["segment"].tolist() == [False, True, False, True]
    write(tmp_path / "a.csv", f"a,b\n1,0\n2,1\n3,{wrong}\n4,5\n")
    told = f"a.csv: line 4 of column 'b', which ends names, must be 0 or 1; got {got}. Write 1 where a segment ends"
    with pytest.raises(SettingError, match=re.escape(told)):
        lines_of(config)


def test_ends_in_an_array_are_0_or_1(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[5, 0], [6, 1], [7, 3]]))
    with pytest.raises(SettingError, match=r"a\.npy: row 3 of column 'x2', which ends names, must be 0 or 1; got 3\.0"):
        lines_of(SeriesDataConfig(str(tmp_path / "a.npy"), ends="x2"))


def test_sequences_that_are_too_short_are_told(tmp_path):
    for name, steps in (("a", 100), ("b", 39), ("c", 40)):
        write(tmp_path / f"{name}.csv", HEADER + rows(steps))
    assert load_series(SeriesDataConfig(str(tmp_path))).description().endswith("; sequences that are too short: 1")
    folder = tmp_path / "many"
    folder.mkdir()
    for i in range(30):
        write(folder / f"{i}.csv", HEADER + rows(1 if i < 2 else 5))
    assert load_series(SeriesDataConfig(str(folder))).description().endswith("; sequences that are too short: 2")


def test_a_column_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="no column 'c'; it has a, b"):
        lines_of(SeriesDataConfig(write(tmp_path / "a.csv", "a,b\n1,2\n"), columns=("c",)))


def test_arrays(tmp_path):
    random = np.random.default_rng(0)
    one, many = random.normal(size=(6, 2)), random.normal(size=(3, 5, 2))
    np.save(tmp_path / "one.npy", one)
    np.save(tmp_path / "many.npy", many)
    np.savez(tmp_path / "both.npz", a=one, b=one[:4])
    lines = lines_of(SeriesDataConfig(str(tmp_path / "one.npy")))
    assert lines.columns == ("x1", "x2")
    np.testing.assert_array_equal(lines.line(0), one.astype(np.float32))
    lines = lines_of(SeriesDataConfig(str(tmp_path / "many.npy")))
    assert lines.lengths.tolist() == [5, 5, 5]
    np.testing.assert_array_equal(lines.line(2), many[2].astype(np.float32))
    assert lines_of(SeriesDataConfig(str(tmp_path / "both.npz"))).lengths.tolist() == [6, 4]
    np.save(tmp_path / "words.npy", np.array(["a", "b"]))
    with pytest.raises(ValueError, match="must be numbers"):
        lines_of(SeriesDataConfig(str(tmp_path / "words.npy")))
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    with pytest.raises(ValueError, match="not an array"):
        lines_of(SeriesDataConfig(str(tmp_path / "broken.npz")))


def test_a_folder_is_a_sequence_a_file(tmp_path):
    for name, more in (("b", 2), ("a", 3)):
        write(tmp_path / f"{name}.csv", HEADER + rows(more))
    (tmp_path / "notes.txt").write_text("not a series")
    lines = lines_of(SeriesDataConfig(str(tmp_path)))
    assert (lines.names, lines.lengths.tolist()) == (["a.csv", "b.csv"], [3, 2])


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("x,y", "x,y,z", "only the second has 'z'"),
        ("x,y,z", "x,y", "only the first has 'z'"),
        ("x,p,q", "r,x", "only the first has 'p', 'q', only the second has 'r'"),
    ],
)
def test_tables_of_other_columns_are_not_read_in_part(tmp_path, first, second, told):
    """Without a word, a column would be left out."""
    for name, columns in (("a", first), ("b", second)):
        row = ",".join("1" for _ in columns.split(","))
        write(tmp_path / f"{name}.csv", f"time,{columns}\n0,{row}\n")
    told = rf"a\.csv and .*b\.csv differ in the columns to read: {told}\. columns chooses which to read"
    with pytest.raises(SettingError, match=told):
        lines_of(SeriesDataConfig(str(tmp_path)))
    assert lines_of(SeriesDataConfig(str(tmp_path), columns=("x",))).points.tolist() == [[1], [1]]


def test_arrays_of_other_columns_are_not_read_in_part(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.zeros((6, 2)), b=np.zeros((6, 3)))
    with pytest.raises(SettingError, match=r"two\.npz: a and .*two\.npz: b differ .* only the second has 'x3'"):
        lines_of(SeriesDataConfig(str(tmp_path / "two.npz")))


def test_the_same_columns_in_another_order_and_all_that_is_left_out(tmp_path):
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "date,y,x\n2024-01-31,4,3\n")
    lines = lines_of(SeriesDataConfig(str(tmp_path)))
    assert (lines.columns, lines.left_out) == (("x", "y"), ("date",))
    assert lines.points.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("header", ['"a\nb",c', '"a\nb","a\nb"'])
def test_names_of_columns_are_told_in_one_line(tmp_path, header):
    """Whatever is in them: an escape sequence, too."""
    write(tmp_path / "odd.csv", f"{header}\n1,2\n")
    with pytest.raises(ValueError, match=r"a\\nb") as told:
        lines_of(SeriesDataConfig(str(tmp_path / "odd.csv"), columns=("level",)))
    assert len(str(told.value).splitlines()) == 1


def test_few_sequences_are_divided_in_time(tmp_path):
    text = "a,end\n" + "".join(f"{i},{int(i % 10 == 9)}\n" for i in range(200))
    data = load_series(SeriesDataConfig(write(tmp_path / "a.csv", text), ends="end"))
    parts = {name: np.concatenate(data.split(name))[:, 0].tolist() for name in ("train", "valid", "test")}
    assert parts == {"train": [*range(180)], "valid": [*range(180, 190)], "test": [*range(190, 200)]}
    known = data.lines.known_of(int(data.numbers("test")[0]))["segment"]
    assert np.flatnonzero(known).tolist() == [9]
    with pytest.raises(ValueError, match="too short"):
        load_series(SeriesDataConfig(write(tmp_path / "b.csv", "a\n1\n2\n")))


def test_many_sequences_are_divided_as_they_are(tmp_path):
    np.save(tmp_path / "many.npy", np.random.default_rng(0).normal(size=(40, 7, 2)))
    data = load_series(SeriesDataConfig(str(tmp_path / "many.npy")))
    assert [len(data.numbers(name)) for name in ("train", "valid", "test")] == [36, 2, 2]
    assert data.description() == "36 train, 2 valid, 2 test sequences of x1, x2"


def test_the_planted_series_repeats_its_motifs_and_knows_their_ends():
    config = PlantedSeriesConfig(sequences=30, noise=0.0)
    made = plant(config)
    shapes = set()
    for one in made:
        assert one.values.shape == (400, 3)
        assert (one.motifs | ~one.regimes).all(), "a regime ends with a motif"
        cuts = np.flatnonzero(one.motifs) + 1
        for motif in np.split(one.values, cuts)[:-1]:
            shapes.add(motif.tobytes())
            assert np.abs(motif[-1]).max() < 1e-6, "each ends at 0, so that nothing jumps"
            assert 8 <= len(motif) <= 16
    assert len(shapes) <= 8
    assert [one.values.tobytes() for one in plant(config)] == [one.values.tobytes() for one in made]
    fewer = plant(PlantedSeriesConfig(sequences=2, noise=0.0))
    assert all((a.values == b.values).all() for a, b in zip(fewer, made, strict=False))


def test_a_regime_draws_from_its_own_motifs():
    one = plant(PlantedSeriesConfig(sequences=1, steps=5000, noise=0.0))[0]
    for regime in np.split(np.arange(5000), np.flatnonzero(one.regimes) + 1)[:-1]:
        ends = np.flatnonzero(one.motifs[regime]) + 1
        motifs = np.split(one.values[regime], ends)[:-1]
        assert 4 <= len(motifs) <= 8
        assert len({motif.tobytes() for motif in motifs}) <= 3


def test_planted_values_can_be_missing():
    made = plant(PlantedSeriesConfig(sequences=5, missing=0.25))
    assert np.isnan(np.concatenate([one.values for one in made])).mean() == pytest.approx(0.25, abs=0.03)


def test_pieces_cover_a_sequence_and_predict_each_step_once():
    line = np.arange(1000, dtype=np.float32)[:, None]
    cut = pieces(line, 300)
    assert [len(piece) for piece in cut] == [250, 251, 251, 251]
    assert np.concatenate([piece[1:] for piece in cut]).tolist() == line[1:].tolist()
    assert len(pieces(line, 1000)) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"piece": 1},
        {"columns": ("a", "a")},
        {"columns": ("a",), "ends": "a"},
        {"columns": ()},
    ],
)
def test_settings_that_can_not_be(wrong):
    with pytest.raises(ValueError, match=r"must be|can't be"):
        SeriesDataConfig(**wrong)


@pytest.mark.parametrize("level", [lambda i: 1e9 + i % 7, lambda i: 1e-50 * i, lambda i: 1e20 + 1e10 * i])
def test_numbers_that_float32_can_not_tell_apart_are_refused(tmp_path, level):
    """They would be changed without a word. What a model only reads is not refused: its own range is what counts."""
    text = "flow,level\n" + "".join(f"{i},{level(i)!r}\n" for i in range(60))
    config = SeriesDataConfig(write(tmp_path / "a.csv", text))
    with pytest.raises(SettingError, match="column 'level' differ by less than float32 can tell"):
        load_series(config)
    assert lines_of(config).coarse == ("level",)
    assert load_series(replace(config, columns=("flow",))).lines.coarse == ()


@pytest.mark.parametrize("level", [lambda i: 0.1, lambda i: 1e6 + i % 7, lambda i: i * 1e-30, lambda i: ""])
def test_numbers_that_it_can_tell_apart_are_not(tmp_path, level):
    text = "flow,level\n" + "".join(f"{i},{level(i)}\n" for i in range(60))
    assert load_series(SeriesDataConfig(write(tmp_path / "a.csv", text))).lines.coarse == ()


def test_columns_of_the_built_in_series_are_picked_too():
    small = PlantedSeriesConfig(sequences=20, steps=50)
    whole = lines_of(SeriesDataConfig(planted=small))
    lines = lines_of(SeriesDataConfig(planted=small, columns=("x3", "x1"), ends="of another file"))
    assert lines.columns == ("x3", "x1")
    assert lines.points.tolist() == whole.points[:, [2, 0]].tolist()
    assert lines.known.keys() == whole.known.keys() == {"motif", "regime"}
    with pytest.raises(ValueError, match="has no column 'x4'"):
        lines_of(SeriesDataConfig(planted=small, columns=("x4",)))


def test_a_column_that_never_changes_is_refused(tmp_path):
    from hmrnn import SeriesModel, SeriesModelConfig

    model = SeriesModel(["a", "b"], SeriesModelConfig(hidden_sizes=(4, 4), output_size=4, embedding_size=4))
    with pytest.raises(SettingError, match="column 'b' never changes"):
        model.normalise_as([np.array([[1, 5], [2, 5], [3, np.nan]], dtype=np.float32)])
