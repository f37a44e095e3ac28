"""What a chat server's reply means: an answer, a refusal, or a fault that can pass."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from tallymill.engine.physcount.data import MOST_WHOLE
from tallymill.engine.physcount.run_files import ANSWERED, REFUSED
from tallymill.runners.physcount.bodies import Body

TRANSIENT: Final = "transient"
FATAL: Final = "fatal"
Kind = Literal["answered", "refused", "transient", "fatal"]

# Of this request nothing will ever come; of the same request later something may. Every other status is the whole
# run's until something was answered (doubt.py): a wrong key, model or URL, or an account without money.
_REFUSED = frozenset({400, 413, 415, 422, 451})
_TRANSIENT = frozenset({408, 409, 423, 425, 429})
_OVERLOADED = frozenset({429, 503, 529})
HINTS = {
    401: "the server does not take the key: see --key-from",
    403: "the server does not allow this: look at the key, see --key-from, and at --model",
    404: "look at --endpoint, which usually ends with /v1, and at --model",
    407: "the proxy wants a user and a password: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT (or HTTP_PROXY); "
    "NO_PROXY=HOST goes past it",
}
_PROXY_HINT = "look at the proxy that HTTPS_PROXY names; NO_PROXY=HOST goes past it"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, by the server's own count; None where it does not tell."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one request.

    ``response`` is the message's content as it came, ``reasoning`` what the server keeps apart from it. ``error`` is
    for people, and ``hint`` what they can do. ``retry_after`` in seconds, where the server names a time; ``overloaded``
    where it asks for less, ``unreachable`` where there was no connection at all, ``unsent`` where the image was at
    fault, and the server knows nothing of it.
    """

    kind: Kind
    response: str | list[Any] | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    http_status: int | None = None
    error: str | None = None
    hint: str | None = None
    usage: Usage = Usage()
    retry_after: float | None = None
    overloaded: bool = False
    timed_out: bool = False
    unreachable: bool = False
    unsent: bool = False


def outcome_of(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: datetime | None = None,
    hide: Callable[[str], str] = str,
) -> Outcome:
    """The meaning of an HTTP reply; ``now`` is for a ``Retry-After`` that is a date, ``hide`` takes secrets out of what
    is told of an error.
    """
    return _meaning(status, headers, Body(headers, body, hide), now)


def _meaning(status: int, headers: Mapping[str, str], body: Body, now: datetime | None) -> Outcome:
    if 200 <= status < 300:
        return _from_completion(status, headers, body, now)
    return Outcome(
        _kind_of(status, body.data),
        http_status=status,
        error=f"HTTP {status}: {body.told()}".removesuffix(": "),
        hint=HINTS.get(status),
        retry_after=seconds_of(headers.get("Retry-After"), now),
        overloaded=status in _OVERLOADED,
    )


def proxy_outcome(status: int, said: str) -> Outcome:
    """What a proxy means that makes no connection: no question is the reason, and the server knows nothing of it."""
    return Outcome(
        TRANSIENT if _can_pass(status) else FATAL,
        error=f"the proxy says HTTP {status}: {said}".removesuffix(": "),
        hint=HINTS[status] if status == 407 else _PROXY_HINT,
        overloaded=status in _OVERLOADED,
    )


def _can_pass(status: int) -> bool:
    return status in _TRANSIENT or status >= 500


def _kind_of(status: int, body: bytes) -> Kind:
    if status in _REFUSED:
        return REFUSED
    if status == 429 and b"insufficient_quota" in body:  # OpenAI's way to say that there is no money left
        return FATAL
    return TRANSIENT if _can_pass(status) else FATAL


def _from_completion(status: int, headers: Mapping[str, str], body: Body, now: datetime | None) -> Outcome:
    """The answer of a completion. A reply of another shape is a fault of something between us and the model."""

    def wrong(what: str) -> Outcome:
        return Outcome(TRANSIENT, http_status=status, error=f"malformed reply: {what}")

    try:
        reply = body.value()
    except ValueError as exc:
        return wrong(f"no JSON that can be read ({exc}): {body.text()}" if body.data.strip() else "empty")
    if not isinstance(reply, dict):
        return wrong(f"not an object: {body.text()}")
    if reply.get("error") and not reply.get("choices"):  # some gateways say 200 and mean the error of what is behind
        return _from_error(status, reply["error"], headers, body, now)
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return wrong(f"no message in it: {body.text()}")
    content = message.get("content")
    if not isinstance(content, str | list | None):
        return wrong(f"content is neither text nor a list: {body.text()}")
    finish = choice.get("finish_reason")
    if finish == "error":
        return wrong(f"the server broke off: {body.text()}")
    refusal = message.get("refusal")
    return Outcome(
        ANSWERED,
        response=content,
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        finish_reason=_text(finish),
        http_status=status,
        error=f"the model declined: {body.short(str(refusal))}" if refusal else None,
        usage=_usage(reply.get("usage")),
    )


def _from_error(status: int, error: Any, headers: Mapping[str, str], body: Body, now: datetime | None) -> Outcome:
    code = error.get("code") if isinstance(error, dict) else None
    if type(code) is int and 400 <= code < 600:
        return _meaning(code, headers, body, now)
    return Outcome(
        TRANSIENT,
        http_status=status,
        error=f"error in a reply: {body.told()}",
        retry_after=seconds_of(headers.get("Retry-After"), now),
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json.dumps(value)


def _usage(usage: Any) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(_whole(usage.get("prompt_tokens")), _whole(usage.get("completion_tokens")), _whole(cached))


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_WHOLE else None


def seconds_of(value: str | None, now: datetime | None = None) -> float | None:
    """The wait that a ``Retry-After`` names, as seconds or as a date; None where there is none that can be read."""
    if value is None:
        return None
    text = value.strip()
    if text.replace(".", "", 1).isdecimal() and text.isascii():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())
    except (ValueError, OverflowError):
        return None
