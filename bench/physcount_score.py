"""How fast the answers of 40 models become PhysCount's tables, with intervals.

A dataset of the published size (546 images, 651 groups, 4,595 questions) and a file of predictions a model are drawn in
a temporary folder, and scored in processes of their own, with the import: without intervals, with them, and with them
and all files. The first model has every answer right, so that nothing is timed that is wrong.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tallymill.engine.physcount.data import ANNOTATIONS, FAMILIES, MODES, QUESTIONS
from tallymill.engine.physcount.published import TOTALS
from tallymill.errors import TallymillError

MODELS, RESAMPLES, REPEATS, TARGET = 40, 2_000, 3, 5.0
_CHILD = """
import json, resource, sys, time
start = time.perf_counter()
from tallymill import physcount
from tallymill.engine.report.physcount import tables
root, out, resamples, *predictions = sys.argv[1:]
found = physcount.score(root, predictions, out or None, resamples=int(resamples))
made = [make(found) for make in (tables.leaderboard, tables.headline_table, tables.families_table, tables.parts_table,
                                 tables.counts_table, tables.statuses_table)]
seconds, busy = time.perf_counter() - start, time.process_time()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
row = {"seconds": seconds, "cpu_seconds": busy, "peak_bytes": peak, "rows": sum(len(table.rows) for table in made),
       "questions": found[0].headline.questions, "first": found[0].headline.score.value}
print(json.dumps(row))
"""


def run(models: int = MODELS, repeats: int = REPEATS) -> dict[str, Any]:
    """Draw data and predictions and score them; of ``repeats`` processes the medians."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "set"
        answers = make_dataset(root)
        paths = [make_predictions(Path(folder) / f"model-{place:02d}.jsonl", answers, place) for place in range(models)]
        found = {
            name: _measured(root, paths, out, resamples, repeats)
            for name, out, resamples in (
                ("without intervals", "", 0),
                (f"{RESAMPLES:,} resamples", "", RESAMPLES),
                (f"{RESAMPLES:,} resamples, and files", f"{folder}/scores", RESAMPLES),
            )
        }
    return {"models": models, "questions": len(answers), "target_seconds": TARGET, "scorings": found}


def table(result: dict[str, Any]) -> str:
    """The result for a person."""
    lines = [
        f"{result['models']} models x {result['questions']:,} answers, from files to tables; "
        f"target: {result['target_seconds']:g} s"
    ]
    for name, row in result["scorings"].items():
        lines.append(
            f"{name:28} {row['seconds']:6.2f} s, {row['cpu_seconds']:5.2f} s of CPU  {row['peak_bytes'] / 1e6:6.0f} MB"
        )
    return "\n".join(lines)


def make_dataset(root: Path) -> dict[str, int]:
    """A dataset of the published totals; -> true answers by question id. Its images are of one pixel."""
    groups: list[dict[str, Any]] = []
    questions: list[dict[str, Any]] = []
    rng = np.random.default_rng(0)
    per_family = dict(zip(FAMILIES, _shares(), strict=True))
    for place in range(TOTALS["groups"]):
        image = f"{place % TOTALS['images'] + 1:06d}"
        at = {"group_id": f"g{place:04d}", "image_id": image, "image": f"images/{image}.png"}
        number = _share(TOTALS["appearances"], TOTALS["groups"], place)
        groups.append({**at, "width": 1, "height": 1, "appearances": [*_appearances(number, rng)]})
        for family, shares in per_family.items():
            for which in range(shares[place]):
                key = f"{at['group_id']}-{family}-{which}"
                true = number if family == FAMILIES[0] else int(rng.integers(0, number + 1))
                text = f"How many, of the {family} kind, by the count {which}?"
                questions.append({"question_id": key, **at, "question_type": family, "question": text, "answer": true})
    for name, rows in ((QUESTIONS, questions), (ANNOTATIONS, groups)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (root / "images").mkdir()
    for place in range(1, TOTALS["images"] + 1):
        Image.new("RGB", (1, 1)).save(root / "images" / f"{place:06d}.png")
    return {row["question_id"]: row["answer"] for row in questions}


def make_predictions(path: Path, answers: dict[str, int], place: int) -> Path:
    """The answers of one model: the first knows all, each later one fewer; one in fifty answers is no number."""
    rng = np.random.default_rng([1, place])
    knows, off, odd = rng.random(len(answers)), rng.integers(-3, 4, len(answers)), rng.random(len(answers))
    with path.open("w", encoding="utf-8") as file:
        for key, true, known, wrong, strange in zip(answers, answers.values(), knows, off, odd, strict=True):
            said = str(true if known >= place / MODELS else max(0, true + int(wrong)))
            if place and strange < 0.02:
                said = f"There are {said}."
            file.write(json.dumps({"question_id": key, "response": said}) + "\n")
    return path


def _shares() -> list[list[int]]:
    """How many questions of each family each group has: some groups have none of the last two families."""
    whole = TOTALS["groups with all four families"]
    shares = []
    for family in FAMILIES:
        groups = TOTALS["groups"] if family in FAMILIES[:2] else whole
        total = TOTALS[f"{family} questions"]
        shares.append([_share(total, groups, place) if place < groups else 0 for place in range(TOTALS["groups"])])
    return shares


def _share(total: int, parts: int, place: int) -> int:
    """Whole numbers as alike as can be that come to ``total``."""
    return total // parts + (place < total % parts)


def _appearances(number: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for place in range(number):
        mode = MODES[int(rng.integers(len(MODES)))]
        x, y = rng.random(2).round(4).tolist()
        yield {"appearance_id": f"a{place}", "entity_id": f"e{place // 2}", "mode": mode, "x": x, "y": y}


def _measured(root: Path, paths: list[Path], out: str, resamples: int, repeats: int) -> dict[str, Any]:
    rows = [_measure(root, paths, out, resamples) for _ in range(repeats)]
    return {name: statistics.median(row[name] for row in rows) for name in ("seconds", "cpu_seconds", "peak_bytes")}


def _measure(root: Path, paths: list[Path], out: str, resamples: int) -> dict[str, Any]:
    command = [sys.executable, "-c", _CHILD, str(root), out, str(resamples), *map(str, paths)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout)
    if row["first"] != 100.0 or row["questions"] != TOTALS["questions"]:
        raise TallymillError(f"a model that knows all {row['questions']:,} answers has Score {row['first']}: not timed")
    return row
