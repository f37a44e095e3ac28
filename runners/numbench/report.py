"""The report of one or several RUNs: analysed, plotted, with images, written as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallymill import __version__
from tallymill.engine.manifests.prompts import PromptsTable
from tallymill.engine.numbench.analysis.results import RESAMPLES, Analysis
from tallymill.engine.numbench.calibration import CalibrationResult
from tallymill.engine.numbench.factors import RangeBy
from tallymill.engine.report.canvas import drawing
from tallymill.engine.report.figures import figures_of, reliability_of
from tallymill.engine.report.gallery import Gallery
from tallymill.engine.report.page import Page, RunRecord, render
from tallymill.engine.report.shell import require_templates
from tallymill.engine.words import listed
from tallymill.errors import UsageError
from tallymill.runners.files import appearing, encoded
from tallymill.runners.local import require_workers
from tallymill.runners.numbench.analyse import analyse, opened, system_names
from tallymill.runners.numbench.calibrate import incomparable, require_disjoint
from tallymill.runners.numbench.calibration_files import calibration_file, load_calibration
from tallymill.runners.numbench.gallery import choose
from tallymill.runners.numbench.gallery_images import TextOf, make_cards
from tallymill.runners.outputs import require_file
from tallymill.runners.run import Run

# Images of one group and system where nobody says how many, and the most of all together before fewer are taken.
IMAGES, MOST_IMAGES = 8, 240


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was written. ``images`` are shown in its gallery, ``images_gone`` could not be read again."""

    out: str
    bytes: int
    systems: list[str]
    items: int
    scored: int
    error: int
    uncovered: int
    images: int
    images_gone: int
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return asdict(self)


def report(
    runs: str | Path | Run | Iterable[str | Path | Run],
    out: str | Path,
    *,
    calibration: str | Path | None = None,
    annotations: str | Path | None = None,
    kappa_width: int = 1,
    prompts: str | Path | None = None,
    images: int | None = None,
    range_by: RangeBy = "max",
    resamples: int = RESAMPLES,
    seed: int = 0,
    title: str | None = None,
    workers: int | None = None,
) -> Report:
    """Analyse RUNs and write what was found as one HTML file that needs nothing else.

    ``calibration`` is the folder or file that ``calibrate`` wrote; ``annotations``, ``kappa_width`` and ``prompts`` as
    ``analyse`` takes them; ``images`` is the number of each group (worst, typical, random) of each system in the
    gallery, by default 8 and fewer where there are many systems, 0 for none. The same RUNs and arguments give the same
    bytes.

    Raises ``UsageError`` for arguments that make no sense, what ``analyse`` raises, ``RunError`` where a calibration
    image is also scored, ``MissingExtraError`` without jinja2 or matplotlib. An image that cannot be read any more is
    told in the gallery.
    """
    _require_packages()
    if images is not None and images < 0:
        raise UsageError(f"images {images}: must be 0 or more")
    sources = opened(runs)
    fitted = None if calibration is None else calibration_file(calibration)
    target = require_file(Path(out), annotations, prompts, fitted, outside=sources)
    fit = None if fitted is None else _disjoint(load_calibration(fitted), sources)
    analysis = analyse(
        sources,
        range_by=range_by,
        resamples=resamples,
        seed=seed,
        prompts=prompts,
        annotations=annotations,
        kappa_width=kappa_width,
        workers=workers,
    )
    gallery = _gallery(sources, analysis, images, seed, prompts, workers)
    page = Page(
        title=title or _title(analysis),
        version=__version__,
        analysis=analysis,
        runs=[_record(source) for source in sources],
        gallery=gallery,
        figures={**figures_of(analysis), **({} if fit is None else {"reliability": reliability_of(fit)})},
        calibration=fit,
    )
    html = encoded(render(page))
    with appearing(target) as path:
        path.write_bytes(html)
    return _told(target, len(html), analysis, gallery, () if fit is None else fit.notes)


def _disjoint(fit: CalibrationResult, runs: Sequence[Run]) -> CalibrationResult:
    notes = [note for run in runs for note in incomparable(require_disjoint(fit.images, run), run)]
    return replace(fit, notes=(*fit.notes, *notes))


def _require_packages() -> None:
    """Miss a package now, and not after minutes of work."""
    require_templates()
    with drawing():
        pass


def _title(analysis: Analysis) -> str:
    names = [row.system for row in analysis.systems]
    return f"{listed(names, 3)}: NumBench report"


def _record(run: Run) -> RunRecord:
    """What is listed of a RUN besides its detectors."""
    record = run.record
    manifest, thresholds = record["manifest"], record["schedule"]
    facts = {
        "manifest": manifest["source"],
        "manifest, SHA-256 of its rows": manifest["sha256"],
        "prompts": _prompts(manifest.get("prompts")),
        "begun": record["created"],
        "scored again from": record.get("rescored_from"),
        **{f"setting {name}": value for name, value in record["settings"].items()},
        "thresholds T": f"{thresholds[0]:g} at 1 to {thresholds[-1]:g} at 100",
        "images a shard": record["shard_items"],
        "device": _device(record),
        **{f"version of {name}": version for name, version in record["versions"].items()},
    }
    return RunRecord(str(run.path), record, [(name, str(value)) for name, value in facts.items() if value is not None])


def _device(record: Mapping[str, Any]) -> str | None:
    """Where the models ran, and on which kinds of cards where that was found out."""
    kinds = ", ".join(dict.fromkeys(record.get("device_choice", {}).get("cards", ())))
    device: str | None = record.get("device")
    return f"{device}: {kinds}" if kinds else device


def _prompts(given: Mapping[str, Any] | None) -> str | None:
    """Which prompts file a sweep knew, and how many of its prompts have an image."""
    if given is None:
        return None
    known = [f"{name} {given[name]}" for name in ("kind", "seed") if given.get(name) is not None]
    used = f"{given['used']:,} of {given['rows']:,} prompts have an image" if "used" in given else ""
    return "; ".join(part for part in (str(given.get("file")), *known, used, f"SHA-256 {given.get('sha256')}") if part)


def _gallery(
    runs: Sequence[Run],
    analysis: Analysis,
    images: int | None,
    seed: int,
    prompts: str | Path | None,
    workers: int | None,
) -> Gallery:
    systems = [row.system for row in analysis.systems]
    wanted = IMAGES if images is None else images
    shown, pictured = wanted, systems
    if images is None and systems:
        shown = max(1, min(wanted, MOST_IMAGES // (3 * len(systems))))
        pictured = systems[: MOST_IMAGES // 3]
    words = {cell.composition for cell in analysis.cells}
    found = choose(runs, shown, seed=seed, workers=require_workers(workers), compositions=words)
    names = system_names(found, runs)
    places = {name: place for place, name in enumerate(pictured)}
    ordered = sorted((key for key in found if names[key] in places), key=lambda key: places[names[key]])
    chosen = [image for key in ordered for image in found[key]]
    return Gallery(
        cards=tuple(make_cards(runs, chosen, names, None if prompts is None else _texts(Path(prompts)))),
        detectors=tuple(dict.fromkeys(name for run in runs for name in run.detectors)),
        wanted=wanted,
        shown=shown,
        left_out=tuple(systems[len(pictured) :]),
    )


def _texts(path: Path) -> TextOf:
    """The text of a prompt id, from a prompts file."""
    table = PromptsTable(path)
    column = next((name for name in ("text", "prompt") if name in table.factors.schema.names), None)

    def text_of(prompt: str) -> str | None:
        place = table.find(pa.array([prompt]))[0][0].as_py()
        found: str | None = None
        if column is not None and place is not None:
            found = table.factors.column(column)[place].as_py()
        return found

    return text_of


def _told(out: Path, size: int, analysis: Analysis, gallery: Gallery, of_fit: Sequence[str]) -> Report:
    rows = analysis.systems
    return Report(
        out=str(out),
        bytes=size,
        systems=[row.system for row in rows],
        items=sum(row.items for row in rows),
        scored=sum(row.scored for row in rows),
        error=sum(row.error for row in rows),
        uncovered=sum(row.uncovered for row in rows),
        images=len(gallery.cards),
        images_gone=sum(card.thumbnail is None for card in gallery.cards),
        notes=[*analysis.notes, *of_fit],
    )
