"""Servers that refuse, fail, hang and lie."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiohttp import web

from tallymill.engine.physcount.data import read_dataset
from tallymill.engine.physcount.predictions import read_predictions
from tallymill.errors import OutputError, RunError
from tallymill.runners.physcount.pace import Patience

BAD = "i1g0q0"


def fails(what, question=BAD):
    """A server on which one question gets ``what`` and all others their answer."""
    return lambda seen: (what() if callable(what) else what) if seen.question == question else seen.question[-1]


def fails_once(what):
    return lambda seen: what() if seen.question == BAD and seen.nth == 1 else seen.question[-1]


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_request_is_a_row_and_never_an_answer(asker, chat, reply, status):
    chat.answer = fails(lambda: reply.error(status, "cannot read image 7"))
    summary = asker()
    row = asker.by_question()[BAD]
    assert (row["status"], row["response"], row["attempts"]) == ("refused", None, 1)
    assert (row["http_status"], row["error"]) == (status, f"HTTP {status}: cannot read image 7")
    assert (summary.answered, summary.refused, summary.failed) == (5, 1, 0)
    assert summary.reasons == [(f"HTTP {status}", 1, BAD, f"HTTP {status}: cannot read image 7")]
    found = read_predictions(asker.run, read_dataset(asker.data))
    assert found.missing == [BAD]
    assert found.refused == {BAD: f"HTTP {status}: cannot read image 7"}
    before = len(chat.seen)
    asker()
    assert len(chat.seen) == before  # it would be refused again


TRANSIENT = {
    "500": lambda reply: reply.error(500, "oops"),
    "503": lambda reply: reply.error(503, "busy"),
    "429": lambda reply: reply.error(429, "slow down", **{"Retry-After": "0.01"}),
    "408": lambda reply: reply.error(408, "late"),
    "cut connection": lambda reply: reply.cut,
    "no JSON": lambda _: web.Response(text='{"choices": [{"mess', content_type="application/json"),
    "empty": lambda _: web.Response(text=""),
    "a list": lambda _: web.json_response([]),
    "no choices": lambda _: web.json_response({"choices": []}),
    "no message": lambda _: web.json_response({"choices": [{"text": "7"}]}),
    "content is a number": lambda reply: reply.completion(7),
    "an error with status 200": lambda _: web.json_response({"error": {"message": "upstream died", "code": 502}}),
    "the end is an error": lambda reply: reply.completion("7", finish="error"),
    "a page": lambda _: web.Response(status=502, text="<html>Bad Gateway</html>", content_type="text/html"),
}


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_can_pass_is_asked_again(asker, chat, reply, kind):
    chat.answer = fails_once(lambda: TRANSIENT[kind](reply))
    summary = asker()
    assert summary.answered == 6
    row = asker.by_question()[BAD]
    assert (row["response"], row["attempts"]) == ("0", 2)
    assert summary.speed.requests == 7


@pytest.mark.parametrize("kind", TRANSIENT)
def test_what_does_not_pass_is_a_failed_row_and_asked_by_the_next_call(asker, chat, reply, kind):
    chat.answer = fails(lambda: TRANSIENT[kind](reply))
    summary = asker(attempts=2)
    row = asker.by_question()[BAD]
    assert (row["status"], row["response"], row["attempts"]) == ("failed", None, 2)
    assert row["error"]
    assert (summary.answered, summary.failed, summary.complete) == (5, 1, False)
    assert read_predictions(asker.run, read_dataset(asker.data)).missing == [BAD]

    chat.answer = lambda seen: seen.question[-1]
    chat.seen.clear()
    assert asker().answered == 6
    assert chat.questions == [BAD]
    assert read_predictions(asker.run, read_dataset(asker.data)).missing == []


def test_a_request_that_hangs_times_out(asker, chat):
    async def hang(seen):
        if seen.question == BAD:
            await asyncio.sleep(60)
        return "1"

    chat.answer = hang
    summary = asker(timeout=2.0)
    assert (summary.answered, summary.failed) == (5, 1)
    row = asker.by_question()[BAD]
    assert (row["error"], row["attempts"]) == ("no reply within 2 s", 2)  # and not a third time


def test_retry_after_holds_everybody(asker, chat, reply):
    came = []

    def busy(_):
        came.append(time.monotonic())
        return reply.error(429, **{"Retry-After": "0.4"}) if len(came) == 1 else "1"

    chat.answer = busy
    assert asker().answered == 6
    assert came[1] - came[0] >= 0.4


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_for_hours_is_not_waited_for(asker, chat, reply, status):
    day = {"Retry-After": "86400"}
    chat.answer = lambda seen: reply.error(status, "quota of the day", **day) if seen.question == BAD else "1"
    with pytest.raises(RunError, match="the server asks to wait 24 h") as caught:
        asker(concurrency=1)
    assert "quota of the day" in str(caught.value)
    assert "the same command goes on" in str(caught.value)
    assert len(asker.rows()) == 2
    chat.answer = lambda _: "1"
    assert asker().answered == 6


def test_a_date_that_no_calendar_has_is_no_date(asker, chat, reply):
    absurd = {"Retry-After": "Mon, 30 Nov 99999999999999999999 12:00:00 GMT"}
    chat.answer = lambda seen: reply.error(429, **absurd) if seen.nth == 1 else "1"
    assert asker().answered == 6


def test_no_question_follows_while_the_first_one_waits_for_its_second_attempt(asker, chat, reply, monkeypatch):
    monkeypatch.setattr("tallymill.runners.physcount.asking._FIRST_REPLY", 0.05)
    chat.answer = lambda _: reply.error(500) if len(chat.seen) == 1 else "1"
    assert asker(first_wait=0.6).answered == 6
    assert chat.questions[:2] == ["i0g0q0"] * 2


def test_a_server_that_thinks_long_over_its_first_reply_gets_the_others(asker, chat, monkeypatch):
    monkeypatch.setattr("tallymill.runners.physcount.asking._FIRST_REPLY", 0.05)

    async def thinks(seen):
        until = time.monotonic() + 20
        while seen.question == "i0g0q0" and len(chat.seen) < 2 and time.monotonic() < until:
            await asyncio.sleep(0.01)
        return f"{len(chat.seen)}"

    chat.answer = thinks
    asker()
    assert int(asker.by_question()["i0g0q0"]["response"]) > 1


def test_whoever_is_turned_away_during_a_pause_has_lost_no_attempt(asker, chat, reply):
    together = []

    async def busy(seen):
        if seen.question == "i0g0q0" or len(together) >= 5:
            return "1"
        together.append(seen)
        while len(together) < 5:
            await asyncio.sleep(0.005)
        return reply.error(429, **{"Retry-After": "1"})

    chat.answer = busy
    summary = asker(attempts=1)
    assert (summary.answered, summary.failed) == (5, 1)  # the one that brought the news


def test_an_overloaded_server_gets_fewer_requests(asker, chat, reply, dataset_at, tmp_path):
    asker.data = dataset_at(tmp_path / "many", images=30, questions=4)

    async def at_most_four(_):
        if chat.in_flight > 4:
            return reply.error(503)
        await asyncio.sleep(0.01)
        return "1"

    chat.answer = at_most_four
    assert asker(attempts=Patience().attempts, concurrency=32).answered == 120
    # Without a limit that adapts, 28 of every 32 requests would be turned away.
    assert len(chat.seen) < 3 * 120


@pytest.mark.parametrize(
    ("status", "told"),
    [(401, "--key-from"), (403, "--model"), (404, "ends with /v1"), (402, "no"), (405, "no")],
)
def test_a_wrong_key_model_or_url_stops_the_run(asker, chat, reply, status, told):
    chat.answer = lambda _: reply.error(status)
    with pytest.raises(RunError, match=f"HTTP {status}: no") as caught:
        asker()
    assert told in str(caught.value)
    assert len(chat.seen) == 1
    assert asker.rows() == []


def test_a_key_that_expires_keeps_what_came(asker, chat, reply):
    chat.answer = lambda seen: reply.error(401) if seen.question == "i2g0q1" else "1"
    with pytest.raises(RunError, match="401"):
        asker(concurrency=1)
    assert len(asker.rows()) == 5
    assert json.loads((asker.run / "summary.json").read_text())["left"] == 1
    chat.answer = lambda _: "1"
    assert asker().answered == 6
    assert len(chat.seen) == 7


def test_a_disk_that_is_full_hides_no_error(asker, chat, reply, monkeypatch):
    def full(path, _):
        raise OutputError(f"{path} cannot be written: no room")

    monkeypatch.setattr("tallymill.runners.physcount.ask.write_json", full)
    chat.answer = lambda _: reply.error(401)
    with pytest.raises(RunError, match="401"):
        asker()


def test_no_money_left_stops_the_run(asker, chat):
    error = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    chat.answer = lambda _: web.json_response(error, status=429)
    with pytest.raises(RunError, match="quota"):
        asker()
    assert len(chat.seen) == 1


def test_a_redirect_is_not_followed(asker, chat):
    chat.answer = lambda _: web.Response(status=302, headers={"Location": "http://elsewhere.example/"})
    with pytest.raises(RunError, match=r"go to http://elsewhere\.example/"):
        asker()


def test_a_server_that_is_not_there(asker):
    with pytest.raises(RunError, match="Cannot connect") as caught:
        asker(endpoint="http://127.0.0.1:9/v1", attempts=2)
    assert "start the server" in str(caught.value)
    assert asker.rows() == []


def test_a_wait_that_is_named_inside_a_reply_is_kept(asker, chat):
    came = []

    def busy(_):
        came.append(time.monotonic())
        error = {"error": {"message": "slow down", "code": 429}}
        return web.json_response(error, headers={"Retry-After": "0.4"}) if len(came) == 1 else "1"

    chat.answer = busy
    assert asker().answered == 6
    assert came[1] - came[0] >= 0.4


def test_a_limit_that_the_server_does_not_know_is_told_at_once(asker, chat, reply):
    chat.answer = lambda _: reply.error(400, "max_completion_tokens=32768 cannot be greater than max_model_len=4096")
    with pytest.raises(RunError, match="cannot be greater") as caught:
        asker()
    assert "--max-tokens" in str(caught.value)
    assert len(chat.seen) == 1
    chat.answer = lambda _: "1"
    assert asker(max_tokens=64).answered == 6  # nothing was answered: the folder can be used with other settings


def test_an_image_that_cannot_be_read_is_a_row(asker, chat):
    (asker.data / "images/i0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (asker.data / "images/i1.png").unlink()
    (asker.data / "images/i1.png").mkdir()
    with pytest.raises(Exception, match="no such file"):
        asker()
    (asker.data / "images/i1.png").rmdir()
    (asker.data / "images/i1.png").write_bytes(b"GIF89a")
    summary = asker()
    assert (summary.answered, summary.refused) == (2, 4)
    assert asker.by_question()["i0g0q0"]["error"] == "image: the file is cut short (a PNG without its end)"
    assert len(chat.seen) == 2


def test_images_that_cannot_be_read_now_are_no_fault_of_the_server(asker, chat, dataset_at, tmp_path, monkeypatch):
    asker.data = dataset_at(tmp_path / "many", images=30)
    read = Path.read_bytes

    def failing(path):
        if path.suffix == ".png" and path.name != "i29.png":
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", failing)
        summary = asker()
    assert (summary.answered, summary.failed) == (2, 58)
    assert asker.by_question()["i0g0q0"]["error"] == "image: Input/output error"
    assert len(chat.seen) == 2
    assert asker().answered == 60


def test_an_array_of_the_wrong_length_in_joint_mode_is_malformed_alone(asker, chat):
    chat.answer = lambda seen: "[1, 2, 3]" if BAD in seen.text else '```json\n[0, "x"]\n```'
    asker(mode="joint")
    found = read_predictions(asker.run, read_dataset(asker.data)).answers
    assert {key: answer.parsed.status for key, answer in found.items()} == {
        "i0g0q0": "valid",
        "i0g0q1": "malformed",
        "i1g0q0": "malformed",
        "i1g0q1": "malformed",
        "i2g0q0": "valid",
        "i2g0q1": "malformed",
    }


def test_a_refused_group_is_a_row_for_all_its_questions(asker, chat, reply):
    chat.answer = lambda seen: reply.error(400, "too long") if BAD in seen.text else "[0, 1]"
    summary = asker(mode="joint")
    assert (summary.answered, summary.refused) == (4, 2)
    assert read_predictions(asker.run, read_dataset(asker.data)).missing == ["i1g0q0", "i1g0q1"]
