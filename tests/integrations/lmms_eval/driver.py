"""Runs the task in lmms-eval with a model that answers from a file: driver.py TASKS RESPONSES LIMIT -> JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lmms_eval.api.model import lmms  # type: ignore[import-not-found]
from lmms_eval.evaluator import simple_evaluate  # type: ignore[import-not-found]
from lmms_eval.tasks import TaskManager  # type: ignore[import-not-found]


class FromFile(lmms):
    """Finds a response by the prompt and looks at the picture that goes with it."""

    def __init__(self, responses: dict[str, str]) -> None:
        super().__init__()
        self.responses = responses
        self.asked: list[object] = []

    def loglikelihood(self, requests):
        raise NotImplementedError

    def generate_until_multi_round(self, requests):
        raise NotImplementedError

    def generate_until(self, requests):
        said = []
        for request in requests:
            context, options, doc_to_visual, doc_id, task, split = request.args
            doc = self.task_dict[task][split][doc_id]
            [picture] = doc_to_visual(doc)
            self.asked.append([context, options, [*picture.size, picture.mode]])
            said.append(self.responses[doc["question_id"]])
        return said


tasks, responses, limit = sys.argv[1:]
model = FromFile(json.loads(Path(responses).read_text("utf-8")))
found = simple_evaluate(
    model,
    tasks=["physcount"],
    task_manager=TaskManager(include_path=tasks),
    limit=int(limit) or None,
    bootstrap_iters=0,
)
print(json.dumps({"results": found["results"]["physcount"], "asked": model.asked[:1]}))
