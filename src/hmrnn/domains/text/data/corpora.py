"""Text by name: the paper's sets as their publishers ship them, built-in text, or anyone's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hmrnn.domains.text.config import OnUnknown, SymbolKind, TextDataConfig
from hmrnn.domains.text.data.planted import planted
from hmrnn.domains.text.data.store import (
    Divide,
    TextData,
    TextFile,
    by_file,
    by_share,
    from_files,
    from_text,
)
from hmrnn.domains.text.data.symbols import Symbols, Unit, texts
from hmrnn.errors import SettingError
from hmrnn.storage.cache import data_directory


@dataclass(frozen=True)
class Published:
    """A set as its publisher ships it."""

    files: Sequence[tuple[str, str]]  # name of each file, unpacked, and the sha256 of its content
    source: str  # where the publisher offers it
    packed: Sequence[str] = ()  # endings under which a file may be packed
    unit: Unit = "character"
    divide: Divide = by_share
    strip_lines: bool = False


UNITS: Mapping[SymbolKind, Unit] = {"characters": "character", "bytes": "byte", "tokens": "token"}

PUBLISHED: Mapping[str, Published] = {
    "ptb": Published(
        files=[
            ("ptb.train.txt", "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            ("ptb.valid.txt", "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            ("ptb.test.txt", "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ],
        source="http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz (its folder data)",
        divide=by_file,
        strip_lines=True,
    ),
    "text8": Published(
        files=[("text8", "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7")],
        source="http://mattmahoney.net/dc/text8.zip",
        packed=[".zip"],
    ),
    "enwik8": Published(
        files=[("enwik8", "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8")],
        source="http://mattmahoney.net/dc/enwik8.zip",
        packed=[".zip", ".gz"],
        unit="byte",
    ),
}


def load_text(
    config: TextDataConfig,
    data_dir: Path | None = None,
    symbols: Symbols | None = None,
    on_unknown: OnUnknown = "error",
) -> TextData:
    """The text that `config.data` names. With `symbols`, those are its numbers; else a table is made from the text."""
    if config.data in ("builtin", "planted"):
        text = builtin_text() if config.data == "builtin" else planted(config.planted).text
        if symbols is None and config.symbols == "tokens":
            symbols = Symbols.of_tokens(Counter(text.split()), config.most_symbols)
        return from_text(text, symbols, on_unknown)
    if config.data in PUBLISHED:
        published = PUBLISHED[config.data]
        files = [find(config.data, name, sha256, data_directory(data_dir)) for name, sha256 in published.files]
        unit = UNITS[config.symbols] if config.symbols == "tokens" else published.unit
        left_out: list[str] = []
    else:
        config.check_there()
        unit = symbols.unit if symbols else UNITS[config.symbols]
        paths, left_out = files_below(Path(config.data), unit, config.strict)
        files = [TextFile(path) for path in paths]
    unit = symbols.unit if symbols else unit
    data = from_files(files, unit, division_of(config), symbols, on_unknown, config.most_symbols)
    return replace(data, left_out=tuple(left_out))


def division_of(config: TextDataConfig) -> Divide:
    return PUBLISHED[config.data].divide if config.data in PUBLISHED else by_share


def find(corpus: str, name: str, sha256: str, data_dir: Path) -> TextFile:
    """A published file in the data directory, or in a folder of the set's name there."""
    published = PUBLISHED[corpus]
    for folder in (data_dir, data_dir / corpus):
        for ending in ("", *published.packed):
            path = folder / f"{name}{ending}"
            if path.is_file():
                return TextFile(path, sha256, unpack=bool(ending), strip_lines=published.strip_lines)
    forms = " or ".join(f"{name}{ending}" for ending in ("", *published.packed))
    raise SettingError(
        "{corpus}: there is no {forms} in {folder}. Get it from {source} and put it there, or name its folder with {0} "
        "or HMRNN_DATA",
        "data_dir",
        corpus=corpus,
        forms=forms,
        folder=data_dir,
        source=published.source,
    )


def files_below(path: Path, unit: Unit, strict: bool = False) -> tuple[list[Path], list[str]]:
    """A file, or all files in a folder and its folders, in the order of their names; without hidden ones. And those of
    them that were left out, since they can't be read or are not text: each with the reason. `strict` refuses them."""
    if not path.is_dir():
        return [path], []
    below = sorted(p for p in path.rglob("*") if not any(part.startswith(".") for part in p.relative_to(path).parts))
    reasons = {file: why_not(file, unit) for file in below if not file.is_dir()}
    left_out = [f"{file}: {reason}" for file, reason in reasons.items() if reason]
    if left_out and strict:
        raise ValueError(left_out[0])
    if len(left_out) == len(reasons):
        raise ValueError(left_out[0] if left_out else f"{path}: there is no file in this folder")
    return [file for file, reason in reasons.items() if not reason], left_out


def why_not(file: Path, unit: Unit) -> str:
    """Why a file is no text of such symbols. Empty if it is one."""
    if not file.is_file():
        return "not a regular file"
    try:
        pieces = texts(TextFile(file).chunks(), unit, "")
        binary = any("\0" in piece for piece in pieces) and unit == "character"
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "not UTF-8"
    return "binary: it has bytes of 0" if binary else ""


def builtin_text() -> str:
    """Some 465,000 characters of English prose that every CPython carries: the texts behind Python's `help()`."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
