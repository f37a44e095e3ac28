"""vLLM as a child process, played by a small server of the same name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tallymill.errors import RunError, UsageError
from tallymill.runners.physcount.serve import Serve, Server, _is_ready

FAKE = """
import json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

does = os.environ.get("FAKE_DOES", "")
out = os.environ["FAKE_OUT"]
child = subprocess.Popen(["sleep", "600"])
with open(out + ".tmp", "w") as file:
    json.dump({"pids": [os.getpid(), child.pid], "argv": sys.argv[1:], "environment": dict(os.environ)}, file)
os.rename(out + ".tmp", out)
print("starting a fake", flush=True)
if does == "die":
    sys.exit("no such model")
if does == "hang":
    time.sleep(600)
if does == "stay":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self):
        self.reply({})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Handler.asked += 1
        if does == "crash" and Handler.asked > 2:
            print("out of memory", flush=True)
            os._exit(9)
        if does == "slow":
            time.sleep(0.2)
        self.reply({"choices": [{"message": {"content": "1"}, "finish_reason": "stop"}]})

    def reply(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def vllm(tmp_path, monkeypatch):
    """A Python that has a vllm; what it was started with is read by ``started``."""
    module = tmp_path / "site/vllm/entrypoints/openai/api_server.py"
    module.parent.mkdir(parents=True)
    module.write_text(FAKE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("FAKE_OUT", str(tmp_path / "started.json"))
    return python


@pytest.fixture
def started(tmp_path):
    def read():
        return json.loads((tmp_path / "started.json").read_text())

    return read


def alive(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(") ")[2][0] not in "ZX"


def all_gone(pids, seconds=20.0):
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


def asked_of(asker, python, **options):
    return asker(endpoint=None, model=None, serve=Serve("org/model", python), **options)


def test_it_is_started_asked_and_ended(asker, vllm, started, key):
    summary = asker(endpoint=None, model="short", serve=Serve("org/model", vllm, ("--block-size=32",)))
    assert (summary.answered, summary.model) == (6, "short")
    found = started()
    assert all_gone(found["pids"], 0)
    assert found["argv"][:4] == ["--model", "org/model", "--served-model-name", "short"]
    assert found["argv"][-1] == "--block-size=32"
    assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} < {*found["argv"]}
    assert key not in found["environment"].values()
    assert found["environment"]["VLLM_NO_USAGE_STATS"] == "1"
    assert "starting a fake" in (asker.run / "server.log").read_text()
    record = asker.record()
    assert record["endpoint"] is None
    assert record["served"] == {"model": "org/model", "python": str(vllm), "arguments": ["--block-size=32"]}


def test_a_complete_run_starts_nothing(asker, vllm):
    asked_of(asker, vllm)
    assert asked_of(asker, "/bin/false").answered == 6


def test_other_arguments_are_refused(asker, vllm):
    asked_of(asker, vllm, groups=["i0g0"])
    with pytest.raises(RunError, match=r"served\.arguments: \[\] in the RUN, \['--quantization=fp8'\] now"):
        asker(endpoint=None, model=None, serve=Serve("org/model", vllm, ("--quantization=fp8",)))


def test_another_model_under_the_same_name_is_refused(asker, vllm):
    asker(endpoint=None, model="m", serve=Serve("org/model", vllm), groups=["i0g0"])
    with pytest.raises(RunError, match=r"served\.model: 'org/model' in the RUN, 'org/other' now"):
        asker(endpoint=None, model="m", serve=Serve("org/other", vllm))


def test_a_server_of_somebody_elses_is_another(asker, vllm):
    """Nobody knows with which arguments it was started."""
    asked_of(asker, vllm, groups=["i0g0"])
    with pytest.raises(RunError, match="served: 'org/model' in the RUN, None now"):
        asker(model="org/model")


def test_and_one_of_ours_is_another_than_somebody_elses(asker, vllm):
    asker(model="org/model", groups=["i0g0"])
    with pytest.raises(RunError, match="served: None in the RUN, 'org/model' now"):
        asked_of(asker, vllm)


def test_one_that_dies_at_once_tells_its_log(asker, vllm, started, monkeypatch):
    monkeypatch.setenv("FAKE_DOES", "die")
    with pytest.raises(RunError, match="vLLM ended with status 1") as caught:
        asked_of(asker, vllm)
    assert "no such model" in str(caught.value)
    assert all_gone(started()["pids"])
    monkeypatch.setenv("FAKE_DOES", "")
    assert asked_of(asker, vllm).answered == 6


def test_a_python_without_vllm(asker):
    with pytest.raises(RunError, match="No module named 'vllm'") as caught:
        asked_of(asker, sys.executable)
    assert "--vllm-python PATH" in str(caught.value)


def test_one_that_is_never_ready(asker, vllm, started, monkeypatch):
    monkeypatch.setenv("FAKE_DOES", "hang")
    with pytest.raises(RunError, match="not ready after 4 s") as caught:
        asker(endpoint=None, model=None, serve=Serve("org/model", vllm, wait=4.0))
    assert "--serve-wait" in str(caught.value)
    assert all_gone(started()["pids"])


def test_one_that_does_not_want_to_end_is_made_to(vllm, started, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_DOES", "stay")
    with Server(Serve("org/model", vllm), "m", tmp_path / "log", grace=0.3) as server:
        server.check()
    assert all_gone(started()["pids"], 0)


def test_one_that_dies_in_between_ends_the_run(asker, vllm, started, monkeypatch):
    monkeypatch.setenv("FAKE_DOES", "crash")
    with pytest.raises(RunError, match="vLLM ended with status 9") as caught:
        asked_of(asker, vllm, concurrency=1, attempts=20)
    assert "out of memory" in str(caught.value)
    assert len(asker.rows()) == 2
    assert all_gone(started()["pids"])
    monkeypatch.setenv("FAKE_DOES", "")
    assert asked_of(asker, vllm).answered == 6


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_when_we_are_killed(asker, vllm, started, command_line, monkeypatch, how):
    monkeypatch.setenv("FAKE_DOES", "slow")
    arguments = ["--data", asker.data, "--out", asker.run, "--serve", "org/model", "--vllm-python", vllm]
    child = subprocess.Popen(
        [*command_line, "physcount", "ask", *map(str, arguments), "--concurrency", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    answers = asker.run / "answers.jsonl"
    until = time.monotonic() + 60
    while not (answers.exists() and answers.stat().st_size) and time.monotonic() < until:
        time.sleep(0.02)
    pids = started()["pids"]
    assert all(map(alive, pids))
    os.kill(child.pid, how)
    child.wait(60)
    assert all_gone(pids)
    assert asked_of(asker, vllm, reasoning_effort="auto").answered == 6


@pytest.mark.parametrize(
    "argument",
    [
        *("--port", "--host=0.0.0.0", "--api-key=secret", "--served-model-name", "--model"),
        *("--api_key=secret", "--served_model-name=x", "--api-k=secret", "--config", "--config=secret.yaml"),
        *("--hf-token", "--hf-token=secret", "--hf_token=secret", "--hf-tok=secret", "--hf_tok"),
    ],
)
def test_what_is_not_passed_on(argument):
    with pytest.raises(UsageError, match=r"--vllm-arg --[a-z-]+: this is not passed on") as caught:
        Serve("org/model", sys.executable, (argument,))
    assert "secret" not in str(caught.value)


def test_a_token_is_for_the_environment():
    with pytest.raises(UsageError, match="HF_TOKEN in the environment"):
        Serve("org/model", sys.executable, ("--hf-token", "secret"))


@pytest.mark.parametrize(
    "argument",
    ["--model-impl=auto", "--config-format=hf", "--hf-overrides={}", "--max_model_len=4096", "--", "-O3", "4"],
)
def test_what_is_passed_on(argument):
    assert Serve("org/model", sys.executable, (argument,)).arguments == (argument,)


def test_what_speaks_no_http_is_not_ready():
    """Such as a server that is only just beginning, or another program on its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def babble():
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"SSH-2.0-none\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        assert not _is_ready(f"http://127.0.0.1:{server.getsockname()[1]}/health")
        thread.join()


def test_a_python_that_is_not_there():
    with pytest.raises(UsageError, match="/no/python"):
        Serve("org/model", "/no/python")
