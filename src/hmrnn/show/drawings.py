"""A page of drawings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template


def drawings_page(title: str, drawings: Sequence[tuple[str, str]], style: str) -> str:
    """One self-contained HTML page with drawings, each a caption and an SVG, and their style. It asks the network for
    nothing."""
    figures = (
        f"<figure>\n<figcaption>{escape(caption)}</figcaption>\n{drawing}</figure>\n" for caption, drawing in drawings
    )
    return PAGE.substitute(title=escape(title), style=style, figures="".join(figures))


PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --soft: #666; --line: #ccc; }
body { margin: 0 auto; max-width: 70rem; padding: .6rem 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.4 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.1rem; margin: 0 0 .2rem; }
figure { margin: 1rem 0 0; padding-top: .6rem; border-top: 1px solid var(--line); }
figcaption { color: var(--soft); font-size: .85rem; white-space: pre-wrap; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e8e8e8; --soft: #a0a4aa; --line: #3a3e45; }
}
$style</style>
</head>
<body>
<h1>$title</h1>
$figures</body>
</html>
""")
