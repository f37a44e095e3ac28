"""Servers that refuse single questions, and servers that refuse or fail everything."""

from __future__ import annotations

import json

import pytest

from tallymill.errors import RunError

BAD = "i1g0q0"


@pytest.fixture
def many(asker, dataset_at, tmp_path):
    asker.data = dataset_at(tmp_path / "many", images=30, questions=4)
    return asker


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_that_refuses_everything_uses_up_no_question(many, chat, reply, status):
    chat.answer = lambda _: reply.error(status, "a gateway's filter")
    with pytest.raises(RunError, match="20 requests were refused with no answer in between") as caught:
        many(concurrency=4)
    assert f"HTTP {status}: a gateway's filter" in str(caught.value)
    assert "a --concurrency above 20 lets more be refused in a row" in str(caught.value)
    assert len(chat.seen) == 20
    assert many.rows() == []
    chat.answer = lambda _: "1"
    assert many().answered == 120


def test_a_server_that_begins_to_refuse_everything(many, chat, reply):
    chat.answer = lambda _: "1" if len(chat.seen) <= 30 else reply.error(400, "a new filter")
    with pytest.raises(RunError, match="a new filter"):
        many(concurrency=4)
    assert {row["status"] for row in many.rows()} == {"answered"}
    assert len(many.rows()) == 30
    assert 50 <= len(chat.seen) <= 54
    assert json.loads((many.run / "summary.json").read_text())["left"] == 90
    chat.answer = lambda _: "1"
    assert many().answered == 120


def test_refusals_and_failures_in_turns_are_no_better(many, chat, reply):
    chat.answer = lambda seen: "1" if len(chat.seen) <= 30 else reply.error(400 if int(seen.question[-1]) % 2 else 500)
    with pytest.raises(RunError, match="20 requests were refused or failed"):
        many(concurrency=1, attempts=1)
    assert {row["status"] for row in many.rows()} == {"answered", "failed"}


def test_and_where_nothing_was_answered_few_of_them_are_enough(many, chat, reply):
    chat.answer = lambda seen: reply.error(400 if int(seen.question[-1]) % 2 else 500)
    with pytest.raises(RunError, match="5 requests were refused or failed"):
        many(concurrency=1, attempts=1)
    assert {row["status"] for row in many.rows()} == {"failed"}
    assert len(many.rows()) == 3


def test_nothing_but_refusals_to_the_end(asker, chat, reply):
    chat.answer = lambda _: reply.error(400, "no images here")
    with pytest.raises(RunError, match="6 requests were refused with no answer"):
        asker()
    assert asker.rows() == []
    chat.answer = lambda _: "1"
    assert asker().answered == 6


def test_the_last_ones_refused_are_kept(asker, chat, reply):
    chat.answer = lambda seen: reply.error(400) if seen.question.startswith("i2") else "1"
    assert asker().refused == 2
    assert asker().complete


@pytest.mark.parametrize("status", [403, 404, 405, 418])
def test_a_question_that_a_filter_forbids_stops_no_run_that_has_answers(asker, chat, reply, status):
    chat.answer = lambda seen: reply.error(status, "content filter") if seen.question == BAD else "1"
    summary = asker()
    assert (summary.answered, summary.refused, summary.complete) == (5, 1, True)
    assert asker.by_question()[BAD]["error"] == f"HTTP {status}: content filter"
    before = len(chat.seen)
    asker()
    assert len(chat.seen) == before


def test_a_key_that_is_withdrawn_stops_the_run(many, chat, reply):
    chat.answer = lambda _: "1" if len(chat.seen) <= 30 else reply.error(403, "the key is withdrawn")
    with pytest.raises(RunError, match="the key is withdrawn") as caught:
        many(concurrency=4)
    assert "--key-from" in str(caught.value)
    assert len(many.rows()) == 30
    chat.answer = lambda _: "1"
    assert many().answered == 120


def test_a_wrong_url_refuses_nothing_of_a_run_that_goes_on(asker, chat, reply):
    asker(groups=["i0g0", "i1g0"])
    chat.answer = lambda _: reply.error(404, "no such place")
    with pytest.raises(RunError, match="no such place"):
        asker(endpoint=chat.url + "/elsewhere")
    assert len(asker.rows()) == 4
    chat.answer = lambda _: "1"
    assert asker().answered == 6


def test_a_server_that_begins_to_fail_all_the_time_is_left_alone(many, chat, reply):
    chat.answer = lambda _: "1" if len(chat.seen) <= 30 else reply.error(500)
    with pytest.raises(RunError, match=r"2[0-3] requests failed one after another"):
        many(attempts=1, concurrency=4)
    assert 50 <= len(many.rows()) < 60
    chat.answer = lambda _: "1"
    assert many().answered == 120


def test_a_server_that_fails_from_the_first_request_on_gets_few(many, chat, reply):
    chat.answer = lambda _: reply.error(500, "no room")
    with pytest.raises(RunError, match="3 requests failed one after another, the last with: HTTP 500: no room"):
        many(attempts=2)
    assert len(chat.seen) == 6
    chat.answer = lambda _: "1"
    assert many().answered == 120
