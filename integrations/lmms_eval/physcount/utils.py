"""PhysCount as a task of lmms-eval: it asks, and tallymill reads the answers and scores them.

The same responses give the same numbers as ``tallymill physcount score``. lmms-eval does not tell why a response ended:
one that was cut off counts as what it says, unless its thoughts do not end.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from tallymill.engine.physcount.data import FAMILIES, Dataset, read_dataset
from tallymill.engine.physcount.parse import parse_answer
from tallymill.engine.physcount.picture import to_send
from tallymill.engine.physcount.predictions import Answer, predictions_of
from tallymill.engine.physcount.request import independent_prompt
from tallymill.engine.physcount.results import Scores
from tallymill.engine.physcount.score import score as scores_of

# What lmms-eval's clients write where a request failed.
FAILED = "[LMMS_EVAL_REQUEST_FAILED"
Row = dict[str, Any]
Metric = Callable[[Sequence[Row]], float | None]


def picture(doc: Row, _kwargs: Row | None = None) -> list[Image.Image]:
    """The image as the paper has it sent: upright, its long edge at most 4,096 pixels."""
    with Image.open(io.BytesIO(to_send(Path(doc["image"]).read_bytes()).data)) as image:
        return [image.convert("RGB")]


def prompt(doc: Row, _kwargs: Row | None = None) -> str:
    """The paper's words around the question."""
    return independent_prompt(doc["question"])


def responses(doc: Row, results: Sequence[str]) -> dict[str, Row]:
    """The response under the name of every metric, for all of them are of groups and not of questions."""
    response = None if results[0].startswith(FAILED) else results[0]
    row = {"question_id": str(doc["question_id"]), "response": response}
    return dict.fromkeys(_METRICS, row)


def _scores(rows: Sequence[Row]) -> Scores:
    """What tallymill makes of these responses. Of a part (``--limit``) only the groups in it count."""
    return _scored(tuple((row["question_id"], row["response"]) for row in rows))


@lru_cache(maxsize=2)
def _scored(said: tuple[tuple[str, str | None], ...]) -> Scores:
    answers = {key: Answer(parse_answer(response), response) for key, response in said}
    dataset = _dataset(Path.cwd())
    groups = {question.group_id for question in dataset.questions if question.question_id in answers}
    return scores_of(predictions_of("lmms-eval", dataset, answers, groups), resamples=0)


@lru_cache(maxsize=1)
def _dataset(root: Path) -> Dataset:
    return read_dataset(root)


def _of_family(family: str, kind: str) -> Metric:
    def metric(rows: Sequence[Row]) -> float | None:
        [found] = [one for one in _scores(rows).families if one.family == family]
        value: float | None = getattr(found, kind).value
        return value

    return metric


def _of_all(name: str) -> Metric:
    def metric(rows: Sequence[Row]) -> float | None:
        value: float | None = getattr(_scores(rows).headline, name).value
        return value

    return metric


score, group_acc, phys_gnd = (_of_all(name) for name in ("score", "group_acc", "phys_gnd"))
appearance_nae, entity_nae, image_formation_nae, correspondence_nae = (_of_family(name, "nae") for name in FAMILIES)
appearance_mae, entity_mae, image_formation_mae, correspondence_mae = (_of_family(name, "mae") for name in FAMILIES)
_METRICS = ("score", "group_acc", "phys_gnd", *(f"{family}_{kind}" for kind in ("nae", "mae") for family in FAMILIES))
