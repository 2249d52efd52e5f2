"""Settings from JSON, and errors that name settings."""

from __future__ import annotations

import dataclasses

import pytest

from hmrnn import TextModel
from hmrnn.cli.flags import in_flags
from hmrnn.config import TrainingConfig
from hmrnn.domains import DOMAINS
from hmrnn.domains.series.config import MOST_COLUMNS, SeriesDataConfig
from hmrnn.domains.text.config import TextDataConfig
from hmrnn.domains.text.data.corpora import load_text
from hmrnn.errors import SettingError, located_error
from hmrnn.storage.config_json import check_setting, from_json
from hmrnn.training.checkpoint import check_new


@pytest.mark.parametrize("value", [2**63, -(2**63), 10**30, (1, 2**63)])
def test_numbers_that_fit_into_no_machines(value):
    with pytest.raises(ValueError, match="setting can't be"):
        check_setting("setting", value, int | tuple[int, ...])


def test_the_largest_number_that_fits():
    check_setting("setting", 2**63 - 1, int)
    assert from_json(TrainingConfig, {"seed": 2**63 - 1}, "it").seed == 2**63 - 1
    with pytest.raises(ValueError, match="it: patience can't be"):
        from_json(TrainingConfig, {"patience": 2**63}, "it")


def test_as_many_columns_as_a_file_may_have():
    names = [f"x{i}" for i in range(MOST_COLUMNS)]
    assert from_json(SeriesDataConfig, {"columns": names}, "it").columns == tuple(names)
    with pytest.raises(ValueError, match="it: columns can't be"):
        from_json(SeriesDataConfig, {"columns": [*names, "one more"]}, "it")


@pytest.mark.parametrize("name", DOMAINS)
def test_one_size_for_all_layers_is_no_list(name):
    with pytest.raises(TypeError, match=r"hidden_sizes must be the units of each layer, as in \(512, 512\); got int"):
        DOMAINS[name].model_config(hidden_sizes=8)


@pytest.mark.parametrize("name", DOMAINS)
def test_what_json_calls_true_is_no_number(name):
    """To Python it is: a slope of true was a traceback, and a rate of true was 1."""
    domain = DOMAINS[name]
    for config in (domain.model_config(), domain.data_config("x"), TrainingConfig()):
        for field in dataclasses.fields(config):
            if dataclasses.is_dataclass(value := getattr(config, field.name)):
                continue
            if isinstance(value, bool):
                assert from_json(type(config), {field.name: not value}, "here") != config
            else:
                with pytest.raises(ValueError, match=f"{field.name} can't be 'True'"):
                    from_json(type(config), {field.name: True}, "here")


def test_an_error_speaks_python_or_flags(tmp_path):
    """A value is given to a flag in another way than to an argument; and not every method has the argument."""
    for name in ("config.json", "training.safetensors"):
        (tmp_path / name).touch()
    (tmp_path / "bad").write_bytes(b"ab\xff")
    model = TextModel.from_pretrained("builtin")
    for fail, in_python, on_command_line in [
        (
            lambda: check_new(tmp_path, TextDataConfig()),
            "resume=True goes on with it, or choose another directory",
            f"--resume {tmp_path} goes on with it, or choose another --out",
        ),
        (
            lambda: load_text(TextDataConfig(str(tmp_path / "bad"))),
            "(symbols='bytes' reads any file)",
            "(--symbols bytes reads any file)",
        ),
        *(
            (
                lambda ask=ask: ask("é"),
                "knows (Symbols.encode goes on without it if on_unknown is 'skip' or 'replace')",
                "knows (--on-unknown skip or replace goes on without it)",
            )
            for ask in (model.segment, model.generate, model.bits_per_character, model.symbols.encode)
        ),
    ]:
        with pytest.raises(SettingError) as raised:
            fail()
        for error in (raised.value, located_error("it", raised.value)):
            assert str(error).endswith(in_python)
            assert in_flags(error).endswith(on_command_line)
