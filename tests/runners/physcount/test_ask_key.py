"""The key is sent, and nowhere else."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from tallymill.errors import RunError

BAD = "i1g0q0"


def test_the_key_is_sent_and_nowhere_else(asker, chat, reply, key, capfd):
    def tells_the_key(seen):
        assert seen.headers["Authorization"] == f"Bearer {key}"
        if seen.question == BAD:
            return reply.error(400, f"the header {seen.headers['Authorization']} is bad")
        if seen.question == "i0g0q0" and seen.nth == 1:
            return web.Response(status=500, text=f"{seen.headers}")
        return f"1 {seen.headers['Authorization']}"

    chat.answer = tells_the_key
    summary = asker()
    assert summary.answered == 5
    for path in asker.run.rglob("*"):
        assert key.encode() not in path.read_bytes(), path
    told = capfd.readouterr()
    assert key not in told.out + told.err + repr(summary)


def test_no_form_of_the_key_is_kept(asker, chat, key):
    """As a server writes it that escapes more of its JSON than it must."""
    escaped = json.dumps(key).replace("-", "\\u002d")

    def says(seen):
        reply = json.dumps(
            {
                "choices": [
                    {
                        "message": {"content": [{"type": "text", "text": "KEY"}], "reasoning": "KEY"},
                        "finish_reason": "KEY",
                    }
                ]
            }
        )
        if seen.question == BAD:
            return web.Response(status=400, text=f'{{"error": {{"message": {{"seen": {escaped}}}}}}}')
        return web.Response(text=reply.replace('"KEY"', escaped))

    chat.answer = says
    assert asker().answered == 5
    row = asker.by_question()["i0g0q0"]
    assert row["response"] == [{"type": "text", "text": "[secret]"}]
    assert (row["reasoning"], row["finish_reason"]) == ("[secret]", "[secret]")
    for path in asker.run.rglob("*"):
        text = path.read_text()
        assert key not in text.replace("\\\\", "\\").replace("\\u002d", "-"), path


def test_the_key_is_in_no_error(asker, chat, reply, key):
    chat.answer = lambda _: reply.error(401, f"Incorrect API key provided: {key}")
    with pytest.raises(RunError) as caught:
        asker()
    assert key not in str(caught.value)
    assert "[secret]" in str(caught.value)


def test_another_variable_holds_the_key(asker, chat, monkeypatch):
    monkeypatch.setenv("MY_KEY", " another-key\n")
    asker(key_from="MY_KEY")
    assert {one.headers["Authorization"] for one in chat.seen} == {"Bearer another-key"}


def test_no_key_is_no_header(asker, chat, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    asker()
    assert "Authorization" not in chat.seen[0].headers


def test_user_and_password_of_the_url_are_not_written(asker, chat):
    asker(endpoint=chat.url.replace("//", "//someone:a%40password-of-theirs@") + "?api-version=2026-secret")
    assert chat.seen[0].headers["Authorization"].startswith("Basic ")
    assert chat.seen[0].path == "/v1/chat/completions?api-version=2026-secret"
    assert asker.record()["endpoint"] == chat.url
    for path in asker.run.rglob("*"):
        text = path.read_text()
        assert "password-of-theirs" not in text
        assert "2026-secret" not in text


def test_a_key_in_an_error_of_another_encoding_is_not_kept(asker, chat, key):
    def says(seen):
        text = '{"error": {"message": "' + "x" * 480 + key + '"}}'
        text = text if seen.question == BAD else f"<html>{text}"
        return web.Response(status=400, body=text.encode("utf-16-le")) if seen.question in (BAD, "i2g0q0") else "3"

    chat.answer = says
    assert asker().refused == 2
    for path in asker.run.rglob("*"):
        text = path.read_text()
        assert key[:4] not in text.replace("\\u0000", "").replace("\0", ""), path
        assert "\\u0000" not in text


def test_a_reply_that_is_too_deep_fails_alone(asker, chat, reply):
    deep = []
    for _ in range(400):
        deep = [deep]
    chat.answer = lambda seen: deep_reply if seen.question == BAD else "3"
    deep_reply = reply.completion(deep)
    summary = asker()
    assert (summary.answered, summary.failed) == (5, 1)
    assert asker.by_question()[BAD]["error"].startswith("malformed reply: ")


def test_absurd_counts_of_tokens_do_not_end_a_run(asker, chat, reply):
    chat.answer = lambda _: reply.completion("3", usage={"prompt_tokens": 10**25, "completion_tokens": 1})
    first = asker()
    assert (first.prompt_tokens, first.completion_tokens) == (None, 6)
    assert asker() == first
