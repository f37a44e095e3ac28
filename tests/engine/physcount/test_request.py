"""What is asked, word for word, and the body that carries it."""

from __future__ import annotations

import json

from tallymill.engine.physcount.request import (
    body_around_image,
    independent_prompt,
    joint_prompt,
    prompt_sha256,
)

PREAMBLE = (
    "Answer the following counting question about this image. Carefully distinguish visual appearances from physical "
    "entities, including appearances formed by reflections or seen through glass, and use appearance-entity "
    "correspondences when required by the question. Follow the counting target specified in the question."
)


def test_one_question():
    assert independent_prompt("How many cats?") == (
        f"{PREAMBLE} Return exactly one non-negative integer, with no labels or prose.\n\nQuestion: How many cats?"
    )


def test_a_group_at_once():
    assert joint_prompt(["How many?", "And how many?"]) == (
        f"{PREAMBLE}\n\n1. How many?\n2. And how many?\n\n"
        "Return exactly one JSON array of 2 non-negative integers, in order."
    )


def test_the_wording_has_a_digest():
    digests = {prompt_sha256("independent"), prompt_sha256("joint")}
    assert len(digests) == 2
    assert all(len(digest) == 64 for digest in digests)


def test_the_image_stands_before_the_text_and_there_is_no_system_message():
    for text in ('a "quoted"\nquestion', "\x00image\x00", "\u2028 é"):
        before, after = body_around_image("a/model", text, {"temperature": 0.0})
        body = json.loads(before + b"data:image/png;base64,AAAA" + after)
        assert body == {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                        {"type": "text", "text": text},
                    ],
                }
            ],
            "model": "a/model",
            "temperature": 0.0,
        }
