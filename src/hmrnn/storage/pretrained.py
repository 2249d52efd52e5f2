"""How models are kept on disk: config.json, model.safetensors, and what else a kind of model needs.

Nothing in these files is executed, and nothing that has changed on disk is taken for a model: weights carry a checksum
of their own, so that they are whole or not whatever config lies beside them; config.json has one of itself, and of the
other files.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hmrnn.config import ModelConfig, Precision, ReadingConfig
from hmrnn.devices import resolve
from hmrnn.recurrent import Recurrent
from hmrnn.sequence import Piecewise
from hmrnn.storage.config_json import FORMAT_VERSION, kind_of, read_config
from hmrnn.storage.files import make_folder, sealed, write_atomically
from hmrnn.storage.shipped import located
from hmrnn.storage.tensors import read_tensors, write_tensors

DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

Model = TypeVar("Model", bound="Pretrained")


class Pretrained(nn.Module, ABC):
    """A model that can be saved and loaded."""

    kind: ClassVar[str]
    config: ModelConfig
    rnn: Recurrent

    @classmethod
    @abstractmethod
    def without_weights(cls: type[Model], directory: Path, config: Any, engine: str) -> Model:
        """A model of this shape; `directory` holds what belongs to it besides its config."""

    @abstractmethod
    def embed(self, inputs: Tensor) -> Tensor | Piecewise:
        """(..., …) -> (..., embedding_size): what the recurrent network gets."""

    def files(self) -> Mapping[str, str]:
        """What belongs to the model besides config and weights: file names, and contents."""
        return {}

    def save_pretrained(self, directory: str | Path, **notes: Any) -> None:
        """Writes the model into a directory: `config.json`, `model.safetensors` and its other files.

        Args:
            directory: The directory to write into; it is made if it is not there.
            **notes: Further entries of `config.json`.
        """
        directory = Path(directory)
        make_folder(directory)
        config = {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            **asdict(replace(self.config, slope=self.rnn.slope)),
            **notes,
            "files": {name: sha256(content.encode()).hexdigest() for name, content in self.files().items()},
        }
        write_tensors(directory / "model.safetensors", self.state_dict())
        for name, content in self.files().items():
            write_atomically(directory / name, content)
        write_atomically(directory / "config.json", json.dumps(sealed(config), indent=2) + "\n")

    @classmethod
    def from_pretrained(
        cls: type[Model],
        directory: str | Path,
        *,
        engine: str = "auto",
        precision: Precision = "auto",
        device: torch.device | str = "cpu",
    ) -> Model:
        """Loads a model in evaluation mode. Call `train()` before training it further.

        Args:
            directory: A directory that `save_pretrained` wrote, or `best/` of a run; or "builtin" or "builtin-strokes",
                the models of text and of handwriting that come with the package.
            engine: Engine of the recurrent network, see `HMLSTM`.
            precision: Precision of matrix products; "auto" takes that of the model's configuration.
            device: Device of the weights.
        """
        directory = located(directory)
        config = read_config(directory)[0]
        if kind_of(config) != cls.kind:
            raise ValueError(
                f"{directory / 'config.json'}: this is a model of kind {kind_of(config)!r}, not {cls.kind!r}"
            )
        if precision != "auto":
            config = replace(config, precision=precision)
        # Built without memory first: a config that asks for more than the weights hold costs nothing.
        with shapes_only():
            model = cls.without_weights(directory, config, engine)
        path = directory / "model.safetensors"
        weights, _ = read_tensors(path, size_of(model))
        try:
            check_weights(weights, model)
        except ValueError as error:
            raise ValueError(f"{path} does not fit {directory / 'config.json'}: {error}") from None
        model.load_state_dict(weights, assign=True)
        return model.eval().to(device)


class _NothingDrawn(TorchFunctionMode):
    """For tensors without numbers, `normal_` imports torch's compiler, which takes longer than all else that a short
    command does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def shapes_only() -> Iterator[None]:
    """A model that is built in here has the shapes of its weights, and no numbers."""
    with torch.device("meta"), _NothingDrawn():
        yield


def best_or_last(directory: Path, reading: ReadingConfig) -> Path:
    """Where the best or the last model of a run lies; a model that is no run has only one, and a run whose first best
    model is just being written, too."""
    best = directory / "best"
    found = os.path.lexists(best / "config.json") or best.is_symlink()  # which is then refused
    return best if reading.checkpoint == "best" and found else directory


def load_model(model: type[Model], directory: Path, reading: ReadingConfig) -> Model:
    """The model of a run that is to read."""
    place = best_or_last(directory, reading)
    device = resolve(reading.device)
    return model.from_pretrained(place, engine=reading.engine, precision=reading.precision, device=device)


def size_of(model: nn.Module) -> int:
    """Bytes that its weights have at most, in whatever type."""
    return sum(8 * tensor.numel() for tensor in model.state_dict().values())


def check_weights(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuses what is not the weights of this model, by the name of the first that is wrong."""
    types = {tensor.dtype for tensor in weights.values()}
    if len(types) > 1 or not types <= DTYPES:
        raise ValueError(f"weights must be of one floating-point type; got {', '.join(sorted(map(str, types)))}")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted({*shapes, *weights}):
        if name not in shapes or name not in weights:
            raise ValueError(f"{name} is {'missing' if name in shapes else 'unknown'}")
        if tuple(weights[name].shape) != shapes[name]:
            raise ValueError(f"{name} has the shape {tuple(weights[name].shape)}, not {shapes[name]}")
        if not weights[name].isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")
