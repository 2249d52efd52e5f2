"""Texts whose symbols are what stands between white space: MIDI events, log events, codons, words."""

from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.config import TextDataConfig
from hmrnn.domains.text.data.corpora import builtin_text, load_text
from hmrnn.domains.text.data.symbols import LONGEST_TOKEN, RARE, split_texts
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import Request
from hmrnn.storage.config_json import from_json
from hmrnn.training.checkpoint import load_run
from hmrnn.training.history import read_history

CHORDS = ("C4 E4 G4", "D4 F4 A4 C5", "G3 B3", "rest")
SMALL = "--hidden-sizes 12 12 12 --output-size 12 --embedding-size 8 --batch-size 4 --window 20 --precision float32"


def small(table: tuple[str, ...]) -> TextModel:
    torch.manual_seed(0)
    config = TextModelConfig(hidden_sizes=(9, 8, 7), output_size=9, embedding_size=8, boundary_bias=0.05)
    return TextModel(Symbols(table, "token"), config)


@pytest.fixture(scope="module")
def music(tmp_path_factory) -> Path:
    """A chord a line, and a few events that are rare."""
    chance = random.Random(0)
    lines = [chance.choice(CHORDS) for _ in range(1200)]
    lines[100::150] = [f"noise{i}" for i in range(len(lines[100::150]))]
    path = tmp_path_factory.mktemp("tokens") / "music.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(music) -> Path:
    flags = f"--symbols tokens --most-symbols 12 --epochs 2 {SMALL}"
    done = run("train", "text", "--data", "music.txt", *flags.split(), "--out", "run", cwd=music.parent)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"12 distinct tokens.*{RARE}.*: 0\.", done.stderr)
    return music.parent / "run"


def ask(*words: object, **options) -> str:
    done = run(*map(str, words), **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@given(
    tokens=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)),
    cuts=st.lists(st.integers(0, 80)),
)
def test_tokens_are_whole_wherever_a_file_is_cut(tokens, cuts):
    content = " ".join(tokens).encode()
    ends = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    chunks = [content[a:b] for a, b in pairwise(ends) if a < b]
    pieces = split_texts(chunks, "token", "a file")
    assert [token for piece in pieces for token in piece] == content.decode().split()


def test_rare_tokens_share_one():
    counts = {"a": 5, "b": 3, "c": 3, "d": 1, "e": 1}
    assert Symbols.of_tokens(counts, 5).table == ("a", "b", "c", "d", "e")
    symbols = Symbols.of_tokens(counts, 3)
    assert symbols.table == ("a", "b", RARE)
    assert symbols.encode("a c\n b  never a").tolist() == [0, 2, 1, 2, 0]
    assert symbols.decode([0, 2, 1]) == f"a {RARE} b"
    assert Symbols.of_tokens({**counts, RARE: 9}, 3).table == ("a", "b", RARE)  # as a text may have one already
    with pytest.raises(ValueError, match=r"'never' at position 1 .*\b5 symbols"):
        Symbols.of_tokens(counts, 5).encode("a never")


@pytest.mark.parametrize("table", [("a b",), ("",), ("a\n",), ("x" * (LONGEST_TOKEN + 1),), ("a", "a")])
def test_what_is_no_table_of_tokens(table):
    with pytest.raises(ValueError, match=r"token|twice"):
        Symbols(table, "token")


def test_a_file_without_white_space_is_refused(tmp_path):
    path = tmp_path / "long.txt"
    path.write_text("x" * (LONGEST_TOKEN + 1))
    with pytest.raises(ValueError, match="more than 1,000 characters without white space"):
        load_text(TextDataConfig(str(path), symbols="tokens"))


def test_the_built_in_text_has_words():
    words = builtin_text().split()
    data = load_text(TextDataConfig("builtin", symbols="tokens", most_symbols=500))
    known = set(data.symbols.table)
    assert (len(data.symbols), len(data.numbers)) == (500, len(words))
    assert data.symbols.listed(data.numbers[:50]) == [word if word in known else RARE for word in words[:50]]
    rare = np.mean([word not in known for word in words[: data.splits["train"][1]]])
    assert f"{rare:.2%} of those to train on" in data.description()


def test_a_segment_has_its_tokens_as_text():
    model = small(("C4", "E4", "G4", "rest"))
    found = model.segment("C4 E4\nG4 rest " * 30)
    read = ["C4", "E4", "G4", "rest"] * 30
    assert (found.symbols, found.text) == (read, " ".join(read))
    assert len(found.layers[0]) > 1
    for layer in found.layers:
        assert [segment.text for segment in layer] == [" ".join(read[s.start : s.end]) for s in layer]
    for top in found.tree(snap=True):
        assert top.text == " ".join(read[top.start : top.end])
        assert " ".join(str(child.text) for child in top.children) in (top.text, "")


def test_settings_of_runs_from_before_tokens():
    def data(**settings: object) -> TextDataConfig:
        return from_json(TextDataConfig, TextDataConfig.migrated({"data": "x", **settings}), "config.json")

    assert data(bytes=True).symbols == "bytes"
    assert data(bytes=False).symbols == data().symbols == "characters"
    with pytest.raises(ValueError, match="unknown setting bytes"):
        data(bytes="yes")


def test_the_flag_bytes_still_works(tmp_path):
    (tmp_path / "bytes.bin").write_bytes(bytes(random.Random(0).choices(range(256), k=4096)))
    begun = ["--bytes", "--epochs", 0.01, *SMALL.split(), "--out", "run"]
    ask("train", "text", "--data", "bytes.bin", *begun, cwd=tmp_path)
    assert load_run(tmp_path / "run").config.data.symbols == "bytes"


def test_what_a_run_on_tokens_tells(trained):
    answer = json.loads(ask("eval", trained, "--temperature", 1.1, "--json"))
    assert 0 < answer["bits_per_token"] < 4
    assert answer["temperature"]["bits_per_token"] > 0
    assert "bits_per_character" not in answer
    assert re.match(r"\d\.\d+ bits per token: ", ask("eval", trained))
    assert read_history(trained).measure.text == "bits per token"


def test_it_generates_tokens(trained):
    words = ("generate", trained, "--prompt", "C4 E4", "--max-new", 20, "--seed", 1)
    made = json.loads(ask(*words, "--json"))
    known = TextModel.from_pretrained(trained).symbols.table
    assert made["prompt"] == "C4 E4"
    assert made["text"].startswith(" ")
    assert len(made["text"].split()) == 20
    assert set(made["text"].split()) <= set(known)
    assert ask(*words) == f"C4 E4{made['text']}\n"
    assert len(ask("generate", trained, "--max-new", 5, "--seed", 1).split()) == 5


def test_it_segments_tokens(trained, music):
    text = "C4 E4 G4 rest\nG3 B3 unheard\n" * 9
    found = json.loads(ask("segment", trained, "--format", "json", input=text))
    assert (found["unit"], found["symbols"]) == ("token", 9 * 7)
    layer = [segment["text"] for segment in found["segments"] if segment["layer"] == 1]
    assert " ".join(layer) == " ".join(text.replace("unheard", RARE).split())
    marked = ask("segment", trained, input=text)
    assert re.sub(r"[|‖]", "", marked) == " ".join(layer) + "\n"
    assert ask("segment", trained, "--lines", input=text).splitlines() == layer, "without the space between them"
    assert '"symbols":["C4","E4"' in ask("segment", trained, "--format", "html", input=text)


def test_scores_of_tokens(trained, music):
    found = json.loads(ask("score", trained, "--gold", music, "--json"))
    assert found["symbols"] == len(music.read_text().split())
    always = found["scores"]["layer 1"]["last of a segment"]["always"]
    lines = len(music.read_text().splitlines())
    assert always["recall"] == 1
    assert always["precision"] == pytest.approx((lines - 1) / (found["symbols"] - 1))
    refused = run("score", str(trained))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--gold" in refused.stderr


def test_figures_of_tokens(trained, tmp_path):
    made = ask("figure", trained, "--out", tmp_path, "--symbols", 40).split()
    assert {Path(path).stem for path in made} == {"training", "boundaries", "norms"}
    assert run("figure", str(trained), "--out", str(tmp_path), "--kind", "classes").returncode == 2
    drawn = (tmp_path / "boundaries.svg").read_text()
    assert "<!-- rest -->" in drawn


def test_typing_changes_the_last_token(trained):
    """A page that has "C4 E" and sends "C4 E4" is told of E4, though it has all but a letter of it."""
    runs = load([trained], Memory())
    request = Request(json.dumps({"text": "C4 E4", "have": 4}))
    [answer] = [told for told in runs[0].read(request) if told]
    assert (answer["start"], answer["symbols"], answer["unknown"]) == (1, ["E4"], [])
    asked = {"text": "C4 E4", "temperature": 0, "new": 3}
    texts = [told["text"] for told in runs[0].generate(Request(json.dumps(asked))) if told]
    assert [text[0] for text in texts] == [" ", " ", " "]


def test_an_hrnn_has_no_words_in_tokens(music, tmp_path):
    flags = f"--symbols tokens --model hrnn {SMALL}".split()
    done = run("train", "text", "--data", str(music), *flags, "--out", str(tmp_path / "run"))
    assert done.returncode == 1
    assert re.search(r"characters .*\bHRNN\b", done.stderr)


def test_bits_per_token_are_not_drawn_beside_bits_per_character(trained, text_file, tmp_path):
    other = str(tmp_path / "other")
    ask("train", "text", "--data", text_file, *SMALL.split(), "--epochs", 1, "--out", other)
    done = run("plot", str(trained), other, "--out", str(tmp_path / "curves.png"))
    assert done.returncode == 2
    assert "is a run on text (bits per token)" in done.stderr
