"""What can be set: frozen dataclasses, from which the command line, config.json and the docs come.

No torch here: `hmrnn train text --help` reads this file and must be quick.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from tyro.conf import Suppress
from tyro.constructors import PrimitiveConstructorSpec

from hmrnn.errors import (
    SettingError,
    check_device,
    check_not_negative,
    check_positive,
    check_share,
    check_size,
    check_type,
)

Boundary = Literal["step", "sample", "soft"]
CopyBoundary = Literal["recompute", "hold"]
RecurrentKind = Literal["hm-lstm", "lstm", "clockwork", "hrnn"]
EngineName = Literal["auto", "native", "events", "triton", "reference"]
Precision = Literal["auto", "float32", "bfloat16"]
BOUNDARIES: tuple[str, ...] = get_args(Boundary)
COPY_BOUNDARIES: tuple[str, ...] = get_args(CopyBoundary)
PRECISIONS: tuple[str, ...] = get_args(Precision)
OwnData = TypeVar("OwnData", bound="DataConfig")


# What no run needs. A config may come from a stranger: what it asks for must end, and fit into numbers.
MOST_UNITS = 2**20
MOST_LAYERS = 100
MOST_VALUES = 10_000  # of one setting, such as names of columns
MOST_SYMBOLS = 10**9
LONGEST_RUN = 10**9  # epochs or minutes
LARGEST_SEED = 2**63 - 1

SMALLEST_SIGMA = 0.0024787521766663585  # exp(-6): what models had before it could be set


def shown_as(metavar: str, kind: Callable[[str], Any], *also: type) -> PrimitiveConstructorSpec[Any]:
    """One word that `kind` makes a value of. Values of the types in `also` stand for one, too."""
    own = kind if isinstance(kind, type) else Path
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: kind(words[0]),
        is_instance=lambda value: isinstance(value, own) or ("~" if type(value) in also else False),
        str_from_instance=lambda value: [str(value)],
    )


def freeze_lists(config: Any) -> None:
    """Makes tuples of lists, as they come from Python: settings that are the same must be equal."""
    for name, value in vars(config).items():
        if isinstance(value, list):
            object.__setattr__(config, name, tuple(value))


@dataclass(frozen=True)
class ModelConfig:
    """Settings of the network that all kinds of sequences share."""

    model: RecurrentKind = "hm-lstm"
    """The recurrent network: the HM-LSTM, or one of the baselines."""
    embedding_size: int = 128
    """Size of the input embedding."""
    hidden_sizes: tuple[int, ...] = (512, 512, 512)
    """Units of each layer, the lowest first."""
    output_size: int = 512
    """Size of the output embedding."""
    layer_norm: bool = True
    """Apply layer normalisation. The clockwork RNN always does."""
    boundary: Boundary = "step"
    """How a detector decides. step: a threshold. sample: at random, by its probability. soft: not binary."""
    copy_boundary: CopyBoundary = "hold"
    """Boundary of a layer that copies its state. hold: 0. recompute: the detector decides at every step."""
    boundary_bias: float | tuple[float, ...] = 0.0
    """Initial bias of the detectors: one number, or one for each layer but the last. If detectors are not
    guided, raise it if one never fires, and lower it if one always fires."""
    slope: Annotated[float, Suppress] = 1.0  # in training the schedule decides
    """Slope of the detectors' hard sigmoid."""
    precision: Precision = "auto"
    """Precision of matrix products. bfloat16 rounds their operands; everything else stays float32.
    auto uses bfloat16 where the processor is faster with it."""
    weight_drop: float = 0.0
    """Dropout of weights in training: share of W, U and V set to 0, a new mask for each window. Not for detectors."""
    embedding_dropout: float = 0.0
    """Dropout of the input embedding in training: share of its units set to 0, one mask for a sequence and window."""
    dropout: float = 0.0
    """Dropout between layers in training: share of units set to 0 for the layer above, one mask for a sequence and
    window. Detectors see all units. Raise it if validation gets worse while training improves."""
    output_dropout: float = 0.0
    """Dropout of the output embedding in training: share of its units set to 0, a new mask for each step."""

    def __post_init__(self) -> None:
        freeze_lists(self)
        check_size("embedding_size", self.embedding_size, MOST_UNITS)
        check_size("output_size", self.output_size, MOST_UNITS)
        check_type("hidden_sizes", self.hidden_sizes, (tuple,), "the units of each layer, as in (512, 512)")
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


STANDARD_INPUT = Path("-")
KEPT_INPUT = "data"  # the file of a run that keeps what was given there
NameOrFile = Annotated[str, shown_as("NAME|FILE", str)]


@dataclass(frozen=True)
class DataConfig:
    """What to learn from: a set that is known by its name, or a path."""

    data: NameOrFile = "builtin"
    sets: ClassVar[tuple[str, ...]]
    made: ClassVar[tuple[str, str]]  # the set that is made by chance, and the setting that says how

    @property
    def is_path(self) -> bool:
        return self.data not in self.sets

    def check_there(self) -> None:
        """Refuses a path at which there is nothing."""
        if self.is_path and not os.path.exists(self.data):
            raise ValueError(
                f"{self.data}: there is no such file or folder, and it is not one of the sets known by name: "
                f"{', '.join(self.sets)}"
            )

    def check_used(self) -> None:
        """Refuses settings without effect. Not whenever one is made: with other data, those of a run stay as they
        are."""
        name, how = self.made
        if self.data == name:
            return
        own = getattr(self, how)
        for setting, usual in vars(type(own)()).items():
            if getattr(own, setting) != usual:
                told = "{0} is for {1} {name}, not for {data}"
                raise SettingError(told, f"{how}.{setting}", "data", name=name, data=self.data)

    def check_still_there(self, run: Path) -> None:
        """Refuses a path at which there is nothing any more. The run was trained on it."""
        gone = "{data}: there is no such file or folder any more, and {run} was trained on it. If it was moved, "
        if self.is_path and not os.path.exists(self.data):
            raise SettingError(
                gone + "give {0} with its new path",
                "data",
                on_command_line=gone + "{0} NEW_PATH tells where it is now",
                data=self.data,
                run=run,
            )

    def taken_along(self: OwnData, run: Path) -> OwnData:
        """What a run keeps of its standard input moves with it. `run` is its directory, or best/ in it."""
        if not self.is_path or Path(self.data).name != KEPT_INPUT or os.path.exists(self.data):
            return self
        folders = [run, run.parent] if run.name == "best" else [run]
        kept = (folder / KEPT_INPUT for folder in folders)
        return next((self.elsewhere(str(path)) for path in kept if path.exists()), self)

    def at_home(self: OwnData) -> OwnData:
        """With an absolute path, so that a run can be resumed from another folder."""
        return replace(self, data=str(Path(self.data).absolute())) if self.is_path else self

    def elsewhere(self: OwnData, data: str) -> OwnData:
        """How to read other data, or the same that were moved."""
        return replace(self, data=data).at_home()

    @staticmethod
    def migrated(content: dict[str, Any]) -> dict[str, Any]:
        """What config.json says, in the names that settings have now."""
        return content


@dataclass(frozen=True)
class MadeDataConfig:
    """Data that is made by chance."""

    seed: int = 0
    """Random seed of the data."""

    def __post_init__(self) -> None:
        freeze_lists(self)
        check_not_negative("seed", self.seed, LARGEST_SEED)


@dataclass(frozen=True)
class TrainingConfig:
    """Settings of training."""

    batch_size: int = 64
    """Sequences read in parallel, in each process."""
    window: int = 100
    """Steps of truncated backpropagation. The state is carried from one window to the next."""
    learning_rate: float = 0.002
    """Initial learning rate of Adam."""
    learning_rate_divisor: float = 50.0
    """Divide the learning rate by this when validation stops improving (patience). The second time, training ends."""
    patience: int = 1
    """Validations in a row without improvement after which validation counts as having stopped improving."""
    cooldown: float = 0.0
    """Share of the run, at its end, over which the learning rate decays linearly to 0."""
    warmup: int = 0
    """Updates over which the learning rate rises linearly at the start. Raise it if the first updates diverge."""
    weight_decay: float = 0.0
    """Decoupled weight decay of matrices, as in AdamW."""
    average: float = 0.0
    """Decay of the exponential moving average of the weights, for instance 0.999; 0 for none.
    Validation and best/ use the average."""
    gradient_clip: float = 1.0
    """Largest norm of the gradient. Larger gradients are scaled down."""
    slope_per_epoch: float = 0.04
    """Slope annealing: how much the slope of the detectors rises with each epoch, from 1."""
    slope_limit: float = 5.0
    """Slope annealing: the largest slope."""
    detector_radius: float | None = None
    """Largest norm of the weights into each detector; 0 for no limit. By default 11.3 / sqrt(units), at most 1.94.
    Reduce it if gradients explode."""
    target_rate: float | Literal["auto"] = "auto"
    """Share of the steps at which the first detector should fire: 0.2 for segments of 5 steps. Each detector above
    fires a quarter as often as the one below. auto: for text, rates of all layers that are found in the training part;
    for strokes and series, 0.25."""
    uncertainty_weight: float = 0.1
    """Weight of the auxiliary loss that teaches detectors where to fire; 0 for none.
    While it acts, the straight-through gradient is reduced."""
    imitates_rate: Annotated[bool, Suppress] = False  # as in runs that were begun when it did
    """Whether the auxiliary loss also asks how often detectors fire, and so works against the target rate."""
    guided_updates: int | None = None
    """Updates during which the target rate and the auxiliary loss act on the detectors; 0 for none, as in the paper.
    The target rate acts less and less in the second half of them. By default as long as the learning rate is above
    0."""
    validate_every: float = 1.0
    """Epochs between validations."""
    epochs: float = 100.0
    """Number of epochs. Fractions are allowed."""
    minutes: float | None = None
    """Stop after this many minutes of training. With a cooldown, the learning rate then decays by the clock.
    On the command line, --minutes alone removes the limit of epochs."""
    checkpoint_minutes: float | None = None
    """Minutes between checkpoints. By default seconds at first, 5 minutes in long runs, at most 2 % of the time."""
    seed: int = 0
    """Random seed. The same seed gives the same model on the same machine."""

    def __post_init__(self) -> None:
        check_not_negative("seed", self.seed, LARGEST_SEED)
        for name in ("batch_size", "window", "patience"):
            check_size(name, getattr(self, name))
        for name in ("learning_rate", "gradient_clip"):
            check_positive(name, getattr(self, name))
        check_positive("validate_every", self.validate_every, LONGEST_RUN)
        if self.checkpoint_minutes is not None:
            check_positive("checkpoint_minutes", self.checkpoint_minutes, LONGEST_RUN)
        for name, most in {
            "epochs": LONGEST_RUN,
            "minutes": LONGEST_RUN,
            "detector_radius": math.inf,
            "warmup": math.inf,
            "guided_updates": math.inf,
            "uncertainty_weight": math.inf,
            "slope_per_epoch": math.inf,
        }.items():
            if getattr(self, name) is not None:
                check_not_negative(name, getattr(self, name), most)
        for name in ("learning_rate_divisor", "slope_limit"):
            if not 1 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 1, and finite; got {getattr(self, name)}")
        if not 0 <= self.weight_decay * self.learning_rate < 1:
            raise ValueError(
                f"weight_decay must not be negative, and less than 1 / learning_rate; got {self.weight_decay}"
            )
        check_share("average", self.average)
        if not 0 <= self.cooldown <= 1:
            raise ValueError(f"cooldown is a share, from 0 to 1; got {self.cooldown}")
        if self.target_rate != "auto" and not 0 < self.target_rate < 1:
            raise ValueError(f"target_rate is a share, between 0 and 1, or auto; got {self.target_rate}")

    @property
    def guides(self) -> bool:
        """Whether detectors are guided at all."""
        return self.guided_updates != 0


Device = Annotated[str, shown_as("DEVICE", str)]


@dataclass(frozen=True)
class ReadingConfig:
    """Which model of a run reads, and how."""

    checkpoint: Literal["best", "last"] = "best"
    """Which model of the run: the one with the best validation, or the last.
    If the run averages its weights (--average), best is the average."""
    engine: EngineName = "auto"
    """Engine that computes the network. auto: native on a CPU, or events without it; reference on a GPU."""
    precision: Precision = "auto"
    """Precision of matrix products. auto uses that of the run."""
    device: Device = "auto"
    """Device: cpu, cuda, cuda:N or mps. auto uses a GPU if CUDA has one."""

    def __post_init__(self) -> None:
        check_device(self.device)


SPLITS = ("train", "valid", "test")
BOUNDS = ("epochs", "minutes", "checkpoint_minutes")  # what may change when a run is resumed


@dataclass(frozen=True)
class Measure:
    """How a loss is told. Less is better."""

    name: str  # in metrics.jsonl
    text: str
    nats: float  # in one of it
    step: str  # what is read at each step: symbols or points

    def of(self, nats: float) -> float:
        return nats / self.nats


@dataclass(frozen=True)
class RunConfig:
    """All that decides what comes of a training run. Each kind of sequence has its own."""

    kind: ClassVar[str]
    data: DataConfig
    model: ModelConfig
    training: TrainingConfig


NEVER = 10**6  # validations, epochs

# What the presets for a laptop share,
SMALL = TrainingConfig(batch_size=32, learning_rate=0.004, patience=4, cooldown=0.5)
# and those of full size, but for the paper's.
OURS = TrainingConfig(batch_size=32, warmup=500, average=0.999, patience=NEVER, cooldown=0.5)


def paper_training(batch_size: int, learning_rate: float, slope_per_epoch: float, slope_limit: float) -> TrainingConfig:
    """Adam, whose learning rate is divided by 50 when validation stops improving; detectors on their own."""
    return TrainingConfig(
        batch_size=batch_size,
        learning_rate=learning_rate,
        slope_per_epoch=slope_per_epoch,
        slope_limit=slope_limit,
        detector_radius=0.0,
        guided_updates=0,
        epochs=NEVER,
    )
