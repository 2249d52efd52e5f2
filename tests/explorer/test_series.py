"""The explorer of series: what the server answers, and the page in a real browser."""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from support.browser import chromium
from support.explorer.models import SMALL
from support.explorer.page import Page
from support.explorer.server import assert_tells, joined, running, talking

from hmrnn import SeriesModel, SeriesModelConfig
from hmrnn.domains.series.config import PlantedSeriesConfig
from hmrnn.domains.series.data.planted import plant

VALUES = plant(PlantedSeriesConfig(sequences=1, steps=150, missing=0.05))[0].values
STEPS = [[None if np.isnan(value) else value for value in step] for step in VALUES.tolist()]


@pytest.fixture(scope="module")
def series_model(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("explorer") / "sensors"
    model = SeriesModel(["x1", "x2", "x3"], SeriesModelConfig(**SMALL, components=3)).double()
    model.normalise_as([VALUES])
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def series_host(series_model):
    with running([series_model]) as host:
        yield host


def as_csv() -> str:
    written = io.StringIO()
    rows = csv.writer(written)
    rows.writerow(["time", "x2", "x1", "x3"])
    rows.writerows([[t, *("" if v is None else v for v in (b, a, c))] for t, (a, b, c) in enumerate(STEPS)])
    return written.getvalue()


def test_a_series_is_read_as_by_the_model(series_host, series_model):
    with talking(series_host) as client:
        assert client.hello["runs"][0]["columns"] == ["x1", "x2", "x3"]
        answers, last = client.ask(kind="read", steps=STEPS)
        assert last == {"id": 1, "done": True}
        assert_tells(joined(answers), SeriesModel.from_pretrained(series_model).segment(VALUES).steps)


def test_a_file_is_opened_in_the_columns_of_the_model(series_host):
    with talking(series_host) as client:
        [answer], _ = client.ask(kind="open", text=as_csv())
        assert answer["left_out"] == 0
        np.testing.assert_allclose(np.array(answer["steps"], dtype=float), VALUES, rtol=1e-6)
        assert "no column 'x1'" in client.ask(kind="open", text="a,b\n1,2\n")[1]["error"]
        assert "empty" in client.ask(kind="open", text="")[1]["error"]
        quoted = client.ask(kind="open", text='"x\n1",x2,x3\n1,2,3\n')  # which is another name than x1
        assert "no column 'x1'" in quoted[1]["error"]


def test_generating_and_files(series_host):
    with talking(series_host) as client:
        for steps in ([], STEPS[:40]):
            answers, last = client.ask(kind="generate", steps=steps, bias=0, new=5)
            assert "done" in last
            made = joined(answers)
            assert made["start"] == len(steps)
            assert sum(len(answer["steps"]) for answer in answers) == len(made["surprisal"]) == 5
        [answer], _ = client.ask(kind="segments", steps=STEPS)
        [sequence] = json.loads(answer["file"])["sequences"]
        assert sequence["steps"] == 150
        [answer], _ = client.ask(kind="figure", steps=STEPS)
        assert ET.fromstring(answer["file"]).tag.endswith("svg")


WRONG = [None, "x", [[1, 2]], [[1, 2, "3"]], [[1, 2, 1e40]], [[1, 2, True]], [1], [[0, 0, 0]] * 3001]


@pytest.mark.parametrize("steps", WRONG)
def test_what_is_no_series_is_refused(series_host, steps):
    with talking(series_host) as client:
        _, last = client.ask(kind="read", steps=steps)
        assert "step" in last["error"]


def test_the_page_in_a_browser(tmp_path, series_host):
    path = tmp_path / "mine.csv"
    path.write_text(as_csv())
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    with chromium(tmp_path / "profile", 1200, 1000) as browser:
        page = Page(browser, series_host)
        page.one("#file").send_keys(str(path))
        page.shows("150 steps; layer 1:")
        page.slide("#new", 20)
        page.one(".generate").click()
        page.shows("170 steps")
        page.until(lambda: page.one(".generate").is_enabled())
        assert (
            page.browser.execute_script(
                "const c = arguments[0], d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
                "return new Set(new Uint32Array(d.buffer)).size",
                page.one(".curves"),
            )
            > 6
        ), "curves are drawn"
        rows = list(csv.reader(io.StringIO(page.download(".values", downloads))))
        assert rows[0] == ["x1", "x2", "x3"]
        assert len(rows) == 171
        page.one("#clear").click()
        page.shows("0 steps")
        assert page.fits()
        page.assert_quiet()
