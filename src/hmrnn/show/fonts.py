"""Fonts that have the symbols of a text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from unicodedata import name

from matplotlib import font_manager

MONOSPACE = "DejaVu Sans Mono"  # comes with matplotlib
NO_LETTERS = ("Last Resort", "cm", "STIXNonUnicode", "STIXSize")  # placeholders, and fonts for formulas
CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "FULLWIDTH", "BOPOMOFO")


def fonts_for(symbols: Iterable[str]) -> tuple[list[str], set[str]]:
    """Families to draw these symbols with, each of which is asked for what those before it lack; and the symbols that
    no font here has."""
    wanted = set(symbols)
    families, missing = among_known(wanted)
    return among_known(wanted) if missing and take_new_fonts() else (families, missing)


def among_known(wanted: set[str]) -> tuple[list[str], set[str]]:
    families, missing = [MONOSPACE], wanted - known_to(font_manager.findfont(MONOSPACE))
    # Plain ones first, so that a letter is not drawn bold or slanted for want of another font.
    fonts = sorted(
        font_manager.fontManager.ttflist, key=lambda font: (font.style != "normal", font.weight != 400, font.name)
    )
    for font in fonts:
        if not missing:
            break
        if not font.name.startswith(NO_LETTERS) and (own := missing & known_to(font.fname)):
            families.append(font.name)
            missing -= own
    return families, missing


def take_new_fonts() -> bool:
    """Whether a font was installed since matplotlib made the list that it keeps; it then knows it, too."""
    fonts, before = font_manager.fontManager, len(font_manager.fontManager.ttflist)
    for path in sorted(set(font_manager.findSystemFonts()) - {font.fname for font in fonts.ttflist}):
        with suppress(Exception):  # whatever matplotlib raises for a font that it can't read
            fonts.addfont(path)
    return len(fonts.ttflist) > before


def known_to(path: str) -> set[str]:
    return {chr(code) for code in font_manager.get_font(path).get_charmap()}


def what_to_install(missing: Iterable[str]) -> str:
    """A line about symbols that no font has."""
    shown = sorted(missing)
    named = ", ".join(f"{symbol} (U+{ord(symbol):04X})" for symbol in shown[:3])
    more = f" and {len(shown) - 3:,} more" if len(shown) > 3 else ""
    east_asian = any(name(symbol, "").startswith(CJK) for symbol in shown)
    font = "Noto Sans CJK (Debian: fonts-noto-cjk)" if east_asian else "the Noto fonts (Debian: fonts-noto)"
    return f"no font here has {named}{more}: dots stand in their place. Install {font}"
