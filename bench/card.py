"""What has to be seen on a card, in under five minutes: kernels, the path of the data through three detectors, and
programs of torch as they are shipped (``card_programs``).

``python -m tallymill.bench.card`` needs torch, Triton and transformers; its last line is JSON. With ``--cpu --small``
the same code runs on the CPU with small models, without the kernels and CUDA graphs. Weights are random: speeds depend
on shapes alone. The three detectors run modules of transformers as they are, and their bfloat16 is that of autocast:
it is NOT WHAT IS SHIPPED, and only a first number; what is exported keeps more in float32, by a choice of its own. It
HAS NOT BEEN RUN ON A CARD.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from tallymill.bench.faults import fault_of
from tallymill.bench.pairs import aligned
from tallymill.engine.batch import ItemBatch, batch_of
from tallymill.engine.clock import StageClock
from tallymill.engine.items import read_items
from tallymill.engine.numbench.scores import ScorePlan
from tallymill.engine.pipeline import Pipeline
from tallymill.engine.proposals import Proposals
from tallymill.engine.proposer import DetectOptions, WindowProposer
from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import MissingExtraError, TallymillError, UsageError
from tallymill.exporters.pairing import Bounds, apart

FAMILIES = ("owlvit", "grounding_dino", "ow_detr")
CATEGORIES = ("cat", "dog")
IMAGES, SIDE, ROUNDS = 32, 800, 3
SMALL_IMAGES, SMALL_SIDE = 4, 120
# Nothing is suppressed where two paths are compared: near ties would be suppressed either way.
COMPARED, TIMED = DetectOptions(0.05, 1.0, ()), DetectOptions(0.05, 0.5, ())
BOX, SCORE = 0.1, 1e-3  # pixels and confidence, between pixels prepared on the host and on the card


def run(*, cpu: bool = False, small: bool = False, models: Sequence[str] = FAMILIES) -> dict[str, Any]:
    """Check each model, then time it; what is wrong is told in the result, so that the rest is seen too.

    Raises ``UsageError`` where there is no card, and the CPU was not asked for.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch = _torch(cpu)
    device = "cpu" if cpu else "cuda:0"
    return {
        "bench": "card",
        "device": _about(torch, device),
        "kernels": [] if cpu else _kernels(),
        "programs": _programs(torch, device, small),
        "models": [_model(torch, family, device, small) for family in models],
    }


def _kernels() -> list[dict[str, Any]]:
    """Every case of ``bench.gpu``, compared with the CPU and not timed."""
    from tallymill.bench.gpu import arrays
    from tallymill.bench.gpu_cases import CASES

    found = []
    for cases in CASES:
        for case in cases("cuda", False):
            fault = fault_of(partial(_same, case, arrays))
            found.append({"operation": case.operation, "size": case.size, "fault": fault})
    return found


def _same(case: Any, arrays: Callable[[Any], Any]) -> None:
    case.check(arrays(case.run()), arrays(case.cpu()))


def _programs(torch: Any, device: str, small: bool) -> list[dict[str, Any]]:
    from tallymill.bench.card_programs import programs

    return programs(torch, device, small)


def _model(torch: Any, family: str, device: str, small: bool) -> dict[str, Any]:
    from tallymill.bench.card_models import open_random

    side = SMALL_SIDE if small else SIDE
    files = _files(SMALL_IMAGES if small else IMAGES, side)
    detector, precision = open_random(family, device, small=small)
    here, there = WindowProposer(detector, place=device), WindowProposer(detector)
    there.place = None  # the session is where it was; pixels are prepared, and boxes suppressed, on the host
    found: dict[str, Any] = {"model": family, "images": len(files), "side": side}

    def check() -> None:
        found.update(_compare(_detect(here, files, COMPARED), _detect(there, files, COMPARED)))

    found["fault"] = fault_of(check)
    for name in ("fp32", "bf16"):
        precision.name = name

        def measure(name: str = name) -> None:
            found[f"{name}_images_per_s"] = round(_speed(torch, here, files, device), 2)

        found["fault"] = fault_of(measure) or found["fault"]
    return found


def _compare(ours: Proposals, theirs: Proposals) -> dict[str, float]:
    """Largest differences of boxes and confidences, target by target; each box has a partner of its own (``apart``)."""
    if list(ours.errors) != list(theirs.errors) or not np.array_equal(ours.offsets, theirs.offsets):
        raise TallymillError(f"other numbers of boxes: {np.diff(ours.offsets)}, {np.diff(theirs.offsets)}")
    box = score = 0.0
    compared = 0
    for first, last in pairwise(ours.offsets.tolist()):
        for target in range(len(CATEGORIES)):
            mine, other = (_of_target(answer, slice(first, last), target) for answer in (ours, theirs))
            found = apart(mine, other, Bounds(BOX, SCORE))
            box, score, compared = max(box, found.box), max(score, found.score), compared + found.compared
    if not (box <= BOX and score <= SCORE):
        raise TallymillError(f"boxes differ by {box:.3g} pixels, confidences by {score:.3g}")
    return {"boxes": compared, "box_difference": box, "score_difference": score}


def _of_target(answer: Proposals, rows: slice, target: int) -> tuple[Any, Any]:
    """Boxes and confidences of an image that are of one target."""
    here = answer.target[rows] == target
    return answer.boxes[rows][here], answer.confidence[rows][here]


def _speed(torch: Any, proposer: WindowProposer, files: Sequence[bytes], device: str) -> float:
    """Images a second from files to retained boxes, the median of some rounds after one that is not counted."""
    seconds = []
    for _ in range(ROUNDS + 1):
        begun = time.perf_counter()
        _detect(proposer, files, TIMED)
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return len(files) / median(seconds[1:])


def _detect(proposer: WindowProposer, files: Sequence[bytes], options: DetectOptions) -> Proposals:
    name = proposer.spec.name
    pipe = Pipeline([proposer], ScorePlan((name,), (1.0,)), options, ImageReader(None), SIDE * SIDE, StageClock())
    return pipe.detect(_batch(files), {name})[name]


def _batch(files: Sequence[bytes]) -> ItemBatch:
    import pyarrow as pa

    targets = [{"category": category, "count": 1} for category in CATEGORIES]
    rows = [{"item_id": str(k), "image": f"{k}.jpg", "targets": targets} for k in range(len(files))]
    batch = batch_of(next(read_items(pa.Table.from_pylist(rows))))
    batch.contents = list(files)
    return batch


def _files(images: int, side: int) -> list[bytes]:
    """JPEG files of square pictures, each of other colours."""
    from PIL import Image

    rng = np.random.default_rng(0)
    files = []
    for _ in range(images):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 12, 3)).astype(np.uint8))
        stream = io.BytesIO()
        coarse.resize((side, side), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
        files.append(stream.getvalue())
    return files


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["model", "boxes", "pixels apart", "confidence apart", "fp32 images/s", "autocast images/s", ""]]
    for model in result["models"]:
        apart = [f"{model.get(key, float('nan')):.2g}" for key in ("box_difference", "score_difference")]
        speeds = [f"{model.get(f'{precision}_images_per_s', float('nan')):.2f}" for precision in ("fp32", "bf16")]
        rows.append([model["model"], str(model.get("boxes", "")), *apart, *speeds, model["fault"] or "fine"])
    wrong = [f"{each['operation']}, {each['size']}: {each['fault']}" for each in result["kernels"] if each["fault"]]
    kernels = f"{len(result['kernels'])} cases of kernels, {len(wrong)} with a fault"
    about = ", ".join(f"{key} {value}" for key, value in result["device"].items())
    return "\n".join([about, kernels, *wrong, "", aligned(rows), "", aligned(_programs_told(result["programs"]))])


def _programs_told(programs: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [["program of torch", "precision", "CUDA graphs", "of the bound", "images/s", ""]]
    for each in programs:
        found = [
            f"{each.get(key, float('nan')):.{digits}}" for key, digits in (("of_bound", "2g"), ("images_per_s", "2f"))
        ]
        rows.append([each["program"], each["precision"], each["graphs"], *found, each["fault"] or "fine"])
    return rows


def faults(result: dict[str, Any]) -> int:
    """How many checks found something wrong."""
    checked = [*result["kernels"], *result["programs"], *result["models"]]
    return sum(each["fault"] is not None for each in checked)


def _torch(cpu: bool) -> Any:
    with MissingExtraError.unless("torch", "transformers", extra="export"):
        import torch
        import transformers  # noqa: F401 -- only whether it is there
    if not cpu and not torch.cuda.is_available():
        raise UsageError("there is no GPU here that torch can use", hint="--cpu --small runs the same code without one")
    return torch


def _about(torch: Any, device: str) -> dict[str, Any]:
    import transformers

    name = "the CPU" if device == "cpu" else torch.cuda.get_device_properties(device).name
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "transformers": transformers.__version__}
    return {"name": name, **versions}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, then JSON. 2 where it cannot run, 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tallymill.bench.card", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="run on the CPU, without the kernels")
    parser.add_argument("--small", action="store_true", help="small models and images")
    chosen = parser.parse_args(arguments)
    try:
        result = run(cpu=chosen.cpu, small=chosen.small)
    except TallymillError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)  # noqa: T201
        return 2
    print(table(result))  # noqa: T201
    print(json.dumps(result))  # noqa: T201
    return 1 if faults(result) else 0


if __name__ == "__main__":
    sys.exit(main())
