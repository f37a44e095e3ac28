"""How many requests are in flight, and how long a failed one waits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from tallymill.runners.physcount.pace import LONGEST_WAIT, Pace, Patience, Window, in_words
from tallymill.runners.physcount.replies import outcome_of, seconds_of


def test_the_window_grows_by_one_a_success():
    window = Window(12)
    assert window.limit == 8
    for _ in range(3):
        window.succeeded()
    assert window.limit == 11
    for _ in range(10):
        window.succeeded()
    assert window.limit == 12
    assert Window(3).limit == 3


def test_it_is_halved_once_a_round_trip():
    window = Window(64, start=40)
    for _ in range(5):  # all were on their way before the first one came back
        window.overloaded(sent_at=1.0, now=2.0)
    assert window.limit == 20
    window.overloaded(sent_at=2.5, now=3.0)
    assert window.limit == 10
    for k in range(10):
        window.overloaded(sent_at=4.0 + k, now=4.0 + k)
    assert window.limit == 1


def test_after_a_halving_it_grows_by_one_a_round_trip():
    window = Window(64, start=8)
    window.overloaded(sent_at=1.0, now=2.0)
    limits = []
    for _ in range(4 + 5 + 6):
        window.succeeded()
        limits.append(window.limit)
    assert limits == [4] * 3 + [5] * 5 + [6] * 6 + [7]
    for _ in range(5000):
        window.succeeded()
    assert window.limit == 64


def test_waits_double_up_to_a_bound_and_are_spread():
    pace = Pace(4, Patience(first_wait=1.0))
    for attempt in range(1, 60):
        full = min(LONGEST_WAIT, 2.0 ** (attempt - 1))
        assert full / 2 <= pace.wait_after(attempt, None) <= full
    assert len({pace.wait_after(3, None) for _ in range(5)}) == 5
    assert [Pace(4, Patience()).wait_after(k, None) for k in (1, 2)] == [
        Pace(4, Patience()).wait_after(k, None) for k in (1, 2)
    ]


def test_the_servers_own_time_counts_within_reason():
    pace = Pace(4, Patience(first_wait=1.0))
    assert pace.wait_after(1, 7.0) == 7.0
    assert pace.wait_after(1, 86_400.0) == LONGEST_WAIT
    assert [in_words(s) for s in (150, 600, 5400, 86_400)] == ["2.5 min", "10 min", "1.5 h", "24 h"]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
        ("Mon, 30 Nov 2026 14:00:30 +0200", 30.0),
        ("soon", None),
        ("-5", None),
        ("Mon, 30 Nov 99999999999999999999 12:00:00 GMT", None),
        ("Mon, 30 Nov 2026 12:00:00 +99999999999999", None),
        ("²", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_in_seconds_or_as_a_date(value, seconds):
    assert seconds_of(value, datetime(2026, 11, 30, 12, tzinfo=UTC)) == seconds


def test_slots_are_given_in_order_and_given_back():
    async def go():
        pace, order, most, now = Pace(2, Patience()), [], 0, 0

        async def one(k):
            nonlocal most, now
            async with pace.slot():
                now += 1
                most = max(most, now)
                order.append(k)
                await asyncio.sleep(0.001)
                now -= 1

        await asyncio.gather(*(one(k) for k in range(20)))
        return order, most

    assert asyncio.run(go()) == (list(range(20)), 2)


def test_a_slot_is_not_lost_with_a_cancelled_task():
    async def go():
        pace = Pace(1, Patience())

        async def hold():
            async with pace.slot():
                await asyncio.sleep(60)

        holder, waiter = asyncio.create_task(hold()), asyncio.create_task(hold())
        await asyncio.sleep(0)
        waiter.cancel()
        holder.cancel()
        await asyncio.gather(holder, waiter, return_exceptions=True)
        async with asyncio.timeout(5), pace.slot():
            return True

    assert asyncio.run(go())


def test_a_slot_that_was_given_to_a_task_that_is_cancelled_at_once():
    async def go():
        pace = Pace(1, Patience())

        async def hold():
            async with pace.slot():
                await asyncio.sleep(60)

        task = asyncio.create_task(hold())
        await asyncio.sleep(0)  # it has the slot, and has not gone on yet
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(5), pace.slot():
            return True

    assert asyncio.run(go())


# What a reply means


def test_errors_are_told_in_whichever_place_they_stand():
    for body, told in [
        (b'{"error": {"message": "a  b\\n c"}}', "a b c"),
        (b'{"error": "text"}', "text"),
        (b'{"object": "error", "message": "old vLLM"}', "old vLLM"),
        (b'{"detail": [{"loc": ["body"], "msg": "required"}]}', '[{"loc": ["body"], "msg": "required"}]'),
        (b"<html>", "<html>"),
        (b"not \xff\xfe", "not ��"),
        (b"\xff\xfe" + "n\x00o \x1b[31m".encode("utf-16-le"), "no [31m"),
        (b"[" * 100_000, "[" * 499 + "…"),
    ]:
        assert outcome_of(400, {}, body).error == f"HTTP 400: {told}"
    assert outcome_of(400, {}, b"").error == "HTTP 400"
    assert len(outcome_of(500, {}, b"x" * 10_000).error) < 600


@pytest.mark.parametrize("hidden", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "cp037"])
@pytest.mark.parametrize("body", ['{"error": {"message": "ERROR"}}', "<html>ERROR", "é ERROR"])
def test_a_secret_in_any_encoding_is_hidden_before_the_text_is_cut(hidden, body):
    said = body.replace("ERROR", "x" * 480 + " the-key-of-somebody!").encode(hidden)
    headers = {"Content-Type": f"text/html; charset={hidden}"}
    told = outcome_of(400, headers, said, hide=lambda text: text.replace("the-key-of-somebody", "[secret]")).error
    assert "xxxx" in told
    assert " the" not in told
    assert "\0" not in told


@pytest.mark.parametrize("body", [b"\xe9\xff", b"\xe9" + b"a" * 20_000, b"\xe9" * 20_000])
def test_charsets_that_are_none_or_no_text(body):
    for charset in ("hex", "undefined", "no-such", "'latin-1'"):
        told = outcome_of(500, {"Content-Type": f"a/b; charset={charset}"}, body).error
        assert told.startswith("HTTP 500: " + ("é" if "latin" in charset else "�"))


def test_the_halves_of_a_character_do_no_harm():
    assert outcome_of(400, {}, b'{"error": "a\\ud800b"}').error == "HTTP 400: a?b"
    assert outcome_of(400, {}, b'"' + "ä".encode() * 20_000).error.endswith("ää…")


@pytest.mark.parametrize("deep", ["[" * 500 + "]" * 500, '{"a":' * 300 + "1" + "}" * 300])
def test_a_reply_that_is_nested_too_deeply(deep):
    message = f'{{"choices": [{{"message": {{"content": [{deep}], "reasoning": {deep}}}}}]}}'
    found = outcome_of(200, {}, message.encode())
    assert found.kind == "transient"
    assert found.error.startswith("malformed reply: no JSON that can be read (nested more than 64 deep): ")
    assert outcome_of(400, {}, f'{{"error": {deep}}}'.encode()).kind == "refused"


def test_token_counts_that_no_server_can_mean_are_not_kept():
    usage = b'{"prompt_tokens": 1234567890123456789012345, "completion_tokens": 9007199254740991}'
    found = outcome_of(200, {}, b'{"choices": [{"message": {"content": "3"}}], "usage": ' + usage + b"}")
    assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (None, 9007199254740991)


def test_a_reply_that_would_break_a_decoder():
    assert outcome_of(200, {}, b"[" * 200_000).kind == "transient"
    assert outcome_of(200, {}, b'{"choices": [' + b"1" * 5000 + b"]}").kind == "transient"
    assert outcome_of(200, {}, b'{"choices": [null]}').kind == "transient"


def test_a_model_that_declines():
    body = b'{"choices": [{"message": {"content": null, "refusal": "I will not"}, "finish_reason": "stop"}]}'
    outcome = outcome_of(200, {}, body)
    assert (outcome.kind, outcome.response, outcome.error) == ("answered", None, "the model declined: I will not")
