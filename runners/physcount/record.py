"""``run.json`` of a RUN that asks: everything that shapes its answers, and with what it may be continued."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.engine.physcount.data import Dataset
from tallymill.engine.physcount.request import prompt_sha256
from tallymill.engine.physcount.run_files import RECORD, read_record
from tallymill.engine.words import counted
from tallymill.errors import RunError
from tallymill.runners.files import create_json, write_json
from tallymill.runners.physcount.plan import NONE, AskSettings
from tallymill.runners.run_folder import RunFolder, versions

_MEANS = {
    "prompt_sha256": " (the wording of the prompt)",
    "data.sha256": " (the questions or annotations)",
}
EFFORT, ASKED_EFFORT = "reasoning_effort", "reasoning_effort_asked"


def make_record(
    dataset: Dataset,
    settings: AskSettings,
    *,
    model: str,
    endpoint: str | None,
    served: dict[str, Any] | None,
    selection: dict[str, Any],
) -> dict[str, Any]:
    """What a new RUN says of itself. The reasoning effort is "auto" until the server has taken one."""
    own = settings.as_dict()
    asked = own[EFFORT]
    return {
        "kind": "physcount",
        "created": _now(),
        "tallymill": __version__,
        "model": model,
        "endpoint": endpoint,
        "served": served,
        "mode": settings.mode,
        "settings": {**own, EFFORT: None if asked == NONE else asked, ASKED_EFFORT: asked},
        "prompt_sha256": prompt_sha256(settings.mode),
        "data": {
            "root": str(dataset.root),
            "sha256": dataset.sha256,
            "questions": len(dataset.questions),
            "groups": len(dataset.groups),
        },
        "selection": selection,
        "versions": versions(),
    }


def begin(out: str | Path, record: dict[str, Any]) -> RunFolder:
    """The folder for a record: a new one, or a RUN of this kind, or a ``RunError``."""
    run = RunFolder.to_write(out)
    if not run.record_path.exists():
        create_json(run.record_path, record)
    read_record(run.path)
    return run


def continue_with(run: RunFolder, record: dict[str, Any], *, answered: bool) -> dict[str, Any]:
    """The record in force, once this process has the RUN for itself.

    Where nothing is ``answered`` yet it is the new one. Otherwise the RUN's own, with the endpoint and the versions of
    now noted, and more groups where more are asked; anything else that differs is refused with the list of
    differences. The endpoint may differ: a server that comes back often has another port.
    """
    before = read_record(run.path)
    if not answered:
        if before != record:
            write_json(run.record_path, record)
        return record
    found = list(_differences(before, record))
    if found:
        raise RunError(
            f"{run.path} was asked otherwise:\n  " + "\n  ".join(found),
            hint="choose another --out, or the settings of before",
        )
    changed = {**before, "selection": record["selection"]}
    now = {name: record[name] for name in ("endpoint", "served", "versions")}
    past = [before, *before.get("continued", [])]
    if now != {name: past[-1][name] for name in now}:
        changed["continued"] = [*before.get("continued", []), {"at": record["created"], **now}]
    if changed != before:
        write_json(run.record_path, changed)
    return changed


def asked_of(record: dict[str, Any]) -> str | None:
    """The endpoint that a RUN was last asked of; None where vLLM was started for it."""
    endpoint: str | None = [record, *record.get("continued", [])][-1].get("endpoint")
    return endpoint


def with_effort(run: RunFolder, record: dict[str, Any], effort: str | None) -> None:
    """Write down the reasoning effort that the server took."""
    write_json(run.path / RECORD, {**record, "settings": {**record["settings"], EFFORT: effort}})


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for name in ("model", "mode", "prompt_sha256"):
        if before.get(name) != now[name]:
            yield _line(name, before.get(name), now[name])
    if before["data"].get("sha256") != now["data"]["sha256"]:
        yield _line("data.sha256", before["data"].get("sha256"), now["data"]["sha256"])
    then, own = before["settings"], now["settings"]
    for name in sorted({*then, *own} - {EFFORT, ASKED_EFFORT}):
        if then.get(name) != own.get(name):
            yield _line(f"settings.{name}", then.get(name), own.get(name))
    if own[ASKED_EFFORT] != then.get(ASKED_EFFORT) and own[EFFORT] != then.get(EFFORT):
        yield _line("settings.reasoning_effort", then.get(EFFORT), own[ASKED_EFFORT])
    was_served, served = before.get("served"), now["served"]
    if bool(was_served) != bool(served):  # nobody knows how a server was started that is not ours
        yield _line("served", *(one and one.get("model") for one in (was_served, served)))
    if was_served and served:
        for name in ("model", "arguments"):
            if was_served.get(name) != served[name]:
                yield _line(f"served.{name}", was_served.get(name), served[name])
    yield from _lost(before["selection"].get("group_ids"), now["selection"]["group_ids"])


def _lost(before: Sequence[str] | None, now: Sequence[str] | None) -> Iterator[str]:
    """That a selection lacks groups that another has; None stands for all groups."""
    if now is None:
        return
    if before is None:
        yield (
            f"selection: all groups in the RUN, {counted(len(now), 'group')} now; a RUN may grow, but not shrink: "
            "leave out --limit and --groups"
        )
    elif lost := set(before) - set(now):
        yield (
            f"selection: {counted(len(lost), 'group')} of the RUN {'is' if len(lost) == 1 else 'are'} not chosen now; "
            "a RUN may grow, but not shrink"
        )


def _line(name: str, was: Any, is_now: Any) -> str:
    return f"{name}{_MEANS.get(name, '')}: {was!r} in the RUN, {is_now!r} now"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
