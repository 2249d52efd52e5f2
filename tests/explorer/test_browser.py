"""The explorer's page, in a real browser."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import chain, pairwise

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.browser import chromium
from support.explorer.models import TEXT
from support.explorer.page import Page
from support.explorer.server import running

from hmrnn import TextModel, TextModelConfig, train_run
from hmrnn.config import TrainingConfig
from hmrnn.domains.text.config import TextDataConfig, TextRunConfig
from hmrnn.sequence import Operation


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile"), 1200, 1000) as browser:
        yield browser


def test_typing_in_a_browser(browser, folder, host):
    page = Page(browser, host)
    page.write(TEXT[:60])
    for panel, name in enumerate(("words", "other")):
        found = TextModel.from_pretrained(folder / name).segment(TEXT[:60])
        steps = found.steps
        for i in (59, 0, 31):
            page.slide(".place", i)
            where = page.all(".where")[panel].text
            assert where.startswith(f"symbol {i} of 60, surprisal {'–' if i == 0 else ''}")
            for l, row in enumerate(page.readout(panel)):
                assert row[:2] == [str(l + 1), Operation(int(steps.operations[i, l])).name]
                assert float(row[4]) == pytest.approx(steps.norms[i, l].item(), abs=0.0011)
                around = [s for s in found.layers[l] if s.start <= i < s.end] if l < 2 else []
                ends = [s.closed and s.end == i + 1 for s in around]
                assert row[3] == ("–" if l == 2 else "yes" if any(ends) else "no")
                assert row[5].startswith("".join(f"{s.start}–{s.end - 1} " for s in around))
    area = page.one("#text")
    area.send_keys(Keys.BACKSPACE * 10 + Keys.ARROW_LEFT * 20 + "dog")
    assert page.text == TEXT[:30] + "dog" + TEXT[30:50]
    page.shows("53 symbols")
    area.send_keys("ß")
    page.shows(", and replaced: 'ß' (U+00DF)", ".unknown")
    canvas = page.one(".picture canvas")
    sixth = 22 + 5.5 * 12 - canvas.size["width"] / 2  # from its middle
    ActionChains(browser).move_to_element_with_offset(canvas, int(sixth), 0).perform()
    page.shows("symbol 5 of 54", ".where")
    page.assert_quiet()


@pytest.mark.parametrize(("name", "delay"), [("words", 0), ("other", 1)])
def test_ticks_are_where_segments_end(browser, folder, tmp_path, name, delay):
    text = TEXT[:24]
    with running([folder / name]) as server:
        page = Page(browser, server)
        page.write(text)
        figure = ET.fromstring(page.download(".figure", tmp_path))
    letters = [float(e.get("x")) for e in figure.iter("{http://www.w3.org/2000/svg}text") if len(e.text) == 1]
    ticks = [e for e in figure.iter("{http://www.w3.org/2000/svg}rect") if e.get("width") == "2.5"]
    model = TextModel.from_pretrained(folder / name)
    assert model.delay == delay
    found = [sum(x < float(tick.get("x")) for x in letters[: len(text)]) - 1 for tick in ticks]
    assert sorted(found) == sorted(chain.from_iterable(model.segment(text).ends)) != []


def test_sliders_and_comparing_in_a_browser(browser, folder, host):
    page = Page(browser, host)
    page.write("the cat sat on")
    one, two = (page.all(".summary")[panel].text for panel in (0, 1))
    assert one.partition(";")[0] == two.partition(";")[0]
    assert one != two
    left, right = (panel.location for panel in page.all(".panel"))
    assert left["y"] == right["y"], "side by side"
    before = page.readout(), page.readout(1)
    page.slide(".slope input", 9)
    page.until(lambda: page.readout() != before[0])
    assert [row[3] for row in page.readout()] == [row[3] for row in before[0]]
    assert page.readout(1) == before[1], "the other run has its own"
    page.slide("#temperature", 0)
    page.slide("#new", 20)
    page.all(".generate")[1].click()
    page.until(lambda: len(page.text) == 34)
    assert page.text == "the cat sat on" + TextModel.from_pretrained(folder / "other").generate(
        "the cat sat on", 20, temperature=0
    )
    page.shows("34 symbols")
    page.assert_quiet()


def test_generating_and_stopping_by_keyboard_in_a_browser(browser, host, monkeypatch):
    monkeypatch.setattr("hmrnn.explorer.server.PACE", 0.2)  # it is still writing, however busy the machine is
    page = Page(browser, host)
    page.write("the cat")
    page.slide("#new", 500)
    keys = ActionChains(browser)
    keys.send_keys(Keys.ARROW_LEFT * 4).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    page.until(lambda: len(page.text) > 20)
    assert not page.one(".generate").is_enabled()
    ActionChains(browser).send_keys(Keys.ESCAPE).perform()
    page.until(lambda: page.one(".generate").is_enabled())
    made = page.text
    assert 20 < len(made) < 507
    assert made.startswith("the")
    assert made.endswith(" cat"), "it went on from the cursor"
    page.shows(f"{len(made)} symbols")
    seen = []
    for _ in range(40):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        seen.append(browser.execute_script("return document.activeElement.className || document.activeElement.id"))
    assert {"temperature", "new", "file", "generate", "figure", "segments", "place"} <= set(seen), "Tab reaches all"
    place = page.one(".place")
    place.send_keys(Keys.HOME + Keys.ARROW_RIGHT)
    assert page.one(".where").text.startswith("symbol 1 of")
    page.assert_quiet()


def test_files_in_a_browser(browser, folder, host, tmp_path):
    page = Page(browser, host)
    (tmp_path / "mine.txt").write_text("the dog sat <by> & on the mat.\n")
    page.one("#file").send_keys(str(tmp_path / "mine.txt"))
    page.shows("31 symbols")
    model = TextModel.from_pretrained(folder / "words")
    found = json.loads(page.download(".segments", tmp_path))
    assert found["symbols"] == 31
    assert [s["end"] for s in found["segments"] if s["layer"] == 1] == [
        s.end for s in model.segment("the dog sat ?by? ? on the mat.\n").layers[0]
    ]
    figure = ET.fromstring(page.download(".figure", tmp_path))
    texts = [e.text for e in figure.iter("{http://www.w3.org/2000/svg}text")]
    assert "".join(t for t in texts if len(t) == 1) == "the␣dog␣sat␣?by?␣?␣on␣the␣mat.↵"
    (tmp_path / "long.txt").write_text("the cat. " * 5000)
    page.one("#file").send_keys(str(tmp_path / "long.txt"))
    page.shows("5,000 symbols")
    assert re.fullmatch(r"long\.txt: .*\b5,000\b.*", page.one("#status").text)
    assert browser.get_log("browser") == []


def test_a_text_over_the_limit_is_read_up_to_it(browser, host):
    page = Page(browser, host)
    browser.execute_script("arguments[0].value = arguments[1]", page.one("#text"), "the cat. " * 700)
    page.one("#text").send_keys(Keys.END + ".")
    page.shows("5,000 symbols")
    assert re.search(r"6,301 .*\b5,000\b", page.one("#status").text)
    page.one("#text").clear()
    page.one("#text").send_keys("the")
    page.shows("3 symbols")
    page.assert_quiet()


CHINESE = "今天天气很好，我们去公园散步。\n" * 60


@pytest.fixture(scope="module")
def chinese(tmp_path_factory):
    """A run on a text that has no letter of the sentence which other models are shown."""
    folder = tmp_path_factory.mktemp("chinese")
    (folder / "text.txt").write_text(CHINESE)
    shape = TextModelConfig(hidden_sizes=(8, 8), output_size=8, embedding_size=8)
    training = TrainingConfig(batch_size=4, window=20, epochs=0.2)
    train_run(TextRunConfig(TextDataConfig(str(folder / "text.txt")), shape, training), folder / "run")
    return folder / "run"


def test_it_opens_with_the_runs_own_text(browser, chinese, folder):
    with running([chinese]) as host:
        page = Page(browser, host)
        assert page.text in CHINESE
        assert len(page.text) > 20
        assert page.one(".unknown").text == ""
    for name, opens in (("words", "the cat sat on the mat, and"), ("letters", "")):
        with running([folder / name]) as host:
            page = Page(browser, host)
            browser.get_log("browser")  # the page before may have noticed that its server is gone
            assert page.text.startswith(opens)
            assert page.one(".unknown").text == "", "a model without a run"
            page.assert_quiet()


def test_wide_characters_do_not_overlap(browser, chinese, host, tmp_path):
    with running([chinese]) as wide:
        figure = ET.fromstring(Page(browser, wide).download(".figure", tmp_path))
    texts = [e for e in figure.iter("{http://www.w3.org/2000/svg}text") if len(e.text) == 1]
    steps = [float(b.get("x")) - float(a.get("x")) for a, b in pairwise(texts) if a.get("y") == b.get("y")]
    size = float(texts[0].get("font-size"))
    assert min(step for step in steps if step > 0) >= size, "a Chinese character is as wide as it is high"
    page = Page(browser, host)
    page.write("the cat")
    ActionChains(browser).move_to_element_with_offset(
        page.one(".picture canvas"), int(22 + 5.5 * 12 - page.one(".picture canvas").size["width"] / 2), 0
    ).perform()
    page.shows("symbol 5 of 7", ".where")


def test_a_server_that_comes_again(browser, folder):
    with running([folder / "words"]) as host:
        page = Page(browser, host)
        page.write("the cat")
    page.shows("the server does not answer", "#status")
    page.one("#text").send_keys(" sat")
    with running([folder / "words"], int(host.partition(":")[2])):
        page.shows("11 symbols")
        assert page.one("#status").text == ""


def test_two_thousand_symbols_without_stutter(browser, host):
    page = Page(browser, host)
    text = (TEXT * 7)[:2000]
    browser.execute_script("arguments[0].value = arguments[1]", page.one("#text"), text)
    page.one("#text").send_keys(Keys.END)
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})  # processor time: others may be busy
    before = seconds_of(browser)
    for i in range(20):
        page.one("#text").send_keys("a")
        page.shows(f"{2001 + i:,} symbols")
    assert 0 < (seconds_of(browser) - before) / 20 < 0.1, "a key is answered while the next is sought"
    page.assert_quiet()


def seconds_of(browser) -> float:
    """That the page's tasks have taken."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


def test_drawing_in_a_browser(browser, pen_host, tmp_path):
    page = Page(browser, pen_host)
    page.shows("0 points, 0 pen strokes")
    strokes = [[(40, 95), (40, 120), (40, 155)], [(25, 115), (60, 115)], [(90, 95), (90, 155), (110, 130), (130, 155)]]
    page.draw(strokes)
    page.shows("3 pen strokes")
    assert page.one(".layer option:checked").text == "segments of layer 2 (z2)"
    drawn = int(page.settled().split()[0])
    assert drawn > 6
    page.slide("#new", 20)
    page.one(".generate").click()
    page.shows(f"{drawn + 20} points")
    page.until(lambda: page.one(".generate").is_enabled())
    page.slide("#new", 1000)
    page.one(".generate").click()
    page.until(lambda: page.one(".stop").is_enabled())
    page.one(".stop").click()
    page.until(lambda: page.one(".generate").is_enabled())
    page.one("#clear").click()
    page.shows("0 points")
    page.draw(strokes)
    page.shows(f"{drawn} points, 3 pen strokes")
    page.one("#undo").click()
    page.shows("2 pen strokes")
    line = page.download(".drawing", tmp_path)
    assert len(json.loads(line)) == 2
    assert json.loads(page.download(".segments", tmp_path))["unit"] == "point"
    assert ET.fromstring(page.download(".figure", tmp_path)).attrib["class"] == "handwriting coloured"
    (tmp_path / "mine.jsonl").write_text(line)
    page.one("#clear").click()
    page.one("#file").send_keys(str(tmp_path / "mine.jsonl"))
    page.shows("2 pen strokes")
    page.assert_quiet()
    (tmp_path / "wrong.jsonl").write_text("{}\n")
    page.one("#file").send_keys(str(tmp_path / "wrong.jsonl"))
    page.shows("wrong.jsonl: its first line is not a list of strokes", "#status")


def test_comparing_drawings_in_a_browser(browser, folder):
    with running([folder / "pen", folder / "pen"]) as host:
        page = Page(browser, host)
        page.draw([[(40, 95), (40, 120), (40, 155)], [(25, 115), (60, 115)]], pad=1)
        page.shows("2 pen strokes")
        page.settled()
        one, two = page.all(".summary")
        assert one.text == two.text
        page.slide("#new", 40)
        page.all(".generate")[1].click()
        page.until(lambda: int(two.text.split()[0]) > 40 and page.one(".generate").is_enabled())
        page.until(lambda: int(one.text.split()[0]) > 20)
        page.assert_quiet()


def test_on_a_phone_in_the_dark(browser, host, pen_host):
    page = Page(browser, host)
    light = page.one("body").value_of_css_property("background-color")
    page.emulate("setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    page.emulate("setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    try:
        page = Page(browser, host)
        assert page.one("body").value_of_css_property("background-color") != light
        assert page.fits()
        upper, lower = (panel.location for panel in page.all(".panel"))
        assert upper["x"] == lower["x"], "below each other"
        page = Page(browser, pen_host)
        assert page.fits()
        page.draw([[(40, 95), (40, 120), (40, 155)]], touch=True)
        page.shows("1 pen strokes")
        page.assert_quiet()
    finally:
        page.emulate("clearDeviceMetricsOverride")
        page.emulate("setEmulatedMedia", features=[])
