"""Runs that are stopped, killed, damaged or already complete."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tallymill.engine.physcount.data import read_dataset
from tallymill.engine.physcount.predictions import read_predictions
from tallymill.errors import OutputError, RunError
from tallymill.runners.physcount.answers import AnswerLog


def test_a_complete_run_makes_no_request(asker, chat):
    first = asker()
    before = (asker.run / "answers.jsonl").read_bytes()
    chat.seen.clear()
    again = asker()
    assert chat.seen == []
    assert again == first  # with the speed of the call that asked
    assert (asker.run / "answers.jsonl").read_bytes() == before


def test_a_torn_last_line_is_asked_again(asker, chat):
    asker()
    path = asker.run / "answers.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lost = json.loads(lines[-1])["question_ids"]
    path.write_bytes(b"".join(lines[:-1]) + b'{"question_id":"b","te')
    chat.seen.clear()
    assert asker().answered == 6
    assert chat.questions == lost
    assert [row["question_ids"] for row in asker.rows()][-1] == lost


@pytest.mark.parametrize("tail", [b'{"a', b"\0" * 5000, b"x" * 200_000])
def test_whatever_has_no_end_is_cut_off(tmp_path, tail):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(b'{"a": 1}\n' + tail)
    with AnswerLog(path):
        pass
    assert path.read_bytes() == b'{"a": 1}\n'
    path.write_bytes(tail)
    with AnswerLog(path):
        pass
    assert path.read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_told(asker):
    asker()
    path = asker.run / "answers.jsonl"
    path.write_bytes(b"garbage\n" + path.read_bytes())
    with pytest.raises(RunError, match=r"answers\.jsonl, line 1"):
        asker()


def test_only_one_process_at_a_time(asker):
    asker(groups=["i0g0"])
    with AnswerLog(asker.run / "answers.jsonl"), pytest.raises(RunError, match="another process"):
        asker()
    assert asker().answered == 6


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "other"}, "model: 'tiny' in the RUN, 'other' now"),
        ({"mode": "joint"}, "mode: 'independent' in the RUN, 'joint' now"),
        ({"long_edge": 512}, "settings.long_edge: 4096 in the RUN, 512 now"),
        ({"temperature": 0.0}, "settings.temperature: None in the RUN, 0.0 now"),
        ({"top_p": 0.5, "seed": 1}, "settings.top_p: None in the RUN, 0.5 now"),
        ({"max_tokens": 9}, "settings.max_tokens: 32768 in the RUN, 9 now"),
        ({"token_field": "max_tokens"}, "settings.token_field"),
        ({"reasoning_effort": "high"}, "settings.reasoning_effort: None in the RUN, 'high' now"),
    ],
)
def test_other_settings_are_refused_with_the_differences(asker, chat, options, named):
    asker(groups=["i0g0"])
    chat.seen.clear()
    with pytest.raises(RunError) as caught:
        asker(**options)
    assert named in str(caught.value)
    assert chat.seen == []


@pytest.mark.parametrize(("first", "then"), [("joint", "independent"), ("independent", "joint")])
def test_failures_of_other_settings_stay_in_no_run(asker, chat, reply, first, then):
    """Nothing was answered yet, so the folder is free for another mode, and holds nothing of the first."""
    chat.answer = lambda _: reply.error(500)
    asker(mode=first, groups=["i0g0"], attempts=1)
    assert {row["status"] for row in asker.rows()} == {"failed"}
    chat.answer = lambda seen: "[0, 1]" if then == "joint" else seen.question[-1]
    assert asker(mode=then).answered == 6
    assert {row["status"] for row in asker.rows()} == {"answered"}
    found = read_predictions(asker.run, read_dataset(asker.data))
    assert found.mode == then
    assert {answer.parsed.status for answer in found.answers.values()} == {"valid"}


def test_other_questions_are_refused(asker):
    asker(groups=["i0g0"])
    path = asker.data / "data/questions.jsonl"
    path.write_text(path.read_text().replace("What of i2", "Which of i2"))
    with pytest.raises(RunError, match=r"data\.sha256"):
        asker()


def without(*keys):
    def edit(record):
        *above, last = keys
        inside = record
        for key in above:
            inside = inside[key]
        del inside[last]

    return edit


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (without("settings", "reasoning_effort"), "settings.reasoning_effort"),
        (without("endpoint"), "endpoint"),
        (without("served"), "served"),
        (without("versions"), "versions"),
        (lambda record: record.update(continued=[1]), "continued"),
        (lambda record: record.update(continued=[{}]), "continued"),
        (lambda record: record["settings"].update(reasoning_effort=7), "settings.reasoning_effort"),
        (lambda record: record["data"].update(questions="6"), "data.questions"),
        (lambda record: record["settings"].update(seed=10**25), "beyond all bounds"),
    ],
)
def test_a_record_that_was_edited_is_told(asker, edit, told):
    asker()
    record = asker.record()
    edit(record)
    (asker.run / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=told) as caught:
        asker()
    assert "restore run.json" in str(caught.value)


@pytest.mark.parametrize("usage", [None, "many", [1], {"prompt_tokens": "7"}, {"prompt_tokens": 10**25}])
def test_a_usage_that_was_edited_counts_nothing(asker, usage):
    asker()
    rows = [{**row, "usage": usage} for row in asker.rows()]
    (asker.run / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = asker()
    assert (summary.answered, summary.prompt_tokens) == (6, None)


@pytest.mark.parametrize(
    "speed",
    [
        "fast",
        [],
        {"questions": "6", "requests": 6, "seconds": 1.0, "questions_per_second": 6.0},
        {"questions": 6, "requests": 10**100, "seconds": 1.0, "questions_per_second": 6.0},
        {"questions": 6, "requests": 6, "seconds": None, "questions_per_second": 6.0},
        {"questions": 6, "requests": 6, "seconds": float("inf"), "questions_per_second": 6.0},
        {"questions": 6, "requests": 6, "seconds": -1.0, "questions_per_second": 6.0},
    ],
)
def test_a_speed_that_was_edited_is_left_aside(asker, speed):
    first = asker()
    summary = asker.run / "summary.json"
    assert asker().speed == first.speed
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "speed": speed}))
    assert asker().speed is None
    summary.write_text("[" * 100_000)
    assert asker().speed is None


def test_a_server_that_moved_is_noted(asker, chat):
    asker(groups=["i0g0"])
    asker(endpoint=chat.url + "/")
    assert "continued" not in asker.record()
    asker(endpoint=chat.url.replace("127.0.0.1", "localhost"))
    asker(endpoint=chat.url.replace("127.0.0.1", "localhost"))
    [moved] = asker.record()["continued"]
    assert "//localhost:" in moved["endpoint"]
    assert asker.record()["endpoint"] == chat.url


def test_a_folder_of_something_else(asker, chat):
    asker.run.mkdir()
    (asker.run / "thesis.tex").write_text("")
    with pytest.raises(RunError, match="is not empty"):
        asker()
    (asker.run / "thesis.tex").unlink()
    (asker.run / "run.json").write_text('{"manifest": {}}')
    with pytest.raises(RunError, match="not of PhysCount"):
        asker()
    assert chat.seen == []


def ask_command(asker, command_line, *more):
    arguments = ["--data", asker.data, "--out", asker.run, "--endpoint", asker.chat.url, "--model", "tiny", *more]
    return [*command_line, "physcount", "ask", *map(str, arguments)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_killed_goes_on(asker, chat, dataset_at, tmp_path, command_line, how):
    """Nothing is lost or asked twice but what was in flight."""
    asker.data = dataset_at(tmp_path / "many", images=10, questions=10)
    enough, concurrency = threading.Event(), 4

    async def slow(seen):
        if len(chat.seen) >= 40:
            enough.set()
        await asyncio.sleep(0.03)
        return seen.question[-1]

    chat.answer = slow
    child = subprocess.Popen(
        ask_command(asker, command_line, "--concurrency", concurrency),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert enough.wait(60)
    child.send_signal(how)
    _, err = child.communicate(timeout=60)
    assert child.returncode == (-how if how == signal.SIGKILL else 1)
    kept = asker.by_question()
    assert 0 < len(kept) < 100
    if how != signal.SIGKILL:
        assert f"stopped: {len(kept)} of 100 questions are answered and kept; the same command goes on" in err
        assert "Traceback" not in err

    first = {one.question for one in chat.seen}
    assert len(first - set(kept)) <= concurrency  # answered perhaps, but not kept
    chat.seen.clear()
    assert asker(reasoning_effort="auto").answered == 100
    assert set(chat.questions) == {f"i{i}g0q{q}" for i in range(10) for q in range(10)} - set(kept)
    assert len(chat.questions) == len(set(chat.questions))
    assert len(asker.rows()) == 100
    assert {key: row["response"] for key, row in asker.by_question().items()} == {
        f"i{i}g0q{q}": str(q) for i in range(10) for q in range(10)
    }


def test_what_is_not_synced_is_not_done(asker, monkeypatch):
    """A disk that is full stops the run; what was counted is there."""
    real, calls = os.fsync, []

    def full(file):
        if Path("/proc/self/fd", str(file)).readlink().name == "answers.jsonl":
            calls.append(file)
            if len(calls) > 2:
                raise OSError(28, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    done = []

    class Progress:
        def start(self, *_):
            pass

        def advance(self, items, _):
            done.append(items)

    with pytest.raises(OutputError, match=r"answers\.jsonl cannot be written: No space left") as caught:
        asker(concurrency=1, progress=Progress())
    assert "make room" in str(caught.value)
    assert sum(done) == 2
    monkeypatch.setattr(os, "fsync", real)
    assert asker().answered == 6


def test_nothing_follows_a_line_that_was_torn(tmp_path, monkeypatch):
    """A disk that is full takes a part of a line, and then has room again."""
    real, calls = os.write, []

    def half(file, data):
        calls.append(file)
        if len(calls) == 1:
            return real(file, bytes(data)[:5])
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(file, data)

    async def write():
        with AnswerLog(tmp_path / "answers.jsonl") as log:
            monkeypatch.setattr(os, "write", half)
            for n in (1, 2):
                with pytest.raises(OutputError, match="No space left"):
                    await log.append({"n": n})

    asyncio.run(write())
    assert (tmp_path / "answers.jsonl").read_text() == '{"n":'
    with AnswerLog(tmp_path / "answers.jsonl"):
        pass
    assert (tmp_path / "answers.jsonl").read_text() == ""


def test_one_sync_for_all_that_came_meanwhile(tmp_path, monkeypatch):
    real, syncs = os.fsync, []

    def slow(file):
        syncs.append(file)
        time.sleep(0.05)
        real(file)

    monkeypatch.setattr(os, "fsync", slow)

    async def write():
        with AnswerLog(tmp_path / "answers.jsonl") as log:
            await asyncio.gather(*(log.append({"n": n}) for n in range(200)))

    asyncio.run(write())
    lines = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == list(range(200))
    assert len(syncs) <= 3  # one of them for the name of the file


def test_a_record_gets_there_though_nobody_waits(tmp_path):
    async def write():
        with AnswerLog(tmp_path / "answers.jsonl") as log:
            task = asyncio.create_task(log.append({"n": 1}))
            await asyncio.sleep(0)
            task.cancel()
            await log.flush()

    asyncio.run(write())
    assert (tmp_path / "answers.jsonl").read_text() == '{"n": 1}\n'


def test_a_loop_that_runs_already_is_no_hindrance(asker):
    """As in a notebook."""

    async def notebook():
        return asker()

    assert asyncio.run(notebook()).answered == 6
