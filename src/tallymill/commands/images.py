"""``tallymill score`` and ``sweep``: from images to scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import tallymill
from tallymill.commands.base import DONE, SOME_FAILED, Device, Ensemble, Json, Set, Unaccepted, app, code_of, print_json
from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import UsageError
from tallymill.runners import console
from tallymill.runners.single import ImageScore
from tallymill.runners.summary import Summary


@app.command
def score(
    *images: str,
    prompt: str,
    ensemble: Ensemble = "coco-cpu",
    device: Device = "auto",
    unaccepted: Unaccepted = False,
    settings: Set = (),
    as_json: Json = False,
) -> int:
    """Score one or a few images against one prompt and print the counts.

    Parameters
    ----------
    images
        Paths or URLs.
    prompt
        What was asked for, such as "3 cats and 2 dogs".
    """
    if not images:
        raise UsageError("no image given", hint='tallymill score IMAGE… --prompt "3 cats and 2 dogs"')
    chosen = with_overrides(Settings(), settings)
    options: dict[str, Any] = {"ensemble": ensemble, "device": device, "unaccepted": unaccepted, "settings": chosen}
    results = [tallymill.score(image, prompt, **options) for image in images]
    if as_json:
        print_json([result.as_dict() for result in results])
    else:
        console.show_scores(results)
    return _score_code(results)


@app.command
def sweep(
    manifest: str,
    *,
    out: Path,
    prompts: Path | None = None,
    prompt: str | None = None,
    system: str | None = None,
    ensemble: Ensemble = "coco-cpu",
    device: Device = "auto",
    workers: int | None = None,
    part: str | None = None,
    shard_items: int | None = None,
    keep_suppressed: Annotated[bool, Parameter(negative=())] = False,
    retry_errors: Annotated[bool, Parameter(negative=())] = False,
    unaccepted: Unaccepted = False,
    settings: Set = (),
    as_json: Json = False,
) -> int:
    """Score a manifest into a RUN folder; the same command continues a sweep that was stopped.

    Parameters
    ----------
    manifest
        Parquet, JSONL, CSV, a folder, or an archive.
    out
        The RUN folder.
    prompts
        A prompt file that the manifest's prompt_id refers to.
    prompt
        One prompt for rows that have none.
    system
        The system's name for rows that have none.
    workers
        Processes; by default one for each processor, or two for each card.
    part
        i/n: the i-th of n shares, for a job array. A RUN is cut into shards of consecutive images; a share is every
        n-th of them.
    shard_items
        Images a shard, which is kept whole or not at all; by default 16 to 4,096, a 256th of the manifest.
    keep_suppressed
        Store the boxes that NMS suppressed too.
    retry_errors
        Do shards that have failed items anew, for faults that can pass.
    """
    with console.Bar(show=not as_json) as bar:
        summary = tallymill.sweep(
            manifest,
            out,
            ensemble=ensemble,
            prompts=prompts,
            prompt=prompt,
            system=system,
            settings=with_overrides(Settings(), settings),
            device=device,
            workers=workers,
            part=None if part is None else part_of(part),
            shard_items=shard_items,
            keep_suppressed=keep_suppressed,
            unaccepted=unaccepted,
            retry_errors=retry_errors,
            progress=bar,
        )
    return _show(summary, as_json)


def _show(summary: Summary, as_json: bool) -> int:
    if as_json:
        print_json(summary.as_dict())
    else:
        console.show_summary(summary)
    return code_of(summary)


def _score_code(results: Sequence[ImageScore]) -> int:
    return SOME_FAILED if any(result.status == "error" for result in results) else DONE


def part_of(text: str) -> tuple[int, int]:
    """``i/n`` as two numbers."""
    i, slash, n = text.partition("/")
    if not (slash and text.isascii() and i.isdecimal() and n.isdecimal()):
        raise UsageError(f"--part {text}: must be i/n, such as 1/4")
    return int(i), int(n)
