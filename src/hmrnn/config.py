"""What can be set: frozen dataclasses, from which the command line, config.json and the docs come.

No torch here: `hmrnn train text --help` reads this file and must be quick.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar, get_args

from tyro.conf import Suppress, arg

Boundary = Literal["step", "sample", "soft"]
CopyBoundary = Literal["recompute", "hold"]
RecurrentKind = Literal["hm-lstm", "lstm", "clockwork", "hrnn"]
Engine = Literal["auto", "native", "events", "reference"]
Precision = Literal["auto", "float32", "bfloat16"]
OnUnknown = Literal["error", "skip", "replace"]
TEXT_SETS = ("ptb", "text8", "enwik8", "builtin", "planted")
STROKE_SETS = ("iam-ondb", "builtin")
BOUNDARIES: tuple[str, ...] = get_args(Boundary)
COPY_BOUNDARIES: tuple[str, ...] = get_args(CopyBoundary)
PRECISIONS: tuple[str, ...] = get_args(Precision)
Data = TypeVar("Data", bound="DataConfig")


# What no run needs. A config may come from a stranger: what it asks for must end, and fit into numbers.
MOST_UNITS = 2**20
MOST_LAYERS = 100
MOST_SYMBOLS = 10**9
LONGEST = 10**9  # epochs or minutes
LARGEST_SEED = 2**63 - 1

SMALLEST_SIGMA = 0.0024787521766663585  # exp(-6): what models had before it could be set


class UsageError(ValueError):
    """A command was asked for something that it can't do: exit status 2."""


class Stopped(KeyboardInterrupt):
    """Training was asked to stop by a signal, and has written a checkpoint: exit status 128 + the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.status = 128 + number


def check_size(name: str, size: int, most: int | None = None) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name} must be a whole number from 1; got {size!r}")
    if most is not None and size > most:
        raise ValueError(f"{name} must be at most {most:,}; got {size:,}")


def check_seed(seed: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"seed must not be negative, and at most {LARGEST_SEED}; got {seed}")


def check_positive(name: str, value: float, most: float = float("inf")) -> None:
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive and finite; got {value}")
    if value > most:
        raise ValueError(f"{name} must be at most {most:,}; got {value}")


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} is a share, from 0 to less than 1; got {share}")


def check_range(name: str, ends: tuple[int, int], most: int) -> None:
    low, high = ends
    if not 1 <= low <= high <= most:
        raise ValueError(f"{name} must be two numbers from 1 to {most:,}, the smaller first; got {low} and {high}")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model, whatever it reads."""

    model: RecurrentKind = "hm-lstm"
    """The recurrent network: the HM-LSTM, or a baseline."""
    embedding_size: int = 128
    """Size of the input embedding."""
    hidden_sizes: tuple[int, ...] = (512, 512, 512)
    """Units of each layer, the lowest first."""
    output_size: int = 512
    """Size of the output embedding."""
    layer_norm: bool = True
    """Layer normalisation; the clockwork RNN always has it."""
    boundary: Boundary = "step"
    """How an HM-LSTM makes boundaries."""
    copy_boundary: CopyBoundary = "hold"
    """What an HM-LSTM's detector does in a COPY step."""
    boundary_bias: float | tuple[float, ...] = 0.0
    """Start value of the detectors' biases: one for all, or one for each layer but the last."""
    slope: Annotated[float, Suppress] = 1.0  # in training the schedule decides
    """Slope of the detectors."""
    precision: Precision = "auto"
    """Of matrix products. bfloat16 rounds their operands; sums and everything else stay float32."""
    weight_drop: float = 0.0
    """In training: share of the weights of the recurrent network's matrices that are 0. Drawn anew for each window;
    the detectors' own weights are not dropped."""
    embedding_dropout: float = 0.0
    """In training: share of the units of the input embedding that are 0. Drawn for each sequence and window."""
    dropout: float = 0.0
    """In training: share of a layer's units that the layer above sees as 0. Drawn for each sequence and window."""
    output_dropout: float = 0.0
    """In training: share of the units of the output embedding that are 0. Drawn for each step."""

    def __post_init__(self) -> None:
        check_size("embedding_size", self.embedding_size, MOST_UNITS)
        check_size("output_size", self.output_size, MOST_UNITS)
        check_size("the number of hidden_sizes", len(self.hidden_sizes), MOST_LAYERS)
        for size in self.hidden_sizes:
            check_size("each of hidden_sizes", size, MOST_UNITS)
        for name in ("weight_drop", "embedding_dropout", "dropout", "output_dropout"):
            check_share(name, getattr(self, name))
        if self.model == "clockwork" and (self.weight_drop or self.dropout):
            raise ValueError("a clockwork RNN has no weight_drop and no dropout between layers")
        detectors = len(self.hidden_sizes) - 1
        if isinstance(self.boundary_bias, tuple) and len(self.boundary_bias) != detectors:
            raise ValueError(
                f"boundary_bias must be one number, or one for each layer but the last ({detectors}); "
                f"got {self.boundary_bias}"
            )


@dataclass(frozen=True)
class TextModelConfig(ModelConfig):
    """The shape of a text model."""


@dataclass(frozen=True)
class StrokeModelConfig(ModelConfig):
    """The shape of a model of pen strokes."""

    hidden_sizes: tuple[int, ...] = (400, 400, 400)
    """Units of each layer, the lowest first."""
    output_size: int = 400
    """Size of the output embedding."""
    components: int = 20
    """Gaussians in the mixture that predicts the next point."""
    smallest_sigma: float = SMALLEST_SIGMA
    """Smallest standard deviation of a Gaussian, as a share of the data's own. Coordinates are whole numbers, so a
    smaller one gives a larger likelihood; compare models with the same one only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("components", self.components, MOST_UNITS)
        if not 1e-5 <= self.smallest_sigma < 1:
            raise ValueError(f"smallest_sigma must be at least 1e-5, and less than 1; got {self.smallest_sigma}")
        if self.model == "hrnn" and len(self.hidden_sizes) != 2:
            raise ValueError(
                "pen strokes give an hrnn boundaries for 2 layers: hidden_sizes must be two numbers; "
                f"got {self.hidden_sizes}"
            )


@dataclass(frozen=True)
class PlantedConfig:
    """The planted hierarchy: words of letters, phrases of words, and so on, with nothing between them."""

    symbols: int = 1_000_000
    """About how many symbols to make: the last phrase is not cut."""
    letters: int = 20
    """Distinct letters, at most 26."""
    words: int = 50
    """Distinct words, and at each higher level as many distinct units."""
    word_length: tuple[int, int] = (3, 7)
    """Letters of the shortest and of the longest word."""
    phrase_length: tuple[int, int] = (2, 4)
    """Units of the level below in the shortest and in the longest unit of a level."""
    depth: int = 2
    """Levels: 1 for words alone, 2 for words and phrases, and so on."""
    noise: float = 0.0
    """Share of the symbols that are replaced by a random letter."""
    seed: int = 0
    """The same seed plants the same hierarchy."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
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
class DataConfig:
    """What to learn from: a set that is known by its name, or a path."""

    data: str = "builtin"
    sets: ClassVar[tuple[str, ...]]

    @property
    def is_path(self) -> bool:
        return self.data not in self.sets

    def at_home(self: Data) -> Data:
        """With an absolute path, so that a run can be resumed from another folder."""
        return replace(self, data=str(Path(self.data).absolute())) if self.is_path else self


@dataclass(frozen=True)
class TextDataConfig(DataConfig):
    """The text to learn from."""

    sets = TEXT_SETS
    data: str = "builtin"
    """ptb, text8, enwik8, builtin (no download), planted (made), or a file or a folder of files."""
    bytes: bool = False
    """Take a file's bytes as its symbols, not its UTF-8 characters. enwik8 always is."""
    random_start: bool = False
    """Start every epoch but the first at a random place of the training text and go round. Then the text is cut into
    sequences and windows elsewhere each time."""
    planted: PlantedConfig = field(default_factory=PlantedConfig)

    def __post_init__(self) -> None:
        if self.bytes and self.data in ("ptb", "text8", "builtin", "planted"):
            raise ValueError(f"bytes is for files; {self.data} is made of characters")


@dataclass(frozen=True)
class WritingConfig:
    """The built-in handwriting: words in a Hershey font, as an unsteady hand would draw them."""

    lines: int = 2000
    """Lines to draw."""
    words: tuple[int, int] = (2, 4)
    """Words of the shortest and of the longest line."""
    font: Literal["futural", "scripts"] = "futural"
    """The Hershey font: plain letters, or a script."""
    spacing: float = 2.5
    """Mean distance of two points of a stroke; a small letter is about 14 high, 9 in the script."""
    jitter: float = 0.15
    """Standard deviation of each coordinate."""
    slant: float = 0.15
    """Standard deviation of a line's slant: the tangent of its angle."""
    size: float = 0.1
    """Standard deviation of a line's size, as a share of it."""
    speed: float = 0.2
    """Standard deviation of the distance between points from line to line, and within a line, as a share of it."""
    seed: int = 0
    """The same seed draws the same lines."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_size("lines", self.lines, 10**7)
        check_range("words", self.words, most=1000)
        if not 0.01 <= self.spacing < float("inf"):
            raise ValueError(f"spacing must be at least 0.01, and finite; got {self.spacing}")
        for name in ("jitter", "slant", "size", "speed"):
            if not 0 <= getattr(self, name) <= 100:
                raise ValueError(f"{name} must not be negative, and at most 100; got {getattr(self, name)}")


@dataclass(frozen=True)
class StrokeDataConfig(DataConfig):
    """The handwriting to learn from."""

    sets = STROKE_SETS
    data: str = "builtin"
    """iam-ondb, builtin (no download), or a file: JSON lines, a list of strokes on each, a stroke a list of [x, y]."""
    shortest: int | None = None
    """Lines with fewer points are left out. By default 300 for iam-ondb, as in the paper, else 2."""
    division: Literal["shuffled", "by-writer"] = "shuffled"
    """Which lines to train on, to validate and to test. shuffled: 90, 5 and 5 %, whoever wrote them, as in the paper.
    by-writer: the lists t1 that IAM-OnDB is published with, in which no writer is in two parts."""
    division_seed: int = 0
    """Of the shuffle."""
    scaling: float = 0.0
    """In training, each line is made larger or smaller by up to this share, by another factor in each epoch."""
    late_window: tuple[int, int] | None = None
    """An epoch, counted from 0, and how many steps a window has from then on: longer ones towards the end."""
    writing: WritingConfig = field(default_factory=WritingConfig)

    def __post_init__(self) -> None:
        check_share("scaling", self.scaling)
        if self.late_window is not None and not (0 <= self.late_window[0] <= LONGEST and self.late_window[1] >= 1):
            raise ValueError(f"late_window must be an epoch and a number of steps from 1; got {self.late_window}")
        if self.shortest is not None and self.shortest < 2:
            raise ValueError(f"shortest must be at least 2, a point and the next to predict; got {self.shortest}")
        if self.division == "by-writer" and self.data != "iam-ondb":
            raise ValueError(f"division by-writer is for iam-ondb, whose writers are known; not for {self.data}")


@dataclass(frozen=True)
class TrainingConfig:
    """How to train."""

    batch_size: int = 64
    """Sequences that are read side by side (in each process): parts of a text, or lines of handwriting."""
    window: int = 100
    """Steps of truncated backpropagation, at most. The state is carried from one window to the next."""
    learning_rate: float = 0.002
    """Of Adam, at the start."""
    learning_rate_divisor: float = 50.0
    """The learning rate is divided by this once validation stops improving; when it does so again, training ends."""
    patience: int = 1
    """Validations in a row without improvement that count as having stopped."""
    cooldown: float = 0.0
    """The last part of the run, a share of its epochs or minutes, in which the learning rate falls in a line to 0."""
    warmup: int = 0
    """Updates at the start in which the learning rate rises linearly."""
    weight_decay: float = 0.0
    """Decoupled weight decay: in each update matrices shrink by this share, times the learning rate."""
    average: float = 0.0
    """Decay of the exponential moving average of the weights, for instance 0.999. Validation and best/ use the average.
    0: none."""
    gradient_clip: float = 1.0
    """The gradient's norm is cut to this."""
    slope_per_epoch: float = 0.04
    """Slope annealing: the slope is 1 + this for each epoch done,"""
    slope_limit: float = 5.0
    """but at most this."""
    detector_radius: float | None = None
    """Radius of the norm ball that the weights into each detector are kept in. By default it depends on the units of
    the layer. 0: no ball."""
    target_rate: float = 0.18
    """Detectors are guided: the first to fire at this share of the steps, each above a quarter as often,"""
    uncertainty_weight: float = 0.1
    """and where it is least certain what comes next, by a loss with this weight. Unless it is 0, the straight-through
    gradient is held back meanwhile. Guidance lasts"""
    guided_updates: int | None = None
    """for so many updates; by default as long as the learning rate. Steering to the rate falls with that, or in the
    second half of these updates. 0 leaves detectors alone, as the paper does."""
    validate_every: float = 1.0
    """Epochs from one validation to the next."""
    epochs: float = 100.0
    """Ends after so many epochs,"""
    minutes: float | None = None
    """or after so many minutes in all, whichever comes first. A cooldown then goes by the clock, too."""
    checkpoint_minutes: float = 5.0
    """Minutes from one checkpoint to the next. There is one at each validation and at the end, too."""
    seed: int = 0
    """The same seed gives the same model."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        for name in ("batch_size", "window", "patience"):
            check_size(name, getattr(self, name))
        for name in ("learning_rate", "gradient_clip"):
            check_positive(name, getattr(self, name))
        if self.detector_radius is not None and not 0 <= self.detector_radius < float("inf"):
            raise ValueError(f"detector_radius must not be negative, and finite; got {self.detector_radius}")
        for name in ("validate_every", "checkpoint_minutes"):
            check_positive(name, getattr(self, name), LONGEST)
        for name in ("epochs", "minutes"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= LONGEST:
                raise ValueError(f"{name} must not be negative, and at most {LONGEST:,}; got {value}")
        for name in ("learning_rate_divisor", "slope_limit"):
            if not 1 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be at least 1, and finite; got {getattr(self, name)}")
        if self.warmup < 0:
            raise ValueError(f"warmup must not be negative; got {self.warmup}")
        if not 0 <= self.weight_decay * self.learning_rate < 1:
            raise ValueError(
                f"weight_decay must not be negative, and less than 1 / learning_rate; got {self.weight_decay}"
            )
        if not 0 <= self.average < 1:
            raise ValueError(f"average must be at least 0, and less than 1; got {self.average}")
        if not 0 <= self.cooldown <= 1:
            raise ValueError(f"cooldown is a share, from 0 to 1; got {self.cooldown}")
        if not 0 < self.target_rate < 1:
            raise ValueError(f"target_rate is a share, between 0 and 1; got {self.target_rate}")
        if self.guided_updates is not None and self.guided_updates < 0:
            raise ValueError(f"guided_updates must not be negative; got {self.guided_updates}")
        if not 0 <= self.uncertainty_weight < float("inf"):
            raise ValueError(f"uncertainty_weight must not be negative, and finite; got {self.uncertainty_weight}")
        if not 0 <= self.slope_per_epoch < float("inf"):
            raise ValueError(f"slope_per_epoch must not be negative, and finite; got {self.slope_per_epoch}")


@dataclass(frozen=True)
class ReadingConfig:
    """Which model of a run reads a text, and how."""

    checkpoint: Literal["best", "last"] = "best"
    """The model with the best validation, or the last one. Of a run with --average, the last one is not averaged."""
    engine: Engine = "auto"
    """How the network is computed. auto takes the fastest that works here."""
    precision: Precision = "auto"
    """Of matrix products. auto takes the one that the run was trained with."""
    on_unknown: OnUnknown = "error"
    """What to do with a symbol that the model does not know."""


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
            raise ValueError(f"--temperature must lie between 0.01 and 100, or be auto; got {self.temperature}")
        if isinstance(self.dynamic, float | int):
            check_positive("--dynamic", self.dynamic, most=1e30)  # float32 ends soon after
        if self.decay is not None and self.dynamic is None:
            raise ValueError("--decay is that of dynamic evaluation: it needs --dynamic")
        if self.decay is not None and not 0 <= self.decay <= 1:
            raise ValueError(f"--decay must lie between 0 and 1; got {self.decay}")

    @property
    def needs_own_text(self) -> bool:
        """Whether it takes the text that the model was trained on."""
        return self.dynamic is not None or self.temperature == "auto"


BOUNDS = ("epochs", "minutes", "checkpoint_minutes")  # what may change when a run is resumed


@dataclass(frozen=True)
class TextRunConfig:
    """All that decides what comes of a training run on text."""

    kind: ClassVar[str] = "text"
    # name="": on the command line these are --data, --hidden-sizes, --epochs, without a prefix
    data: Annotated[TextDataConfig, arg(name="")] = field(default_factory=TextDataConfig)
    model: Annotated[TextModelConfig, arg(name="")] = field(default_factory=TextModelConfig)
    training: Annotated[TrainingConfig, arg(name="")] = field(default_factory=TrainingConfig)


@dataclass(frozen=True)
class StrokeRunConfig:
    """All that decides what comes of a training run on pen strokes."""

    kind: ClassVar[str] = "strokes"
    data: Annotated[StrokeDataConfig, arg(name="")] = field(default_factory=StrokeDataConfig)
    model: Annotated[StrokeModelConfig, arg(name="")] = field(default_factory=StrokeModelConfig)
    training: Annotated[TrainingConfig, arg(name="")] = field(
        default_factory=lambda: TrainingConfig(target_rate=0.25, uncertainty_weight=0.0)
    )


RunConfig: TypeAlias = TextRunConfig | StrokeRunConfig
