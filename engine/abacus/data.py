"""What an edit is, and what is known of the instances of one category in its two images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.abacus.instructions import CHANGE, REMOVE
from tallymill.kernels.mask_iou import Masks

# The columns of a manifest of edits, as they are laid out in a RUN. ``error`` is null but for rows that cannot be
# scored whatever their images hold.
EDIT = pa.schema(
    [
        ("edit_id", pa.string()),
        ("source", pa.string()),
        ("edited", pa.string()),
        ("operation", pa.string()),
        ("category", pa.string()),
        ("target", pa.string()),
        ("count", pa.int64()),
        ("editor", pa.string()),
        ("tier", pa.string()),
        ("image_id", pa.string()),
        ("capacity", pa.float64()),
        ("human_count", pa.int64()),
        ("human_rating", pa.float64()),
        ("instruction", pa.string()),
        ("error", pa.string()),
    ]
)
TRUTH, REPAIRED, FOUND = ORIGINS = ("truth", "repaired", "found")
SOURCE, EDITED = IMAGES = ("source", "edited")
Boxes = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Edit:
    """One row of the manifest: see ``EDIT``. ``count`` is K, ``target`` what a change leads to."""

    edit_id: str
    source: str
    edited: str
    operation: str
    category: str
    target: str | None
    count: int
    image_id: str | None = None
    error: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Edit:
        """An edit from a row of the layout."""
        return cls(**{name: row[name] for name in cls.__slots__})

    @property
    def categories(self) -> tuple[str, ...]:
        """What is looked for in both images: the category, and what a change leads to."""
        return (self.category,) if self.target is None else (self.category, self.target)

    def takes_away(self, category: str) -> bool:
        """Whether the edit asks for instances of the category to go."""
        return self.operation in (REMOVE, CHANGE) and category == self.category

    def brings(self, category: str) -> bool:
        """Whether it asks for new ones."""
        return self.operation != REMOVE and category == self.categories[-1]


@dataclass(frozen=True, slots=True)
class Instances:
    """N instances of one category in one image: ``masks``; ``boxes`` float32 [N, 4] xyxy in pixels; ``scores`` float32
    [N], NaN where nobody gave one; ``origin`` [N], of ``ORIGINS``.
    """

    masks: Masks
    boxes: Boxes
    scores: NDArray[np.float32]
    origin: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.boxes)

    @classmethod
    def none(cls, height: int, width: int) -> Instances:
        """No instances in an image of this size."""
        masks = Masks.from_arrays(np.zeros((0, height, width), np.bool_))
        return cls(masks, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), ())

    @classmethod
    def of_masks(cls, masks: Masks, origin: str) -> Instances:
        """Instances of masks alone: their boxes are those of the masks."""
        scores = np.full(len(masks), np.nan, np.float32)
        return cls(masks, masks.box.astype(np.float32), scores, (origin,) * len(masks))

    @classmethod
    def of_boxes(cls, boxes: Boxes, scores: NDArray[np.float32], origin: str, height: int, width: int) -> Instances:
        """Instances of boxes alone, each its own mask. One that covers no pixel of the image is left out."""
        edges = np.rint(np.clip(boxes, 0, np.array([width, height, width, height]))).astype(np.int64)
        kept = (edges[:, 2] > edges[:, 0]) & (edges[:, 3] > edges[:, 1])
        boxes, scores, edges = boxes[kept], scores[kept], edges[kept]
        return cls(Masks.from_boxes(edges, height, width), boxes, scores, (origin,) * len(boxes))

    def only(self, chosen: NDArray[Any]) -> Instances:
        """Some of them, by what indexes an array."""
        places = np.arange(len(self))[chosen]
        origin = tuple(self.origin[place] for place in places.tolist())
        return Instances(self.masks[places], self.boxes[places], self.scores[places], origin)

    def and_also(self, others: Instances) -> Instances:
        """These, then others of the same image."""
        return Instances(
            joined([self.masks, others.masks]),
            np.concatenate([self.boxes, others.boxes]),
            np.concatenate([self.scores, others.scores]),
            self.origin + others.origin,
        )

    def as_boxes(self) -> Instances:
        """The same with the box of each as its mask, to be compared with instances that are no more than boxes."""
        masks = self.masks
        filled = Masks.from_boxes(masks.box.astype(np.int64), masks.height, masks.width)
        return Instances(filled, self.boxes, self.scores, self.origin)


def joined(parts: Sequence[Masks]) -> Masks:
    """All masks of several sets of one size."""
    edges = np.cumsum([0, *(len(part.words) for part in parts)])
    return Masks(
        np.concatenate([part.words for part in parts]),
        np.concatenate([part.start + edge for part, edge in zip(parts, edges, strict=False)]),
        np.concatenate([part.area for part in parts]),
        np.concatenate([part.box for part in parts]),
        parts[0].height,
        parts[0].width,
    )
