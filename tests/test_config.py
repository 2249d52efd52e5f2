"""Settings from JSON."""

from __future__ import annotations

import dataclasses

import pytest

from hmrnn.config import TrainingConfig
from hmrnn.domains import DOMAINS
from hmrnn.domains.series.config import MOST_COLUMNS, SeriesDataConfig
from hmrnn.storage.config_json import check_setting, from_json


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
