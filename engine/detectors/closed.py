"""Detectors of the DETR line with a closed label space: a score for every query and class, a box for every query.

Their originals keep the best pairs of query and class over the whole image, and a query may be kept under several
classes. That choice comes before the restriction to the classes asked, so that what a detector returns for one
category does not depend on which others are asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.arrays import chosen, is_array, least_of
from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import NOTHING, Candidates, DetectorSpec
from tallymill.engine.detectors.coco import COCO_SYNONYMS
from tallymill.engine.detectors.pixels import sigmoid, to_corners
from tallymill.engine.detectors.queries import Heads, QueryDetector, to_pixels
from tallymill.engine.sessions.base import Array, Session, TensorSpec
from tallymill.errors import ModelError
from tallymill.kernels.floats import float_not_below

NO_LABEL = ""  # stands in ``labels`` for a column that answers for no category


class Closed(QueryDetector):
    """Outputs: logits float32 [B, Q, C], and boxes [B, Q, 4]: centre and size, as fractions of the image."""

    outputs = (TensorSpec("logits", "float32", (None, None, None)), TensorSpec("boxes", "float32", (None, None, 4)))

    def __init__(
        self,
        bundle: Bundle,
        session: Session,
        name: str,
        batch: int,
        labels: tuple[str, ...],
        top: int,
        fallback: str | None = None,
    ) -> None:
        """``top``: how many pairs of query and class the original keeps. Raises ``ModelError`` when labels do not fit
        the model.
        """
        if fallback is not None and fallback not in labels:
            raise bundle.error(f"numbers.fallback = {fallback!r} is none of its labels")
        if top < 1:
            raise bundle.error(f"numbers.top = {top} must be at least 1")
        spec = DetectorSpec(
            name=name,
            family=bundle.family,
            labels=labels,
            synonyms=synonyms_of(labels),
            fallback=fallback,
            batch=batch,
            query_cap=top,
        )
        super().__init__(session, spec)
        columns = next(output.shape for output in session.outputs if output.name == "logits")
        if columns is not None and columns[2] not in (None, len(labels)):
            raise bundle.error(f"has {len(labels)} labels and {columns[2]} columns of logits")
        self.top = top

    def heads(
        self, outputs: Mapping[str, Array], sizes: Sequence[tuple[int, int]], asked: Sequence[NDArray[np.int64]]
    ) -> Heads:
        """See ``QueryDetector.heads``: logits outside the kept pairs are -inf."""
        logits = outputs["logits"]
        flat = logits.reshape(len(logits), logits.shape[1] * logits.shape[2])
        kept = greatest(flat, self.top)
        return Heads(
            chosen(kept, flat, -np.inf).reshape(logits.shape),
            outputs["boxes"],
            columns=[column for classes in asked for column in classes[:, None]],
            scale=to_pixels(sizes),
            least=least_of(chosen(kept, flat, np.inf)) if flat.shape[1] else None,
            finite=(abs(flat) < np.inf).all(1),
        )


def best(
    logits: NDArray[np.float32],
    boxes: NDArray[np.float32],
    top: int,
    size: tuple[int, int],
    classes: NDArray[np.int64],
    floor: float,
    least: float | None = None,
) -> Candidates:
    """The asked ``classes`` among the ``top`` pairs of query and class with the greatest logits.

    Logits float32 [Q, C], boxes float32 [Q, 4] as centre and size in fractions of the window. Of equal logits the
    first are taken, query after query. Scores reach ``least``, by default the floor, which is what saturation is
    measured by in any case. Raises ``ModelError`` when a logit is not finite, of whatever class, for then
    the choice means nothing.
    """
    if not np.isfinite(logits).all():
        raise ModelError("non-finite scores")
    columns = logits.shape[1]
    if logits.size == 0:
        return NOTHING
    kept = np.flatnonzero(greatest(logits.reshape(1, -1), top))
    scores = sigmoid(logits.ravel().take(kept))
    saturated = bool(scores.min() >= float_not_below(floor))
    query, column = np.divmod(kept, columns)
    position = np.full(columns, -1, np.int64)
    position[classes] = np.arange(len(classes))
    request = position.take(column)
    order = np.flatnonzero((request >= 0) & (scores >= float_not_below(floor if least is None else least)))
    order = order.take(request.take(order).argsort(kind="stable"))
    corners = to_corners(boxes.take(query.take(order), 0)) * to_pixels([size])
    return Candidates(corners, scores.take(order), request.take(order), saturated)


def greatest(values: Array, count: int) -> Array:
    """The ``count`` greatest of each row of float32 [B, N]: bool [B, N]; of equal ones the first are taken."""
    length = values.shape[1]
    if count >= length:
        return values == values
    if is_array(values):
        least = np.partition(values, length - count, axis=1)[:, length - count]
    else:
        least = values.topk(count, dim=1).values[:, -1]
    above, level = values > least[:, None], values == least[:, None]
    return above | (level & (level.cumsum(1) <= (count - above.sum(1))[:, None]))


def synonyms_of(labels: Sequence[str]) -> dict[str, str]:
    """Other names of the labels: those of COCO that a model has, where they are no label of the model themselves."""
    known = set(labels)
    return {other: label for other, label in COCO_SYNONYMS.items() if label in known and other not in known}
