"""Settings from JSON."""

from __future__ import annotations

import pytest

from hmrnn.config import TrainingConfig
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
