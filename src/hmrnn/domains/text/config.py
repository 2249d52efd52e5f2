"""What can be set of a run on text, and settings by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import Suppress

from hmrnn.config import (
    MOST_SYMBOLS,
    MOST_UNITS,
    OURS,
    SMALL,
    DataConfig,
    MadeDataConfig,
    Measure,
    ModelConfig,
    NameOrFile,
    ReadingConfig,
    RunConfig,
    TrainingConfig,
    paper_training,
)
from hmrnn.errors import SettingError, check_range, check_size

MEASURE = Measure("bits", "bits per character", math.log(2), "symbols")
OnUnknown = Literal["error", "skip", "replace"]
SymbolKind = Literal["characters", "bytes", "tokens"]
TEXT_SETS = ("ptb", "text8", "enwik8", "builtin", "planted")


@dataclass(frozen=True)
class TextModelConfig(ModelConfig):
    """Settings of the network of a text model."""

    boundary_delay: Annotated[int, Suppress] = 0  # in training the text decides
    """Symbols after a segment's last one at which detectors fire: 0, or 1 for the first symbol of the next."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.boundary_delay not in (0, 1):
            raise ValueError(f"boundary_delay must be 0 or 1; got {self.boundary_delay}")


@dataclass(frozen=True)
class PlantedConfig(MadeDataConfig):
    """The planted hierarchy: words of letters, phrases of words, and so on, with nothing between them."""

    symbols: int = 1_000_000
    """Approximate length in symbols; the last phrase is complete."""
    letters: int = 20
    """Number of distinct letters, at most 26."""
    words: int = 50
    """Number of distinct words, and of distinct units at each higher level."""
    word_length: tuple[int, int] = (3, 7)
    """Shortest and longest word, in letters."""
    phrase_length: tuple[int, int] = (2, 4)
    """Shortest and longest unit of a higher level, in units of the level below."""
    depth: int = 2
    """Number of levels: 1 for words, 2 for words and phrases, and so on."""
    noise: float = 0.0
    """Share of the symbols replaced by a random letter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("symbols", "words", "depth"):
            check_size(name, getattr(self, name), MOST_SYMBOLS)
        if not 2 <= self.letters <= 26:
            raise ValueError(f"letters must lie between 2 and 26; got {self.letters}")
        if not 0 <= self.noise <= 1:
            raise ValueError(f"noise is a share, between 0 and 1; got {self.noise}")
        for name in ("word_length", "phrase_length"):
            check_range(name, getattr(self, name), most=1000)
        if self.word_length[1] * self.phrase_length[1] ** (min(self.depth, 64) - 1) * self.words > MOST_SYMBOLS:
            raise ValueError("depth, words and the lengths of words and phrases make units that are too long to keep")
        for name, kinds in (("word_length", self.letters), ("phrase_length", self.words)):
            if sum(kinds**length for length in range(getattr(self, name)[0], getattr(self, name)[1] + 1)) < self.words:
                raise ValueError(f"there are fewer than {self.words} distinct units of {name} {getattr(self, name)}")


@dataclass(frozen=True)
class TextDataConfig(DataConfig):
    """The text to learn from."""

    sets = TEXT_SETS
    made = ("planted", "planted")
    data: NameOrFile = "builtin"
    """ptb, text8, enwik8, builtin (no download), planted (made), or a file or a folder of files; - is standard input,
    which is kept in the run."""
    symbols: SymbolKind = "characters"
    """What is one symbol: a UTF-8 character, a byte, or a token between white space. enwik8 is always read as bytes."""
    most_symbols: int = 10_000
    """Tokens: number of distinct symbols. The most frequent tokens have their own, all others share one."""
    random_start: bool = False
    """Start each epoch but the first at a random place of the training text, so that windows begin elsewhere."""
    strict: bool = False
    """Fail if a file of a folder is unreadable or not text. By default such files are named and left out."""
    planted: PlantedConfig = field(default_factory=PlantedConfig)

    def __post_init__(self) -> None:
        if self.symbols == "bytes" and self.data in ("ptb", "text8", "builtin", "planted"):
            raise ValueError(f"bytes is for files; {self.data} is made of characters")
        if self.symbols == "tokens" and self.data == "planted":
            raise ValueError("planted has no white space: it can't be read as tokens")
        check_size("most_symbols", self.most_symbols, MOST_UNITS)
        if self.most_symbols < 2:
            raise ValueError("most_symbols must be at least 2: a token, and one for all others")

    def check_used(self) -> None:
        super().check_used()
        if self.symbols != "tokens" and self.most_symbols != TextDataConfig.most_symbols:
            raise SettingError("{0} is for tokens, not for {symbols}", "most_symbols", symbols=self.symbols)

    @property
    def measure(self) -> Measure:
        return replace(MEASURE, text="bits per token") if self.symbols == "tokens" else MEASURE

    @staticmethod
    def migrated(content: dict[str, Any]) -> dict[str, Any]:
        """Runs from before there were tokens say whether their symbols are bytes."""
        if not isinstance(content.get("bytes"), bool):
            return content
        named = {name: value for name, value in content.items() if name != "bytes"}
        return {"symbols": "bytes" if content["bytes"] else "characters", **named}


@dataclass(frozen=True)
class TextRunConfig(RunConfig):
    """All that decides what comes of a training run on text."""

    kind: ClassVar[str] = "text"
    data: TextDataConfig = field(default_factory=TextDataConfig)
    model: TextModelConfig = field(default_factory=TextModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)


@dataclass(frozen=True)
class TextReadingConfig(ReadingConfig):
    """Which model of a run reads a text, and how."""

    on_unknown: OnUnknown = "error"
    """Symbols that the model does not know. error: stop and name the symbol. skip: leave it out.
    replace: by the first that the model knows of U+FFFD, a question mark, a space and its last symbol."""


IN_EXPLORER = TextReadingConfig(on_unknown="replace")  # whoever types meets symbols that the model does not know


@dataclass(frozen=True)
class AdaptingConfig:
    """What else to measure, beside what a model makes of a text as it is."""

    temperature: float | Literal["auto"] | None = None
    """Logits are divided by it. auto: by what is best on the validation part."""
    dynamic: float | Literal["auto"] | None = None
    """Dynamic evaluation with this eta. auto: with what is best on the validation part."""
    decay: float | None = None
    """Its lambda. By default what is best on the validation part."""

    def __post_init__(self) -> None:
        if isinstance(self.temperature, float | int) and not 0.01 <= self.temperature <= 100:
            raise SettingError(
                "{0} must lie between 0.01 and 100, or be auto; got {got}", "temperature", got=self.temperature
            )
        if isinstance(self.dynamic, float | int) and not 0 < self.dynamic <= 1e30:  # float32 ends soon after
            raise SettingError("{0} must be positive, and at most 1e30; got {got}", "dynamic", got=self.dynamic)
        if self.decay is not None and self.dynamic is None:
            raise SettingError("{0} is that of dynamic evaluation: it needs {1}", "decay", "dynamic")
        if self.decay is not None and not 0 <= self.decay <= 1:
            raise SettingError("{0} must lie between 0 and 1; got {got}", "decay", got=self.decay)

    @property
    def needs_own_text(self) -> bool:
        """Whether it takes the text that the model was trained on."""
        return self.dynamic is not None or self.temperature == "auto"


def _ptb() -> TextRunConfig:
    """Most units at the bottom, where every character is read: it learns more in each epoch than three layers of 512,
    and needs fewer hours. In 8 epochs it begins to overfit (docs/log.md)."""
    model = TextModelConfig(
        hidden_sizes=(1024, 512, 256), weight_drop=0.2, embedding_dropout=0.05, dropout=0.1, output_dropout=0.1
    )
    training = replace(OURS, weight_decay=0.01, epochs=8)
    return TextRunConfig(TextDataConfig(random_start=True), model, training)


def _wikipedia() -> TextRunConfig:
    """One epoch is no time to overfit in: no dropout."""
    model = TextModelConfig(hidden_sizes=(1024, 1024, 1024), output_size=2048)
    training = replace(OURS, learning_rate=0.001, epochs=1, validate_every=0.05)
    return TextRunConfig(TextDataConfig(random_start=True), model, training)


_PAPER_WIKIPEDIA = TextRunConfig(
    model=TextModelConfig(hidden_sizes=(1024, 1024, 1024), output_size=2048),
    training=paper_training(batch_size=128, learning_rate=0.001, slope_per_epoch=0.0, slope_limit=1.0),
)

PRESETS: Mapping[str, TextRunConfig] = {
    "small": TextRunConfig(
        data=TextDataConfig(random_start=True),
        model=TextModelConfig(hidden_sizes=(128, 128, 128), output_size=128),
        training=replace(SMALL, epochs=10),
    ),
    "ptb": _ptb(),
    "text8": _wikipedia(),
    "enwik8": _wikipedia(),
    "paper-ptb": TextRunConfig(training=paper_training(64, 0.002, slope_per_epoch=0.04, slope_limit=5.0)),
    "paper-text8": _PAPER_WIKIPEDIA,
    "paper-enwik8": _PAPER_WIKIPEDIA,
}
