"""How well people and detectors agree: annotators' counts joined with the scores of RUNs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tallymill.engine.manifests.base import Faults
from tallymill.engine.numbench.agreement import Judged, agreement_rows
from tallymill.engine.numbench.analysis.results import Agreement
from tallymill.engine.numbench.factors import GREATEST_COUNT, LEAST_COUNT, RangeBy, require_range_by
from tallymill.engine.numbench.scores import SCORED
from tallymill.engine.words import counted
from tallymill.errors import ManifestError
from tallymill.runners.numbench.annotations import MEND, Annotation, Annotations, read_annotations
from tallymill.runners.run import Run

_COLUMNS = ["item_id", "system", "targets", "cw_nps", "status"]

SystemKey = tuple[int, str | None]


def agreement_of(
    runs: Sequence[Run],
    annotations: str | Path | Annotations,
    *,
    systems: Mapping[SystemKey, str] | None = None,
    range_by: RangeBy = "max",
    bin_width: int = 1,
) -> Agreement:
    """Compare the scores of RUNs with what annotators counted in (some of) their images.

    ``annotations`` is a file as ``read_annotations`` takes it, or what that gave. ``systems`` names the systems, by the
    number of the RUN and the value of its column ``system``, in the order of the result (by default that value, or the
    RUN's folder). ``range_by`` and ``bin_width``: see ``agreement_rows``. The number of annotators is the commonest
    number of counts that an image and category has (of two as common, the larger); images with another number, or
    without counts of a category that was asked for, are left out and told in the notes. So are annotated images that no
    RUN has.

    Raises ``ManifestError`` listing faulty rows, and for a file of which no image is in a RUN.
    """
    require_range_by(range_by)
    given = annotations if isinstance(annotations, Annotations) else read_annotations(annotations)
    items = pa.array(sorted({row.item for row in given.rows}), pa.string())
    rows = [((number, row["system"]), row) for number, run in enumerate(runs) for row in _rows(run, items)]
    systems = _plain_names(runs, [key for key, _ in rows]) if systems is None else systems
    join = _Join(given, [_image(row, systems[key], runs[key[0]]) for key, row in rows])
    judged, annotators = join.judged()
    present = set(join.systems)
    names = [name for name in dict.fromkeys(systems.values()) if name in present]
    return Agreement(
        annotations=given.path,
        annotations_sha256=given.sha256,
        annotators=annotators,
        bin_width=bin_width,
        range_by=range_by,
        rows=agreement_rows(judged, names, range_by=range_by, bin_width=bin_width),
        notes=join.notes,
    )


@dataclass(slots=True)
class _Image:
    """An image of a RUN that may have been annotated: as it was scored, and what annotators said of each target."""

    item: str
    own_system: str | None
    system: str
    run: str
    categories: list[str]
    requested: list[int | None]
    soft: list[float | None]
    cw_nps: float | None
    counts: list[dict[str, Annotation]]

    def usable(self) -> bool:
        """Whether what was asked for can be scored at all (SPEC: else an error row)."""
        counts = [n for n in self.requested if n is not None and LEAST_COUNT <= n <= GREATEST_COUNT]
        return 0 < len(counts) == len(self.requested) and len(set(self.categories)) == len(self.categories)


def _image(row: Mapping[str, Any], system: str, run: Run) -> _Image:
    targets = row["targets"] or []
    return _Image(
        item=row["item_id"],
        own_system=row["system"],
        system=system,
        run=str(run.path),
        categories=[t["category"] for t in targets],
        requested=[t["requested"] for t in targets],
        soft=[t["soft"] for t in targets],
        cw_nps=row["cw_nps"] if row["status"] == SCORED else None,
        counts=[{} for _ in targets],
    )


def _rows(run: Run, items: pa.Array) -> Iterator[dict[str, Any]]:
    """Rows of the scores with one of these ids, reading of other shards no more than ids."""
    for shard in run.shards:
        ids = run.scores_of_shard(shard, ["item_id"])
        wanted = None if ids is None else pc.is_in(ids["item_id"], items)
        if wanted is not None and pc.any(wanted).as_py():
            table = run.scores_of_shard(shard, _COLUMNS)
            assert table is not None
            yield from table.filter(wanted).to_pylist()


def _plain_names(runs: Sequence[Run], keys: Iterable[SystemKey]) -> dict[SystemKey, str]:
    """The value of the column ``system``, or the RUN's folder; with the RUN behind it where two are called alike."""
    ordered = sorted(set(keys), key=lambda key: (key[0], key[1] or ""))
    plain = {key: runs[key[0]].path.resolve().name if key[1] is None else key[1] for key in ordered}
    often = Counter(plain.values())
    return {key: f"{name} ({runs[key[0]].path})" if often[name] > 1 else name for key, name in plain.items()}


class _Join:
    """Annotations put to their images; what does not fit is a fault, and what is of no use a note."""

    def __init__(self, given: Annotations, images: Iterable[_Image]) -> None:
        self._given = given
        self._seen: dict[str, list[_Image]] = defaultdict(list)
        for image in images:
            self._seen[image.item].append(image)
        self._images: dict[int, _Image] = {}
        self._unknown: dict[tuple[str, str | None], Annotation] = {}
        self._faults = Faults(given.file)
        self.notes: list[str] = []
        self.systems: list[str] = []
        for row in given.rows:
            self._place(row)
        self._faults.raise_if_any(MEND)
        if not self._images:
            first = given.rows[0]
            raise ManifestError(
                f"{given.file}: none of its images is in a RUN (it names {first.item!r} first)",
                hint="item_id (and system, where it is given) must be those of the RUNs",
            )

    def _place(self, row: Annotation) -> None:
        images = [image for image in self._seen.get(row.item, []) if _is_of(image, row.system)]
        if not images:
            self._unknown.setdefault((row.item, row.system), row)
            return
        if len(images) > 1:
            where = ", ".join(sorted(f"{image.system!r} of {image.run}" for image in images)[:4])
            what = "say which in a column system" if row.system is None else "name it as the analysis does"
            self._faults.add(row.where, f"is an image of {where}: {what}", column="item_id", value=row.item)
            return
        target = self._target(images[0], row)
        if target is None:
            return
        earlier = images[0].counts[target].setdefault(row.annotator, row)
        if earlier is not row:
            reason = f"counted this image and category before, in {earlier.where}"
            self._faults.add(row.where, reason, column="annotator", value=row.annotator)
        self._images[id(images[0])] = images[0]

    def _target(self, image: _Image, row: Annotation) -> int | None:
        named = image.categories.index(row.category) if row.category in image.categories else None
        if row.category is not None and named is None:
            asked = ", ".join(map(repr, image.categories))
            self._faults.add(row.where, f"its image was asked for {asked}, not", column="category", value=row.category)
        elif row.target is None:
            return named
        elif row.target >= len(image.categories):
            many = f"{len(image.categories)} target{'' if len(image.categories) == 1 else 's'}"
            self._faults.add(row.where, f"its image has {many}, counted from 0", column="target", value=row.target)
        elif named is not None and image.categories[row.target] != row.category:
            self._faults.add(row.where, f"target {row.target} is not", column="category", value=row.category)
        else:
            return row.target
        return None

    def judged(self) -> tuple[Judged, int]:
        """The images that can be compared, and the number of annotators; notes tell of the others."""
        images = [image for image in self._images.values() if image.usable()]
        often = Counter(len(counts) for image in images for counts in image.counts if counts)
        annotators = max(often, key=lambda number: (often[number], number), default=0)
        complete = [image for image in images if all(len(counts) == annotators for counts in image.counts)]
        self._tell(images, complete, annotators)
        self.systems = list(dict.fromkeys(image.system for image in self._images.values()))
        counts = [[row.count for row in by_target.values()] for image in complete for by_target in image.counts]
        of_targets = [
            sum(row.ambiguous is True for row in by_target.values()) for image in complete for by_target in image.counts
        ]
        marks = [
            len({row.annotator for by_target in image.counts for row in by_target.values() if row.ambiguous})
            for image in complete
        ]
        lengths = [len(image.counts) for image in complete]
        judged = Judged(
            system=[image.system for image in complete],
            item=[image.item for image in complete],
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            requested=np.array([n for image in complete for n in image.requested], np.uint16),
            counts=np.array(counts, np.int64).reshape(len(counts), annotators),
            soft=np.array([v for image in complete for v in image.soft], np.float64),
            cw_nps=np.array([image.cw_nps for image in complete], np.float64),
            marks=np.array(of_targets, np.int64) if self._given.has_marks else None,
            image_marks=np.array(marks, np.int64) if self._given.has_marks else None,
        )
        return judged, annotators

    def _tell(self, images: Sequence[_Image], complete: Sequence[_Image], annotators: int) -> None:
        if self._unknown:
            first = next(iter(self._unknown.values()))
            whose = "" if first.system is None else f" of {first.system!r}"
            number = counted(len(self._unknown), "annotated image")
            self.notes.append(f"Left aside: {number} that no RUN has (first: {first.item!r}{whose}, {first.where}).")
        unusable = [image for image in self._images.values() if not image.usable()]
        if unusable:
            self.notes.append(
                f"Left aside: {counted(len(unusable), 'annotated image')} of which counts were asked that cannot be "
                f"scored (first: {_least(unusable).item!r})."
            )
        whole = {id(image) for image in complete}
        partial = [image for image in images if id(image) not in whole]
        if partial:
            image = _least(partial)
            at = next(k for k, counts in enumerate(image.counts) if len(counts) != annotators)
            self.notes.append(
                f"Left aside: {counted(len(partial), 'annotated image')} without exactly {annotators} counts of each "
                f"category (first: {image.item!r} of {image.system!r}, {image.categories[at]!r}: "
                f"{len(image.counts[at])})."
            )
        unscored = [image for image in complete if image.cw_nps is None]
        if unscored:
            first_image = _least(unscored)
            self.notes.append(
                f"Annotators compared with one another only: {counted(len(unscored), 'image')} without a score "
                f"(first: {first_image.item!r} of {first_image.system!r})."
            )


def _is_of(image: _Image, system: str | None) -> bool:
    return system is None or system in (image.system, image.own_system)


def _least(images: Iterable[_Image]) -> _Image:
    return min(images, key=lambda image: (image.system, image.item))
