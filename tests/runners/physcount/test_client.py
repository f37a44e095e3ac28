"""Endpoints, keys and proxies; images on their way; which effort is sent."""

from __future__ import annotations

import asyncio
import base64
import html
import json
import socket
import threading
from contextlib import contextmanager
from urllib.parse import quote
from xml.sax.saxutils import escape

import pytest
from aiohttp import web

from tallymill.errors import RunError, UsageError
from tallymill.runners.physcount import images
from tallymill.runners.physcount.client import Client, endpoint_of, read_key
from tallymill.runners.physcount.doubt import Doubt
from tallymill.runners.physcount.effort import Effort
from tallymill.runners.physcount.hiding import Hiding
from tallymill.runners.physcount.images import Images
from tallymill.runners.physcount.plan import ImageRequests, Request
from tallymill.runners.physcount.replies import Outcome


@pytest.mark.parametrize(
    ("given", "posted", "shown"),
    [
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions", "http://h:8000/v1"),
        ("https://h/v1/", "https://h/v1/chat/completions", "https://h/v1"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions", "http://h/v1"),
        ("http://h", "http://h/chat/completions", "http://h"),
        ("http://[::1]:8/v1", "http://[::1]:8/v1/chat/completions", "http://[::1]:8/v1"),
        ("https://u:p@h/v1?a=b", "https://h/v1/chat/completions?a=b", "https://h/v1"),
        ("https://h/v1#part", "https://h/v1/chat/completions", "https://h/v1"),
    ],
)
def test_endpoints(given, posted, shown):
    endpoint = endpoint_of(given)
    assert (endpoint.url, endpoint.shown) == (posted, shown)


def test_the_key_is_in_no_representation():
    endpoint = endpoint_of("http://user:long-password@h/v1?token=very-secret", "sk-the-key")
    for secret in ("long-password", "very-secret", "sk-the-key"):
        assert secret not in repr(endpoint)
        assert secret not in str(endpoint)
    assert endpoint.headers["Authorization"] == "Basic " + base64.b64encode(b"user:long-password").decode()
    assert "sk-the-key" in endpoint_of("http://h/v1", "sk-the-key").headers["Authorization"]
    assert endpoint.clean("at http://me:pw@proxy: long-password?") == "at http://proxy: [secret]?"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("the key is s/k-ü 12345.", "the key is [secret]."),
        (r"s\/k-\u00fc 12345", "[secret]"),
        (r"\u0073/k\u002D\u00FC\u002012345!", "[secret]!"),
        (r"a \\u0073\\/k-ü 12345", "a [secret]"),
        ("?key=s%2fk-%C3%BC+12345&x", "?key=[secret]&x"),
        ("s%252Fk-%25c3%25BC%252012345", "[secret]"),
        ("s/k-u 12345", "s/k-u 12345"),
    ],
)
def test_a_secret_is_found_in_every_form(said, kept):
    hiding = Hiding(["s/k-ü 12345", "short"])
    assert hiding.text(said) == kept
    assert hiding.value([{"text": said, said: [said, 1, None]}]) == [{"text": kept, kept: [kept, 1, None]}]
    assert hiding.body(b"\xff" + said.encode()) == b"\xff" + kept.encode()


@pytest.mark.parametrize("escape", [html.escape, escape, lambda key: "".join(f"&#x{ord(one):X};" for one in key)])
@pytest.mark.parametrize(
    "then", [str, html.escape, json.dumps, lambda text: text.replace("&", r"\u0026"), quote, lambda text: f"<{text}>"]
)
def test_a_secret_is_found_in_html(escape, then):
    hiding = Hiding(["s&k<i>'t\"/12345"])
    assert "12345" not in hiding.text(then(escape("s&k<i>'t\"/12345")))
    assert hiding.text("s&amp;k&#60;i&#062;&apos;t&quot;&sol;12345 &amp;") == "[secret] &amp;"


def test_every_part_of_a_url_that_is_secret():
    endpoint = endpoint_of("http://some%20user:pass%2Fword@h/v1?token=very%2Fsecret&again=also+secret")
    told = "some user, pass/word, very/secret, also secret, pass%2fword, token=very%2Fsecret&again=also+secret"
    assert endpoint.clean(told) == ", ".join(["[secret]"] * 6)


def test_a_key_that_is_no_secret_spoils_no_text():
    assert endpoint_of("http://h/v1", "1").clean("11 of 21") == "11 of 21"


@pytest.mark.parametrize("value", ["sk-\nX-Header: 1", "schlüssel", "a\x00b"])
def test_a_key_that_no_header_takes(monkeypatch, value):
    monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": value})
    with pytest.raises(UsageError, match="the key in OPENAI_API_KEY") as caught:
        read_key("OPENAI_API_KEY")
    assert value not in str(caught.value)


def test_a_proxy_of_the_environment_is_used(asker, chat, monkeypatch):
    proxy = chat.url.removesuffix("/v1")
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert asker(endpoint="http://models.example/v1").answered == 6  # nobody but the proxy knows this name


def test_a_proxy_with_a_password_gets_it_and_the_server_does_not(asker, chat, monkeypatch, key):
    monkeypatch.setenv("http_proxy", chat.url.removesuffix("/v1").replace("//", "//me:pw%2F1@"))
    monkeypatch.setenv("no_proxy", "other.example")
    assert asker(endpoint="http://models.example/v1").answered == 6
    headers = chat.seen[0].headers
    assert headers["Proxy-Authorization"] == "Basic " + base64.b64encode(b"me:pw/1").decode()
    assert headers["Authorization"] == f"Bearer {key}"


@pytest.mark.parametrize("excepted", ["127.0.0.1", "*"])
def test_a_host_that_is_excepted_needs_no_proxy(asker, monkeypatch, excepted):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", excepted)
    assert asker(attempts=1).answered == 6


@pytest.mark.parametrize("has_key", [True, False])
def test_what_netrc_has_for_a_host_is_not_sent(asker, chat, monkeypatch, tmp_path, key, has_key):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password of-another-service\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    if not has_key:
        monkeypatch.delenv("OPENAI_API_KEY")
    assert asker(attempts=1).answered == 6
    assert chat.seen[0].headers.get("Authorization") == (f"Bearer {key}" if has_key else None)


@pytest.mark.parametrize("url", ["http://user:pass[word@h/v1", "http://[::1/v1?token=pass[word"])
def test_a_url_that_cannot_be_taken_apart_is_not_repeated(url):
    with pytest.raises(UsageError, match="must be a URL such as") as caught:
        endpoint_of(url)
    assert "pass" not in str(caught.value)
    assert caught.value.__suppress_context__


@contextmanager
def proxy_that_says(line):
    """A proxy that makes no connection; gives its URL."""

    def serve(server):
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(f"HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n".encode())

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("407 Proxy Authentication Required", "HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"),
        ("403 Forbidden", "look at the proxy that HTTPS_PROXY names"),
        ("400 Bad Request", "look at the proxy that HTTPS_PROXY names"),
    ],
)
def test_a_proxy_that_makes_no_connection_stops_the_run(asker, monkeypatch, line, told):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with proxy_that_says(line) as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        with pytest.raises(RunError, match="the proxy says HTTP " + line.replace(" ", ": ", 1)) as caught:
            asker(endpoint="https://models.example/v1")
    assert told in str(caught.value)
    assert asker.rows() == []


def test_a_proxy_that_is_busy_is_asked_again(asker, monkeypatch):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with proxy_that_says("503 Service Unavailable") as proxy:
        monkeypatch.setenv("https_proxy", proxy)
        summary = asker(endpoint="https://models.example/v1", groups=["i0g0"], attempts=2)
    assert summary.failed == 2
    assert {row["attempts"] for row in asker.rows()} == {2}


def test_tls_that_breaks_off_is_fatal_until_something_was_answered(chat):
    outcome = posted(chat.url.replace("http:", "https:"))  # there is no TLS
    assert (outcome.kind, outcome.unreachable) == ("fatal", True)
    assert Doubt("a server", answered=False, concurrency=4).judged(outcome).kind == "fatal"
    assert Doubt("a server", answered=True, concurrency=4).judged(outcome).kind == "transient"
    wrong = Outcome("fatal", error="cannot connect: a certificate")
    assert Doubt("a server", answered=True, concurrency=4).judged(wrong) == wrong


def posted(url):
    body = b'{"messages": [{"content": [{}, {"text": "t"}]}]}'

    async def ask():
        async with Client(endpoint_of(url, proxies=False), timeout=5, connect_timeout=5) as client:
            return await client.ask([body[:10], body[10:]])

    return asyncio.run(ask())


def test_of_an_error_no_more_is_read_than_is_told(chat, monkeypatch):
    monkeypatch.setattr("tallymill.runners.physcount.client._MOST_REPLY", 1 << 20)
    chat.answer = lambda _: web.Response(status=400, text="too many images; you sent " + "x" * (4 << 20))
    outcome = posted(chat.url)
    assert (outcome.kind, outcome.http_status) == ("refused", 400)
    assert outcome.error.startswith("HTTP 400: too many images; you sent xxx")
    assert len(outcome.error) < 600


def test_an_answer_without_end_is_given_up(chat, monkeypatch):
    monkeypatch.setattr("tallymill.runners.physcount.client._MOST_REPLY", 1000)
    chat.answer = lambda _: "x" * 5000
    assert posted(chat.url).error == "malformed reply: it does not end"


# Images


def test_few_images_are_held_at_once(tmp_path, png):
    work = []
    for k in range(20):
        (tmp_path / f"{k}.png").write_bytes(png(100, 100))
        work.append(ImageRequests(tmp_path / f"{k}.png", (Request(("q",), "g", "t"),) * 2))

    async def go():
        size = len(images.prepare(work[0], 4096).url)
        ahead = Images(work, 4096, most_bytes=3 * size)
        held, most, got = [], 0, 0
        async for _, ready in ahead:
            held.append(ready)
            got += 1
            most = max(most, len(held))
            if len(held) == 3:  # the next one would have to wait for one of these
                asyncio.get_running_loop().call_soon(free, ahead, held)
        return most, got

    def free(ahead, held):
        ready = held.pop(0)
        ahead.done(ready)
        assert ready.url  # another request needs it
        ahead.done(ready)
        assert ready.url == b""

    assert asyncio.run(go()) == (3, 20)


def test_an_image_larger_than_the_room_goes_alone(tmp_path, png):
    (tmp_path / "a.png").write_bytes(png(100, 100))
    work = [ImageRequests(tmp_path / "a.png", (Request(("q",), "g", "t"),))] * 3

    async def go():
        ahead, got = Images(work, 4096, most_bytes=1), 0
        async for _, ready in ahead:
            got += 1
            ahead.done(ready)
        return got

    assert asyncio.run(go()) == 3


# Effort


def refused(text="reasoning_effort: no"):
    return Outcome("refused", error=text)


def test_efforts_that_arrive_late():
    """Several requests are on their way while the first refusals come back."""
    effort = Effort("auto")
    assert effort.current == "xhigh"
    assert effort.ask_again("xhigh", refused())
    assert effort.ask_again("xhigh", refused())  # the second one to come back does not skip "high"
    assert effort.current == "high"
    assert effort.ask_again("xhigh", Outcome("answered"))  # would be an answer of another kind than all others
    assert not effort.settled
    assert not effort.ask_again("high", Outcome("answered"))
    assert effort.settled
    assert not effort.ask_again("high", refused())
    assert effort.current == "high"


def test_nothing_is_left_to_try():
    effort = Effort("auto")
    for sent in ("xhigh", "high"):
        assert effort.ask_again(sent, refused("Reasoning effort is not supported"))
    assert effort.current is None
    assert not effort.ask_again(None, refused())


def test_an_effort_that_is_known_stays():
    assert not Effort("high").ask_again("high", refused())
    assert Effort(None).current is None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://h:99999/v1", "port 99999 must be a whole number from 0 to 65535"),
        ("http://user:secret-words@h:x1/v1", "the port must be a whole number"),
        ("http://..../v1", r"'\.\.\.\.' can be the name of no host"),
        ("http://a..b/v1", "can be the name of no host"),
        (f"http://{'a' * 64}.example/v1", "can be the name of no host"),
        (f"http://{'a.' * 128}example/v1", "can be the name of no host"),
        ("http://a b/v1", "can be the name of no host"),
    ],
)
def test_hosts_and_ports_that_cannot_be(url, told):
    with pytest.raises(UsageError, match=told) as caught:
        endpoint_of(url)
    assert "secret-words" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("host", ["my_host", "h.", "bücher.example", f"{'a' * 63}.b", "[::1]", "127.0.0.1"])
def test_hosts_that_can_be(host):
    assert endpoint_of(f"http://{host}:1/v1").url.endswith(":1/v1/chat/completions")
