"""Hands on the explorer's page, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.interaction import POINTER_TOUCH
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


class Page:
    """The page of an explorer, opened anew."""

    def __init__(self, browser, host: str) -> None:
        self.browser = browser
        browser.get_log("browser")
        browser.get(f"http://{host}/")
        self.until(lambda: self.all(".summary") and all("updates of" in part.text for part in self.all(".summary")))

    def one(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        WebDriverWait(self.browser, seconds, 0.05).until(lambda _: condition())

    def shows(self, text: str, selector: str = ".summary") -> None:
        self.until(lambda: all(text in part.text for part in self.all(selector)))

    def settled(self) -> str:
        """The first summary, when it no longer changes."""
        seen = [""] * 10
        while len(set(seen)) > 1 or not seen[0]:
            seen = [*seen[1:], self.one(".summary").text]
            time.sleep(0.05)
        return seen[0]

    @property
    def text(self) -> str:
        return self.one("#text").get_property("value")

    def write(self, text: str) -> None:
        """Types a text in place of the one that is there."""
        area = self.one("#text")
        area.clear()
        area.send_keys(text)
        self.shows(f"{len(text)} symbols")

    def slide(self, selector: str, value: float) -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        self.browser.execute_script(script, self.one(selector), value)

    def readout(self, panel: int = 0) -> list[list[str]]:
        """The rows of the table, the lowest layer first."""
        rows = self.all(".panel")[panel].find_elements(By.CSS_SELECTOR, "tbody tr")
        return [[cell.text for cell in row.find_elements(By.TAG_NAME, "td")] for row in reversed(rows)]

    def draw(self, strokes: Sequence[Sequence[tuple[int, int]]], touch: bool = False, pad: int = 0) -> None:
        """With a mouse, or a finger. Places are counted from the corner of the pad."""
        element = self.all(".pad")[pad]
        ActionChains(self.browser).scroll_to_element(element).perform()
        box = self.browser.execute_script(
            "const box = arguments[0].getBoundingClientRect(); return [box.left, box.top]", element
        )
        source = PointerInput(POINTER_TOUCH, "finger") if touch else PointerInput("mouse", "mouse")
        builder = ActionBuilder(self.browser, mouse=source, duration=20)
        for stroke in strokes:
            for i, (x, y) in enumerate(stroke):
                builder.pointer_action.move_to_location(int(box[0] + x), int(box[1] + y))
                if i == 0:
                    builder.pointer_action.pointer_down()
            builder.pointer_action.pointer_up()
        builder.perform()

    def download(self, selector: str, folder: Path) -> str:
        """What a button gives."""
        command = {"behavior": "allow", "downloadPath": str(folder)}
        self.browser.execute_cdp_cmd("Browser.setDownloadBehavior", command)
        before = set(folder.iterdir())
        self.one(selector).click()
        self.until(lambda: [p for p in set(folder.iterdir()) - before if p.suffix != ".crdownload"])
        (path,) = set(folder.iterdir()) - before
        return path.read_text(encoding="utf-8")

    def fits(self) -> bool:
        width, room = self.browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
        return width <= room

    def emulate(self, command: str, **how) -> None:
        self.browser.execute_cdp_cmd(f"Emulation.{command}", how)

    def assert_quiet(self) -> None:
        assert self.browser.get_log("browser") == []
        assert self.one("#status").text == ""
