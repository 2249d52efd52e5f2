"""Hostile input to segment, score, eval and generate: a clean answer, or a clean refusal."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.faults import fuzz
from support.faults.runs import FLAGS, bounded, call, reason, refused, succeeded

NASTY = {
    "empty": b"",
    "binary": bytes(range(256)) * 3,
    "a lone surrogate": b"The \xed\xa0\x80 value",
    "NUL": b"a\0b\0",
    "only NUL": b"\0" * 500,
    "mixed line ends": b"a line\r\nanother\rone more\n\n\r\r\n",
    "cut in a character": "snow \N{SNOWMAN}".encode()[:-1],
    "a byte order mark": b"\xef\xbb\xbfThe value",
    "UTF-16": "The value".encode("utf-16"),
    "white space": b" \t\n \x0b\x0c\x1c\x85 ",
    "deep": b"[" * 5000,
    "an endless number": b"[[[" + b"9" * 5000 + b", 1]]]",
    "odd numbers": b"[[[NaN, Infinity], [-0.0, 1e-999]]]",
    "half a line of strokes": b"[[[1, 2], [3",
}


def processed(*arguments: str | Path, **options) -> subprocess.CompletedProcess[bytes]:
    """In a process of its own."""
    command = [sys.executable, "-m", "hmrnn", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False, timeout=600, **options)


@pytest.mark.parametrize("what", NASTY)
@pytest.mark.parametrize(
    "kind", ["text", *(pytest.param(kind, marks=pytest.mark.faults) for kind in ("bytes", "strokes", "series"))]
)
@pytest.mark.parametrize(
    "unknown", ["error", *(pytest.param(how, marks=pytest.mark.faults) for how in ("skip", "replace"))]
)
def test_every_command_with_nasty_input(runs, tmp_path, kind, what, unknown):
    path, run = tmp_path / "input", runs[kind]
    path.write_bytes(NASTY[what])
    reads_text = kind in ("text", "bytes")
    if not reads_text and unknown != "error":
        pytest.skip("only symbols can be unknown")
    commands = [["segment", run, path, "--format", form] for form in fuzz.FORMATS]
    commands += [["eval", run, "--data", path], ["score", run, "--data", path]]
    commands += [["score", run, "--gold", path]] if reads_text else [["generate", run, "--prime", path, "--max-new", 2]]
    if reads_text and b"\0" not in NASTY[what]:
        commands += [["generate", run, "--max-new", 2, "--prompt", os.fsdecode(NASTY[what])]]
    for command in commands:
        with bounded():
            done = call(*command, *(["--on-unknown", unknown] if reads_text else []))
        assert done.returncode in (0, 1, 2), (command, done.stderr)
        if done.returncode:
            reason(done.stderr)
    if reads_text:
        with bounded():
            piped = call("segment", run, stdin=NASTY[what])
        assert piped.returncode in (0, 1)


@pytest.mark.parametrize(
    "flags",
    [
        ["--seed", str(10**30)],
        ["--seed", "-1"],
        ["--temperature", "nan"],
        ["--temperature", "1e-320"],
        ["--top-p", "1e-320"],
        ["--top-k", str(10**30)],
        ["--prompt", "\ud800 \udcff"],
    ],
    ids=lambda flags: ascii(" ".join(flags)),
)
@pytest.mark.parametrize("kind", ["text", "bytes"])
def test_odd_flags_of_generate(runs, kind, flags):
    done = call("generate", runs[kind], "--max-new", "3", *flags)
    assert done.returncode in (0, 1, 2), done.stderr
    if done.returncode:
        reason(done.stderr)


@pytest.mark.parametrize("bias", ["0", "1e30", "1e300", "1e308"])
def test_odd_flags_for_strokes(runs, bias):
    assert "NaN" not in succeeded("generate", runs["strokes"], "--max-new", "3", "--bias", bias, "--seed", "1").stdout
    call("generate", runs["strokes"], "--max-new", "3", "--seed", str(10**30))


@pytest.mark.parametrize("rate", ["1e-300", "1e30", "1e300", "inf", "nan"])
@pytest.mark.parametrize("decay", ["0", "1e-300", "1"])
def test_dynamic_evaluation_at_absurd_rates(runs, rate, decay):
    done = call("eval", runs["text"], "--dynamic", rate, "--decay", decay, "--json")
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 0:
        assert json.loads(done.stdout)["dynamic"]["bits_per_character"] > 0
    else:
        reason(done.stderr)


@pytest.mark.parametrize("temperature", ["0.01", "100", "1e-320", "1e300", "-1", "nan"])
def test_eval_at_an_absurd_temperature(runs, temperature):
    done = call("eval", runs["text"], "--temperature", temperature, "--json")
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 0:
        assert json.loads(done.stdout)["temperature"]["bits_per_character"] > 0
    else:
        reason(done.stderr)


# Files of series


def array_file(shape: tuple[int, ...], kind: str = "<f8", content: bytes = bytes(800), version: int = 1) -> bytes:
    """An .npy file whose header says what it likes."""
    header = f"{{'descr': {kind!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 * version, "little") + header + content


def archive(content: bytes, *, method: int = zipfile.ZIP_DEFLATED, flag: int = 0) -> bytes:
    """An .npz file with one array in it. `flag` 1: as if it were encrypted."""
    with zipfile.ZipFile(written := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("a.npy", content)
    whole = bytearray(written.getvalue())
    for start, length in ((whole.index(b"PK\3\4"), 6), (whole.rindex(b"PK\1\2"), 8)):
        whole[start + length] |= flag
        whole[start + length + 2] = method
    return bytes(whole)


class Witness:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


LIES = {
    "huge.npy": array_file((10**12,)),
    "huge times.npy": array_file((2**40, 2**40)),
    "below zero.npy": array_file((-1, 4)),
    "without columns.npy": array_file((10**9, 0)),
    "without steps.npy": array_file((10**9, 0, 5)),
    "records.npy": array_file((10**9,), "|V0"),
    "complex.npy": array_file((100,), "<c8"),
    "long header.npy": b"\x93NUMPY\2\0\xff\xff\xff\x7f{",
    "deep header.npy": b"\x93NUMPY\1\0\x28\x23" + b"(" * 9000,
    "another version.npy": array_file((100,), version=3),
    "objects.npy": array_file((1,), "|O", pickle.dumps(Witness())),
    "a pickle.npy": pickle.dumps(Witness()),
    "objects.npz": archive(array_file((1,), "|O", pickle.dumps(Witness()))),
    "huge.npz": archive(array_file((10**12,))),
    "encrypted.npz": archive(array_file((100,)), flag=1),
    "packed by another.npz": archive(array_file((100,)), method=99),
    "no array.npz": archive(b"hello"),
    "wide.csv": ",".join(f"c{i}" for i in range(20_000)).encode() + b"\n",
    "a quote without end.csv": b'a,b\n"' + b"1,2\n" * 100_000,
    "an odd cell.csv": b"a,b\n1,\x1b[31m\n",
    "an odd name.csv": b"\x1b[31m,b\n1,2\n",
}


@pytest.mark.parametrize("file", LIES)
def test_files_of_series_that_lie(runs, tmp_path, file):
    """Nothing is executed, and no memory is asked for that the file does not have."""
    (tmp_path / file).write_bytes(LIES[file])
    with bounded(seconds=5, megabytes=256):
        told = refused("segment", runs["series"], tmp_path / file, because=file, cwd=tmp_path)
    assert "memory" not in told
    assert "\x1b" not in told
    assert [path.name for path in tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("ending", ["npz", "npy", "csv"])
def test_files_of_series_without_end(runs, tmp_path, ending, monkeypatch):
    """They cost their maker nothing: packed, or with holes."""
    path = tmp_path / f"large.{ending}"
    if ending == "npz":
        monkeypatch.setattr(
            "hmrnn.domains.series.data.files.LARGEST_FILE", 1 << 22
        )  # instead of a gigabyte, to be quick
        path.write_bytes(archive(bytes(1 << 23)))
        assert path.stat().st_size < 1 << 14
    else:
        path.write_bytes(b"a,b\n" if ending == "csv" else array_file((8 << 30,), content=b""))
        os.truncate(path, 6 << 30)
    with bounded(seconds=5, megabytes=256):
        refused("segment", runs["series"], path, because="too large")


# Around a process


@pytest.mark.parametrize("kind", ["text", "strokes"])
def test_a_pipe_with_a_name(runs, tmp_path, kind):
    content = b"The value" if kind == "text" else b"[[[0, 0], [1, 2]]]\n"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed() -> None:
        pipe.write_bytes(content)

    feeding = threading.Thread(target=feed)
    feeding.start()
    with bounded(megabytes=2048):
        told = succeeded("segment", runs[kind], pipe).stdout
        feeding.join()
        assert told == succeeded("segment", runs[kind], stdin=content).stdout
        # What is read more than once, or by parts, must be a file: it says so, and waits for no one.
        refused("eval", runs[kind], "--data", pipe, because="not a regular file")
        refused("score", runs[kind], "--data", pipe, because="not a regular file")
        refused("train", kind, "--data", pipe, "--out", tmp_path / "run", because="not a regular file")


@pytest.mark.parametrize("kind", ["text", "strokes", "series"])
def test_an_output_that_is_no_file(runs, folder, tmp_path, kind):
    """It is written to, and not replaced: /dev/null would be a file for everyone. A link stays one."""
    made = [] if kind == "text" else [["generate", runs[kind], "--max-new", "3", "--out"]]
    for command in (["plot", runs[kind], "--out"], ["segment", runs[kind], folder / FLAGS[kind][1], "--out"], *made):
        pipe, link, own = (tmp_path / f"{name}.svg" for name in ("pipe", "link", "own"))
        os.mkfifo(pipe)
        link.symlink_to(own)
        read: list[bytes] = []
        reading = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)  # noqa: B023
        reading.start()
        succeeded(*command, pipe)
        assert pipe.is_fifo()
        reading.join(60)
        assert len(read[0]) > 20
        succeeded(*command, link)
        assert link.is_symlink()
        assert own.stat().st_size > 20
        for path in (pipe, link, own):
            path.unlink()


def test_an_output_that_is_open_already(runs, tmp_path):
    """Whoever opened it said whether to append."""
    log, link = tmp_path / "log", tmp_path / "link"
    log.write_text("before\n")
    with log.open("a") as opened:
        link.symlink_to(f"/dev/fd/{opened.fileno()}")
        for out in (os.readlink(link), link):
            succeeded("segment", runs["text"], "--out", out, stdin=b"The value")
    assert log.read_text() == "before\n" + 2 * succeeded("segment", runs["text"], stdin=b"The value").stdout


@pytest.mark.faults
def test_standard_output_as_an_output(runs, tmp_path):
    """It is appended to as the shell was asked, and gets the answer alone."""
    log = tmp_path / "log"
    log.write_text("before\n")
    command = f"printf 'The value' | '{sys.executable}' -m hmrnn segment '{runs['text']}' --out /dev/stdout >>'{log}'"
    subprocess.run(command, shell=True, check=True, timeout=600)
    assert log.read_text() == "before\n" + succeeded("segment", runs["text"], stdin=b"The value").stdout
    (tmp_path / "drawn.svg").symlink_to("/dev/stdout")
    command = [sys.executable, "-m", "hmrnn", "generate", runs["strokes"], "--max-new", "5", "--out", "drawn.svg"]
    drawn = subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.PIPE, timeout=600).stdout
    assert drawn.rstrip().endswith(b"</svg>")


@pytest.mark.parametrize(
    ("closed", "told"),
    [(">&-", b"output"), *(pytest.param(*how, marks=pytest.mark.faults) for how in (("<&-", b"empty"), ("2>&-", b"")))],
)
def test_a_closed_stream(runs, closed, told):
    command = f"echo The value | '{sys.executable}' -m hmrnn segment '{runs['text']}' {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, timeout=600)
    assert b"Traceback" not in done.stderr, done.stderr
    assert told in done.stderr
    assert done.returncode == (1 if told else 0)


@pytest.mark.faults
def test_a_reader_that_has_enough_and_an_output_that_is_full(runs):
    hmrnn = f"yes The value | tr -d '\\n' | '{sys.executable}' -m hmrnn segment '{runs['text']}'"
    enough = subprocess.run(f"{hmrnn} | head -c 50", shell=True, capture_output=True, timeout=600)
    assert len(enough.stdout) == 50
    assert enough.stderr == b""
    full = subprocess.run(f"{hmrnn} > /dev/full", shell=True, capture_output=True, text=True, timeout=600)
    assert full.returncode == 1
    reason(full.stderr, "No space left")


@pytest.mark.faults
def test_a_locale_without_utf_8(runs, tmp_path):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    path = tmp_path / os.fsdecode("snow\N{SNOWMAN}".encode() + b"\xff")
    path.write_bytes(b"The value")
    done = processed("segment", runs["text"], path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.replace(b"|", b"").replace(b"?", b"").strip() == b"The value"
    path.write_bytes("雪".encode())
    failed = processed("eval", runs["text"], "--data", path, env=environment)
    assert failed.returncode == 1
    assert b"U+96EA" in failed.stderr
    assert b"Traceback" not in failed.stderr


def in_a_gigabyte(*arguments: str | Path, content: Iterator[bytes]) -> tuple[int, str]:
    """The status and the news of a command that may not have more memory than that beside torch's own."""
    limited = "import resource as r; r.setrlimit(r.RLIMIT_DATA, (1 << 30,) * 2); from hmrnn.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", limited, *map(str, arguments)], stdin=-1, stdout=subprocess.DEVNULL, stderr=-1
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for piece in content:
            process.stdin.write(piece)
        process.stdin.close()
        told = process.stderr.read().decode()
    return process.returncode, told


@pytest.mark.faults
@pytest.mark.parametrize("symbols", [10**5, 10**8])
def test_much_text_on_one_line(runs, tmp_path, symbols):
    """In constant memory. Each symbol is computed in `eval`; `segment` gets a tenth of them, one after the other."""
    piece = b"The value " * 1000
    status, told = in_a_gigabyte("segment", runs["text"], content=(piece for _ in range(symbols // 100_000)))
    assert status == 0, told
    assert f"{3 * symbols // 10:,}" in told
    path = tmp_path / "one line"
    with path.open("wb") as file:
        for _ in range(symbols // 10_000):
            file.write(piece)
    status, told = in_a_gigabyte("eval", runs["text"], "--data", path, "--streams", "512", content=iter(()))
    assert status == 0, told


@pytest.mark.faults
def test_a_long_line_of_strokes(runs):
    line = b"[[" + b",".join([b"[1, 2], [3, 5]"] * 5000) + b"]]\n"
    status, told = in_a_gigabyte("segment", runs["strokes"], content=iter([line]))
    assert status == 0, told


# Fuzzing


@pytest.fixture
def fuzzed(runs, tmp_path, monkeypatch) -> fuzz.Fuzz:
    """With all that it changes in this process put back after the test."""
    monkeypatch.setenv("HMRNN_CACHE", os.environ["HMRNN_CACHE"])
    for module in (fuzz.text_commands, fuzz.stroke_commands, fuzz.series_commands):
        monkeypatch.setattr(module, "load_model", module.load_model)
    monkeypatch.setattr(fuzz.scores, "DRAWS", fuzz.scores.DRAWS)
    return fuzz.Fuzz(runs["text"].parent, tmp_path)


numbers = st.one_of(st.integers(), st.floats(), st.none(), st.booleans(), st.text(max_size=3))
points = st.lists(numbers, min_size=1, max_size=3) | st.tuples(st.integers(-99, 99), st.floats(-99, 99))
lines = st.lists(st.lists(points, max_size=6), max_size=4).map(lambda line: json.dumps(line).encode())
cells = st.sampled_from(["a", "b", "end", "1", "-2.5", "", "nan", "1e300", '"', '"3"', " 4 ", "\0", "2024-05-01"])
rows = st.lists(cells, min_size=3, max_size=3).map(",".join)
tables = st.lists(rows, max_size=6).map(lambda found: "\n".join(["a,b,end", *found]).encode())
contents = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text("The value of it\r\n\0", max_size=300).map(str.encode),
    st.lists(lines, max_size=4).map(b"\n".join),
    tables,
)


@pytest.mark.parametrize("many", [300, pytest.param(10_000, marks=pytest.mark.faults)])
def test_fuzzed_by_hypothesis(fuzzed, many):
    @settings(max_examples=many, database=None)
    @given(st.integers(0, fuzz.CHOICES - 1), contents)
    def one(choice: int, content: bytes) -> None:
        fuzzed(choice.to_bytes(2, "big") + content)

    one()
    assert fuzzed.results.total() >= many
    assert len({result.split(":")[0] for result in fuzzed.results}) == fuzz.COMMANDS, "every command"


@pytest.mark.faults
@pytest.mark.parametrize("many", [300, 45_000])
def test_fuzzed_by_atheris(runs, tmp_path, many):
    done = subprocess.run(
        [sys.executable, fuzz.__file__, runs["text"].parent, tmp_path, str(many)],
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert sum(told["results"].values()) == many
    assert len(told["results"]) > 20, "every command answered, and refused"
