"""Questions asked of a real vLLM: answers, the cache, refusals, and runs that are killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.physcount.predictions import read_predictions
from tallymill.runners.physcount.ask import ask
from tallymill.runners.physcount.plan import AskSettings
from tallymill.runners.physcount.score import score

SETTINGS = AskSettings(max_tokens=64, temperature=0.0)
BLOCK = 32


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "answers.jsonl").read_bytes().split(b"\n")[:-1]]


def questions(run: Path) -> list[str]:
    return [question for row in rows(run) for question in row["question_ids"]]


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(") ")[2][0] not in "ZX"


def descendants(pid: int) -> list[int]:
    """All processes that a process started, and those that these started."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *descendants(child)]
    return found


def wait_for(condition, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def command(data, run, *more) -> list[str]:
    arguments = ["physcount", "ask", "--data", data.root, "--out", run, "--max-tokens", 64, "--temperature", 0, *more]
    return [sys.executable, "-c", "from tallymill.cli import main; main()", *map(str, arguments)]


def test_one_question_after_another_and_its_row_of_scores(server, data, tmp_path):
    before = server.tokens()
    summary = ask(data.root, tmp_path / "RUN", endpoint=server.url, model="tiny", settings=SETTINGS)
    asked, found = (after - then for after, then in zip(server.tokens(), before, strict=True))
    assert summary.answered == len(data.questions)
    assert sorted(questions(tmp_path / "RUN")) == sorted(question.question_id for question in data.questions)
    assert {str(row["response"]) for row in rows(tmp_path / "RUN")} <= {str(digit) for digit in range(10)}

    # What the server tells with each answer is what it counts itself.
    assert (summary.prompt_tokens, summary.cached_tokens) == (asked, found)
    # Of every question but the first about an image, the image and the instructions come from the cache: all of its
    # whole blocks up to where the questions begin to differ.
    cached = [row["usage"]["cached_tokens"] for row in rows(tmp_path / "RUN")]
    assert sum(tokens == 0 for tokens in cached) == len(data.image_ids)
    assert all(tokens % BLOCK == 0 for tokens in cached)
    assert found / asked > 0.6
    print(f"\n{asked} prompt tokens, {found} of them cached")

    [scored] = score(data.root, tmp_path / "RUN")
    assert scored.statuses.valid == len(data.questions)
    assert scored.headline.score.value is not None


def test_all_questions_of_a_group_at_once(server, data, tmp_path):
    settings = AskSettings(mode="joint", max_tokens=64, temperature=0.0)
    summary = ask(data.root, tmp_path / "RUN", endpoint=server.url, model="tiny", settings=settings)
    assert summary.answered == len(data.questions)
    assert len(rows(tmp_path / "RUN")) == len(data.groups)
    # The tiny model says a digit, where an array is asked for.
    answers = read_predictions(tmp_path / "RUN", data).answers
    assert {answer.parsed.status for answer in answers.values()} == {"malformed"}


def test_an_image_that_is_refused_is_a_row(server, data, tmp_path):
    root = tmp_path / "set"
    shutil.copytree(data.root, root)
    bad = data.questions[0]
    strip = Image.fromarray(np.zeros((2, 1200, 3), np.uint8))  # Qwen's processor takes no image of 600 to 1
    strip.save(root / bad.image, "JPEG" if bad.image.endswith("jpg") else "PNG")
    summary = ask(root, tmp_path / "RUN", endpoint=server.url, model="tiny", settings=SETTINGS)
    struck = {question.question_id for question in data.questions if question.image == bad.image}
    refused = [row for row in rows(tmp_path / "RUN") if row["status"] == "refused"]
    assert {question for row in refused for question in row["question_ids"]} == struck
    assert {(row["http_status"], row["response"]) for row in refused} == {(400, None)}
    assert summary.answered == len(data.questions) - len(struck)
    print("\n" + refused[0]["error"])


def test_a_limit_beyond_the_model_is_told(server, data, tmp_path):
    with pytest.raises(Exception, match="max_model_len") as caught:
        ask(data.root, tmp_path / "RUN", endpoint=server.url, model="tiny")
    assert "--max-tokens" in str(caught.value)
    assert rows(tmp_path / "RUN") == []


def test_a_run_that_is_killed_goes_on(server, data, tmp_path):
    run, concurrency = tmp_path / "RUN", 2
    more = ("--endpoint", server.url, "--model", "tiny", "--concurrency", concurrency)
    child = subprocess.Popen(command(data, run, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    answers = run / "answers.jsonl"
    assert wait_for(lambda: answers.exists() and answers.read_bytes().count(b"\n") >= 10, 120)
    child.kill()
    child.wait()
    kept = answers.read_bytes().rpartition(b"\n")[0]
    done = kept.count(b"\n") + 1
    assert 10 <= done < len(data.questions)

    summary = ask(data.root, run, endpoint=server.url, model="tiny", settings=SETTINGS)
    assert summary.answered == len(data.questions)
    assert answers.read_bytes().startswith(kept)
    assert len(questions(run)) == len(set(questions(run))) == len(data.questions)
    assert summary.speed.requests == len(data.questions) - done
    assert ask(data.root, run, endpoint=server.url, model="tiny", settings=SETTINGS) == summary


def test_the_server_goes_with_us_and_comes_again(serve, data, tmp_path):
    run = tmp_path / "RUN"
    more = ["--serve", serve.model, "--model", "tiny", "--vllm-python", serve.python]
    more += [f"--vllm-arg={argument}" for argument in serve.arguments]
    child = subprocess.Popen(command(data, run, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    answers = run / "answers.jsonl"
    assert wait_for(lambda: answers.exists() and answers.stat().st_size, 600)
    pids = descendants(child.pid)
    assert len(pids) >= 3  # the keeper, the server and its engine
    child.kill()
    child.wait()
    assert wait_for(lambda: not any(map(alive, pids)), 60)

    again = subprocess.Popen(command(data, run, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen: set[int] = set()
    assert wait_for(lambda: seen.update(descendants(again.pid)) or again.poll() is not None, 600)
    assert again.returncode == 0
    assert len(seen) >= 3
    assert not any(map(alive, seen))
    assert json.loads((run / "summary.json").read_text())["answered"] == len(data.questions)
    assert len(questions(run)) == len(set(questions(run)))
    assert "Application startup complete" in (run / "server.log").read_text()


def test_ctrl_c_while_the_server_starts(serve, data, tmp_path):
    more = ["--serve", serve.model, "--vllm-python", serve.python]
    child = subprocess.Popen(command(data, tmp_path / "RUN", *more), stderr=subprocess.PIPE, text=True)
    assert wait_for(lambda: len(descendants(child.pid)) >= 2, 120)
    pids = descendants(child.pid)
    child.send_signal(signal.SIGTERM)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 1
    assert f"stopped: 0 of {len(data.questions)} questions are answered and kept" in err
    assert not any(map(alive, pids))
