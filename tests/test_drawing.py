"""Drawings and figures of handwriting show the points they were given."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_hex
from matplotlib.image import AxesImage

from hmrnn.domains.strokes import figures
from hmrnn.domains.strokes.data.points import from_strokes, to_strokes
from hmrnn.domains.strokes.drawing import (
    STYLE,
    animated_svg,
    coloured_svg,
    svg,
)
from hmrnn.show.drawings import drawings_page
from hmrnn.show.style import COLOURS

SVG = "{http://www.w3.org/2000/svg}"
ROUNDING = 0.0015  # mm: two coordinates are each off by up to half a thousandth, at both ends of a line

coordinates = st.one_of(st.integers(-3, 3), st.integers(-3000, 3000), st.floats(-1e6, 1e6))
strokes_of_one = st.lists(st.lists(st.tuples(coordinates, coordinates), min_size=1, max_size=6), min_size=1, max_size=6)
handwriting = strokes_of_one.map(from_strokes)
pages = st.lists(handwriting, min_size=1, max_size=4)

DOT = from_strokes([[(3, 4)]])
REPEATED = from_strokes([[(7, 7)] * 3, [(0, 0), (0, 0), (9, 5)]])
SCRIBBLE = from_strokes(
    [
        [(t, 80 * np.sin(t / 30)) for t in range(0, 600, 7)],
        [(650, -40)],
        [(t, 60 * np.cos(t / 9)) for t in range(700, 900, 4)],
    ]
)


@st.composite
def segmented(draw):
    points = draw(handwriting)
    return points, np.array(draw(st.lists(st.booleans(), min_size=len(points), max_size=len(points))))


def paths(element):
    return list(element.iter(f"{SVG}path"))


def places(path):
    """The corners of a path, which must be one line: once `M`, once `L`, and numbers."""
    number = r"-?\d+(?:\.\d{1,3})?"
    assert re.fullmatch(rf"M {number} {number} L {number} {number}(?: {number} {number})*", path.get("d")), path.get(
        "d"
    )
    return np.array(re.findall(number, path.get("d")), dtype=float).reshape(-1, 2)


def length(corners):
    return np.hypot(*np.diff(corners, axis=0).T).sum()


def page_scale(lines):
    """Millimetres a unit: pieces are 170 mm wide at most, and 120 mm high."""
    sizes = np.array([np.ptp(np.concatenate(to_strokes(line)), axis=0) for line in lines])
    return 1 / ((sizes / (170, 120)).max() or 1)


@given(lines=pages)
@example(lines=[DOT])
@example(lines=[REPEATED, DOT])
@example(lines=[from_strokes([[(-1e6, -1e6), (1e6, 1e6)], [(1e6, -1e6)]])])
def test_the_strokes_are_drawn(lines):
    groups = list(ElementTree.fromstring(svg(lines)))
    assert [group.tag for group in groups] == [f"{SVG}g"] * len(lines)
    scale = page_scale(lines)
    for group, line in zip(groups, lines, strict=True):
        assert {path.tag for path in group} == {f"{SVG}path"}
        for path, stroke in zip(group, to_strokes(line), strict=True):
            corners = places(path)
            assert len(corners) == max(2, len(stroke))
            assert abs(length(corners) - scale * length(stroke)) <= ROUNDING * len(stroke)
            assert np.allclose(corners - corners[0], scale * (stroke - stroke[0]), rtol=0, atol=ROUNDING)


@given(lines=pages)
def test_they_stand_on_the_page_below_each_other(lines):
    root = ElementTree.fromstring(svg(lines))
    left, top, width, height = map(float, root.get("viewBox").split())
    assert (left, top, width) == (0, 0, 180)
    assert [float(root.get(name).removesuffix("mm")) for name in ("width", "height")] == [width, height]
    lowest = top
    for group in root:
        corners = np.concatenate([places(path) for path in group])
        assert 4.99 < corners[:, 0].min() < 5.01
        assert corners[:, 0].max() < width - 4.99
        assert corners[:, 1].min() > lowest + 4.99
        lowest = corners[:, 1].max()
    assert lowest < height - 4.99


def test_a_plotter_draws_lines_only():
    root = ElementTree.fromstring(svg([SCRIBBLE, DOT]))
    style = {"fill": "none", "stroke": "black", "stroke-width": "0.5", "stroke-linecap": "round"}
    assert {name: root.get(name) for name in style} == style
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "g", "path"}
    assert all(set(path.keys()) == {"d"} for path in paths(root))
    for nothing in ([], [np.zeros((0, 3), np.float32)]):
        with pytest.raises(ValueError, match="no point"):
            svg(nothing)


@given(lines=pages)
@example(lines=[DOT])
def test_it_draws_itself_in_the_order_of_the_points(lines):
    text = animated_svg(lines)
    moving = paths(ElementTree.fromstring(text))
    assert [path.get("d") for path in moving] == [path.get("d") for path in paths(ElementTree.fromstring(svg(lines)))]
    times = [re.findall(r"animation-(?:delay|duration):([\d.]+)s", path.get("style")) for path in moving]
    begins, durations = np.array(times, dtype=float).T
    sizes = np.array([len(stroke) for line in lines for stroke in to_strokes(line)])
    step = 0.01  # a point and a lift take equally long
    assert np.allclose(durations, sizes * step, atol=0.001)
    assert np.allclose(begins[1:], (begins + durations)[:-1] + step, atol=0.003)
    assert begins[0] == 0
    assert begins[-1] + durations[-1] == pytest.approx(step * (sizes.sum() + len(sizes) - 1), abs=0.002)
    assert {path.get("pathLength") for path in moving} == {"1"}


def test_it_draws_itself_at_the_speed_of_a_pen_once_and_without_scripts():
    root = ElementTree.fromstring(animated_svg([SCRIBBLE]))
    last = paths(root)[-1].get("style")
    assert sum(map(float, re.findall(r"([\d.]+)s", last))) == pytest.approx((len(SCRIBBLE) + 2) / 100, abs=0.002)
    style = root.find(f"{SVG}style").text
    assert re.search(
        r"@media \(prefers-reduced-motion: no-preference\) \{ [^}]*animation: draw linear backwards", style
    )
    assert "infinite" not in style
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == {"svg", "style", "g", "path"}


def expected_lines(strokes, ends):
    """Colour, start and end of every line that handwriting consists of. A first point that is a segment is a dot."""
    segment, t, lines = 0, 0, []
    for stroke in strokes:
        for i, point in enumerate(stroke):
            if i or ends[t] or len(stroke) == 1:
                lines.append((COLOURS[segment % 6], *stroke[max(i - 1, 0)], *point))
            segment += int(ends[t])
            t += 1
    return lines


@given(segmented())
@example((DOT, np.array([True])))
@example((REPEATED, np.array([True, True, False, False, True, True])))
def test_colours_change_where_segments_end(case):
    points, ends = case
    root = ElementTree.fromstring(coloured_svg(points, ends))
    plain = [places(path) for path in paths(ElementTree.fromstring(svg([points])))]
    strokes = [corners[: len(stroke)] for corners, stroke in zip(plain, to_strokes(points), strict=True)]
    pieces = [(group.get("stroke"), places(path)) for group in root for path in paths(group)]
    drawn = [(colour, *a, *b) for colour, corners in pieces for a, b in pairwise(corners)]
    assert drawn == expected_lines(strokes, ends)
    assert sum(length(corners) for _, corners in pieces) == pytest.approx(sum(map(length, strokes)))


def test_segments_have_names_and_classes():
    points = from_strokes([[(0, 0), (1, 0), (2, 1)], [(3, 3)], [(4, 4), (5, 5), (6, 4)]])
    root = ElementTree.fromstring(coloured_svg(points, np.array([0, 1, 0, 0, 0, 1, 0], dtype=bool)))
    titles = [group.find(f"{SVG}title").text for group in root]
    assert titles == ["segment 1: points 1 to 2", "segment 2: points 3 to 6", "segment 3: points 7 to 7"]
    assert [group.get("class") for group in root] == ["segment c0", "segment c1", "segment c2"]
    assert [len(paths(group)) for group in root] == [1, 3, 1], "a path for each stroke that a segment has a part in"
    assert root.get("width") is None
    with pytest.raises(ValueError, match="each of the 7 points"):
        coloured_svg(points, np.array([True]))


def test_the_page_holds_everything_and_asks_for_nothing():
    drawings = [("<script>a & b</script>", svg([SCRIBBLE])), ("$title", coloured_svg(SCRIBBLE, SCRIBBLE[:, 2] > 0.5))]
    page = drawings_page("on <script>", drawings, STYLE)
    assert "<script" not in page
    assert "<title>on &lt;script&gt;</title>" in page
    assert "<h1>on &lt;script&gt;</h1>" in page
    assert "<figcaption>&lt;script&gt;a &amp; b&lt;/script&gt;</figcaption>" in page
    assert "<figcaption>$title</figcaption>" in page
    assert all(drawing in page for _, drawing in drawings)
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"
    assert "src=" not in page
    assert "href=" not in page


def artist(axes, kind, gid):
    (one,) = [artist for artist in axes.get_children() if isinstance(artist, kind) and artist.get_gid() == gid]
    return one


@settings(max_examples=25)
@given(segmented())
@example((DOT, np.array([True])))
def test_segments_figure(case):
    points, ends = case
    pen = points[:, 2] > 0.5
    figure = figures.segments_figure([("pen strokes", pen), ("z1", ends)], points)
    for axes, title, own in zip(figure.axes, ("pen strokes", "z1"), (pen, ends), strict=True):
        collection = artist(axes, LineCollection, title)
        colours = [to_hex(colour).upper() for colour in collection.get_colors()]
        pieces = [np.repeat(piece, 2, axis=0) if len(piece) == 1 else piece for piece in collection.get_segments()]
        drawn = [(colour, *a, *b) for colour, piece in zip(colours, pieces, strict=True) for a, b in pairwise(piece)]
        assert drawn == expected_lines(to_strokes(points), own)
        assert axes.get_title(loc="left") == title
        assert axes.get_ylim()[0] > axes.get_ylim()[1], "y grows downwards"
        corners = np.concatenate(pieces)
        assert axes.get_xlim()[0] < corners[:, 0].min() <= corners[:, 0].max() < axes.get_xlim()[1]
        assert axes.get_ylim()[1] < corners[:, 1].min() <= corners[:, 1].max() < axes.get_ylim()[0]


def test_the_height_follows_the_handwriting():
    flat = from_strokes([[(0, 0), (7000, 600), (0, 600)]])
    width, height = figures.segments_figure([("z", flat[:, 2] > 0.5)] * 3, flat).get_size_inches()
    assert width == 10
    assert 3 * 0.86 < height < 3 * 1.5


def test_density_figure():
    generator = np.random.default_rng(0)
    x, y = np.linspace(-50, 950, 101), np.linspace(-100, 100, 21)
    density = generator.exponential(size=(21, 101)).astype(np.float32)
    density[0, 0] = 0
    weights = generator.dirichlet(np.ones(4), len(SCRIBBLE))
    plane, below, *_ = figures.density_figure(SCRIBBLE, x, y, density, weights).axes
    image = artist(plane, AxesImage, "density")
    assert np.array_equal(image.get_array(), density)
    assert image.get_extent() == [-55, 955, 105, -105], "places are in the middle of pixels"
    assert image.origin == "upper"
    assert image.cmap(image.norm(0.0))[:3] == (1, 1, 1)
    drawn = artist(plane, LineCollection, "handwriting").get_segments()
    assert all(map(np.array_equal, drawn, to_strokes(SCRIBBLE)))
    assert np.array_equal(artist(below, AxesImage, "weights").get_array(), weights.T)
    with pytest.raises(ValueError, match=re.escape("of shape (21, 101); got (101, 21)")):
        figures.density_figure(SCRIBBLE, x, y, density.T, weights)


def test_raster_figure_stands_as_the_svg():
    lines = [SCRIBBLE, REPEATED]
    figure = figures.raster_figure(lines)
    root = ElementTree.fromstring(svg(lines))
    _, _, width, height = map(float, root.get("viewBox").split())
    assert figure.get_size_inches() * 25.4 == pytest.approx([width, height], abs=0.001)
    (axes,) = figure.axes
    assert [*axes.get_xlim(), *axes.get_ylim()] == pytest.approx([0, width, height, 0], abs=0.001)
    for i, group in enumerate(root):
        drawn = artist(axes, LineCollection, f"line {i + 1}").get_segments()
        for path, piece in zip(group, drawn, strict=True):
            assert np.allclose(places(path), piece, rtol=0, atol=0.001)
    assert len(artist(axes, PathCollection, "dots of line 1").get_offsets()) == 1
    assert len(artist(axes, PathCollection, "dots of line 2").get_offsets()) == 1


@pytest.mark.parametrize("across", [0, 1e-4, 0.01, 1])
def test_dots_and_short_lines_are_seen_in_pixels(across):
    figure = figures.raster_figure([from_strokes([[(0, 0), (1000, 0)], [(500, 100), (500 + across, 100)]])])
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[:, :, 0]
    assert pixels[len(pixels) // 2 :].min() < 128


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_they_are_written(tmp_path, ending):
    x, y = np.linspace(0, 900, 30), np.linspace(-100, 100, 10)
    made = {
        "segments": figures.segments_figure([("pen strokes", SCRIBBLE[:, 2] > 0.5)], SCRIBBLE),
        "density": figures.density_figure(SCRIBBLE, x, y, np.zeros((10, 30)), np.full((len(SCRIBBLE), 2), 0.5)),
        "raster": figures.raster_figure([SCRIBBLE, DOT]),
    }
    for name, figure in made.items():
        path = tmp_path / f"{name}.{ending}"
        figure.savefig(path)
        assert path.stat().st_size > 2000
