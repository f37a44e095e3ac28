"""PhysCount as a task of lmms-eval gives the numbers of ``tallymill physcount score``."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tallymill import physcount
from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.request import independent_prompt

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "integrations" / "lmms_eval"
# An environment of its own: lmms-eval brings torch and much else.
PYTHON = ROOT / ".venv-lmms" / "bin" / "python"
with_lmms_eval = pytest.mark.skipif(not PYTHON.exists(), reason="lmms-eval is not installed in .venv-lmms")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return physcount.example(tmp_path_factory.mktemp("lmms") / "set", scenes_wanted=4)


@pytest.fixture(scope="module")
def responses(dataset):
    """One of every kind: right, wrong, with thoughts, cut off in them, prose, nothing, a failed request."""
    forms = ["{}", " {}\n", "1{}", "<think>9?</think>{}", "<think>{}", "It is {}.", "", "[LMMS_EVAL_REQUEST_FAILED] {}"]
    chosen = [forms[0] if k % 3 else forms[k // 3 % len(forms)] for k in range(len(dataset.questions))]
    return {q.question_id: form.format(q.answer) for q, form in zip(dataset.questions, chosen, strict=True)}


@pytest.fixture(scope="module")
def ours(dataset, responses, physcount_example, tmp_path_factory):
    """What the command finds, by the names of the task's metrics."""
    path = physcount_example.write_predictions(tmp_path_factory.mktemp("ours") / "p.jsonl", responses)
    [found] = physcount.score(dataset.root, path, resamples=0)
    return metrics_of(found)


def metrics_of(found):
    values = {name: getattr(found.headline, name).value for name in ("score", "group_acc", "phys_gnd")}
    for row in found.families:
        values |= {f"{row.family}_{kind}": getattr(row, kind).value for kind in ("nae", "mae")}
    return values


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


def run(dataset, responses, tmp_path, limit=0):
    """lmms-eval on the drawn data, offline."""
    path = tmp_path / "responses.json"
    path.write_text(json.dumps(responses), "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    driver = Path(__file__).with_name("lmms_eval_driver.py")
    done = subprocess.run(
        [PYTHON, driver, TASKS, path, str(limit)],
        cwd=dataset.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@with_lmms_eval
def test_lmms_eval_gives_our_numbers(dataset, responses, ours, tmp_path):
    found = run(dataset, responses, tmp_path)
    assert {name: found["results"][f"{name},none"] for name in ours} == ours
    [[context, options, picture]] = found["asked"]
    assert context == independent_prompt(dataset.questions[0].question)
    assert (options["max_new_tokens"], options["until"], picture) == (32768, [], [768, 512, "RGB"])


@with_lmms_eval
def test_of_a_part_only_its_groups_count(dataset, responses, physcount_example, tmp_path):
    groups = [*dataset.groups.values()][:2]
    asked = [question.question_id for group in groups for question in group.questions]
    assert asked == [question.question_id for question in dataset.questions[: len(asked)]]
    found = run(dataset, responses, tmp_path, limit=len(asked))["results"]
    part = physcount_example.write_run(tmp_path / "run", dataset, {key: responses[key] for key in asked})
    record = json.loads((part / "run.json").read_text("utf-8"))
    record["selection"]["group_ids"] = [group.group_id for group in groups]
    (part / "run.json").write_text(json.dumps(record), "utf-8")
    [ours] = physcount.score(dataset.root, part, resamples=0)
    expected = metrics_of(ours)
    assert {name: found[f"{name},none"] for name in expected} == expected
    assert len(FAMILIES) * 2 + 3 == len(expected)
