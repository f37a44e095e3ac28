"""What is asked, and in which order: settings, the groups chosen, and requests by image."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tallymill.engine.manifests.base import brief
from tallymill.engine.physcount.data import Dataset, Question
from tallymill.engine.physcount.picture import LONG_EDGE
from tallymill.engine.physcount.request import MODES, Mode, independent_prompt, joint_prompt
from tallymill.engine.words import listed
from tallymill.errors import UsageError

AUTO, NONE = "auto", "none"
TOKEN_FIELDS = ("max_completion_tokens", "max_tokens")
# Servers hold sizes in 32 bits at least, and seeds in 64: no number beyond these can be meant.
_MOST = 2**31 - 1
_LEAST_SEED, _MOST_SEED = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class AskSettings:
    """What shapes the answers. Whatever is None is not sent, and left to the server.

    ``reasoning_effort`` "auto" is the strongest that the server takes ("xhigh", "high", or none at all), "none" sends
    nothing. ``max_tokens`` bounds an answer with its reasoning, in a field that is named ``token_field``.
    """

    mode: Mode = "independent"
    long_edge: int = LONG_EDGE
    temperature: float | None = None
    top_p: float | None = None
    reasoning_effort: str = AUTO
    max_tokens: int = 32_768
    token_field: str = TOKEN_FIELDS[0]
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("token_field", TOKEN_FIELDS)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} = {getattr(self, name)!r}: must be one of {', '.join(known)}")
        for name in ("long_edge", "max_tokens"):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= _MOST:
                raise UsageError(f"{name} = {_shown(value)}: must be a whole number from 1 to {_MOST:,}")
        for name, most in (("temperature", math.inf), ("top_p", 1.0)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and 0 <= value <= most):
                raise UsageError(f"{name} = {value!r}: must be a number from 0" + (" to 1" if most == 1 else ""))
        if self.seed is not None and (type(self.seed) is not int or not _LEAST_SEED <= self.seed <= _MOST_SEED):
            raise UsageError(f"seed = {_shown(self.seed)}: must be a whole number of 64 bits")
        if not self.reasoning_effort.strip():
            raise UsageError("reasoning_effort = '': must be auto, none, or a word that the server knows")

    def options(self, effort: str | None) -> dict[str, Any]:
        """The fields of a request besides model and messages."""
        fields = {
            self.token_field: self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "reasoning_effort": effort,
            "seed": self.seed,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def as_dict(self) -> dict[str, Any]:
        """For ``run.json``; the mode stands beside the settings there."""
        return {name: value for name, value in asdict(self).items() if name != "mode"}


def _shown(value: Any) -> str:
    """A value in a message; Python writes no whole number of more than 4,300 digits."""
    return "too many digits" if type(value) is int and value.bit_length() > 256 else repr(value)


@dataclass(frozen=True, slots=True)
class Request:
    """One request: the questions that it asks, and its text."""

    question_ids: tuple[str, ...]
    group_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ImageRequests:
    """All that is to be asked about one image, which then goes through the server's cache together."""

    path: Path
    requests: tuple[Request, ...]


def chosen(dataset: Dataset, limit: int | None, groups: Sequence[str]) -> list[str] | None:
    """The ids of the first ``limit`` of the named groups, or of all groups; None where that is the whole dataset."""
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"limit = {limit!r}: must be a whole number of groups, at least 1")
    unknown = [group for group in groups if group not in dataset.groups]
    if unknown:
        raise UsageError(
            f"{dataset.root} has no group {listed([brief(group) for group in unknown], 5)}",
            hint=f"groups are named such as {brief(next(iter(dataset.groups), ''))}",
        )
    wanted = set(groups)
    kept = [group for group in dataset.groups if not wanted or group in wanted][:limit]
    return None if len(kept) == len(dataset.groups) else kept


def lay_out(asked: Dataset, mode: Mode, over: Collection[str]) -> list[ImageRequests]:
    """Everything but what is ``over``, image by image, in the order of the questions' file."""
    by_image: dict[str, list[Request]] = {}
    for request, image in _requests(asked, mode):
        if not all(question in over for question in request.question_ids):
            by_image.setdefault(image, []).append(request)
    return [ImageRequests(asked.root / image, tuple(requests)) for image, requests in by_image.items()]


def _requests(dataset: Dataset, mode: Mode) -> list[tuple[Request, str]]:
    if mode == "independent":
        return [(_alone(question), question.image) for question in dataset.questions]
    first_lines = {group.group_id: group.questions[0].line for group in dataset.groups.values()}
    ordered = sorted(dataset.groups.values(), key=lambda group: first_lines[group.group_id])
    return [
        (
            Request(
                tuple(question.question_id for question in group.questions),
                group.group_id,
                joint_prompt([question.question for question in group.questions]),
            ),
            group.image,
        )
        for group in ordered
    ]


def _alone(question: Question) -> Request:
    return Request((question.question_id,), question.group_id, independent_prompt(question.question))
