from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.engine.physcount.run_files import read_answers
from tallymill.errors import RunError
from tallymill.runners.abacus import questions

# Spots 4 and 5 are seen by one of the two detectors alone.
UNSURE = ("add 3 cats", (0,), (0, 1, 4, 5))


class Server:
    """A chat server that says what ``answer`` gives, once it has an image; a number is an HTTP status."""

    def __init__(self) -> None:
        self.answer = lambda: "yes"
        self.bodies: list[Any] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.bodies.append(body)
                Image.open(
                    io.BytesIO(
                        base64.b64decode(body["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2])
                    )
                ).load()
                said = server.answer()
                choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
                reply = json.dumps({"choices": [choice]}).encode()
                self.send_response(said if isinstance(said, int) else 200)
                self.send_header("Content-Length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture
def run(tmp_path, half_blind, edits_file):
    manifest = edits_file(tmp_path, UNSURE)

    def score(**options):
        found = abacus.score(manifest, tmp_path / "RUN", suite=half_blind, workers=0, resamples=0, **options)
        [row] = pq.read_table(tmp_path / "RUN/scores.parquet").to_pylist()
        return found, row

    return score


def test_with_nobody_to_ask_instances_stay_ambiguous(run, tmp_path):
    found, row = run()
    assert (row["delivered"], row["candidates"], row["asked"], row["resolved"]) == (1, 3, 2, 0)
    assert found.counts["ambiguous"] == 2
    [evidence] = pq.read_table(tmp_path / "RUN/evidence/part-00000.parquet").to_pylist()
    crops = [one["crop"] for one in evidence["instances"] if one["crop"]]
    assert len(crops) == 2
    assert min(Image.open(io.BytesIO(crops[0])).size) >= 224


def test_a_finished_run_can_be_asked_and_is_asked_once(run, server, tmp_path):
    run()
    found, row = run(endpoint=server.url, model="tiny")
    assert (row["delivered"], row["resolved"]) == (3, 2)
    assert sorted(filter(None, row["answers"])) == ["yes", "yes"]
    assert found.counts["ambiguous"] == 0
    assert len(server.bodies) == 2
    content = server.bodies[0]["messages"][0]["content"]
    assert content[1]["text"] == "Is the main object in this image a cat? Answer with one word: yes or no."
    run(endpoint=server.url, model="tiny")
    assert len(server.bodies) == 2
    assert run()[1]["delivered"] == 3  # what was answered is kept
    assert json.loads((tmp_path / "RUN/run.json").read_text())["question"]["model"] == "tiny"


def test_an_answer_is_to_what_was_shown(tmp_path, half_blind, edits_file, image_file, server):
    manifest = edits_file(tmp_path, UNSURE, ("add 1 cat", (0,), (0, 1)))

    def score(**options):
        options |= {"suite": half_blind, "workers": 0, "resamples": 0}
        return abacus.score(manifest, tmp_path / "RUN", endpoint=server.url, model="tiny", **options)

    (tmp_path / "images/1-b.png").rename(tmp_path / "kept.png")
    assert score().error == 1
    assert len(server.bodies) == 2
    (tmp_path / "kept.png").rename(tmp_path / "images/1-b.png")
    image_file(tmp_path / "images/0-b.png", (0, 1, 4, 5), shade=90)  # other things in the same places
    server.answer = lambda: "no"
    assert score(retry_errors=True).error == 0
    first = pq.read_table(tmp_path / "RUN/scores.parquet").to_pylist()[0]
    assert len(server.bodies) == 4
    assert sorted(filter(None, first["answers"])) == ["no", "no"]
    assert (first["delivered"], first["verdicts"].count("rejected")) == (1, 2)


class Told:
    """Keeps what it is told of progress."""

    def __init__(self):
        self.calls = []

    def start(self, total, done):
        self.calls.append((total, done))

    def advance(self, items, failed):
        self.calls.append((items, failed))


def test_questions_have_a_progress_of_their_own(run, server):
    answers = iter(["yes", 400, "yes"])
    server.answer = lambda: next(answers)
    edits, first, second = Told(), Told(), Told()
    run(endpoint=server.url, model="tiny", progress=edits, asking=first)
    assert edits.calls == [(1, 0), (1, 0)]
    assert first.calls[0] == (2, 0)
    assert sorted(first.calls[1:]) == [(1, 0), (1, 1)]
    run(endpoint=server.url, model="tiny", progress=Told(), asking=second)
    assert second.calls == [(2, 1), (1, 0)]


def test_only_open_questions_are_written(run, server, tmp_path, monkeypatch):
    written = []
    keep = questions._written
    monkeypatch.setattr(questions, "_written", lambda file, *rest: (written.append(file), keep(file, *rest))[1])
    run(endpoint=server.url, model="tiny")
    assert len(written) == 2
    log = tmp_path / "RUN/answers.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    run(endpoint=server.url, model="tiny")
    run(endpoint=server.url, model="tiny")
    assert len(written) == 3


def test_the_command_shows_both(tmp_path, half_blind, edits_file, server, command):
    manifest = edits_file(tmp_path, UNSURE)
    options = ["--out", tmp_path / "RUN", "--suite", half_blind, "--workers", 1, "--endpoint", server.url]
    done = command("abacus", "score", manifest, *options, "--model", "tiny")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines() if line.strip()] == ["scoring", "asking"]


def test_a_no_and_what_is_neither(run, server):
    answers = iter(["No.", "I see a cat"])
    server.answer = lambda: next(answers)
    found, row = run(endpoint=server.url, model="tiny")
    assert (row["delivered"], row["asked"], row["resolved"]) == (1, 2, 1)
    assert sorted(row["verdicts"]) == ["added", "ambiguous", "kept", "kept", "rejected"]
    assert found.counts["ambiguous"] == 1


def test_a_request_that_is_refused_leaves_its_instance_ambiguous_and_can_be_asked_again(run, server):
    answers = iter(["yes", 400, "yes"])
    server.answer = lambda: next(answers)
    _, row = run(endpoint=server.url, model="tiny")
    assert (row["delivered"], row["resolved"]) == (2, 1)
    assert run(endpoint=server.url, model="tiny")[1]["delivered"] == 3


def test_answers_of_two_models_are_not_mixed(run, server):
    run(endpoint=server.url, model="tiny")
    with pytest.raises(RunError, match="answered by 'tiny'"):
        run(endpoint=server.url, model="other")


def test_a_torn_last_answer_is_asked_again(run, server, tmp_path):
    run(endpoint=server.url, model="tiny")
    log = tmp_path / "RUN/answers.jsonl"
    log.write_bytes(log.read_bytes()[:-10])
    assert run(endpoint=server.url, model="tiny")[1]["delivered"] == 3
    assert len(server.bodies) == 3
    assert len(list(read_answers(tmp_path / "RUN"))) == 2


def test_a_server_that_does_not_know_the_model(run, server):
    server.answer = lambda: 404
    with pytest.raises(RunError, match="HTTP 404"):
        run(endpoint=server.url, model="tiny")
    assert run()[1]["delivered"] == 1
