"""PhysCount in a real lmms-eval, which `make vllm-env` installs: the numbers of ``tallymill physcount score``."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.request import independent_prompt

ROOT = Path(__file__).parents[3]
TASKS = ROOT / "integrations" / "lmms_eval"
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"


@pytest.fixture(scope="session", autouse=True)
def installed():
    assert PYTHON.exists(), "make vllm-env installs lmms-eval"


def offline(command, dataset, tmp_path):
    """What a command prints in the data's folder, with tallymill to import and without the net."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    done = subprocess.run(
        command, cwd=dataset.root, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def run(dataset, responses, tmp_path, limit=0):
    """The task, answered from a file."""
    path = tmp_path / "responses.json"
    path.write_text(json.dumps(responses), "utf-8")
    driver = Path(__file__).with_name("driver.py")
    return json.loads(offline([PYTHON, driver, TASKS, path, str(limit)], dataset, tmp_path).splitlines()[-1])


def test_lmms_eval_gives_our_numbers(dataset, responses, ours, tmp_path):
    found = run(dataset, responses, tmp_path)
    assert {name: found["results"][f"{name},none"] for name in ours} == ours
    [[context, options, picture]] = found["asked"]
    assert context == independent_prompt(dataset.questions[0].question)
    assert (options["max_new_tokens"], options["until"], picture) == (32768, [], [768, 512, "RGB"])


def test_of_a_part_only_its_groups_count(dataset, responses, score_by_name, physcount_example, tmp_path):
    groups = [*dataset.groups.values()][:2]
    asked = [question.question_id for group in groups for question in group.questions]
    assert asked == [question.question_id for question in dataset.questions[: len(asked)]]
    found = run(dataset, responses, tmp_path, limit=len(asked))["results"]
    part = physcount_example.write_run(tmp_path / "run", dataset, {key: responses[key] for key in asked})
    record = json.loads((part / "run.json").read_text("utf-8"))
    record["selection"]["group_ids"] = [group.group_id for group in groups]
    (part / "run.json").write_text(json.dumps(record), "utf-8")
    expected = score_by_name(part)
    assert {name: found[f"{name},none"] for name in expected} == expected
    assert len(FAMILIES) * 2 + 3 == len(expected)


def test_the_command_of_the_readme(dataset, score_by_name, physcount_example, tmp_path):
    """With a model of lmms-eval that always says the same."""
    [line] = re.findall(r"^\$ (lmms-eval .*)$", (TASKS / "README.md").read_text("utf-8"), re.M)
    said = {"…/integrations/lmms_eval": str(TASKS), "…": "dummy"}
    command, *arguments = [said.get(word, word) for word in shlex.split(line)]
    arguments += ["--model_args", "response=3", "--output_path", str(tmp_path / "out")]
    offline([PYTHON.with_name(command), *arguments], dataset, tmp_path)
    [path] = (tmp_path / "out").rglob("*_results.json")
    found = json.loads(path.read_text("utf-8"))["results"]["physcount"]
    threes = {question.question_id: "3" for question in dataset.questions}
    expected = score_by_name(physcount_example.write_predictions(tmp_path / "p.jsonl", threes))
    assert {name: found[f"{name},none"] for name in expected} == expected
