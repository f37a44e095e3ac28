"""From what a model wrote to a count.

Strictly (the default), nothing but one integer is an answer. The looser rule takes the last integer of the text; a
table made with it says so, for its numbers do not compare with strict ones.
"""

from __future__ import annotations

import json
import math
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

Rule = Literal["strict", "last-integer"]
RULES: tuple[Rule, ...] = get_args(Rule)
Status = Literal["valid", "missing", "malformed", "negative", "extreme"]
STATUSES: tuple[Status, ...] = get_args(Status)
MAX_COUNT = 1_000_000
MAX_DIGITS = 20
_TOO_LONG, _SHORT = 10**MAX_DIGITS, 8

_THOUGHTS_END, _THOUGHTS = "</think>", "<think>"
_FULL_WIDTH = str.maketrans("０１２３４５６７８９＋－", "0123456789+-")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LAST_INTEGER = re.compile(r"(?<![\w.,])[+-]?(\d{1,3}(,\d{3})+|\d+)(?!\w|[.,]\d)")
_FENCE, _LANGUAGE = "```", string.ascii_letters + string.digits + "_-"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A count, or why there is none. ``value`` is there when ``status`` is "valid", and then 0 or more."""

    status: Status
    value: int | None = None


MISSING, MALFORMED, NEGATIVE, EXTREME = Parsed("missing"), Parsed("malformed"), Parsed("negative"), Parsed("extreme")


def parse_answer(
    response: Any, *, finish_reason: str | None = None, rule: Rule = "strict", max_count: int = MAX_COUNT
) -> Parsed:
    """The count in one response: a text, or a list of text blocks as chat servers send them.

    None is missing, and so is a list without a text block; whatever else is no text is malformed. Thoughts up to the
    last ``</think>`` are dropped. Thoughts that do not end, or a ``finish_reason`` of "length", are malformed: what was
    cut might have been another number.
    """
    text = text_of(response)
    if text is None or finish_reason == "length":
        return _without_text(response, finish_reason)
    return _parse_short(text, rule, max_count) if len(text) <= _SHORT else _parse_text(text, rule, max_count)


def _parse_text(text: str, rule: Rule, max_count: int) -> Parsed:
    said = answer_text(text)
    if said is None:
        return MALFORMED
    if rule == "last-integer":
        found = [match[0] for match in _LAST_INTEGER.finditer(said.translate(_FULL_WIDTH))]
        return _bounded(found[-1].replace(",", ""), max_count) if found else MALFORMED
    plain = said.translate(_FULL_WIDTH)
    return _bounded(plain, max_count) if _INTEGER.fullmatch(plain) else MALFORMED


# Most answers are a number of few digits: the same few again and again.
_parse_short = lru_cache(maxsize=4_096)(_parse_text)


def parse_prediction(value: Any, *, rule: Rule = "strict", max_count: int = MAX_COUNT) -> Parsed:
    """A prediction as files of others hold it: a JSON integer, or a text as a model wrote it. Null is missing.

    A float or a boolean is malformed, even 3.0: what wrote it did not count. So is a list or an object.
    """
    if isinstance(value, LongNumber):
        return EXTREME if value.whole else MALFORMED
    if isinstance(value, bool | float):
        return MALFORMED
    if isinstance(value, int):
        return _bounded_int(value, max_count)
    if value is not None and text_of(value) is None:
        return MALFORMED
    return parse_answer(value, rule=rule, max_count=max_count)


def parse_joint(
    response: Any,
    number: int,
    *,
    finish_reason: str | None = None,
    rule: Rule = "strict",
    max_count: int = MAX_COUNT,
) -> list[Parsed]:
    """The counts of a group asked at once: one JSON array of ``number`` integers, in one code fence or bare.

    Anything else, and an array of another length, is malformed for every question; an element that is no integer fails
    alone. ``rule`` "last-integer" applies to elements that are texts.
    """
    text = text_of(response)
    if text is None or finish_reason == "length":
        return [_without_text(response, finish_reason)] * number
    said = answer_text(text)
    if said is None:
        return [MALFORMED] * number
    try:
        values = json.loads(_unfenced(said), parse_int=json_integer, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return [MALFORMED] * number
    if not isinstance(values, list) or len(values) != number:
        return [MALFORMED] * number
    return [_element(value, rule, max_count) for value in values]


def _unfenced(text: str) -> str:
    """What stands in a code fence, on one line or on several; a text without one as it is."""
    inner = text.removeprefix(_FENCE).removesuffix(_FENCE)
    if len(inner) != len(text) - 2 * len(_FENCE):
        return text
    return inner.strip().lstrip(_LANGUAGE).strip()


def text_of(response: Any) -> str | None:
    """The text of a message's content; None where there is none, and where it is not text at all."""
    if isinstance(response, str):
        return response
    if isinstance(response, Sequence):
        parts = [part.get("text") for part in response if isinstance(part, dict) and part.get("type") == "text"]
        texts = [part for part in parts if isinstance(part, str)]
        return "".join(texts) if texts else None
    return None


def _without_text(response: Any, finish_reason: str | None) -> Parsed:
    """Of a response that was cut, or is no text: missing where a server sent nothing, and could have sent it all."""
    if finish_reason == "length":
        return MALFORMED
    blocks = [] if response is None else response
    return MISSING if isinstance(blocks, list) and all(map(_says_nothing, blocks)) else MALFORMED


def _says_nothing(block: Any) -> bool:
    return isinstance(block, dict) and (block.get("type") != "text" or block.get("text") is None)


def answer_text(text: str) -> str | None:
    """What stands behind the thoughts, stripped; None where these do not end."""
    said = text.rpartition(_THOUGHTS_END)[2]
    return None if _THOUGHTS in said else said.strip()


@dataclass(frozen=True, slots=True, repr=False)
class LongNumber:
    """A number of JSON as it is written: a ``whole`` one with more digits than any count has, and perhaps than Python
    converts, or one that is beyond float64. As text it is what was written.
    """

    text: str
    whole: bool

    def __repr__(self) -> str:
        return self.text  # messages show it


def json_integer(digits: str) -> int | LongNumber:
    """For ``parse_int`` of a JSON decoder."""
    return int(digits) if len(digits.lstrip("-")) <= MAX_DIGITS else LongNumber(digits, whole=True)


def json_float(text: str) -> float | LongNumber:
    """For ``parse_float`` of a JSON decoder."""
    value = float(text)
    return value if math.isfinite(value) else LongNumber(text, whole=False)


def no_constant(name: str) -> Any:
    """For ``parse_constant`` of a JSON decoder: NaN and the infinities are refused."""
    raise ValueError(f"{name} is not JSON")


def _element(value: Any, rule: Rule, max_count: int) -> Parsed:
    if isinstance(value, LongNumber):
        return EXTREME
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded_int(value, max_count)
    if rule == "last-integer" and isinstance(value, str):
        return parse_answer(value, rule=rule, max_count=max_count)
    return MALFORMED


def _bounded(digits: str, max_count: int) -> Parsed:
    if len(digits.lstrip("+-")) > MAX_DIGITS:
        return EXTREME
    return _bounded_int(int(digits), max_count)


def _bounded_int(value: int, max_count: int) -> Parsed:
    if value < 0:
        return NEGATIVE
    return EXTREME if value > max_count or value >= _TOO_LONG else Parsed("valid", value)
