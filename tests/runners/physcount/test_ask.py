"""What is sent, in which order, and what is kept of it."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import pytest
from PIL import Image

from tallymill.engine.physcount.picture import to_send
from tallymill.engine.physcount.request import independent_prompt, joint_prompt
from tallymill.errors import RunError, UsageError
from tallymill.runners.physcount import images
from tallymill.runners.physcount.plan import AskSettings


def test_every_question_is_asked_and_every_answer_kept(asker, chat):
    summary = asker()
    assert sorted(chat.questions) == ["i0g0q0", "i0g0q1", "i1g0q0", "i1g0q1", "i2g0q0", "i2g0q1"]
    assert {key: row["response"] for key, row in asker.by_question().items()} == {
        name: name[-1] for name in chat.questions
    }
    assert (summary.questions, summary.answered, summary.refused, summary.failed, summary.left) == (6, 6, 0, 0, 0)
    assert summary.complete
    assert json.loads((asker.run / "summary.json").read_text()) == json.loads(json.dumps(summary.as_dict()))


def test_a_row_says_all_that_is_known(asker, chat, reply):
    chat.answer = lambda _: reply.completion("3", reasoning_content="one, two, three")
    asker(groups=["i0g0"])
    row = asker.by_question()["i0g0q1"]
    assert row.pop("seconds") > 0
    assert row.pop("at").endswith("+00:00")
    assert row == {
        "question_ids": ["i0g0q1"],
        "group_id": "i0g0",
        "status": "answered",
        "response": "3",
        "reasoning": "one, two, three",
        "finish_reason": "stop",
        "http_status": 200,
        "error": None,
        "attempts": 1,
        "usage": {"prompt_tokens": 100, "completion_tokens": 2, "cached_tokens": 60},
    }


def test_one_message_with_the_image_first(asker, chat):
    asker(temperature=0.5, top_p=0.9, seed=7, max_tokens=99, reasoning_effort="low")
    seen = chat.seen[0]
    assert seen.path == "/v1/chat/completions"
    [message] = seen.body.pop("messages")
    assert message["role"] == "user"
    assert [part["type"] for part in message["content"]] == ["image_url", "text"]
    assert seen.body == {
        "model": "tiny",
        "max_completion_tokens": 99,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": "low",
        "seed": 7,
    }
    assert message["content"][1]["text"] == independent_prompt("What of i0g0q0?")
    url = message["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")
    assert base64.b64decode(url.partition(",")[2]) == (asker.data / "images/i0.png").read_bytes()


def test_what_is_not_given_is_not_sent(asker, chat):
    asker(token_field="max_tokens")
    assert {*chat.seen[0].body} == {"model", "messages", "max_tokens"}
    assert chat.seen[0].body["max_tokens"] == 32_768


def test_questions_of_one_image_go_together(asker, chat, dataset_at, tmp_path):
    asker.data = dataset_at(tmp_path / "mixed", images=4, groups=2, questions=2)
    path = asker.data / "data/questions.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[::2] + lines[1::2]))  # the file goes through all images twice
    asker(concurrency=1)
    assert [name[:2] for name in chat.questions] == [f"i{k}" for k in range(4) for _ in range(4)]


def test_each_image_is_encoded_once(asker, monkeypatch):
    made = []
    monkeypatch.setattr(images, "to_send", lambda data, **edge: made.append(data) or to_send(data, **edge))
    asker()
    assert len(made) == 3


def test_large_images_are_made_smaller(asker, chat):
    asker(long_edge=12)
    with Image.open(io.BytesIO(base64.b64decode(chat.seen[0].url.partition(",")[2]))) as image:
        assert (image.format, image.size) == ("PNG", (12, 8))


def test_joint_mode_asks_a_group_at_once(asker, chat):
    chat.answer = lambda _: "[0, 1]"
    summary = asker(mode="joint")
    assert len(chat.seen) == 3
    assert {one.text for one in chat.seen} == {joint_prompt([f"What of i{k}g0q{q}?" for q in (0, 1)]) for k in range(3)}
    assert [row["question_ids"] for row in sorted(asker.rows(), key=lambda row: row["group_id"])] == [
        [f"i{k}g0q0", f"i{k}g0q1"] for k in range(3)
    ]
    assert (summary.questions, summary.answered, summary.mode) == (6, 6, "joint")
    assert summary.prompt_tokens == 300


def test_a_part_of_the_groups(asker, chat):
    assert asker(limit=2).questions == 4
    assert {name[:2] for name in chat.questions} == {"i0", "i1"}
    assert asker.record()["selection"]["group_ids"] == ["i0g0", "i1g0"]
    assert asker().questions == 6  # more may be asked later
    assert len(chat.seen) == 6
    with pytest.raises(RunError, match="selection: all groups in the RUN, 1 group now"):
        asker(groups=["i2g0"])


def test_groups_by_name(asker, chat):
    asker(groups=["i2g0", "i0g0"], limit=1)
    assert {name[:2] for name in chat.questions} == {"i0"}
    with pytest.raises(UsageError, match="'i9g0'"):
        asker(groups=["i9g0"])


def test_answers_in_any_order_go_to_their_questions(asker, chat, dataset_at, tmp_path):
    asker.data = dataset_at(tmp_path / "many", images=4, questions=4)

    async def slower_and_slower(seen):
        await asyncio.sleep(0.05 * (3 - int(seen.question[-1])))
        return seen.question[-1]

    chat.answer = slower_and_slower
    asker()
    assert {key: row["response"] for key, row in asker.by_question().items()} == {
        name: name[-1] for name in chat.questions
    }


@pytest.mark.parametrize(
    "content",
    [None, [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], "a\u2028b\u0085c\n\r\x1c", "\ud800", "é²"],
)
def test_content_is_kept_as_it_came(asker, chat, content):
    chat.answer = lambda _: content
    asker()
    assert [row["response"] for row in asker.rows()] == [content] * 6


def test_the_table_tells_what_came_from_the_cache(asker):
    summary = asker()
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (600, 360, 12)


def test_a_server_that_tells_no_tokens(asker, chat, reply):
    chat.answer = lambda _: reply.completion("1", usage={"prompt_tokens": "many"})
    summary = asker()
    assert (summary.prompt_tokens, summary.cached_tokens, summary.completion_tokens) == (None, None, None)


def test_no_more_in_flight_than_allowed(asker, chat, dataset_at, tmp_path):
    asker.data = dataset_at(tmp_path / "many", images=50, questions=20)

    async def slow(_):
        await asyncio.sleep(0.02)
        return "1"

    chat.answer = slow
    assert asker(concurrency=64).answered == 1000
    assert 8 < chat.most_in_flight <= 64
    assert len(chat.seen) == 1000


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"endpoint": None}, "either an endpoint or a model to serve"),
        ({"model": None}, "--model is missing"),
        ({"endpoint": "localhost:8000"}, "must be a URL"),
        ({"endpoint": "ftp://x/v1"}, "must be a URL"),
        ({"endpoint": "http://x:port/v1"}, "the port must be a whole number"),
        ({"endpoint": "http://[::1/v1"}, "must be a URL"),
        ({"concurrency": 0}, "concurrency = 0"),
        ({"attempts": 0}, "attempts = 0"),
        ({"timeout": 0.0}, "timeout = 0.0"),
        ({"limit": 0}, "limit = 0"),
        ({"long_edge": 0}, "long_edge = 0"),
        ({"max_tokens": 0}, "max_tokens = 0"),
        ({"temperature": -1.0}, "temperature = -1.0"),
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"top_p": 1.5}, "top_p = 1.5"),
        ({"mode": "both"}, "mode = 'both'"),
        ({"token_field": "tokens"}, "token_field = 'tokens'"),
        ({"reasoning_effort": " "}, "reasoning_effort"),
    ],
)
def test_wrong_use_is_told_before_anything_is_made(asker, chat, options, named):
    with pytest.raises(UsageError) as caught:
        asker(**options)
    assert named in str(caught.value)
    assert not asker.run.exists()
    assert chat.seen == []


@pytest.mark.parametrize(
    "settings", [{"seed": 2**63}, {"seed": -(10**5000)}, {"max_tokens": 2**31}, {"long_edge": 10**5000}]
)
def test_settings_beyond_all_bounds(settings):
    with pytest.raises(UsageError, match="must be a whole number"):
        AskSettings(**settings)
