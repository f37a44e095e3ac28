"""ONNX files that their user made, checked against the contract of their family and put into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tallymill.engine.detectors.base import Detector
from tallymill.engine.sessions.base import Array, stack
from tallymill.errors import MissingExtraError, ModelError
from tallymill.exporters import gate
from tallymill.exporters.pairing import FLOOR
from tallymill.exporters.recipes.parts import Given


def copy(given: Given, folder: Path) -> list[Path]:
    """The graphs under the names of their parts, and the files beside them that hold their weights."""
    files = []
    for name, source in given.parts.items():
        files.append(folder / f"{name}.onnx")
        shutil.copyfile(source, files[-1])
        for data in weight_files(source):
            if folder / data.name not in files:
                files.append(folder / data.name)
                shutil.copyfile(data, files[-1])
    return files


def weight_files(file: Path) -> list[Path]:
    """The files that an ONNX file keeps weights in. Raises ``ModelError`` when it cannot be read or they are not beside
    it.
    """
    with MissingExtraError.unless("onnx", extra="cpu"):
        import onnx
    try:
        graph = onnx.load(str(file), load_external_data=False).graph
    except Exception as exc:  # protobuf raises its own
        raise ModelError(f"{file}: not an ONNX file: {exc}") from exc
    found = {
        entry.value
        for tensor in _tensors(graph)
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in sorted(found):
        if Path(name).name != name or not (file.parent / name).is_file():
            raise ModelError(
                f"{file}: its weights are in {name!r}, which is no file beside it",
                hint="onnx.save(onnx.load(FILE), OTHER) puts them into the file where that can hold them",
            )
    return [file.parent / name for name in sorted(found)]


def _tensors(graph: Any) -> Iterator[Any]:
    """All constants of a graph and of the graphs in its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def examine(detector: Detector, given: Given, log: Callable[[str], None]) -> list[gate.Finding]:
    """What can be known of a graph without its model: that boxes and logits are such, and that no image depends on the
    others of its batch, or, where a batch is one image, on the one before. Raises ``ModelError`` when boxes or logits
    are not such; differences are findings.
    """
    findings: list[gate.Finding] = []
    asked = np.arange(len(detector.spec.labels))
    fitting = 0
    for size in gate.SMALL:
        try:
            inputs = detector.preprocess(gate.draw(*size))
        except ModelError as exc:
            log(f"a picture of {size[1]}x{size[0]}: {exc.message}")
            continue
        fitting += 1
        alone = detector.run(stack([inputs]), [asked])
        _check_ranges(detector, alone, given.hint)
        detector.decode(alone, 0, size, asked, FLOOR)
        findings += _slots(detector, size, inputs, alone)
    if not fitting:
        raise ModelError(f"{detector.session.model.name}: no picture fits any of its sizes", hint=given.hint)
    return findings


def _check_ranges(detector: Detector, outputs: Mapping[str, Array], hint: str) -> None:
    logits, boxes = outputs["logits"], outputs["boxes"]
    name = detector.session.model.name
    if logits.size and logits.min() >= 0 and logits.max() <= 1:
        raise ModelError(f"{name}: all logits are in [0, 1], as if they had been through a sigmoid", hint=hint)
    if boxes.size and not (boxes.min() >= 0 and boxes.max() <= 1):
        least, most = float(boxes.min()), float(boxes.max())
        raise ModelError(f"{name}: boxes are in [{least:g}, {most:g}], not fractions of the input", hint=hint)
    if boxes.size and bool((boxes[..., 2:] >= boxes[..., :2]).all()):
        # Of centres and sizes some box is always narrower than it is far from the left.
        raise ModelError(f"{name}: boxes look like corners x1, y1, x2, y2; wanted centre and size", hint=hint)


def _slots(
    detector: Detector, size: tuple[int, int], inputs: Mapping[str, Array], alone: Mapping[str, Array]
) -> list[gate.Finding]:
    """The same picture in every slot of a batch among mirrored ones of other levels; of a batch of one, after such."""
    batch = detector.spec.batch
    findings = []
    picture, told = gate.draw(*size), f"picture of {size[1]}x{size[0]}"
    others = [detector.preprocess(np.roll(picture, 37 * k, axis=1)[::-1] // k) for k in range(1, max(batch, 2))]
    asked = np.arange(len(detector.spec.labels))
    for slot in range(batch):
        if batch == 1:
            detector.run(stack(others), [asked])
        rows = [inputs] if batch == 1 else [*others[:slot], inputs, *others[slot:]]
        found = detector.run(stack(rows), [asked] * batch)
        check = f"{told} after another" if batch == 1 else f"{told} in slot {slot} of {batch} against alone"
        for name in ("logits", "boxes"):
            difference = float(np.abs(found[name][slot] - alone[name][0]).max(initial=0))
            findings.append(gate.Finding("whole", check, name, difference, gate.TOLERANCE, alone[name][0].size))
    return findings
