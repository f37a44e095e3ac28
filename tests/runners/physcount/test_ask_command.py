"""``tallymill physcount ask`` on the command line."""

from __future__ import annotations

import json

import pytest

import tallymill.physcount
from tallymill import cli


@pytest.fixture
def call(capsys, asker):
    def run(*more):
        arguments = ["physcount", "ask", "--data", asker.data, "--out", asker.run, *more]
        capsys.readouterr()
        code = cli.run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return run


@pytest.fixture
def there(chat):
    return "--endpoint", chat.url, "--model", "tiny"


def test_all_is_well(call, there, asker):
    code, out, err = call(*there)
    assert code == 0, err
    for text in ("answered", "6", "prompt tokens", "600", "360 (60.0 %)", "xhigh", "questions/s (6 requests in"):
        assert text in out
    assert f"written to {asker.run}" in out
    code, _, err = call(*there)
    assert code == 0
    assert "asking" not in err


def test_some_failed(call, there, chat, reply):
    chat.answer = lambda seen: reply.error(400, "[bad] image") if seen.question == "i1g0q0" else "1"
    code, out, _ = call(*there)
    assert code == 3
    assert "1 x HTTP 400 (first: i1g0q0: [bad] image)" in out
    assert "--retry-refused asks the refused ones again" in out
    chat.answer = lambda _: reply.error(500)
    code, out, _ = call(*there, "--json")
    found = json.loads(out)
    assert (code, found["answered"], found["refused"]) == (3, 5, 1)
    assert found["reasons"] == [
        {"reason": "HTTP 400", "questions": 1, "first": "i1g0q0", "text": "HTTP 400: [bad] image"}
    ]


def test_what_failed_is_asked_again(call, there, chat, reply):
    chat.answer = lambda seen: reply.error(500, "oops") if seen.question == "i1g0q0" else "1"
    code, out, err = call(*there, "--attempts", 2, "--retry-wait", 0.001)
    assert code == 3
    assert "1 refused or failed" in err
    assert "the same command asks the failed ones again" in out
    chat.answer = lambda _: "1"
    code, out, err = call(*there)
    assert code == 0
    assert "continuing: 5 of 6 questions were done before" in err


def test_a_part_is_told_as_one_and_a_run_does_not_shrink(call, there):
    code, out, _ = call(*there, "--limit", 2)
    assert (code, "4 of 6 questions of the set" in out, "speed of the last call" in out) == (0, True, False)
    code, out, _ = call(*there)
    assert (code, "of the set" in out) == (0, False)
    assert "speed of the last call" in out
    assert "(2 requests in" in out
    code, _, err = call(*there, "--limit", 2)
    assert code == 1
    assert "selection: all groups in the RUN, 2 groups now; a RUN may grow, but not shrink: leave out --limit" in err


def test_a_server_that_is_not_there_is_told_without_words_of_tls(call):
    code, _, err = call("--endpoint", "http://127.0.0.1:9/v1", "--model", "m", "--attempts", 1)
    assert code == 1
    assert "Cannot connect to host 127.0.0.1:9 [" in err
    assert "ssl" not in err


def test_what_was_refused_is_asked_again_when_that_is_wanted(call, there, chat, reply):
    chat.answer = lambda seen: reply.error(400, "a filter") if seen.question == "i1g0q0" else "1"
    assert call(*there)[0] == 3
    chat.answer = lambda _: "1"
    chat.seen.clear()
    assert call(*there)[0] == 3
    assert chat.seen == []
    code, out, _ = call(*there, "--retry-refused")
    assert code == 0
    assert chat.questions == ["i1g0q0"]
    assert "--retry-refused" not in out
    assert call(*there, "--retry-refused")[0] == 0
    assert chat.questions == ["i1g0q0"]


def test_every_option_arrives(call, there, chat, asker):
    chat.answer = lambda _: "[1, 2]"
    options = {
        "--mode": "joint",
        "--long-edge": 12,
        "--temperature": 0.5,
        "--top-p": 0.25,
        "--reasoning-effort": "low",
        "--max-tokens": 77,
        "--token-field": "max_tokens",
        "--seed": 3,
        "--limit": 1,
        "--groups": "i2g0",
        "--concurrency": 2,
        "--timeout": 9,
    }
    code, _, err = call(*there, *(part for option in options.items() for part in option))
    assert code == 0, err
    [seen] = chat.seen
    assert "What of i2g0q0?" in seen.text
    del seen.body["messages"]
    assert seen.body == {
        "model": "tiny",
        "max_tokens": 77,
        "temperature": 0.5,
        "top_p": 0.25,
        "reasoning_effort": "low",
        "seed": 3,
    }
    assert asker.record()["settings"]["long_edge"] == 12


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ((), "either an endpoint or a model to serve"),
        (("--endpoint", "http://x/v1"), "--model is missing"),
        (("--endpoint", "http://x/v1", "--serve", "m"), "either an endpoint or a model to serve"),
        (("--endpoint", "http://x/v1", "--model", "m", "--vllm-arg=--x"), "go with --serve"),
        (("--serve", "m", "--vllm-python", "/no/python"), "/no/python"),
        (("--serve", "m", "--vllm-arg=--port=1"), "--port"),
        (("--endpoint", "http://x/v1", "--model", "m", "--mode", "both"), "both"),
        (("--endpoint", "http://x/v1", "--model", "m", "--limit", "0"), "limit = 0"),
        (("--endpoint", "http://x/v1", "--model", "m", "--groups", "i9"), "'i9'"),
    ],
)
def test_wrong_use(call, more, named):
    code, out, err = call(*more)
    assert (code, out) == (2, "")
    assert named in err
    assert 1 <= len(err.splitlines()) <= 2


def test_a_server_that_cannot_be_asked(call, there, chat, reply, key):
    chat.answer = lambda _: reply.error(401, f"bad key {key}")
    code, out, err = call(*there)
    assert (code, out) == (1, "")
    assert "HTTP 401: bad key [secret]" in err
    assert key not in err


def test_from_python(asker, chat):
    summary = tallymill.physcount.ask(asker.data, asker.run, endpoint=chat.url, model="tiny")
    assert summary.complete
