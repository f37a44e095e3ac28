"""What recipes of detectors with closed labels have in common: their labels, and their module with named outputs."""

from __future__ import annotations

import contextlib
import sys
import unittest.mock
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.detectors.closed import NO_LABEL
from tallymill.engine.detectors.coco import COCO_80, COCO_IDS, COCO_SYNONYMS
from tallymill.engine.detectors.pixels import to_corners
from tallymill.engine.sessions.base import Array
from tallymill.errors import ModelError

PICKS = ("proposals",)  # the choices of a model with proposals (see ``head`` and ``Part.choices``)
_TIE = 1e-3  # scores of a first stage that runtimes may rank either way
_HALF_TIE = 0.05  # of their root mean square: those that halves may
_NAMELESS = ("", "n/a", "na", "none", "background", "no object")


def labels_of(config: Any, source: object) -> list[str]:
    """What the columns of the logits name, from ``id2label`` of a config of transformers; COCO's in our spelling.

    Columns without a name become ``NO_LABEL``. Where ``id2label`` was never filled in, 80 columns are the classes of
    COCO in their order, and 91 are its ids. Raises ``ModelError`` when it was not and there is another number.
    """
    if is_unnamed(config):
        return _unnamed(config.num_labels, source)
    labels = [canonical(str(config.id2label.get(k, ""))) for k in range(config.num_labels)]
    repeated = sorted({label for label in labels if label != NO_LABEL and labels.count(label) > 1})
    if repeated:
        raise ModelError(f"{source}: config.json gives several columns the label {repeated[0]!r}")
    return labels


def is_unnamed(config: Any) -> bool:
    """Whether ``id2label`` of a config was never filled in."""
    return all(config.id2label.get(k) == f"LABEL_{k}" for k in range(config.num_labels))


def canonical(name: str) -> str:
    """A label in lower case, in our spelling where it is one of COCO's, ``NO_LABEL`` where it names nothing."""
    label = " ".join(name.lower().replace("_", " ").split())
    if label in _NAMELESS:
        return NO_LABEL
    return label if label in COCO_80 else COCO_SYNONYMS.get(label, label)


def _unnamed(count: int, source: object) -> list[str]:
    if count == len(COCO_80):
        return list(COCO_80)
    if count == COCO_IDS[-1] + 1:
        labels = [NO_LABEL] * count
        for label, place in zip(COCO_80, COCO_IDS, strict=True):
            labels[place] = label
        return labels
    raise ModelError(
        f"{source}: config.json names none of the {count} classes",
        hint='give it "id2label": {"0": "person", …} in the order of the logits',
    )


def head(model: Any, *, masked: bool = False, proposals: int | None = None) -> Any:
    """A torch module around a detector of transformers: ``image``, and ``mask`` if asked for, -> logits and boxes.

    Where the model starts its queries from the best ``proposals`` of a first stage, they are outputs too, and may be
    given (see ``Part.choices``): ``proposals`` int64 [B, Q] are their places, ``best`` float32 [B, Q] the best scores
    of the first stage, ``chosen`` those of the proposals.
    """
    import torch

    def read(outputs: Any) -> dict[str, Any]:
        return {"logits": outputs.logits, "boxes": outputs.pred_boxes}

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

    class Head(Base):
        def forward(self, image: Any) -> dict[str, Any]:
            return read(self.model(pixel_values=image))

    class MaskedHead(Base):
        def forward(self, image: Any, mask: Any) -> dict[str, Any]:
            return read(self.model(pixel_values=image, pixel_mask=mask))

    class TwoStageHead(Base):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.count = count

        def forward(self, image: Any, proposals: Any = None) -> dict[str, Any]:
            with _lengths_of(self.model), picking(self.count, proposals) as picked:
                found = read(self.model(pixel_values=image))
            return {**found, **picked}

    if proposals is not None:
        return TwoStageHead(proposals).eval()
    return (MaskedHead if masked else Head)().eval()


def _lengths_of(model: Any) -> Any:
    """Meanwhile ``len`` of a tensor, in the file of the model, does not make a constant of its first axis."""

    def length(value: Any) -> Any:
        return value.shape[0] if hasattr(value, "shape") else len(value)

    return unittest.mock.patch.object(sys.modules[type(model).__module__], "len", length, create=True)


@contextlib.contextmanager
def picking(count: int, given: Any = None) -> Iterator[dict[str, Any]]:
    """Meanwhile the one ``torch.topk`` that picks ``count`` picks what is ``given``, or is only told of."""
    import torch

    picked: dict[str, Any] = {}
    topk = torch.topk

    def pick(scores: Any, k: int, *args: Any, **options: Any) -> Any:
        found = topk(scores, k, *args, **options)
        if k != count:
            return found
        if picked:
            raise RuntimeError(f"the model picks the {count} best more than once")
        places = found[1] if given is None else given
        chosen = scores.gather(1, places)
        # How good the picks are and, where they are given, how good they could be: a graph that picks amiss says less.
        picked.update(proposals=places, chosen=chosen, best=chosen if given is None else found[0])
        return chosen, places

    with unittest.mock.patch.object(torch, "topk", pick):
        yield picked
    if not picked:
        raise RuntimeError(f"the model never picks the {count} best")


def original(
    model: Any,
    processor: Any,
    labels: Sequence[str],
    fallback: str | None,
    padding: Callable[[int, int], Mapping[str, Any]],
    image: NDArray[np.uint8],
    categories: Sequence[str],
    graph: Mapping[str, Array] | None = None,
    *,
    halves: bool = False,
) -> list[tuple[Array, Array]]:
    """See ``Original`` and, with the outputs of a ``graph``, ``Following``: image processor, model and post-processing
    of transformers. ``padding`` gives what the processor is told of an image of a height and width. In ``halves`` it
    is ``Loaded.in_halves``, with all pairs of query and class in the place of the post-processing's best.
    """
    import torch

    inputs = processor(images=image, return_tensors="pt", **padding(*image.shape[:2]))
    with torch.no_grad():
        follows = graph is not None and "proposals" in graph
        outputs = following(model, inputs, graph, halves=halves) if graph is not None and follows else model(**inputs)
    columns = [labels.index(name if name in labels else str(fallback)) for name in categories]
    if halves:
        scores, boxes = outputs.logits[0].sigmoid().numpy(), to_corners(outputs.pred_boxes[0].numpy())
        height, width = image.shape[:2]
        return [(boxes * np.array([width, height] * 2, np.float32), scores[:, column]) for column in columns]
    (found,) = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[image.shape[:2]])
    same = [found["labels"] == column for column in columns]
    return [(found["boxes"][mine].numpy(), found["scores"][mine].numpy()) for mine in same]


def following(model: Any, inputs: Mapping[str, Any], graph: Mapping[str, Array], *, halves: bool = False) -> Any:
    """The outputs of a model that starts from the proposals of a graph if they are as good as its own."""
    import torch

    with picking(model.config.num_queries, torch.from_numpy(graph["proposals"])) as picked:
        outputs = model(**inputs)
    best = picked["best"]
    tie = _HALF_TIE * float(best.square().mean().sqrt()) if halves else _TIE
    if bool(((best - picked["chosen"]).abs() <= tie).all()):
        return outputs
    return model(**inputs)


def examples_of(labels: Sequence[str]) -> tuple[str, ...]:
    """What the gate asks for: everything, for of a drawn picture nobody knows what a model will see in it."""
    return tuple(label for label in labels if label != NO_LABEL)


def images(batch: int, seed: int, height: int, width: int) -> Mapping[str, Array]:
    """Images of noise for the gate."""
    return {"image": np.random.default_rng(seed).standard_normal((batch, 3, height, width), np.float32)}
