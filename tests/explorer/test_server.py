"""What the explorer answers, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from io import StringIO

import httpx
import numpy as np
import pytest
import torch
from support.explorer.models import DRAWN, SMALL, TEXT
from support.explorer.server import Client, assert_tells, joined, running, talking
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from hmrnn import StrokeModel, Symbols, TextModel, TextModelConfig
from hmrnn.domains.strokes.data.points import from_strokes, read_json_lines
from hmrnn.domains.strokes.hand import LETTER, Hand
from hmrnn.domains.text import explorer as text_run
from hmrnn.domains.text.config import TextReadingConfig
from hmrnn.domains.text.explorer import MOST_CHARACTERS
from hmrnn.domains.text.reading import read_on
from hmrnn.domains.text.structure import follow
from hmrnn.domains.text.written import write_json
from hmrnn.explorer import listening, serve, server
from hmrnn.explorer.loading import load
from hmrnn.explorer.reading import BLOCK, Memory
from hmrnn.explorer.requests import MOST_POINTS, Refused
from hmrnn.structure.reading import Place
from hmrnn.structure.written import Counted


@pytest.fixture
def client(host):
    with talking(host) as client:
        yield client


def whole(client: Client, text: str, **more) -> dict:
    answers, last = client.ask(kind="read", text=text, have=0, **more)
    assert last.get("done"), last
    return joined(answers)


def test_the_page_and_nothing_else(host):
    page = httpx.get(f"http://{host}/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'self';")
    for name in ("explorer.css", "explorer.js", "text.js", "strokes.js", "picture.js", "asking.js", "icon.svg"):
        assert httpx.get(f"http://{host}/{name}").status_code == 200
    for path in ("docs", "openapi.json", "page/page.html", "words", "..%2f..%2fetc/passwd", "socket", "favicon.ico"):
        assert httpx.get(f"http://{host}/{path}").status_code == 404
    assert httpx.post(f"http://{host}/", content=b"x" * 10_000_000).status_code == 405


def test_other_origins_are_refused(host):
    url, port = f"http://{host}/", host.partition(":")[2]
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://{host}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Host": f"evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        assert httpx.get(url, headers=headers).status_code == 403, headers
    assert httpx.get(f"http://localhost:{port}/", headers={"Origin": f"http://localhost:{port}"}).status_code == 200
    for origin in ("http://evil.example", f"http://localhost:{port}", None):
        with pytest.raises(InvalidStatus, match="403"), connect(f"ws://{host}/socket", origin=origin):
            pass
    rebound = {"Host": f"evil.example:{port}"}
    with (
        pytest.raises((InvalidStatus, ConnectionClosed, ValueError)),
        connect(f"ws://{host}/socket", origin=f"http://evil.example:{port}", additional_headers=rebound),
    ):
        pass


def test_it_reads_as_the_model_does_however_it_is_typed(folder, client):
    model = TextModel.from_pretrained(folder / "other")
    assert [run["name"] for run in client.hello["runs"]] == ["words", "other"]
    assert len(TEXT) > 2 * BLOCK
    found = model.segment(TEXT)
    assert_tells(whole(client, TEXT, run=1), found.steps)
    assert_tells(whole(client, TEXT, run=1), found.steps)  # from memory
    typed: list[dict] = []
    for i in range(1, 160):
        answers, _ = client.ask(kind="read", run=1, text=TEXT[2 : 2 + i], have=i - 1)
        assert [answer["start"] for answer in answers] == [i - 1]
        typed += answers
    assert_tells(joined(typed), model.segment(TEXT[2:161]).steps)
    answers, _ = client.ask(kind="read", run=1, text=TEXT[:50] + "o" + TEXT[51:], have=50)
    assert [answer["start"] for answer in answers] == [50, BLOCK, 2 * BLOCK]
    answers, _ = client.ask(kind="read", run=1, text=TEXT[:40], have=40)
    assert answers == [{"id": client.last, "start": 40, "unknown": []}]
    assert whole(client, "")["start"] == 0


def test_given_boundaries_go_by_all_that_was_typed():
    """Where a sentence ends is told by symbols before the last one."""
    text = 'He said ("stop!") and went. Then'
    torch.manual_seed(0)
    model = TextModel(Symbols.of(text), TextModelConfig("hrnn", **SMALL)).double().eval()
    numbers, place, typed = model.symbols.encode(text), Place.start(model), []
    for symbol in numbers.split(1):
        read = read_on(model, symbol, place)
        place = read.after
        typed.append(read.z)
    at_once = read_on(model, numbers, Place.start(model)).z
    assert at_once[:, 1].nonzero().flatten().tolist() == [17, 27]
    assert torch.equal(torch.cat(typed), at_once)


def test_unknown_symbols_are_told(folder, client):
    told = whole(client, "the zßcat")
    assert told["unknown"] == ["'z' (U+007A)", "'ß' (U+00DF)"]
    assert told["symbols"] == list("the ??cat")
    whole(client, "\ud83d the \ud83d\ude00")  # half a pair
    with running([folder / "bytes", folder / "letters"]) as host, talking(host) as other:
        told = whole(other, "naïve ß")
        assert told["symbols"] == ["n", "a", "c3", "af", "v", "e", " ", "c3", "?"]
        assert told["unknown"] == ["0x9f"]
        answers, _ = other.ask(kind="read", text="naïve", have=3)
        assert answers[0]["start"] == 4
        assert [run["on_unknown"] for run in other.hello["runs"]] == ["replace", "skip"]
        assert whole(other, "a.b", run=1)["symbols"] == ["a", "b"]
    runs = load([folder / "words"], Memory(), TextReadingConfig(on_unknown="error"))
    with pytest.raises(Refused, match="'z'"):
        runs[0].numbers("z")


def test_slope(folder, client):
    model = TextModel.from_pretrained(folder / "words")
    own, steep = whole(client, TEXT), whole(client, TEXT, slope=7.0)
    model.rnn.slope = 7.0
    assert_tells(steep, model.segment(TEXT).steps)
    assert own["z"] == steep["z"], "a step is where it was"
    assert own["z_tilde"] != steep["z_tilde"]
    assert whole(client, TEXT)["z_tilde"] == own["z_tilde"]


def test_generate(folder, client):
    model = TextModel.from_pretrained(folder / "words")
    answers, last = client.ask(kind="generate", text="the c", temperature=0, new=30)
    assert last["done"]
    made = "".join(answer["text"] for answer in answers)
    assert made == model.generate("the c", 30, temperature=0)
    assert_tells(joined(answers), list(follow(model, model.symbols.encode("the c" + made).split([5, 30])))[1].steps())
    answers, _ = client.ask(kind="generate", text="", temperature=0, new=10)
    assert "".join(answer["text"] for answer in answers) == model.generate("", 10, temperature=0)
    number = client.send(kind="generate", text="the", temperature=1, new=1000)
    client.socket.recv()
    client.send(kind="stop")
    while "stopped" not in (answer := json.loads(client.socket.recv(timeout=60))):
        assert answer["id"] == number
    answers, last = client.ask(kind="generate", text="a" * (MOST_CHARACTERS - 1), temperature=1, new=5)
    assert len(answers) == 1
    assert "no room" in client.ask(kind="generate", text="a" * MOST_CHARACTERS, temperature=1, new=5)[1]["error"]


def test_the_segments_are_those_of_the_command_line(folder, client):
    model, file = TextModel.from_pretrained(folder / "words"), StringIO()
    write_json(model, Counted(read.steps() for read in follow(model, [model.symbols.encode(TEXT)])), file)
    answers, _ = client.ask(kind="segments", text=TEXT)
    assert answers[0]["file"] == file.getvalue()


READ = {"id": 1, "run": 0, "kind": "read", "text": "a", "have": 0}


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("nonsense", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("[1]", "JSON object"),
        (b"\x00\x01", "must be JSON"),
        ({**READ, "run": "../../etc/passwd"}, "run must be a whole number from 0 to 1"),
        ({**READ, "run": 2}, "run must be"),
        ({**READ, "run": True}, "run must be"),
        ({**READ, "run": -1}, "run must be"),
        ({**READ, "id": None}, "id must be"),
        ({**READ, "kind": ["read"]}, "kind must be"),
        ({**READ, "kind": "__class__"}, "kind must be"),
        ({**READ, "kind": "figure"}, "kind must be stop or one of read, generate, segments"),
        ({**READ, "text": None}, "text must be a string"),
        ({**READ, "text": "a" * (MOST_CHARACTERS + 1)}, "5,001 characters is too long: 5,000"),
        ({**READ, "have": 2}, "have must be a whole number from 0 to 1"),
        ({**READ, "slope": 0}, "slope must be a number from 0.1 to 20; got 0"),
        ({**READ, "slope": float("nan")}, "slope must be"),
        ({**READ, "slope": "1"}, "slope must be"),
        ({**READ, "kind": "generate", "temperature": -1, "new": 5}, "temperature must be"),
        ({**READ, "kind": "generate", "temperature": 1, "new": 10**9}, "new must be a whole number from 1 to 1,000"),
    ],
)
def test_refused(client, message, what):
    client.socket.send(json.dumps(message) if isinstance(message, dict) else message)
    answer = json.loads(client.socket.recv(timeout=60))
    assert what in answer["error"]
    assert whole(client, "the")["symbols"] == ["t", "h", "e"], "and it goes on"


def test_too_large_a_message_ends_the_conversation(host):
    with talking(host) as client:
        client.send(kind="read", text="a" * (server.LONGEST_MESSAGE + 1), have=0)
        with pytest.raises(ConnectionClosed, match="1009"):
            client.socket.recv(timeout=60)
    with talking(host) as client:
        whole(client, "the")


def test_a_failing_model_tells_nothing_of_itself(client, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("/root/secret")

    monkeypatch.setattr(text_run, "read_on", fail)
    _, last = client.ask(kind="read", text="not read before", have=0)
    assert "terminal" in last["error"]
    assert "secret" not in last["error"]
    assert "/root/secret" in caplog.text


def test_busy_full_and_late(host, client, monkeypatch):
    monkeypatch.setattr(server, "MOST_REQUESTS", 0)
    assert client.ask(kind="read", text="a", have=0)[1]["busy"]
    monkeypatch.undo()
    monkeypatch.setattr(server, "TIME_LIMIT", 0.2)
    assert "longer than 0 seconds" in client.ask(kind="generate", text="", temperature=1, new=1000)[1]["error"]
    monkeypatch.setattr(server, "MOST_USERS", 1)
    with pytest.raises(InvalidStatus, match="403"), talking(host):
        pass


def test_what_is_remembered_is_bounded_and_expires(folder):
    now = [0.0]
    memory = Memory(most=4, seconds=100, clock=lambda: now[0])
    (run,) = load([folder / "words"], memory, TextReadingConfig(on_unknown="replace"))
    calls: list[int] = []
    run.read_on = lambda model, inputs, before: calls.append(len(inputs)) or read_on(model, inputs, before)

    def read(text: str) -> list[int]:
        calls.clear()
        list(run.read_all(run.model, run.numbers(text)))
        return list(calls)

    assert read("the cat sat on the mat") == [22]
    assert read("the cat sat on the mat") == []
    assert read("the cat sat on the mats") == [1]
    assert read("the cat sat on the matsof") == [1, 1]
    for other in ("cat", "dog", "door"):
        assert sum(read(other)) == len(other)
    assert len(memory.blocks) == 4
    assert read("the cat sat on the matsof") == []
    assert read("the cat sat on the mat") == [22], "the oldest was dropped"
    now[0] = 99
    assert read("the cat sat on the mat") == []
    now[0] = 150
    assert read("the cat sat on the mat") == []
    memory.forget()
    assert len(memory.blocks) == 1
    now[0] = 300
    memory.forget()
    assert not memory.blocks


def test_twenty_users_at_once(folder, host):
    model = TextModel.from_pretrained(folder / "words")
    texts = [TEXT[k : k + 60] for k in range(20)]
    wanted, failed = [model.segment(text).steps for text in texts], []

    def use(k: int) -> None:
        try:
            with talking(host) as client:
                typed: list[dict] = []
                for i in range(0, 60, 3):
                    answers, last = client.ask(kind="read", text=texts[k][: i + 3], have=i)
                    assert last["done"]
                    typed += answers
                assert_tells(joined(typed), wanted[k])
        except BaseException as error:
            failed.append(error)

    users = [threading.Thread(target=use, args=(k,)) for k in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not failed


def test_no_request_reaches_the_file_system(host, client):
    opened, watching = [], [False]
    sys.addaudithook(lambda event, args: opened.append(args[0]) if watching[0] and event == "open" else None)
    whole(client, "the")
    httpx.get(f"http://{host}/")
    watching[0] = True
    with httpx.Client() as asking:
        opened.clear()  # of httpx itself
        for path in ("/", "/text.js", "/..%2f..%2fetc/passwd", "/../../etc/passwd", "//etc/passwd", "/%00"):
            asking.get(f"http://{host}{path}")
        client.ask(kind="read", run="/etc/passwd", text="/etc/passwd", have=0)
        client.ask(kind="../segments", text="../../etc/passwd")
        whole(client, "/etc/passwd")
        client.ask(kind="segments", text="../../etc/passwd")
    watching[0] = False
    assert opened == []


def test_a_hand():
    line = from_strokes([[[0, 0], [0, 4], [0, 8]], [[3, 8], [3, 4], [3, 0], [3, -2]]] * 10)
    hand = Hand.measured(line, typical=1.0)
    assert (hand.height, hand.spacing) == (10, pytest.approx(10 / 3)), "at least 3 points along a tall letter"
    hand = Hand(height=20.0, spacing=2.0)
    points = hand.points([[[100, 0], [100, LETTER]], [[130, 30]]], [False, False])
    assert points[:, 2].tolist() == [0] * 10 + [1, 1]
    assert np.allclose(points[1:11, 1], 2.0)
    assert np.allclose(points[11], [10, -10, 1])
    assert np.allclose(hand.pixels(points, [100, 0])[[0, 10, 11]], [[100, 0], [100, 60], [130, 30]])
    made = [[[0, 0], [1, 1], [50, 50]]]
    assert len(hand.points(made, [True])) == 3, "what it made is left as it is"
    mouse = [[x / 7, 20 * np.sin(x / 70)] for x in range(900)]
    whole, part = (hand.points([mouse[:n]], [False]) for n in (900, 700))
    assert np.allclose(whole[: len(part) - 2], part[:-2]), "more of a stroke changes nothing before it"
    assert np.allclose(np.hypot(*whole[1:-1, :2].T), 2.0, atol=0.2)
    with pytest.raises(Refused, match=f"at most {MOST_POINTS:,} points"):
        hand.points([[[0, 1e6 * (-1) ** k] for k in range(10_000)]], [False])
    for points in (np.zeros((1, 3)), np.ones((5, 3)), np.full((5, 3), np.nan)):
        hand = Hand.measured(points.astype(np.float32), typical=0.5)
        assert (hand.height, hand.spacing) == (4.0, 0.5), "it tells nothing"


def test_strokes(folder, pen_host):
    model = StrokeModel.from_pretrained(folder / "pen")
    asked = {"strokes": DRAWN, "made": [False] * 4}
    points = Hand.of(model).points(DRAWN, [False] * 4)
    found = model.segment(points)
    with talking(pen_host) as client:
        answers, last = client.ask(kind="read", **asked)
        told = joined(answers)
        assert_tells(told, found.steps)
        assert last["done"]
        assert told["pen"] == points[:, 2].tolist()
        corners = [[*place] for place in zip(told["x"], told["y"], strict=True)]
        assert all(min(np.hypot(*np.subtract(c, p)) for p in corners) < 0.02 for stroke in DRAWN for c in stroke[::99])
        (answer,), _ = client.ask(kind="segments", **asked)
        (line,) = json.loads(answer["file"])["lines"]
        assert [s["end"] for s in line["segments"]] == [s.end for layer in found.layers for s in layer]
        assert line["updates"]["saved"] == found.updates.saved
        (answer,), _ = client.ask(kind="figure", layer=2, **asked)
        groups = ET.fromstring(answer["file"]).findall("{http://www.w3.org/2000/svg}g")
        assert len(groups) == len(found.layers[1])
        (answer,), _ = client.ask(kind="drawing", **asked)
        (line,) = read_json_lines([answer["file"].encode()], "")
        assert np.allclose(line, points, atol=0.01)
        answers, last = client.ask(kind="generate", bias=1, new=15, **asked)
        assert last["done"]
        assert [answer["start"] for answer in answers] == list(range(len(points), len(points) + 15))
        answers, _ = client.ask(kind="generate", bias=1, new=5, strokes=[], made=[])
        assert [answer["start"] for answer in answers] == [0, 1, 2, 3, 4, 5]
        assert client.ask(kind="read", strokes=[], made=[])[1]["done"]
        for wrong, what in (
            ({"strokes": [[[1]]]}, "strokes: a point must be two numbers"),
            ({"strokes": [[[1, 1e9]]], "made": [False]}, "coordinates must lie between"),
            ({"made": [False]}, "made must be true or false for each of the 4 strokes"),
            ({"kind": "figure", "layer": 3}, "layer must be a whole number from 0 to 2"),
            ({"kind": "drawing", "strokes": [], "made": []}, "nothing drawn"),
            ({"kind": "generate", "bias": -1}, "bias must be"),
        ):
            assert what in client.ask(**{"kind": "read", **asked, **wrong})[1]["error"]


def test_what_can_not_be_served(folder, monkeypatch):
    with pytest.raises(ValueError, match="only runs of one kind"):
        serve([folder / "words", folder / "pen"])
    with listening(0) as taken, pytest.raises(ValueError, match="can't be had"):
        listening(taken.getsockname()[1])
    with pytest.raises(ValueError, match="can't be had"):
        listening(70_000)
    monkeypatch.setitem(sys.modules, "hmrnn.explorer.server", None)
    with pytest.raises(ValueError, match="pip install 'hmrnn\\[explore\\]'"):
        serve([folder / "words"])


def test_serve_tells_its_address_and_can_be_interrupted(folder):
    code = "import sys; from pathlib import Path; from hmrnn.explorer import serve; "
    code += "serve([Path(sys.argv[1])])"
    (folder / "browser.py").write_text("import sys; open(__file__ + '.opened', 'w').write(sys.argv[1])")
    environment = {**os.environ, "BROWSER": f"{sys.executable} {folder / 'browser.py'} %s"}
    command = [sys.executable, "-c", code, str(folder / "words")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        host = url.removeprefix("http://")
        with talking(host) as client:
            assert whole(client, "the")["symbols"] == ["t", "h", "e"]
            opened = folder / "browser.py.opened"
            for _ in range(600):
                if opened.exists() and opened.read_text():
                    break
                time.sleep(0.1)
            assert opened.read_text() == url
            process.send_signal(signal.SIGINT)
            assert process.wait(60) != 0
    finally:
        process.kill()
        process.communicate()
