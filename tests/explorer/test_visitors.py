"""Visitors who ask for anything at all, and those who never say a word."""

from __future__ import annotations

import json
import math
import random
import socket
import time
from contextlib import ExitStack
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from support.explorer.models import DRAWN, SMALL, TEXT
from support.explorer.server import running, talking

from hmrnn import SeriesModel, StrokeModel, StrokeModelConfig, Symbols, TextModel, TextModelConfig
from hmrnn.domains.series.config import SeriesModelConfig
from hmrnn.domains.strokes.data.points import from_strokes
from hmrnn.domains.text.config import IN_EXPLORER
from hmrnn.explorer import connections
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import Refused, Request
from hmrnn.explorer.runs import Run
from hmrnn.structure.reading import PredictsNothing

ODD: list[Any] = [None, True, -1, 0, 1, 0.5, 1e308, -1e308, 10**30, math.nan, math.inf, "", "x", "\ud800", "\0" * 9]
ODD += [[], [1], [[]], [[[]]], [[[0]]], [[[0, 0, 0]]], [[[None, 1]]], [["ab"]], {}, {"a": 1}, "[" * 99, "雪" * 50]
SIZES = [0.0, 1.0, -1.0, 0.1, 59.9, 1e3, -1e5, 1e6, -1e6, 999_999.9, 1e7, 1e-300, 5e-324]
UNITS = {"small units": 1e-4, "pixels": 1.0, "large units": 1e3}


class Visitor:
    """Asks by the rules, but for a field or two."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def message(self, kinds: list[str]) -> str:
        fields = {
            "kind": self.chance.choice(kinds),
            "slope": self.chance.choice([0.1, 1.0, 20.0, 3.333]),
            "new": self.chance.randint(1, 3),
            "temperature": self.chance.choice([0.0, 0.7, 5.0]),
            "bias": self.chance.choice([0.0, 1.0, 10.0]),
            "layer": self.chance.randint(0, 2),
            "text": "".join(self.chance.choices(TEXT + "ß雪\n", k=self.chance.choice([0, 1, 9, 30]))),
            "have": self.chance.randint(0, 30),
        }
        strokes = [self.stroke() for _ in range(self.chance.randint(0, 3))]
        fields |= {"strokes": strokes, "made": [self.chance.random() < 0.3 for stroke in strokes if stroke]}
        fields |= {"steps": [self.step() for _ in range(self.chance.choice([0, 1, 2, 9]))]}
        if self.chance.random() < 0.3:
            fields["text"] = self.csv()
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            fields[self.chance.choice(list(fields))] = self.chance.choice(ODD)
        if self.chance.random() < 0.1:
            del fields[self.chance.choice(list(fields))]
        return json.dumps(fields)

    def stroke(self) -> list[list[float]]:
        scale = self.chance.choice([1.0, 100.0, None])
        return [
            [self.chance.choice(SIZES) if scale is None else scale * self.chance.random() for _ in range(2)]
            for _ in range(self.chance.choice([0, 1, 2, 7]))
        ]

    def step(self) -> list[float | None]:
        """Of a series with two columns, mostly."""
        size = self.chance.choice([2, 2, 2, 2, 2, 1, 3])
        return [self.chance.choice([*SIZES, None, 1e30, self.chance.random()]) for _ in range(size)]

    def csv(self) -> str:
        rows = [self.chance.choice(["1,2", "3,", ",", "x,1", "1e300,1", '"1', "1,2,3", "", "nan,0"]) for _ in range(3)]
        return "\n".join([self.chance.choice(["a,b", "a,b", "b,a,c", "a", ""]), *rows])


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> dict[str, Run[Any]]:
    """Runs on text, on series, and on strokes whose units are much smaller, or larger, than pixels."""
    folder, made = tmp_path_factory.mktemp("visited"), {}
    torch.manual_seed(0)
    for name in ("hm-lstm", "hrnn"):
        TextModel(Symbols.of(TEXT + "?"), TextModelConfig(name, **SMALL)).save_pretrained(folder / name)
        made[name] = folder / name
    for name, unit in UNITS.items():
        pen = StrokeModel(StrokeModelConfig(**SMALL, components=3))
        drawn = [[[unit * x, unit * y] for x, y in stroke] for stroke in DRAWN]
        pen.normalise_as([from_strokes(drawn), from_strokes(drawn[::-1])])
        pen.save_pretrained(folder / name)
        made[name] = folder / name
    series = SeriesModel(["a", "b"], SeriesModelConfig(**SMALL, components=3))
    series.normalise_as([np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)])
    series.save_pretrained(folder / "series")
    made["series"] = folder / "series"
    for model in (TextModel.from_pretrained(made["hm-lstm"]), SeriesModel.from_pretrained(made["series"])):
        for weight in model.parameters():
            weight.data *= 1e37
        made[f"wild {model.kind}"] = folder / f"wild {model.kind}"
        model.save_pretrained(made[f"wild {model.kind}"])
    return {name: load([path], Memory(), IN_EXPLORER)[0] for name, path in made.items()}


@pytest.mark.parametrize("many", [100, pytest.param(10_000, marks=pytest.mark.faults)])
@pytest.mark.parametrize("name", ["hm-lstm", "hrnn", "series", *UNITS])
def test_no_message_ends_in_an_internal_error(asked, name, many):
    """In all, 60,000: each is answered in JSON, or refused."""
    run, visitor = asked[name], Visitor(1)
    answered = answer_all(run, [visitor.message(list(run.kinds)) for _ in range(many)])
    assert answered > many / 3, "most are not refused"


def answer_all(run: Run[Any], messages: list[str]) -> int:
    """How many answers there are."""
    answered = 0
    for message in messages:
        try:
            request = Request(message)
            for answer in run.kinds[request.kind()](request) if request.kind() in run.kinds else ():
                json.dumps(answer, allow_nan=False)
                answered += 1
        except (Refused, PredictsNothing):
            continue
        except Exception as error:
            raise AssertionError(message) from error
    return answered


@pytest.mark.parametrize("name", ["wild text", "wild series"])
def test_a_model_whose_numbers_overflow_is_no_internal_error(asked, name):
    """Its weights are finite, and too large: a stranger's run."""
    visitor = Visitor(2)
    answer_all(asked[name], [visitor.message(list(asked[name].kinds)) for _ in range(100)])


def test_a_drawing_that_is_too_far_away_is_refused(asked, tmp_path):
    """Over the socket, too: its units are larger than pixels."""
    run = asked["large units"]
    assert run.hand.unit > 1
    run.model.save_pretrained(tmp_path)
    with running([tmp_path]) as host, talking(host) as client:
        _, last = client.ask(kind="read", strokes=[[[1e6, 1e6]]], made=[False])
        assert "too far" in last["error"]


# Those who say nothing


def half_open(host: str) -> socket.socket:
    name, _, port = host.partition(":")
    return socket.create_connection((name, int(port)), timeout=60)


def is_closed(own: socket.socket, seconds: float) -> bool:
    own.settimeout(seconds)
    try:
        return own.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_connections_that_say_nothing_keep_nobody_out(host, monkeypatch):
    monkeypatch.setattr(connections, "TO_ASK", 600.0)  # so that none of them is closed for its silence
    with ExitStack() as stack:
        silent = [stack.enter_context(half_open(host)) for _ in range(2 * connections.MOST_WAITING + 20)]
        assert httpx.get(f"http://{host}/").status_code == 200
        with talking(host) as client:
            assert client.ask(kind="read", text="the cat", have=0)[1]["done"]
            assert is_closed(silent[0], 60), "the oldest has made room"
            assert not is_closed(silent[-1], 0.01), "the latest has time left"


SAID = [b"", b"GET / HTTP/1.1\r\nHost: ", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n"]


@pytest.mark.parametrize("said", SAID)
def test_connections_that_say_nothing_are_closed(host, monkeypatch, said):
    """However slowly they go on."""
    monkeypatch.setattr(connections, "TO_ASK", 0.5)
    with talking(host) as client, half_open(host) as own:
        own.sendall(said)
        begun = time.monotonic()
        while not is_closed(own, 0.1):
            assert time.monotonic() < begun + 60
            try:
                own.sendall(b"x")
            except ConnectionError:
                break
        assert client.ask(kind="read", text="a conversation may last", have=0)[1]["done"]


def test_numbers_that_a_visitor_sees_are_json(asked):
    """Neither NaN nor infinity, which browsers do not read."""
    run = asked["pixels"]
    made = {"kind": "generate", "strokes": [], "made": [], "bias": 0.0, "new": 50, "slope": 1.0}
    told = [answer for answer in run.kinds["generate"](Request(json.dumps(made))) if answer]
    assert all(np.isfinite(answer["x"]).all() for answer in told)
    json.dumps(told, allow_nan=False)
