"""``tallymill abacus``: did an editor add, remove or change exactly as many objects as it was told to?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tallymill.commands.base import DONE, SOME_FAILED, Device, Json, app, print_json
from tallymill.commands.images import part_of
from tallymill.engine.abacus.score import RESAMPLES
from tallymill.engine.abacus.settings import SETTINGS, with_changes
from tallymill.engine.abacus.suite import DEFAULT, load_suite
from tallymill.engine.words import counted
from tallymill.runners import console
from tallymill.runners.abacus.example import LAPS
from tallymill.runners.abacus.report import EDITS
from tallymill.runners.physcount.client import KEY_VARIABLE

abacus = App(name="abacus", help="Verify edits that add, remove or change a number of objects, instance by instance.")
app.command(abacus)

Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative=(),
        show_default=False,
        help=f"NAME=VALUE, repeatable: change one of {', '.join(SETTINGS)}.",
    ),
]


@abacus.command
def example(*, out: Path, laps: int = LAPS, seed: int | None = None, as_json: Json = False) -> int:
    """Make edits whose truth is known, of photographs copied to known places.

    Parameters
    ----------
    out
        A folder that does not exist yet.
    laps
        How often each kind of edit is made, in other places.
    seed
        Other seeds make other pictures.
    """
    from tallymill import abacus as interface
    from tallymill.runners.abacus.example import SEED

    made = interface.example(out, laps=laps, seed=SEED if seed is None else seed)
    if as_json:
        print_json({name: value if name == "edits" else str(value) for name, value in asdict(made).items()})
    else:
        console.tell(
            f"{counted(made.edits, 'edit')} in {made.manifest}, annotations of their sources in {made.panoptic}"
        )
    return DONE


@abacus.command
def tiers(
    manifest: str,
    *,
    panoptic: Path,
    out: Path,
    panoptic_images: Path | None = None,
    cuts: Annotated[tuple[float, float] | None, Parameter(negative=())] = None,
    as_json: Json = False,
) -> int:
    """Sort edits into easy, medium and hard by their sources, and write the manifest with a column tier.

    Parameters
    ----------
    manifest
        Parquet, JSONL or CSV; it needs a column capacity: how many instances could be added.
    panoptic
        A COCO panoptic JSON file of the sources.
    out
        The Parquet file to write.
    panoptic_images
        The folder of its PNG files; by default the one beside it that is called as it is.
    cuts
        The greatest difficulty of easy and of medium edits, of another set; by default the terciles of this one.
    """
    from tallymill import abacus as interface

    found = interface.tiers(manifest, out, panoptic=panoptic, panoptic_images=panoptic_images, cuts=cuts)
    if as_json:
        print_json(asdict(found))
    else:
        numbers = ", ".join(f"{number:,} {name}" for name, number in found.edits.items())
        console.tell(f"{numbers}; cuts at {found.cuts[0]:.6g} and {found.cuts[1]:.6g}; written to {found.out}")
        console.tell_notes(f"{number:,} without a tier: {why}, such as {first}" for why, number, first in found.without)
    return SOME_FAILED if found.without else DONE


@abacus.command
def score(
    manifest: str,
    *,
    out: Path,
    panoptic: Path | None = None,
    panoptic_images: Path | None = None,
    suite: str = DEFAULT,
    device: Device = "auto",
    endpoint: str | None = None,
    model: str | None = None,
    key_from: str = KEY_VARIABLE,
    workers: int | None = None,
    part: str | None = None,
    shard_items: int | None = None,
    retry_errors: Annotated[bool, Parameter(negative=())] = False,
    resamples: int = RESAMPLES,
    settings: Set = (),
    as_json: Json = False,
) -> int:
    """Verify a manifest of edits into a RUN folder; the same command continues what was stopped.

    Parameters
    ----------
    manifest
        Parquet, JSONL or CSV: source, edited, and an instruction, or operation, category, target and count.
    out
        The RUN folder.
    panoptic
        A COCO panoptic JSON file of the sources; without one, what the segmenter finds stands for their instances.
    panoptic_images
        The folder of its PNG files; by default the one beside it that is called as it is.
    suite
        A shipped name (abacus-cpu, abacus) or a TOML file: which models look.
    endpoint
        Base URL of an OpenAI-compatible server that is asked about instances which not both detectors confirmed.
    model
        The name by which that server knows its model.
    key_from
        The environment variable that holds the server's key. The key is written nowhere.
    workers
        Processes; by default one for each processor, or two for each card.
    part
        i/n: the i-th of n shares, for a job array.
    shard_items
        Edits a shard, which is kept whole or not at all; by default 4 to 512, a 256th of the manifest.
    retry_errors
        Do shards that have failed edits anew, for faults that can pass.
    resamples
        Bootstrap resamples of source images for the intervals; 0 for none.
    """
    from tallymill import abacus as interface

    chosen = load_suite(suite)
    with console.Bar(show=not as_json, unit="edits", items="edits") as bar:
        found = interface.score(
            manifest,
            out,
            panoptic=panoptic,
            panoptic_images=panoptic_images,
            suite=chosen,
            settings=with_changes(chosen.settings, settings),
            device=device,
            workers=workers,
            part=None if part is None else part_of(part),
            shard_items=shard_items,
            endpoint=endpoint,
            model=model,
            key_from=key_from,
            retry_errors=retry_errors,
            resamples=resamples,
            progress=bar,
            asking=bar.beside(doing="asking", unit="questions", items="questions"),
        )
    if as_json:
        print_json(found.as_dict())
    else:
        _show(found.as_dict())
    return SOME_FAILED if found.error else DONE


@abacus.command
def report(
    run: Path,
    *,
    out: Path,
    edits: int = EDITS,
    resamples: int = RESAMPLES,
    title: str | None = None,
    as_json: Json = False,
) -> int:
    """Write one HTML file with the scores and strips of edits; it needs no network when it is opened.

    Parameters
    ----------
    run
        A RUN folder of `abacus score`.
    out
        The file to write, such as report.html.
    edits
        How many edits are shown with their pictures; 0 for none.
    resamples
        Bootstrap resamples of source images for the intervals; 0 for none.
    title
        The page's title; by default the name of the RUN.
    """
    from tallymill import abacus as interface

    written = interface.report(run, out, edits=edits, resamples=resamples, title=title)
    if as_json:
        print_json(written.as_dict())
    else:
        gone = f", {written.gone:,} without images, which are gone or replaced" if written.gone else ""
        console.show_line(
            f"{counted(written.scored, 'edit')} scored, {written.shown:,} shown{gone}; "
            f"{written.bytes / 1e6:.1f} MB written to {written.out}"
        )
    return DONE


def _show(summary: dict[str, object]) -> None:
    from tallymill.engine.report.abacus.tables import tables_of

    for place, table in enumerate(tables_of(summary)):
        console.show_table(table, wide=place == 0)
    console.tell(f"note: instances are {summary['instances']}")
    if summary["ignored"]:
        console.tell(f"note: columns that nothing asks for: {', '.join(summary['ignored'])}")  # type: ignore[arg-type]
    if not summary["complete"]:
        console.tell(f"note: {summary['done']:,} of {summary['edits']:,} edits are done")
    console.tell(f"written to {summary['run']}: evidence, scores.parquet, summary.json")
