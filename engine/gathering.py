"""The boxes of one detector while a batch of items is looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import Array, beside, is_array, joined, rising, to_host
from tallymill.engine.batch import ItemBatch
from tallymill.engine.clock import StageClock
from tallymill.engine.proposer import DetectOptions, Job, RawBoxes, Run, WindowProposer, failed
from tallymill.errors import ModelError

NOT_FINITE = "non-finite scores"


class Gathering:
    """The candidates of one detector while a batch of items is looked at, image by image.

    Windows wait, prepared, until as many of one shape are there as the model takes at once; ``boxes`` runs the rest.
    """

    def __init__(
        self,
        proposer: WindowProposer,
        batch: ItemBatch,
        classes: NDArray[np.int64],
        options: DetectOptions,
        clock: StageClock,
    ) -> None:
        self._proposer, self._batch, self._options, self._clock = proposer, batch, options, clock
        # Of each item the flat targets that the detector covers, and their classes. Worked out for the whole batch at
        # once: after every run of a model the caches are cold, and each small step there costs several times as much.
        covered = np.flatnonzero(classes >= 0)
        edges = np.searchsorted(covered, batch.targets.offsets[1:-1])
        self._targets = np.split(covered, edges)
        self._classes = np.split(classes[covered], edges)
        self.name = proposer.spec.name
        self._errors: dict[int, str] = {}
        self._waiting: dict[tuple[tuple[int, ...], ...], list[Job]] = {}
        self._runs: list[Run] = []
        known = proposer.detector.encoded
        with clock("text"):
            self._unknown = proposer.detector.learn(batch.targets.categories)
        if proposer.detector.encoded > known:
            clock.encoded[self.name] += proposer.detector.encoded - known

    @property
    def place(self) -> str | None:
        """Where images are taken: see ``WindowProposer``."""
        return self._proposer.place

    def look(self, item: int, image: Array) -> None:
        """Look at the image of one item, an array or a tensor on ``place``. An image on which the model fails is an
        error of that item alone.
        """
        classes = self._classes[item]
        if not len(classes):
            return
        if self._unknown and (unknown := [c for c in classes.tolist() if c in self._unknown]):
            self._fail(item, self._unknown[unknown[0]])
            return
        try:
            for job in self._proposer.jobs(item, image, classes, self._options, self._clock):
                if item in self._errors:
                    return
                self._wait(job)
        except ModelError as exc:  # of its preparation: running fails nothing here
            self._fail(item, exc.message)

    def _wait(self, job: Job) -> None:
        waiting = self._waiting.setdefault(job.shapes, [])
        waiting.append(job)
        if len(waiting) >= self._proposer.spec.batch:
            self._run(job.shapes)
        elif sum(map(len, self._waiting.values())) > 2 * self._proposer.spec.batch:
            self._run(max(self._waiting, key=lambda shapes: len(self._waiting[shapes])))

    def boxes(self) -> RawBoxes:
        """Everything found, of all images looked at, in their order and that of their windows.

        Boxes on a device stay there; that windows are finite and saturated is copied, once, and waited for.
        """
        for shapes in list(self._waiting):
            self._run(shapes)
        saturated = self._verdicts()
        runs = self._runs or [Run([], failed(""))]
        of_request = self._places(runs)
        of_box = [beside(rows, run.found.boxes)[run.found.request] for rows, run in zip(of_request, runs, strict=True)]
        places = joined(of_box)
        order = rising(places[:, 0])
        order = order[places[order, 0] >= 0]
        return RawBoxes(
            segment=places[order, 1],
            boxes=joined([run.found.boxes for run in runs])[order],
            scores=joined([run.found.scores for run in runs])[order],
            errors=[self._errors.get(i, error) for i, error in enumerate(self._batch.errors)],
            saturated=saturated,
        )

    def _places(self, runs: Sequence[Run]) -> list[NDArray[np.int64]]:
        """For each run int64 [S, 2]: of every class asked, the rank of its job among all, and its flat target.

        The rank is -1 where the item is an error.
        """
        jobs = [job for run in runs for job in run.jobs]
        ranks = {job.place: rank for rank, job in enumerate(sorted(jobs, key=lambda job: job.place))}
        found = []
        for run in runs:
            rows = [
                [-1 if job.place[0] in self._errors else ranks[job.place], target]
                for job in run.jobs
                for target in self._targets[job.place[0]][job.positions].tolist()
            ]
            found.append(np.array(rows, np.int64).reshape(-1, 2))
        return found

    def _verdicts(self) -> NDArray[np.bool_]:
        """Which items are saturated; those with a window that is not finite become errors."""
        saturated = np.zeros(len(self._batch), np.bool_)
        if not self._runs:
            return saturated
        told = [joined([getattr(run.found, name) for run in self._runs]) for name in ("finite", "saturated")]
        finite, full = to_host(joined([each[None] for each in told]))
        items = [job.place[0] for run in self._runs for job in run.jobs]
        for item, fine in zip(items, finite.tolist(), strict=True):
            if not fine:
                self._fail(item, NOT_FINITE)
        saturated[[item for item, is_full in zip(items, full.tolist(), strict=True) if is_full]] = True
        return saturated

    def _run(self, shapes: tuple[tuple[int, ...], ...]) -> None:
        for run in self._proposer.run(self._waiting.pop(shapes), self._options, self._clock):
            if len(run.found.errors) < len(run.jobs):
                self._runs.append(run)
            wrong = dict(run.found.errors)
            if is_array(run.found.finite):  # the device is not waited for, run by run
                wrong |= dict.fromkeys(np.flatnonzero(~run.found.finite).tolist(), NOT_FINITE)
            for window, why in sorted(wrong.items()):
                self._fail(run.jobs[window].place[0], why)

    def _fail(self, item: int, why: str) -> None:
        self._errors.setdefault(item, f"{self.name}: {why}")
