"""Annotated instances of source images: a COCO panoptic JSON file and the PNG that each of its annotations names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.abacus.data import TRUTH, Instances
from tallymill.engine.detectors.coco import COCO_SYNONYMS
from tallymill.engine.images import MAX_PIXELS, decode
from tallymill.engine.manifests.base import brief
from tallymill.engine.words import listed
from tallymill.errors import ImageError, ManifestError
from tallymill.kernels.mask_iou import Masks, panoptic_ids

VOID = 0  # the id of pixels that nobody annotated
STUFF = ""  # in place of the category of what has no instances


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of an annotation."""

    id: int
    category: str
    crowd: bool


@dataclass(frozen=True, slots=True)
class Annotation:
    """The segments of one image, and the file of its ids."""

    image_id: str
    file: Path
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """The annotated instances of the asked categories, by name, and the ``crowds`` of them, which are none; ``covered``
    is the share of the image that its instances, of any category, cover.
    """

    instances: dict[str, Instances]
    crowds: dict[str, Masks]
    covered: float

    @property
    def crowd(self) -> int:
        """How many segments were left out."""
        return sum(map(len, self.crowds.values()))


class Panoptic:
    """A panoptic file, indexed by image: ``of`` finds the annotation, ``read`` its masks."""

    def __init__(self, path: Path, folder: Path | None = None) -> None:
        """``folder`` has the PNG files; by default it lies beside the JSON file and is called as that is.

        Raises ``ManifestError`` where the file is no such file, with the place of the fault.
        """
        self.path, self.folder = path, folder or path.with_suffix("")
        document = _load(path)
        self._names: dict[int, str] = {}
        for k, entry in enumerate(document["categories"]):
            inside = f"{path.name}: categories[{k}]"
            name = _field(entry, "name", str, inside)
            self._names[_field(entry, "id", int, inside)] = canonical(name) if entry.get("isthing", 1) else STUFF
        self._by_id: dict[str, Annotation] = {}
        for k, entry in enumerate(document["annotations"]):
            annotation = self._annotation(entry, f"{path.name}: annotations[{k}]")
            if annotation.image_id in self._by_id:
                raise ManifestError(f"{path.name}: annotations[{k}]: image_id {annotation.image_id} stands twice")
            self._by_id[annotation.image_id] = annotation
        self._by_stem = self._stems(document["images"])

    def __len__(self) -> int:
        return len(self._by_id)

    def of(self, source: str, image_id: str | None) -> Annotation | None:
        """The annotation of an image, by its id where one is given (000000000139 is 139), else by the name of its file
        without the extension; None where there is none.
        """
        if image_id is not None:
            return self._by_id.get(_plain(image_id))
        stem = PurePosixPath(source.rpartition("#")[2]).stem
        return self._by_id.get(self._by_stem.get(stem, ""))

    def read(self, annotation: Annotation, categories: Mapping[str, str], size: tuple[int, int] | None) -> Truth:
        """Instances of ``categories`` (what the edit calls each, and its name here) in an image of ``size`` (height,
        width; None for that of the PNG). Raises ``ImageError`` where PNG and JSON, or PNG and image, do not belong
        together.
        """
        where = annotation.file.name
        try:
            pixels = decode(annotation.file.read_bytes(), max_pixels=MAX_PIXELS)
        except OSError as exc:
            raise ImageError(f"{where}: {exc.strerror}") from None
        except ImageError as exc:
            raise ImageError(f"{where}: {exc.message}") from None
        ids = panoptic_ids(np.ascontiguousarray(pixels))
        if size is not None and ids.shape != size:
            raise ImageError(f"{where}: is {ids.shape[1]}x{ids.shape[0]}, its image {size[1]}x{size[0]}")
        _compare(ids, annotation, where)
        return _truth(ids, annotation, categories)

    def _stems(self, images: Sequence[Any]) -> dict[str, str]:
        """The id of the image whose file has a name, without its extension; none where two have it."""
        found: dict[str, list[str]] = {}
        for k, entry in enumerate(images):
            inside = f"{self.path.name}: images[{k}]"
            image_id = _plain(_field(entry, "id", (int, str), inside))
            found.setdefault(PurePosixPath(_field(entry, "file_name", str, inside)).stem, []).append(image_id)
        return {stem: ids[0] for stem, ids in found.items() if len(ids) == 1}

    def _annotation(self, entry: Any, where: str) -> Annotation:
        image_id = _plain(_field(entry, "image_id", (int, str), where))
        file = _field(entry, "file_name", str, where)
        segments: dict[int, Segment] = {}
        for k, info in enumerate(_field(entry, "segments_info", list, where)):
            inside = f"{where}.segments_info[{k}]"
            number, category = _field(info, "id", int, inside), _field(info, "category_id", int, inside)
            if not VOID < number < 1 << 24:
                raise ManifestError(f"{inside}: id {number} is no colour (1 to 16777215)")
            if category not in self._names:
                raise ManifestError(f"{inside}: category_id {category} is not among the categories")
            if number in segments:
                raise ManifestError(f"{inside}: id {number} stands twice in one image")
            segments[number] = Segment(number, self._names[category], bool(info.get("iscrowd", 0)))
        return Annotation(image_id, self.folder / file, tuple(segments.values()))


def _plain(image_id: int | str) -> str:
    """An id as it is compared: digits are a number, whatever zeros stand before it."""
    text = str(image_id).strip()
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


def _compare(ids: NDArray[np.uint32], annotation: Annotation, where: str) -> None:
    """That PNG and JSON name the same segments; void is no segment."""
    known = [segment.id for segment in annotation.segments]
    area = Masks.from_panoptic(ids, known, allow_missing=True).area
    if not area.all():
        missing = [number for number, pixels in zip(known, area.tolist(), strict=True) if not pixels]
        raise ImageError(f"{where}: no pixel has {_numbers(missing)}, which the JSON lists")
    if int(area.sum()) + int((ids == VOID).sum()) != ids.size:
        others = sorted(set(np.unique(ids).tolist()) - {VOID, *known})
        raise ImageError(f"{where}: has pixels of {_numbers(others)}, which the JSON does not list")


def _numbers(numbers: Sequence[int]) -> str:
    """``segment 3``, ``segments 3, 4``."""
    return f"segment{'s' if len(numbers) > 1 else ''} {listed(list(map(str, numbers)), 5)}"


def _truth(ids: NDArray[np.uint32], annotation: Annotation, categories: Mapping[str, str]) -> Truth:
    instances, crowds = {}, {}
    for asked, name in categories.items():
        own = [segment for segment in annotation.segments if segment.category == name]
        masks, crowds[asked] = (
            Masks.from_panoptic(ids, [segment.id for segment in own if segment.crowd is crowd])
            for crowd in (False, True)
        )
        instances[asked] = Instances.of_masks(masks, TRUTH)
    things = [segment.id for segment in annotation.segments if segment.category != STUFF and not segment.crowd]
    covered = float(np.isin(ids, things).mean()) if things else 0.0
    return Truth(instances, crowds, covered)


def canonical(category: str) -> str:
    """The name of a category as COCO has it, whatever synonym is asked for."""
    return COCO_SYNONYMS.get(category, category)


def _load(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as exc:
        raise ManifestError(f"{path}: cannot be read: {exc.strerror}") from None
    except (ValueError, RecursionError) as exc:
        raise ManifestError(f"{path}: not JSON: {exc}") from None
    for name in ("images", "annotations", "categories"):
        if not isinstance(document, dict) or not isinstance(document.get(name), list):
            raise ManifestError(f"{path}: not a COCO panoptic file: it has no list {name!r}")
    found: dict[str, Any] = document
    return found


def _field(entry: Any, name: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ManifestError(f"{where}: {name} is {brief(value)}")
    return value
