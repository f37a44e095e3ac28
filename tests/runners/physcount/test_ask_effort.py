"""Which reasoning effort is asked for, and what a server that refuses it gets instead."""

from __future__ import annotations

import pytest

from tallymill.errors import RunError


def test_the_strongest_effort_that_is_taken(asker, chat, reply):
    def knows_high(seen):
        effort = seen.body.get("reasoning_effort")
        return reply.error(400, f"Unsupported value: 'reasoning_effort' {effort}") if effort == "xhigh" else "1"

    chat.answer = knows_high
    assert asker(reasoning_effort="auto").reasoning_effort == "high"
    assert [one.body["reasoning_effort"] for one in chat.seen] == ["xhigh"] + ["high"] * 6
    assert {row["attempts"] for row in asker.rows()} == {1}
    assert asker.record()["settings"]["reasoning_effort"] == "high"


def test_a_server_without_efforts(asker, chat, reply):
    chat.answer = lambda seen: reply.error(422, "reasoning_effort: extra") if "reasoning_effort" in seen.body else "1"
    assert asker(reasoning_effort="auto").reasoning_effort is None
    assert ["reasoning_effort" in one.body for one in chat.seen] == [True, True] + [False] * 6
    assert asker.record()["settings"]["reasoning_effort"] is None


def test_the_effort_that_was_found_is_used_again(asker, chat, reply):
    chat.answer = lambda seen: (
        reply.error(400, "reasoning_effort") if seen.body.get("reasoning_effort") == "xhigh" else "1"
    )
    asker(reasoning_effort="auto", groups=["i0g0"])
    chat.seen.clear()
    asker(reasoning_effort="auto")
    asker(reasoning_effort="high")
    assert {one.body["reasoning_effort"] for one in chat.seen} == {"high"}
    with pytest.raises(RunError, match="reasoning_effort: 'high' in the RUN, 'low' now"):
        asker(reasoning_effort="low")


def test_a_refusal_for_another_reason_leaves_the_effort(asker, chat, reply):
    chat.answer = lambda seen: reply.error(400, "bad image") if seen.question == "i0g0q0" else seen.question[-1]
    assert asker(reasoning_effort="auto").reasoning_effort == "xhigh"
    assert asker.by_question()["i0g0q0"]["status"] == "refused"


def test_an_effort_asked_for_by_name_that_is_refused_stops_the_run(asker, chat, reply):
    chat.answer = lambda _: reply.error(400, "Invalid reasoning_effort: 'huge'")
    with pytest.raises(RunError, match="huge") as caught:
        asker(reasoning_effort="huge")
    assert "--reasoning-effort" in str(caught.value)
