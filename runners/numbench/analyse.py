"""``analyse``: the tables of NumBench from the scores and proposals of RUNs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from tallymill.engine.numbench.analysis.gather import Gathered, SystemKey, Tables, system_rows, tables_of
from tallymill.engine.numbench.analysis.images import MAX_SYSTEMS, UNKNOWN, Factors
from tallymill.engine.numbench.analysis.notes import notes_of
from tallymill.engine.numbench.analysis.results import ALL, RESAMPLES, Analysis, CollisionFit
from tallymill.engine.numbench.collision.fit import fit_layouts
from tallymill.engine.numbench.factors import RangeBy, require_range_by
from tallymill.engine.words import counted, listed
from tallymill.errors import MissingExtraError, UsageError
from tallymill.runners.local import require_workers
from tallymill.runners.numbench.agreement import agreement_of
from tallymill.runners.numbench.analyse_parts import KnownPrompts
from tallymill.runners.numbench.analyse_shard import ShardReader
from tallymill.runners.numbench.analysis_files import require_analysis_folder, write_analysis
from tallymill.runners.numbench.annotations import read_annotations
from tallymill.runners.run import Run
from tallymill.runners.score_table import in_order

MOST_RESAMPLES = 1_000_000


def analyse(
    runs: str | Path | Run | Iterable[str | Path | Run],
    out: str | Path | None = None,
    *,
    range_by: RangeBy = "max",
    resamples: int = RESAMPLES,
    seed: int = 0,
    prompts: str | Path | None = None,
    annotations: str | Path | None = None,
    kappa_width: int = 1,
    workers: int | None = None,
) -> Analysis:
    """Everything that NumBench says of one or several finished RUNs (see ``Analysis``); with ``out`` also as files.

    ``range_by`` says how an image with several counts gets its range; ``resamples`` of cores make the intervals (0 for
    none), the same for all systems. ``prompts`` is a prompts file: it tells which prompts have no image, and brings
    factors that the RUNs do not know. ``annotations`` is a file of annotators' counts (see ``read_annotations``), which
    Fleiss' kappa takes in bins of ``kappa_width``. ``workers`` threads read. The result depends neither on them nor on
    how images are ordered or cut into shards.
    Raises ``RunError`` where a RUN is not complete.
    """
    sources = opened(runs)
    _require_sense(range_by, resamples, seed, kappa_width)
    folder = None if out is None else require_analysis_folder(Path(out), annotations, prompts, outside=sources)
    counts = None if annotations is None else read_annotations(annotations)
    threads = require_workers(workers)
    known = None if prompts is None else KnownPrompts(Path(prompts))
    gathered, notes = _gather(sources, range_by, threads, known, resample=resamples > 0)
    systems = system_names(gathered.factors.systems.levels, sources)
    tables = tables_of(gathered, systems, resamples=resamples, seed=seed, workers=threads)
    rows = system_rows(gathered, systems, [str(run.path) for run in sources])
    told = [_record(run, [name for key, name in systems.items() if key[0] == k]) for k, run in enumerate(sources)]
    notes += notes_of(gathered, tables, rows, told, range_by)
    analysis = Analysis(
        settings={"range_by": range_by, "resamples": resamples, "seed": seed},
        runs=told,
        notes=notes,
        systems=rows,
        collision=_collision(tables, notes),
        agreement=None
        if counts is None
        else agreement_of(sources, counts, systems=systems, range_by=range_by, bin_width=kappa_width),
        **tables.rows,
    )
    if folder is not None:
        write_analysis(analysis, folder)
    return analysis


def _require_sense(range_by: str, resamples: int, seed: int, kappa_width: int) -> None:
    require_range_by(range_by)
    for name, value, least in (("resamples", resamples, 0), ("seed", seed, 0), ("kappa_width", kappa_width, 1)):
        if value < least:
            raise UsageError(f"{name} {value}: must be {least} or more")
    if resamples > MOST_RESAMPLES:
        raise UsageError(f"resamples {resamples}: must be {MOST_RESAMPLES:,} or fewer")


def _collision(tables: Tables, notes: list[str]) -> list[CollisionFit]:
    if set(tables.axes.layouts) <= {UNKNOWN}:
        return []
    try:
        return fit_layouts(tables.rows["visible"])
    except MissingExtraError as exc:
        notes.append(f"The collision model is not fitted: {exc.message}; {exc.hint}.")
        return []


def opened(runs: str | Path | Run | Iterable[str | Path | Run]) -> list[Run]:
    """RUNs as they may be given. None at all, or one that is given twice, is a ``UsageError``."""
    given = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    if not given:
        raise UsageError("no RUN to analyse", hint="name one folder or more")
    opened = [run if isinstance(run, Run) else Run(run) for run in given]
    seen: set[Path] = set()
    for run in opened:
        place = run.path.resolve()
        if place in seen:
            raise UsageError(f"{run.path} is given twice")
        seen.add(place)
    return opened


def _gather(
    sources: Sequence[Run], range_by: RangeBy, threads: int, known: KnownPrompts | None, *, resample: bool
) -> tuple[Gathered, list[str]]:
    """Read every shard of every RUN; notes of what could not be read."""
    gathered = Gathered(Factors(), list(dict.fromkeys(name for run in sources for name in run.detectors)))
    notes = []
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for number, run in enumerate(sources):
            compare = len(sources) > 1
            reader = ShardReader(
                run, number, gathered.factors, gathered.detectors, range_by, known, compare, resample=resample
            )
            jobs = ((shards[0], partial(reader.read, shards)) for shards in reader.groups)
            for _, shares in in_order(pool, jobs, ahead=2 * max(threads, 1)):
                gathered.add(shares)
            for name in sorted(reader.ignored):
                notes.append(f"{run.path}: the column {name} holds lists or the like, and is not taken as a factor.")
            if not reader.has_proposals:
                notes.append(
                    f"{run.path}: its proposals are not there, so that nothing is told of single detectors, "
                    "saturation and the sizes of images."
                )
    if gathered.factors.systems.full:
        raise UsageError(
            f"the images are of more than {MAX_SYSTEMS} systems",
            hint="the column system of a manifest names the model that made an image; sweep the images again with it",
        )
    gathered.settle()
    notes += _compared(gathered, sources)
    if known is not None:
        gathered.prompts.names.add(known.ids)
        images = len(gathered.prompts.names.settled)
        gathered.prompts.settle()
        foreign = len(gathered.prompts.names.settled) - len(known.ids)
        if foreign:
            notes.append(f"Of the {images:,} prompts of the images {foreign:,} are not in {known.name}.")
    return gathered, notes


def _compared(gathered: Gathered, sources: Sequence[Run]) -> Iterator[str]:
    """Notes of ids that ask for several things. RUNs that mean different things by one id are a ``UsageError``.

    They would be taken for versions of one prompt, in what systems have and lack and in every resample.
    """
    for name, asked in gathered.asked.items():
        clashes = asked.clashes()
        if clashes and not (name == "core_id" and asked.mixed):
            _, first, second = clashes[0]
            ids = [word for word, *runs in clashes if runs == [first, second]]
            raise UsageError(
                f"{sources[first].path} and {sources[second].path} ask for different targets under the same {name} "
                f"({listed(ids, 3)}): their prompts are of different sets",
                hint="analyse them apart, or give one of them other ids in its prompts file or manifest and sweep it "
                "again",
            )
        if clashes:
            yield f"Under {counted(len(clashes), name)} the RUNs ask for different targets."
        if asked.mixed and name == "prompt_id":
            yield f"Under {counted(asked.mixed, name)} images of one RUN ask for different targets."


def system_names(found: Iterable[SystemKey], sources: Sequence[Run]) -> dict[SystemKey, str]:
    """What each system is called, in the order of the RUNs and then by name. ``found`` has (number of the RUN, name).

    Images without a system bear the name of their RUN's folder. Where two would be called alike, each has its RUN's
    name behind its own.
    """
    keys = sorted(found, key=lambda key: (key[0], key[1] is None, key[1] or ""))
    folders = [run.path.resolve().name for run in sources]
    plain = {key: folders[key[0]] if key[1] is None else key[1] for key in keys}
    runs = [
        str(run.path) if folders.count(folder) > 1 else folder for folder, run in zip(folders, sources, strict=True)
    ]
    names: dict[SystemKey, str] = {}
    taken = list(plain.values())
    for key, name in plain.items():
        told = f"{name} ({runs[key[0]]})" if taken.count(name) > 1 or name == ALL else name
        while told in names.values():
            told += " (no system)" if key[1] is None else "'"
        names[key] = told
    return names


def _record(run: Run, systems: list[str]) -> dict[str, Any]:
    """What shaped a RUN's numbers."""
    record = run.record
    return {
        "run": str(run.path),
        "systems": systems,
        "created": record["created"],
        "manifest": record["manifest"],
        "ensemble": record["ensemble"]["name"],
        "detectors": [
            {key: detector[key] for key in ("name", "family", "model_sha256", "tau")}
            for detector in record["ensemble"]["detectors"]
        ],
        "settings": record["settings"],
        "schedule": record["schedule"],
        "rescored_from": record.get("rescored_from"),
        "versions": record["versions"],
    }
