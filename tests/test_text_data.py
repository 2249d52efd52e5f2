"""From files to numbered symbols: tables, the cache, published sets, the planted hierarchy, streams."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hmrnn import Symbols
from hmrnn.domains.text.config import PlantedConfig, TextDataConfig
from hmrnn.domains.text.data import corpora, store
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.store import TextFile, from_files
from hmrnn.domains.text.data.streams import Streams
from hmrnn.storage.cache import content_of

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


def written(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


# Symbols


@given(ANY_TEXT)
def test_characters_there_and_back(text):
    symbols = Symbols.of(text)
    assert symbols.decode(symbols.encode(text)) == text
    assert Symbols.from_json(symbols.to_json()) == symbols
    assert list(symbols.table) == sorted(set(text))


@given(st.binary(min_size=1, max_size=60))
def test_bytes_there_and_back(content):
    symbols = Symbols.of(content)
    assert len(symbols) == len(set(content))
    numbers = symbols.encode(content)
    assert bytes(symbols.text(numbers).encode("ascii", "surrogateescape")) == content
    assert Symbols.from_json(symbols.to_json()) == symbols
    decoder = symbols.decoder()
    # One by one, what is shown is what the whole shows, up to a character that the end cut.
    assert symbols.decode(numbers).startswith("".join(decoder(int(number)) for number in numbers).rstrip("\ufffd"))


@given(ANY_TEXT)
def test_a_byte_model_reads_text_as_utf8(text):
    symbols = Symbols.of(bytes(range(256)))
    assert symbols.encode(text).tolist() == list(text.encode())
    assert symbols.decode(symbols.encode(text)) == text


def test_unknown_symbols_by_policy():
    symbols = Symbols.of("abc ?")
    with pytest.raises(ValueError, match=r"'é' \(U\+00E9\) at position 2 .*on_unknown"):
        symbols.encode("abéc")
    assert symbols.decode(symbols.encode("abéc", "skip")) == "abc"
    assert symbols.decode(symbols.encode("abéc", "replace")) == "ab?c"
    assert Symbols.of("abc ").decode(Symbols.of("abc ").encode("abéc", "replace")) == "ab c"
    assert (
        Symbols.of("語文").decode(Symbols.of("語文").encode("文字", "replace")) == "文語"
    )  # the last one of the alphabet
    with pytest.raises(ValueError, match="0xff at position 1"):
        Symbols.of(b"ab").encode(b"a\xff")


def test_a_bad_table_is_refused():
    for table, unit, what in [
        (("a", "a"), "character", "twice"),
        (("ab",), "character", "single character"),
        ((), "character", "at least one"),
        (("é",), "byte", "must hold bytes"),
        (("a",), "word", "unit"),
    ]:
        with pytest.raises(ValueError, match=what):
            Symbols(table, unit)


# Files and their cache


@given(pieces=st.lists(ANY_TEXT, min_size=1, max_size=3), chunk=st.integers(1, 9))
def test_files_become_numbers_whatever_the_chunks(tmp_path_factory, pieces, chunk):
    folder = tmp_path_factory.mktemp("text")
    files = [TextFile(written(folder / f"{i}.txt", piece)) for i, piece in enumerate(pieces)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK", chunk)
        data = from_files(files)
        raw = from_files(files, "byte")
    text = "".join(pieces)
    assert data.symbols == Symbols.of(text)
    assert data.symbols.decode(data.numbers) == text
    assert raw.symbols.text(raw.numbers).encode("ascii", "surrogateescape") == text.encode()
    assert [end - start for start, end in data.splits.values()] == [
        len(text) - 2 * (len(text) // 20),
        len(text) // 20,
        len(text) // 20,
    ]
    assert data.splits["train"][0] == 0
    assert data.splits["test"][1] == len(text)


@pytest.mark.parametrize(("symbols", "dtype"), [(256, np.uint8), (257, np.uint16), (70_000, np.uint32)])
def test_numbers_take_no_more_room_than_they_need(tmp_path, symbols, dtype):
    text = "".join(chr(0x20000 + i) for i in range(symbols))
    data = from_files([TextFile(written(tmp_path / "text", text))])
    assert data.numbers.dtype == dtype
    assert isinstance(data.numbers, np.memmap)
    assert data.symbols.decode(data.numbers) == text


def test_the_cache_is_used_and_follows_the_file(tmp_path, monkeypatch):
    path = written(tmp_path / "text", "abcabc")
    first = from_files([TextFile(path)])
    with monkeypatch.context() as patch:
        patch.setattr(TextFile, "chunks", lambda self: pytest.fail("read again"))
        again = from_files([TextFile(path)])
    assert again.fingerprint == first.fingerprint
    assert np.array_equal(again.numbers, first.numbers)
    written(path, "abcabd")
    os.utime(path, ns=(1, 1))
    changed = from_files([TextFile(path)])
    assert changed.symbols.decode(changed.numbers) == "abcabd"
    assert changed.fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["cut", "no meta", "bad meta", "flipped", "flipped meta"])
def test_a_damaged_cache_is_made_again(tmp_path, damage):
    files = [TextFile(written(tmp_path / "text", f"abcabc{damage}"))]
    before = np.array(from_files(files).numbers)
    folder = store._folder(content_of([file.path for file in files]), files, "character", store.by_share)
    if damage == "cut":
        (folder / "numbers.bin").write_bytes(b"\0\1")
    elif damage == "no meta":
        (folder / "meta.json").unlink()
    elif damage == "bad meta":
        (folder / "meta.json").write_text("{")
    else:
        path = folder / ("numbers.bin" if damage == "flipped" else "meta.json")
        content = path.read_bytes()
        path.write_bytes(
            content.replace(b'"train": [0, ', b'"train": [1, ') if "meta" in damage else b"\1" + content[1:]
        )
        assert path.read_bytes() != content
    after = from_files(files)
    assert np.array_equal(after.numbers, before)
    assert (folder / "numbers.bin").stat().st_size == len(f"abcabc{damage}")


def test_with_a_given_table(tmp_path):
    path = written(tmp_path / "text", "abxcab")
    symbols = Symbols.of("abc?")
    with pytest.raises(ValueError, match=r"text: the symbol 'x' \(U\+0078\) at position 2"):
        from_files([TextFile(path)], symbols=symbols)
    assert symbols.decode(from_files([TextFile(path)], symbols=symbols, on_unknown="skip").numbers) == "abcab"
    assert symbols.decode(from_files([TextFile(path)], symbols=symbols, on_unknown="replace").numbers) == "ab?cab"


def test_an_unknown_symbol_is_found_in_the_whole_file(tmp_path, monkeypatch):
    """Not in the part of it that was just read."""
    monkeypatch.setattr(store, "CHUNK", 4)
    path = written(tmp_path / "text", "abcab雪abcx")
    with pytest.raises(ValueError, match=r"'x' \(U\+0078\) at position 9"):
        from_files([TextFile(path)], symbols=Symbols.of("abc雪"))


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    (tmp_path / "sub").mkdir()
    for name, text in [("b.txt", "second "), ("a.txt", "first "), ("sub/c.txt", "third"), (".hidden", "no")]:
        written(tmp_path / name, text)
    data = load_text(TextDataConfig(str(tmp_path)))
    assert data.symbols.decode(data.numbers) == "first second third"


@given(before=ANY_TEXT, after=ANY_TEXT, chunk=st.integers(1, 7))
def test_invalid_utf8_is_named_with_its_offset(tmp_path_factory, before, after, chunk):
    path = written(tmp_path_factory.mktemp("text") / "bad", before.encode() + b"\xff" + after.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "CHUNK", chunk)
        with pytest.raises(ValueError, match="bad: not UTF-8") as error:
            from_files([TextFile(path)])
    assert f"byte 0xff at offset {len(before.encode())} " in str(error.value)
    assert "(symbols='bytes' reads any file)" in str(error.value)


def test_a_cut_last_character_is_named_with_its_offset(tmp_path):
    with pytest.raises(ValueError, match="byte 0xe2 at offset 2 "):
        from_files([TextFile(written(tmp_path / "cut", b"ab\xe2\x82"))])


def test_bad_files(tmp_path):
    (tmp_path / "nothing").mkdir()
    os.mkfifo(tmp_path / "pipe")
    written(tmp_path / "empty", "")
    for name, what in [
        ("nothing", "no file in this folder"),
        ("pipe", "not a regular file"),
        ("missing", "no such file or folder.*ptb, text8, enwik8, builtin, planted"),
        ("empty", "empty"),
    ]:
        with pytest.raises(ValueError, match=f"{name}.*{what}"):
            load_text(TextDataConfig(str(tmp_path / name)))


def test_an_unreadable_file_is_named(tmp_path, monkeypatch):
    path = written(tmp_path / "secret", "abc")

    def refuse(self, *arguments):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(type(path), "open", refuse)  # the tests may run as root, who may read everything
    with pytest.raises(PermissionError, match="secret"):
        from_files([TextFile(path)])


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Peak memory of a process that reads 2 MB, and of one that reads 100 MB."""
    code = (
        "import sys; from hmrnn.domains.text.config import TextDataConfig;"
        "from hmrnn.domains.text.data.corpora import load_text;"
        "data = load_text(TextDataConfig(sys.argv[1])); status = open('/proc/self/status').read();"
        "print(len(data.numbers), int(status.split('VmHWM:')[1].split()[0]) // 1024)"
    )
    peaks = []
    for megabytes in (2, 100):
        path = written(tmp_path / f"{megabytes}", ("naïve " * 150_000).encode() * megabytes)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        length, peak = map(int, done.stdout.split())
        assert length > 800_000 * megabytes
        peaks.append(peak)
        path.unlink()
    assert peaks[1] < peaks[0] + 20


# Published sets


def publish(monkeypatch, name, **contents):
    """Stands for a published set, with content of our own."""
    files = [(file, hashlib.sha256(content).hexdigest()) for file, content in contents.items()]
    monkeypatch.setitem(corpora.PUBLISHED, name, replace(corpora.PUBLISHED[name], files=files))


def test_ptb_lines_are_stripped_and_its_files_are_the_splits(tmp_path, monkeypatch):
    contents = {"a": b" the cat \n  sat\n", "b": b" on \n", "c": b"the mat"}
    publish(monkeypatch, "ptb", **contents)
    for name, content in contents.items():
        written(tmp_path / name, content)
    data = load_text(TextDataConfig("ptb"), tmp_path)
    assert [data.symbols.decode(data.split(name)) for name in store.SPLITS] == ["the cat\nsat\n", "on\n", "the mat\n"]


@pytest.mark.parametrize("form", ["plain", "zip", "gz", "in a folder"])
def test_a_set_in_every_form_its_publishers_ship(tmp_path, monkeypatch, form):
    content = bytes(range(256)) * 40
    publish(monkeypatch, "enwik8", enwik8=content)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
            archive.writestr("enwik8", content)
    elif form == "gz":
        (tmp_path / "enwik8.gz").write_bytes(gzip.compress(content))
    elif form == "plain":
        written(tmp_path / "enwik8", content)
    else:
        (tmp_path / "enwik8").mkdir()
        written(tmp_path / "enwik8" / "enwik8", content)
    data = load_text(TextDataConfig("enwik8"), tmp_path)
    assert data.symbols.unit == "byte"
    assert bytes(data.numbers) == content
    assert [end - start for start, end in data.splits.values()] == [9216, 512, 512]


def test_a_missing_set_says_where_to_get_it_and_where_to_put_it(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=rf"no text8 or text8.zip in {tmp_path}.*http.*data_dir or HMRNN_DATA"):
        load_text(TextDataConfig("text8"), tmp_path)
    monkeypatch.setenv("HMRNN_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(ValueError, match="elsewhere"):
        load_text(TextDataConfig("ptb"))


def test_a_set_with_other_content_is_refused(tmp_path):
    written(tmp_path / "text8", "not the real one")
    load_text(TextDataConfig(str(tmp_path / "text8")))  # in the cache, but not as that set
    with pytest.raises(ValueError, match=r"text8: this is not the published file.*sha256"):
        load_text(TextDataConfig("text8"), tmp_path)


@pytest.mark.parametrize("name", ["enwik8.zip", "enwik8.gz"])
def test_a_damaged_archive_is_named(tmp_path, name):
    whole = gzip.compress(os.urandom(3000)) if name.endswith("gz") else b"PK\3\4" + os.urandom(100)
    written(tmp_path / name, whole[:-20])
    with pytest.raises(ValueError, match=f"{name}: damaged"):
        load_text(TextDataConfig("enwik8"), tmp_path)


@pytest.mark.parametrize(
    ("name", "symbols", "sizes"),
    [
        ("ptb", 50, [5_017_482, 393_042, 442_423]),
        ("text8", 27, [90_000_000, 5_000_000, 5_000_000]),
        ("enwik8", 205, [90_000_000, 5_000_000, 5_000_000]),
    ],
)
def test_the_real_sets(real_data, name, symbols, sizes):
    data = load_text(TextDataConfig(name), real_data)
    assert len(data.symbols) == symbols
    assert [len(data.split(split)) for split in store.SPLITS] == sizes
    assert data.numbers.dtype == np.uint8


def test_builtin_text():
    data = load_text(TextDataConfig("builtin"))
    assert len(data.numbers) > 400_000
    assert 80 < len(data.symbols) < 200


# The planted hierarchy


@given(
    st.builds(
        PlantedConfig,
        symbols=st.integers(1, 3000),
        letters=st.integers(5, 26),
        words=st.integers(2, 12),
        depth=st.integers(1, 3),
        seed=st.integers(0, 99),
    )
)
def test_the_planted_hierarchy_is_what_it_says(config):
    made = planted(config)
    assert made.ends.shape == (len(made.text), config.depth)
    assert made.ends[-1].all()
    assert (made.ends[:, 1:] <= made.ends[:, :-1]).all(), "what ends a phrase ends a word"
    units = list(made.text)
    for level in range(config.depth):
        ends = np.flatnonzero(made.ends[:, level]) + 1
        spellings = [made.text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        assert len(set(spellings)) <= config.words
        shortest, longest = config.word_length if level == 0 else config.phrase_length
        below = np.ones(len(units)) if level == 0 else made.ends[:, level - 1]
        parts = [int(below[start:end].sum()) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        assert shortest <= min(parts) <= max(parts) <= longest
    assert planted(config).text == made.text


def test_noise_replaces_letters_and_moves_no_boundary():
    clean, noisy = (planted(PlantedConfig(symbols=50_000, noise=noise)) for noise in (0.0, 0.2))
    assert np.array_equal(clean.ends, noisy.ends)
    changed = np.mean([a != b for a, b in zip(clean.text, noisy.text, strict=True)])
    assert 0.17 < changed < 0.21  # one replacement in 20 is by the same letter


def test_planted_boundaries_for_a_network():
    made = planted(PlantedConfig(symbols=100, depth=2))
    assert np.array_equal(made.boundaries(3), made.ends)
    assert np.array_equal(made.boundaries(2), made.ends[:, :1])
    assert not made.boundaries(4)[:, 2].any()


def test_an_impossible_hierarchy_is_refused():
    for settings, what in [
        ({"letters": 1}, "letters"),
        ({"noise": 1.5}, "noise"),
        ({"word_length": (4, 3)}, "word_length"),
        ({"letters": 2, "word_length": (1, 2)}, "fewer than 50 distinct"),
    ]:
        with pytest.raises(ValueError, match=what):
            PlantedConfig(**settings)


# Streams


@given(length=st.integers(2, 80), rows=st.integers(1, 9), window=st.integers(1, 12))
def test_evaluation_predicts_every_symbol_but_the_first_once(length, rows, window):
    numbers = np.arange(length)
    rows = min(rows, length - 1)
    streams = Streams.to_evaluate(numbers, rows)
    predicted = []
    for start in range(0, streams.steps, window):
        end = min(start + window, streams.steps)
        symbols, lengths = streams.read(start, end + 1), streams.lengths(start, end)
        assert symbols.shape == (end - start + 1, rows)
        for row in range(rows):
            n = int(lengths[row])
            assert (symbols[1 : n + 1, row] == symbols[:n, row] + 1).all()
            predicted += symbols[1 : n + 1, row].tolist()
    assert sorted(predicted) == list(range(1, length))


@given(length=st.integers(20, 200), batch=st.integers(1, 5), world=st.integers(1, 3))
def test_training_streams_are_contiguous_and_shared_among_processes(length, batch, world):
    numbers = np.arange(length)
    parts = [Streams.to_train(numbers, batch, rank, world) for rank in range(world)]
    alone = Streams.to_train(numbers, batch * world, 0, 1)
    steps = alone.steps
    assert steps == (length - 1) // (batch * world)
    together = np.concatenate([part.read(0, steps + 1) for part in parts], axis=1)
    assert np.array_equal(together, alone.read(0, steps + 1))
    assert np.array_equal(together[1:], together[:-1] + 1)
    assert np.array_equal(together[:-1].T.reshape(-1), np.arange(steps * batch * world))


def test_meta_is_readable(tmp_path):
    files = [TextFile(written(tmp_path / "text", "abc" * 20))]
    from_files(files)
    folder = store._folder(content_of([file.path for file in files]), files, "character", store.by_share)
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["length"] == 60
    assert meta["splits"] == {"train": [0, 54], "valid": [54, 57], "test": [57, 60]}
