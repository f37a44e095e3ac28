"""What a report lists of each set of predictions, and what it says where a RUN was not asked alike throughout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tallymill.engine.physcount.predictions import Predictions
from tallymill.engine.report.physcount.page import RunFacts
from tallymill.runners.physcount.plan import AUTO
from tallymill.runners.physcount.record import EFFORT

NOT_SENT = "not sent"
# Without them a server does as it likes.
_OPTIONAL = ("temperature", "top_p", EFFORT, "seed")


def facts_of(one: Predictions) -> RunFacts:
    """What is listed of a set of predictions."""
    record: Mapping[str, Any] = one.record or {}
    served = record.get("served")
    selection = record.get("selection") or {}
    facts: dict[str, Any] = {
        "read from": one.path,
        "SHA-256 of the file": one.sha256,
        "model": record.get("model"),
        "endpoint": record.get("endpoint"),
        **{f"served, {name}": value for name, value in (served.items() if isinstance(served, Mapping) else ())},
        "asked": one.mode,
        "begun": record.get("created"),
        "prompt, SHA-256": record.get("prompt_sha256"),
        **_settings(record),
        **{f"{name}, SHA-256": digest for name, digest in one.dataset.sha256.items()},
        "groups asked about": f"{len(one.dataset.groups):,}" if selection.get("group_ids") is not None else None,
        "tallymill": record.get("tallymill"),
        **{f"version of {name}": version for name, version in (record.get("versions") or {}).items()},
    }
    listed = [(name, str(value)) for name, value in facts.items() if value is not None]
    return RunFacts(one.name, one.path, [*listed, *_continued(record)])


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a RUN sent. Of what may be left to the server it is told that it was."""
    if not record:
        return {}
    settings = {**dict.fromkeys(_OPTIONAL), **(record.get("settings") or {})}
    if settings.get(EFFORT) == AUTO:
        settings[EFFORT] = "auto, of which the server has taken nothing yet"
    return {
        f"setting {name.replace('_', ' ')}": NOT_SENT if value is None and name in _OPTIONAL else value
        for name, value in settings.items()
    }


def notes_on_continuing(sets: Sequence[Predictions]) -> list[str]:
    """A sentence for every RUN that was continued at another endpoint or with other versions: from what to what."""
    notes = []
    for one in sets:
        stages = [_made_with(stage) for stage in (one.record or {}, *_later(one.record or {}))]
        names = dict.fromkeys(name for stage in stages for name in stage)
        changed = [
            f"{name} {', then '.join(values)}"
            for name in names
            if len(values := _successive([stage.get(name, "unknown") for stage in stages])) > 1
        ]
        if changed:
            notes.append(f"{one.name} was continued otherwise than it was begun: {'; '.join(changed)}.")
    return notes


def _continued(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A row for each time that a RUN was continued at another endpoint or with other versions."""
    for number, stage in enumerate(_later(record), 1):
        made = ", ".join(f"{name} {value}" for name, value in _made_with(stage).items())
        yield f"continued ({number})", f"{stage.get('at')}: {made}"


def _later(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [stage for stage in record.get("continued", []) if isinstance(stage, Mapping)]


def _made_with(stage: Mapping[str, Any]) -> dict[str, str]:
    """The endpoint, or the Python of a vLLM of ours, and all versions."""
    served, versions = stage.get("served"), stage.get("versions")
    found = {
        "endpoint": stage.get("endpoint"),
        "vLLM's Python": served.get("python") if isinstance(served, Mapping) else None,
        **(versions if isinstance(versions, Mapping) else {}),
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _successive(values: Sequence[str]) -> list[str]:
    return [value for place, value in enumerate(values) if not place or value != values[place - 1]]
