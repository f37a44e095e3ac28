"""A real vLLM on the CPU, with a tiny model: what `make vllm-env` installs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import pytest

from tallymill.engine.physcount.data import Dataset
from tallymill.runners.physcount.example import example
from tallymill.runners.physcount.serve import Serve, Server

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm/bin/python"
# The default size of a block on a CPU is larger than what questions on one image share.
ARGUMENTS = ("--enforce-eager", "--block-size=32")
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "NO_PROXY": "127.0.0.1",
}


@pytest.fixture(scope="session", autouse=True)
def environment() -> Iterator[None]:
    assert PYTHON.exists(), "make vllm-env installs vLLM"
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    os.environ.pop("OPENAI_API_KEY", None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    subprocess.run([PYTHON, ROOT / "bench/tiny_vlm.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Dataset:
    return example(tmp_path_factory.mktemp("data") / "set", scenes_wanted=8)


@dataclass
class Running:
    """The server, and the tokens that it has counted so far."""

    url: str

    def tokens(self) -> tuple[int, int]:
        """Prompt tokens asked of the prefix cache, and those found in it."""
        with build_opener(ProxyHandler({})).open(self.url.replace("/v1", "/metrics")) as reply:
            text = reply.read().decode()
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
        asked, found = (sum(int(float(n)) for n in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)) for name in names)
        return asked, found


@pytest.fixture(scope="session")
def serve(model) -> Serve:
    return Serve(str(model), PYTHON, ARGUMENTS)


@pytest.fixture(scope="session")
def server(serve, tmp_path_factory) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("log") / "server.log"
    with Server(serve, "tiny", log) as started:
        yield Running(started.url)
