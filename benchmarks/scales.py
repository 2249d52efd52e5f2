"""Boundaries at each text's own scale: trains with default flags, as a user would, and scores what was found.

    python benchmarks/scales.py --data-dir ../shared/data --out runs/scales --seeds 0 1 2

Each run is bounded by its epochs, so that it makes the same updates on a machine that is busy: at most three minutes on
one core. Texts without spaces are written into --out: a sentence of Penn Treebank a line, lines of 8 to 30 words of
text8, which has none, and lines of German words and of words of 3,000 characters that are made here; what is scored are
lines that no run was trained on. Results go to scales.jsonl in --out.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SPEECH_WORDS = 1300  # distinct words of the made-up speech: the most frequent ones of text8
SPEECH_LINES = 10_000
MADE_LINES = 6_000  # of texts that are made of known words
GERMAN = """der die das ein eine und oder aber nicht ist war hat wird kann soll auf unter neben hinter mit ohne für
gegen ich du er sie wir ihr schön groß klein alt neu schnell langsam warm kalt gehen kommen sehen hören lesen schreiben
bauen finden suchen tragen über zwischen während"""
NOUNS = """haus tür garten stadt wald berg see schiff bahn hof schule buch tisch stuhl licht wasser feuer luft erde
stein holz brot milch kind mann frau hund katze vogel baum blume straße brücke"""  # German makes one word of two


class Trial(NamedTuple):
    data: str  # as --data takes it, or the name of a text that is made here
    epochs: float
    score: tuple[str, ...]  # how what was found is scored


TRIALS = {
    "ptb, spaces removed": Trial("ptb-unspaced", 2.0, ("--gold", "ptb-unspaced.gold")),
    "text8, spaces removed": Trial("text8-unspaced", 1.5, ("--gold", "text8-unspaced.gold")),
    "speech, spaces removed": Trial("speech", 10.0, ("--gold", "speech.gold")),
    "German, spaces removed": Trial("german", 10.0, ("--gold", "german.gold")),
    "3,000 characters": Trial("characters", 10.0, ("--gold", "characters.gold")),
    "ptb": Trial("ptb", 0.4, ()),
    "text8": Trial("text8", 0.0223, ("--first", "100000")),
    "planted": Trial("planted", 2.3, ()),
    "builtin": Trial("builtin", 5.0, ()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--texts", nargs="+", choices=list(TRIALS), default=list(TRIALS))
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for seed in asked.seeds:
        for name in asked.texts:
            tell(name, seed, measured(TRIALS[name], seed, asked.data_dir, asked.out), asked.out)


def measured(trial: Trial, seed: int, data_dir: Path, out: Path) -> dict[str, Any]:
    made = makers(data_dir).get(trial.data)
    text = out / f"{trial.data}.txt"
    if made is not None and not text.exists():
        write_unspaced(text, made)
    run = out / f"{trial.data}-{seed}"
    where = ("--data-dir", str(data_dir)) if made is None else ()
    data = trial.data if made is None else str(text)
    flags = ("--seed", str(seed), "--epochs", str(trial.epochs), "--out", str(run), "--json", *where)
    trained = hmrnn("train", "text", "--data", data, *flags)
    gold = [str(out / part) if part.endswith(".gold") else part for part in trial.score]
    return {**trained, "scores": hmrnn("score", str(run), "--json", "--on-unknown", "replace", *gold)["scores"]}


def tell(name: str, seed: int, result: dict[str, Any], out: Path) -> None:
    layers = []
    for conventions in result["scores"].values():
        best, rows = max(conventions.items(), key=lambda item: item[1]["found"]["f1"])
        layers.append({"convention": best, "random": rows["random"]["f1"], **rows["found"]})
    record = {"text": name, "seed": seed, "bits": result["best_bits"], "minutes": result["minutes"], "layers": layers}
    with (out / "scales.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    found = ", ".join(f"{one['f1']:.3f} {one['convention']} (token {one['token_f1']:.3f})" for one in layers)
    print(f"{name}, seed {seed}: F1 {found}; {record['bits']:.3f} bits, {record['minutes']:.1f} min", flush=True)


def hmrnn(*words: str) -> dict[str, Any]:
    """The answer of a command."""
    done = subprocess.run([sys.executable, "-m", "hmrnn", *words], stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def makers(data_dir: Path) -> dict[str, Any]:
    return {
        "ptb-unspaced": lambda: ptb_lines(data_dir / "ptb"),
        "text8-unspaced": lambda: text8_lines(data_dir / "text8"),
        "speech": lambda: speech_lines(data_dir / "text8"),
        "german": lambda: made_lines(german_words()),
        "characters": lambda: made_lines(words_of_characters()),
    }


def write_unspaced(path: Path, make: Any) -> None:
    """The lines to train on, without spaces; beside it, with them, those to score."""
    train, test = make()
    path.with_suffix(".gold").write_text("\n".join(test) + "\n", encoding="utf-8")
    path.write_text("".join(line.replace(" ", "") + "\n" for line in train), encoding="utf-8")


def ptb_lines(folder: Path) -> tuple[list[str], list[str]]:
    train, test = ((folder / f"ptb.{part}.txt").read_text().splitlines() for part in ("train", "test"))
    return [line.strip() for line in train], [line.strip() for line in test[:2000]]


def words_of_text8(folder: Path, characters: int) -> list[str]:
    with zipfile.ZipFile(folder / "text8.zip") as archive, archive.open("text8") as file:
        return file.read(characters).decode().split()[:-1]


def text8_lines(folder: Path) -> tuple[list[str], list[str]]:
    words, draw = words_of_text8(folder, 12_000_000), random.Random(0)
    lines = list(chunks(words, draw, 8, 30))
    return lines[:-2000], lines[-2000:]


def speech_lines(folder: Path) -> tuple[list[str], list[str]]:
    """Short lines of frequent words, one to six at a time, as one speaks to a child: stretches of text8 between rarer
    words, in random order."""
    words, draw = words_of_text8(folder, 20_000_000), random.Random(0)
    counts: dict[str, int] = {}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    common = set(sorted(counts, key=lambda word: -counts[word])[:SPEECH_WORDS])
    lines, stretch = [], []
    for word in words:
        if word in common:
            stretch.append(word)
        else:
            lines += chunks(stretch, draw, 1, 6)
            stretch = []
    draw.shuffle(lines)
    return lines[: SPEECH_LINES - 700], lines[SPEECH_LINES - 700 : SPEECH_LINES]


def german_words() -> list[str]:
    nouns = NOUNS.split()
    return [*GERMAN.split(), *nouns, *(first + second for first in nouns for second in nouns if first != second)]


def words_of_characters(characters: int = 3000, words: int = 4000) -> list[str]:
    """Words of one to three characters, as in Chinese."""
    draw = random.Random(0)
    letters = [chr(0x4E00 + i) for i in range(characters)]
    return ["".join(draw.choices(letters, k=draw.choice((1, 2, 2, 2, 3)))) for _ in range(words)]


def made_lines(words: list[str]) -> tuple[list[str], list[str]]:
    """Words drawn by Zipf's law, some to a line."""
    draw, weights = random.Random(0), [1 / rank for rank in range(1, len(words) + 1)]
    lines = [" ".join(draw.choices(words, weights, k=draw.randint(2, 9))) for _ in range(MADE_LINES)]
    return lines[:-500], lines[-500:]


def chunks(words: list[str], draw: random.Random, fewest: int, most: int) -> Iterator[str]:
    start = 0
    while start < len(words):
        length = draw.randint(fewest, most)
        yield " ".join(words[start : start + length])
        start += length


if __name__ == "__main__":
    main()
