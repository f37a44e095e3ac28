"""PhysCount as a task of lmms-eval, as far as it is ours. The folder lmms_eval/ runs it in the real one."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tallymill.engine.physcount.request import independent_prompt

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "integrations" / "lmms_eval"


@pytest.fixture
def utils(dataset, monkeypatch):
    """The task's functions, in the data's folder."""
    monkeypatch.chdir(dataset.root)
    spec = importlib.util.spec_from_file_location("lmms_utils", TASKS / "physcount" / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(dataset):
    return [json.loads(line) for line in (dataset.root / "data" / "questions.jsonl").read_text("utf-8").splitlines()]


def test_the_functions_give_our_numbers(dataset, responses, ours, utils):
    said = [utils.responses(row, [responses[row["question_id"]].strip()]) for row in rows_of(dataset)]
    assert said[0].keys() == ours.keys()
    assert {name: getattr(utils, name)([row[name] for row in said]) for name in ours} == ours
    assert len({*ours.values()}) > 8


def test_the_task_names_functions_that_are_there(dataset, utils):
    task = (TASKS / "physcount" / "physcount.yaml").read_text("utf-8")
    assert {name for name in re.findall(r"!function utils\.(\w+)", task) if not hasattr(utils, name)} == set()
    metrics = re.findall(r"metric: (\w+), aggregation: !function utils\.(\w+), higher_is_better: (true|false)", task)
    assert [name for name, _, _ in metrics] == [*utils.responses(rows_of(dataset)[0], ["1"])]
    assert all(name == function for name, function, _ in metrics)
    assert [better for *_, better in metrics] == ["true"] * 3 + ["false"] * 8


def test_what_is_asked(dataset, utils):
    row = rows_of(dataset)[0]
    [picture] = utils.picture(row)
    assert (picture.size, picture.mode) == ((768, 512), "RGB")
    assert utils.prompt(row) == independent_prompt(row["question"])
