"""What a model is asked, word for word (paper, Prompt), and the body of the request that carries it.

The image stands before the text, so that a server which caches prefixes computes it once for all questions about it.
There is no system message.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

Mode = Literal["independent", "joint"]
MODES: tuple[Mode, ...] = get_args(Mode)

PREAMBLE = (
    "Answer the following counting question about this image. Carefully distinguish visual appearances from physical "
    "entities, including appearances formed by reflections or seen through glass, and use appearance-entity "
    "correspondences when required by the question. Follow the counting target specified in the question."
)
ONE_INTEGER = "Return exactly one non-negative integer, with no labels or prose."
# Stands where the image's data URL goes. It comes before every question, whatever these may contain.
_PLACE = "\x00image\x00"


def independent_prompt(question: str) -> str:
    """The text beside the image, for one question."""
    return f"{PREAMBLE} {ONE_INTEGER}\n\nQuestion: {question}"


def joint_prompt(questions: Sequence[str]) -> str:
    """The text beside the image, for all questions of a group, in file order."""
    listed = "\n".join(f"{number}. {question}" for number, question in enumerate(questions, 1))
    array = f"Return exactly one JSON array of {len(questions)} non-negative integers, in order."
    return f"{PREAMBLE}\n\n{listed}\n\n{array}"


def prompt_sha256(mode: Mode) -> str:
    """The digest of the wording, without any question: runs that differ in it asked for different things."""
    text = independent_prompt("") if mode == "independent" else joint_prompt(["", ""])
    return hashlib.sha256(text.encode()).hexdigest()


def body_around_image(model: str, text: str, options: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """The JSON of a chat completion, cut where the image's data URL belongs: what comes before it, and what after.

    So an image of megabytes is encoded once and never copied into a JSON document of its own. ``options`` are further
    fields, such as temperature.
    """
    content = [{"type": "image_url", "image_url": {"url": _PLACE}}, {"type": "text", "text": text}]
    body = {"messages": [{"role": "user", "content": content}], "model": model, **options}
    before, after = json.dumps(body).encode().split(json.dumps(_PLACE)[1:-1].encode(), 1)
    return before, after
