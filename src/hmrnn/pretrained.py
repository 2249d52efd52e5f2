"""How models are kept on disk: config.json, model.safetensors, and what else a kind of model needs. Nothing in these
files is executed."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from hmrnn.config import ModelConfig, StrokeModelConfig, TextModelConfig, from_json
from hmrnn.files import write_atomically
from hmrnn.recurrent import Recurrent

FORMAT_VERSION = 1
CONFIGS: Mapping[str, type[ModelConfig]] = {"text": TextModelConfig, "strokes": StrokeModelConfig}
NOTES = ("data", "training", "fingerprint", "data_dir")  # what a training run adds to its model's config.json

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

    def files(self) -> Mapping[str, str]:
        """What belongs to the model besides config and weights: file names, and contents."""
        return {}

    def save_pretrained(self, directory: str | Path, **notes: Any) -> None:
        """Writes config.json, model.safetensors and the model's other files. `notes` go into config.json, too."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            **asdict(replace(self.config, slope=self.rnn.slope)),
            **notes,
        }
        weights = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        write_atomically(directory / "model.safetensors", save(weights))
        for name, content in self.files().items():
            write_atomically(directory / name, content)
        write_atomically(directory / "config.json", json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls: type[Model], directory: str | Path, *, engine: str = "auto") -> Model:
        """Reads what `save_pretrained` wrote."""
        directory = Path(directory)
        config = read_config(directory)[0]
        if not isinstance(config, CONFIGS[cls.kind]):
            raise ValueError(
                f"{directory / 'config.json'}: this is a model of kind {kind_of(config)!r}, not {cls.kind!r}"
            )
        # Built without memory first: a config that asks for more than the weights hold costs nothing.
        with torch.device("meta"):
            model = cls.without_weights(directory, config, engine)
        path = directory / "model.safetensors"
        try:
            # Copied out of the file's pages: tensors at odd addresses take other paths through the matrix library, and
            # give other last bits, than those that were saved.
            weights = {name: tensor.clone() for name, tensor in load_file(path).items()}
            model.load_state_dict(weights, assign=True)
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(f"{path} does not fit {directory / 'config.json'}: {error}") from None
        return model


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, Any]]:
    """The model's config, and the notes beside it."""
    path = directory / "config.json"
    if not path.is_file():
        raise ValueError(f"{directory}: there is no config.json here: this is not a run")
    try:
        content: dict[str, Any] = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not the config of a model: {error}") from None
    version, kind = content.pop("format_version", None), content.pop("kind", None)
    if version != FORMAT_VERSION:
        raise ValueError(f"{path}: format_version {version!r} is not {FORMAT_VERSION}, the one that this hmrnn reads")
    if kind not in CONFIGS:
        raise ValueError(f"{path}: this is a model of kind {kind!r}; known are {', '.join(CONFIGS)}")
    notes = {name: content.pop(name) for name in NOTES if name in content}
    return from_json(CONFIGS[kind], content, str(path)), notes


def kind_of(config: ModelConfig) -> str:
    return next(kind for kind, config_type in CONFIGS.items() if isinstance(config, config_type))
