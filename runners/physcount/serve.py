"""vLLM as a child process: started on a free port of this machine, waited for, and ended on every way out.

vLLM and tallymill need different versions of the same packages, so it lives in an environment of its own and is
spoken to over HTTP. Between it and us stands ``keeper.py``, which ends it also when we are killed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from tallymill.errors import RunError, UsageError
from tallymill.runners.physcount import keeper

LOG = "server.log"
HOST = "127.0.0.1"
WAIT = 900.0  # seconds that it has to become ready
GRACE = 20.0  # and to end by itself
_TOLD_LINES = 12
_MOST_TAIL = 1 << 16
# Ours to choose; secrets would be written into run.json, and a file may hold anything.
_OURS = {
    **dict.fromkeys(("--model", "--served-model-name"), "--serve names the model, --model what it is to be called"),
    **dict.fromkeys(("--host", "--port", "--uds"), "it listens to this machine alone, on a free port"),
    "--api-key": "nobody else speaks to it, and it needs none",
    "--hf-token": "vLLM reads the token from HF_TOKEN in the environment, and there it is written nowhere",
    "--config": "give what stands in a file of settings one by one",
}


@dataclass(frozen=True, slots=True)
class Serve:
    """How vLLM is started: with which ``model`` (a name or a folder), by which Python, with which further arguments.

    ``wait`` is the seconds that it may take until it is ready.
    """

    model: str
    python: str | Path = sys.executable
    arguments: tuple[str, ...] = ()
    wait: float = WAIT

    def __post_init__(self) -> None:
        if shutil.which(self.python) is None:
            raise UsageError(f"--vllm-python {self.python}: no such program")
        if not 0 < self.wait < float("inf"):
            raise UsageError(f"serve.wait = {self.wait!r}: must be a number of seconds above 0")
        taken = [name for name in map(_name_of, self.arguments) if name is not None]
        if taken:
            raise UsageError(f"--vllm-arg {taken[0]}: this is not passed on", hint=_OURS[taken[0]])

    def as_dict(self) -> dict[str, Any]:
        """For ``run.json``."""
        return {"model": self.model, "python": str(self.python), "arguments": list(self.arguments)}

    def command(self, name: str, port: int) -> list[str]:
        """What is run. What is given comes last, and so wins."""
        server = [str(self.python), "-m", "vllm.entrypoints.openai.api_server"]
        ours = ["--model", self.model, "--served-model-name", name, "--host", HOST, "--port", str(port)]
        return [*server, *ours, "--enable-prefix-caching", "--enable-prompt-tokens-details", *self.arguments]


class Server:
    """vLLM while it is needed: ``with`` starts it and waits until it is ready, and ends it with all its processes.

    ``hidden`` are environment variables that it does not get.
    """

    def __init__(self, serve: Serve, name: str, log: Path, *, hidden: Sequence[str] = (), grace: float = GRACE) -> None:
        self._serve, self._name, self._log, self._grace = serve, name, log, grace
        self._hidden = hidden
        self._port = _free_port()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://{HOST}:{self._port}/v1"

    def __enter__(self) -> Server:
        environment = {name: value for name, value in os.environ.items() if name not in self._hidden}
        environment.pop("VLLM_API_KEY", None)  # it would ask us for this key
        environment |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", keeper.__file__, str(self._grace), *self._serve.command(self._name, self._port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C is for us, and we decide what it means
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def check(self) -> None:
        """Raise ``RunError`` with the end of its log when it is no longer there."""
        assert self._keeper is not None
        status = self._keeper.poll()
        if status is not None:
            raise RunError(f"vLLM ended with status {status}; {self._log} ends:\n{self._tail()}", hint=self._hint())

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + self._serve.wait
        while not _is_ready(f"http://{HOST}:{self._port}/health"):
            self.check()
            if time.monotonic() > until:
                raise RunError(
                    f"vLLM was not ready after {self._serve.wait:g} s; {self._log} ends:\n{self._tail()}",
                    hint="--serve-wait gives it longer",
                )
            time.sleep(0.25)

    def _stop(self) -> None:
        if self._keeper is None or self._keeper.stdin is None:
            return
        self._keeper.stdin.close()
        try:
            self._keeper.wait(self._grace + 10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def _tail(self) -> str:
        with self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - _MOST_TAIL))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(f"    {line[:300]}" for line in lines[-_TOLD_LINES:])

    def _hint(self) -> str:
        if "No module named 'vllm'" in self._tail():
            return f"install vllm for {self._serve.python}, or name a Python that has it: --vllm-python PATH"
        return "the log says why; --vllm-arg=… passes on what it needs"


def _name_of(argument: str) -> str | None:
    """The option of ours that vLLM would take an argument for: it knows them with underscores, too, and cut short."""
    given = argument.partition("=")[0].replace("_", "-")
    if len(given) < 3 or not given.startswith("--"):
        return None
    return next((name for name in _OURS if name.startswith(given)), None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _is_ready(url: str) -> bool:
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (URLError, HTTPException, OSError):
        return False
