"""The rows of evidence: everything that was seen of an edit, from which its verdicts follow without a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tallymill.engine.abacus.consistency import Consistency
from tallymill.engine.abacus.data import EDIT, EDITED, SOURCE, Instances
from tallymill.engine.abacus.match import Matching
from tallymill.engine.numbench.scores import ERROR, SCORED
from tallymill.kernels.mask_iou import Masks

# ``partner`` is the place in the list of the instance that it was matched with, -1 without; ``votes`` say of each
# detector whether it confirmed a candidate, null where nothing had to be confirmed; ``crop`` is a PNG file of those
# that not both did, ``crop_fault`` why it is not all that the upscaler would have made of it.
INSTANCE = pa.struct(
    [
        ("image", pa.string()),
        ("category", pa.string()),
        ("origin", pa.string()),
        ("box", pa.list_(pa.float32())),
        ("score", pa.float32()),
        ("rle", pa.string()),
        ("partner", pa.int32()),
        ("similarity", pa.float32()),
        ("votes", pa.list_(pa.bool_())),
        ("crop", pa.binary()),
        ("crop_fault", pa.string()),
    ]
)
# ``annotated``: the source has panoptic ground truth. ``crowd``: its segments of the categories that were left out;
# ``ignored``: instances of both images that were found inside these.
EVIDENCE = pa.schema(
    [
        *EDIT,
        pa.field("status", pa.string()),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
        pa.field("edited_width", pa.int32()),
        pa.field("edited_height", pa.int32()),
        pa.field("resized", pa.bool_()),
        pa.field("source_hash", pa.string()),
        pa.field("edited_hash", pa.string()),
        pa.field("annotated", pa.bool_()),
        pa.field("crowd", pa.int32()),
        pa.field("ignored", pa.int32()),
        pa.field("structure", pa.float64()),
        pa.field("appearance", pa.float64()),
        pa.field("scene", pa.float64()),
        pa.field("background", pa.float64()),
        pa.field("instances", pa.list_(INSTANCE)),
    ]
)


@dataclass(slots=True)
class Branch:
    """One category of an edit: its instances in both images, and how they match. ``crowds`` of the source, and what is
    ``ignored`` because it was found inside them, by image. ``votes`` by image: bool [C, 2] of the
    candidates, by their places; ``crops`` PNG files by image and place, and what is to be said of them.
    """

    category: str
    source: Instances
    edited: Instances
    matching: Matching
    crowds: Masks
    ignored: dict[str, Masks]
    votes: dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]] = field(default_factory=dict)
    crops: dict[tuple[str, int], tuple[bytes, str | None]] = field(default_factory=dict)

    @property
    def covers(self) -> list[Masks]:
        """All that belongs to the category in either image, and so not to the background."""
        return [self.source.masks, self.edited.masks, self.crowds, *self.ignored.values()]

    def candidates(self, image: str) -> NDArray[np.int64]:
        """Instances of an image without a partner in the other."""
        return np.flatnonzero(self.partners(image) < 0)

    def preserved(self, image: str) -> NDArray[np.int64]:
        """Instances of an image with one."""
        return np.flatnonzero(self.partners(image) >= 0)

    def partners(self, image: str) -> NDArray[np.int64]:
        """Of each instance of an image its partner in the other."""
        return self.matching.partner if image == SOURCE else self.matching.back(len(self.edited))

    def of(self, image: str) -> Instances:
        """The instances of an image."""
        return self.source if image == SOURCE else self.edited


def instance_rows(branches: list[Branch]) -> list[dict[str, Any]]:
    """The instances of an edit: category after category, those of the source before those of the edited image."""
    rows: list[dict[str, Any]] = []
    for branch in branches:
        first = {SOURCE: len(rows), EDITED: len(rows) + len(branch.source)}
        for image, other in ((SOURCE, EDITED), (EDITED, SOURCE)):
            rows += _rows_of(branch, image, first[other])
    return rows


def _rows_of(branch: Branch, image: str, others: int) -> list[dict[str, Any]]:
    instances, partners = branch.of(image), branch.partners(image)
    places, votes = branch.votes.get(image, (np.zeros(0, np.int64), np.zeros((0, 2), np.bool_)))
    voted = dict(zip(places.tolist(), votes.tolist(), strict=True))
    rows = []
    for k, (rle, partner) in enumerate(zip(instances.masks.to_rle(), partners.tolist(), strict=True)):
        at = k if image == SOURCE else partner
        score = float(instances.scores[k])
        file, fault = branch.crops.get((image, k), (None, None))
        rows.append(
            {
                "image": image,
                "category": branch.category,
                "origin": instances.origin[k],
                "box": instances.boxes[k].tolist(),
                "score": None if np.isnan(score) else score,
                "rle": rle["counts"],
                "partner": others + partner if partner >= 0 else -1,
                "similarity": float(branch.matching.similarity[at]) if partner >= 0 else 0.0,
                "votes": voted.get(k),
                "crop": file,
                "crop_fault": fault,
            }
        )
    return rows


def evidence_row(
    row: dict[str, Any], known: dict[str, Any], branches: list[Branch], scene: Consistency | None, error: str | None
) -> dict[str, Any]:
    """A row of ``EVIDENCE``: the edit's own fields, what is ``known`` of its images, and what was found, or why not."""
    found = dict.fromkeys(EVIDENCE.names) | row | known | {"status": ERROR if error else SCORED, "error": error}
    if error is None and scene is not None:
        found |= {
            "ignored": sum(len(masks) for branch in branches for masks in branch.ignored.values()),
            "structure": scene.structure,
            "appearance": scene.appearance,
            "scene": scene.scene,
            "background": scene.background,
            "instances": instance_rows(branches),
        }
    return found
