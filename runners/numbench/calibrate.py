"""Temperatures from a RUN over images whose objects are known: label its proposals, fit, and keep what came out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.numbench.calibration import (
    TAU_BOUNDS,
    CalibrationResult,
    DetectorCalibration,
    fit_temperature,
    measure,
    require_scipy,
)
from tallymill.engine.numbench.labelling import LEAST_IOU
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.numbench.truth import read_truth
from tallymill.engine.report.canvas import drawing
from tallymill.engine.words import counted
from tallymill.errors import RunError, UsageError
from tallymill.runners.numbench.calibration_files import require_calibration_folder, write_calibration
from tallymill.runners.numbench.labels import Labelled, Labels, label_run
from tallymill.runners.run import Run
from tallymill.runners.run_folder import ensemble_of, plan_of

SHOWN = 5


def calibrate(
    run: str | Path | Run,
    truth: str | Path,
    out: str | Path | None = None,
    *,
    scored: Iterable[str | Path | Run] = (),
) -> CalibrationResult:
    """Fit the temperature of each detector (equation 6) on a RUN's own proposals of labelled images.

    ``truth`` has a row a true object (see ``read_truth``); an image of the RUN that it does not name has none. The RUNs
    ``scored`` must not share an image with this one, by ``image_hash``. With ``out`` the result is written into that
    folder: ``calibration.json``, ``ensemble.toml`` (the RUN's ensemble with the temperatures to use) and the
    reliability plot as ``reliability.png`` and ``reliability.svg``.

    Raises ``ManifestError`` listing faulty rows of the truth, ``RunError`` for a RUN that is not complete, for a truth
    that names none of its images and for images in common, ``MissingExtraError`` without scipy (with ``out``, without
    matplotlib).
    """
    require_scipy()
    source = run if isinstance(run, Run) else Run(run)
    compared = [other if isinstance(other, Run) else Run(other) for other in scored]
    if out is not None:
        with drawing():  # its absence is told before any work is done
            pass
        require_calibration_folder(Path(out), truth, outside=[source, *compared])
    labels = label_run(source, read_truth(truth))
    notes = list(labels.notes)
    for other in compared:
        notes += incomparable(require_disjoint(labels.images, other, source), other)
    result = CalibrationResult(
        run=str(source.path),
        run_created=source.record["created"],
        truth=str(truth),
        truth_sha256=hashlib.sha256(Path(truth).read_bytes()).hexdigest(),
        floor=source.record["settings"]["floor"],
        lowest_threshold=min(plan_of(source.record).schedule),
        iou=LEAST_IOU,
        items=labels.items,
        failed=labels.failed,
        objects=labels.objects,
        without_objects=labels.without_objects,
        notes=tuple(notes),
        detectors=_fits(source, labels),
        images=labels.images,
    )
    if out is not None:
        write_calibration(result, ensemble_of(source.record), Path(out))
    return result


def _fits(source: Run, labels: Labels) -> tuple[DetectorCalibration, ...]:
    return tuple(_fit(source, name, labels.detectors[name]) for name in source.detectors)


def _fit(source: Run, detector: str, labelled: Labelled) -> DetectorCalibration:
    p, y = labelled.confidence, labelled.label
    tau_run = source.taus[detector]
    fit = fit_temperature(p, y)
    refused = _refused(source, detector, fit.tau, fit.positives, fit.identifiable)
    return DetectorCalibration(
        detector=detector,
        tau=fit.tau,
        tau_run=tau_run,
        tau_used=fit.tau if refused is None else tau_run,
        refused=refused,
        identifiable=fit.identifiable,
        items=labelled.items,
        failed=labelled.failed,
        objects=labelled.objects,
        proposals=fit.proposals,
        positives=fit.positives,
        before=fit.before,
        present=None if tau_run in (1.0, fit.tau) else measure(p, y, tau_run),
        after=fit.after,
    )


def _refused(source: Run, detector: str, tau: float, positives: int, identifiable: bool) -> str | None:
    """Why a fitted temperature cannot be used to score with; None where it can."""
    if not identifiable:
        return f"not identifiable: {'every' if positives else 'no'} proposal is true"
    if min(abs(tau - bound) for bound in TAU_BOUNDS) < 1e-3:
        why = "confidence tells true from false without fail" if tau < 1 else "confidence does not tell true from false"
        return f"the fit ran into its bound: {why}, or there are too few proposals"
    record = source.record
    try:
        ScorePlan((detector,), (tau,), schedule=plan_of(record).schedule).require_floor(record["settings"]["floor"])
    except UsageError as exc:
        return f"needs a lower floor: {exc.message}"
    return None


def require_disjoint(images: dict[str, str], scored: Run, calibration: Run | None = None) -> int:
    """Refuse calibration ``images`` (item by ``image_hash``) of which one is also an image of the RUN ``scored``.

    A RUN that is not complete is a ``RunError`` too: what is not there yet cannot be compared.

    Gives the number of images of ``scored`` that could not be compared, having no hash (they were never read).
    """
    hashes = pa.array(sorted(images), pa.string())
    shared: list[tuple[str, str]] = []
    unknown = 0
    for shard in scored.shards:
        table = scored.scores_of_shard(shard, ["item_id", "image_hash"])
        if table is None:
            raise RunError(
                f"{scored.path} is not complete: {shard.part} has no whole scores, so its images cannot be compared "
                "with those of the calibration",
                hint="complete it first: run its sweep again, which continues where it stopped",
            )
        unknown += table["image_hash"].null_count
        same = table.filter(pc.is_in(table["image_hash"], hashes))
        shared += zip(same["item_id"].to_pylist(), same["image_hash"].to_pylist(), strict=True)
    if shared:
        pairs = [f"{item!r} is calibration item {images[d]!r} (image_hash {d})" for item, d in sorted(shared)]
        number = counted(len(shared), "image")
        whose = "" if calibration is None else f" of {calibration.path}"
        raise RunError(
            f"{number} of {scored.path} among the calibration images{whose}:\n  " + _first(pairs),
            hint="temperatures must be fitted on other images than those that are scored",
        )
    return unknown


def incomparable(number: int, scored: Run) -> list[str]:
    """A note, where images of ``scored`` have no hash: whether they are among the calibration's cannot be told."""
    if not number:
        return []
    verb = "has" if number == 1 else "have"
    return [
        f"{counted(number, 'image')} of {scored.path} {verb} no hash, for the file was never read: whether a "
        "calibration image is among them is not known."
    ]


def _first(lines: Sequence[str]) -> str:
    more = len(lines) - SHOWN
    return "\n  ".join([*lines[:SHOWN], *([f"and {more} more"] if more > 0 else [])])
