"""The page of segments, in a real browser."""

from __future__ import annotations

import json
import re

import pytest
import torch
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support.browser import chromium

from hmrnn import Symbols, TextModel, TextModelConfig
from hmrnn.domains.text.page import page
from hmrnn.sequence import Operation

TEXT = "the cat sat on the mat. </script><b>the dog</b> & co.\nsat too.\n" * 5


def small(text=TEXT, **options) -> TextModel:
    torch.manual_seed(3)
    config = TextModelConfig(hidden_sizes=(9, 8, 7), output_size=7, embedding_size=4, boundary_bias=0.05, **options)
    return TextModel(Symbols.of(text), config)


@pytest.fixture(scope="module")
def found():
    return small().segment(TEXT)


@pytest.fixture(scope="module")
def opened(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(page(found, "a <title>"), encoding="utf-8")
    with chromium(folder / "profile") as browser:
        browser.get((folder / "page.html").as_uri())
        yield browser


def shown(browser) -> tuple[str, list[list[str]]]:
    """What the panel says: the line about the symbol, and the rows, the lowest layer first."""
    where = browser.find_element(By.ID, "where").text
    rows = browser.find_elements(By.CSS_SELECTOR, "#layers tr")
    return where, [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in reversed(rows)]


def expected(found, i: int) -> tuple[str, list[list[str]]]:
    steps, bits = found.steps, found.steps.surprisal[i].item()
    rows = []
    for l in range(3):
        operation = Operation(int(steps.operations[i, l])).name
        detector = [f"{steps.z_tilde[i, l].item():.3f}", "yes" if steps.z[i, l] else "no"] if l < 2 else ["–", "–"]
        rows.append([str(l + 1), operation, *detector, f"{steps.norms[i, l].item():.3f}"])
    surprisal = "–" if i == 0 else f"{bits:.3f} bits"
    return f"symbol {i} of {len(TEXT)}, surprisal {surprisal}", rows


def assert_shows(browser, found, i: int) -> None:
    where, rows = shown(browser)
    wanted_where, wanted = expected(found, i)
    number = re.compile(r"\d+\.\d{3}")
    assert number.sub("#", where) == number.sub("#", wanted_where)
    if i:
        bits, wanted_bits = (float(number.search(line).group()) for line in (where, wanted_where))
        assert bits == pytest.approx(wanted_bits, abs=0.0011)
    for row, want in zip(rows, wanted, strict=True):
        assert [cell for cell in row[:5] if not number.fullmatch(cell)] == [c for c in want if not number.fullmatch(c)]
        for cell, value in zip(row[:5], want, strict=True):
            if number.fullmatch(cell):
                assert float(cell) == pytest.approx(float(value), abs=0.0011)  # rounded twice
    for l in range(2):
        (segment,) = [s for s in found.layers[l] if s.start <= i < s.end]
        assert rows[l][5].startswith(f"{segment.start}–{segment.end - 1} ")


def test_the_data_on_the_page_is_that_of_the_tensors(found):
    content = re.search(r'id="data">(.*?)</script>', page(found, "t"), re.DOTALL).group(1)
    data = json.loads(content)
    assert "".join(data["symbols"]) == TEXT
    assert torch.equal(torch.tensor(data["operations"]).T, found.steps.operations.long())
    for l in range(2):
        assert data["ends"][l] == found.steps.z[:, l].nonzero()[:, 0].tolist()
    for name in ("z_tilde", "norms"):
        torch.testing.assert_close(torch.tensor(data[name]).T, getattr(found.steps, name), rtol=0, atol=0.0006)
    assert data["surprisal"][0] is None
    assert data["surprisal"][1:] == pytest.approx(found.steps.surprisal[1:].tolist(), abs=0.0006)
    assert "http" not in page(found, "t").replace("http-equiv", ""), "nothing is asked of the network"


def test_it_opens_without_an_error(opened, found):
    assert opened.title == "a <title>"
    assert len(opened.find_elements(By.CSS_SELECTOR, "#text > span")) == len(TEXT)
    assert_shows(opened, found, 0)
    assert opened.get_log("browser") == []
    drawn = [len(opened.find_elements(By.CSS_SELECTOR, f"#text .e{l}")) for l in range(2)]
    assert drawn == found.steps.z.sum(0).tolist()


def test_hovering_keys_and_slider(opened, found):
    spans = opened.find_elements(By.CSS_SELECTOR, "#text > span")
    for i in (3, 40, 55, 100):
        ActionChains(opened).move_to_element(spans[i]).perform()
        assert_shows(opened, found, i)
    keys = ActionChains(opened)
    keys.send_keys(Keys.ARROW_RIGHT).perform()
    assert_shows(opened, found, 101)
    ActionChains(opened).send_keys(Keys.HOME).perform()
    assert_shows(opened, found, 0)
    ActionChains(opened).send_keys(Keys.END).perform()
    assert_shows(opened, found, len(TEXT) - 1)
    slider = opened.find_element(By.ID, "time")
    opened.execute_script("arguments[0].value = 77; arguments[0].dispatchEvent(new Event('input'))", slider)
    assert_shows(opened, found, 77)
    opened.find_element(By.ID, "heat").click()
    assert "heat" in opened.find_element(By.ID, "text").get_attribute("class")
    assert opened.get_log("browser") == []


@pytest.mark.timed
def test_ten_thousand_symbols_without_stutter_also_on_a_phone(tmp_path):
    text = TEXT * 33
    assert len(text) > 10_000
    (tmp_path / "page.html").write_text(page(small().segment(text), "long"), encoding="utf-8")
    with chromium(tmp_path / "profile", 412, 900) as browser:
        browser.get((tmp_path / "page.html").as_uri())
        milliseconds = browser.execute_async_script(
            """
            const done = arguments[arguments.length - 1], spans = document.querySelectorAll("#text > span"), times = [];
            let i = 0;
            function frame() {
              const start = performance.now();
              const move = new PointerEvent("pointermove", {bubbles: true, screenX: i});
              spans[(i * 397) % spans.length].dispatchEvent(move);
              document.body.offsetHeight;  // the layout, too
              times.push(performance.now() - start);
              if (++i < 100) requestAnimationFrame(frame); else done(times.sort((a, b) => a - b)[90]);
            }
            requestAnimationFrame(frame);
            """
        )
        assert milliseconds < 50, "nine in ten moves are quick"
        width = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], "nothing to scroll sideways"
        assert browser.get_log("browser") == []


def test_bytes_and_a_network_without_boundaries():
    content = "naïve ".encode() * 3
    model = TextModel(
        Symbols.of(content), TextModelConfig("lstm", hidden_sizes=(4, 4), output_size=4, embedding_size=3)
    )
    data = json.loads(re.search(r'id="data">(.*?)</script>', page(model.segment(content), "t"), re.DOTALL).group(1))
    assert data["symbols"][:6] == ["n", "a", "c3", "af", "v", "e"]
    assert data["ends"] == []
