"""PhysCount's questions asked of a real vLLM: questions/s and prompt tokens, against scripts as they are written.

Two servers with the same tiny model run on this machine, one with prefix caching and one without. In every round each
peer asks the same number of questions about pictures of its own, which no server has seen. One script asks one question
at a time, the other has as many in flight as we have; both encode the picture anew for every question. The latter shows
what comes of concurrency alone. ``make vllm-env`` installs what this needs.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import numpy as np
from PIL import Image

from tallymill.bench.pairs import aligned
from tallymill.engine.physcount.data import ANNOTATIONS, FAMILIES, QUESTIONS, Dataset, Question, read_dataset
from tallymill.engine.physcount.request import independent_prompt
from tallymill.errors import TallymillError
from tallymill.runners.physcount.ask import CONCURRENCY, ask
from tallymill.runners.physcount.plan import AskSettings
from tallymill.runners.physcount.serve import Serve, Server

IMAGES, QUESTIONS_EACH, ROUNDS = 40, 8, 2
WIDTH, HEIGHT = 1024, 768
MODEL, MOST_TOKENS = "tiny", 64
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_ARGUMENTS = ("--enforce-eager", "--block-size=32")
_JSON = {"Content-Type": "application/json"}
_OURS, _GATHER, _LOOP, _BARE = "tallymill", "gather, caching on", "loop, caching on", "loop, caching off"


def run(images: int = IMAGES, rounds: int = ROUNDS, python: str = ".venv-vllm/bin/python") -> dict[str, Any]:
    """Questions/s of each peer (medians), ratios within a round, and the prompt tokens that servers computed."""
    if not Path(python).exists():
        raise TallymillError(f"{python} is not there", hint="make vllm-env makes it; run this in the clone")
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
            return _measure(Path(folder), servers, images, rounds, python)
    finally:
        os.environ.clear()
        os.environ.update(before)


def table(result: dict[str, Any]) -> str:
    """The result of ``run`` for reading."""
    rows = [["", "questions/s", "ours/peer", "prompt tokens", "computed", "share of caching off"]]
    for row in result["peers"]:
        share = f"{row['computed'] / result['prompt_tokens_without_cache']:.1%}"
        numbers = [f"{row['questions_per_s']:.2f}", f"{row['ratio']:.1f}"]
        rows.append([row["name"], *numbers, f"{row['prompt_tokens']:,}", f"{row['computed']:,}", share])
    return aligned(rows)


def _measure(folder: Path, servers: ExitStack, images: int, rounds: int, python: str) -> dict[str, Any]:
    model = folder / "model"
    script = Path(__file__).with_name("tiny_vlm.py")
    subprocess.run([python, str(script), str(model)], check=True, capture_output=True)
    urls = {
        name: servers.enter_context(Server(Serve(str(model), python, arguments), MODEL, folder / f"{name}.log")).url
        for name, arguments in (("on", _ARGUMENTS), ("off", (*_ARGUMENTS, "--no-enable-prefix-caching")))
    }
    peers: dict[str, tuple[str, Callable[[Dataset, str, Path], None]]] = {
        _OURS: (urls["on"], _ask),
        _GATHER: (urls["on"], _gather),
        _LOOP: (urls["on"], _loop),
        _BARE: (urls["off"], _loop),
    }
    for name, (url, call) in peers.items():  # servers and code are warm
        call(_drawn(folder / f"warm-{name}", 1, seed=name), url, folder / f"warm-RUN-{name}")
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    tokens: dict[str, tuple[int, int]] = {}
    for turn in range(rounds):
        for place in range(len(peers)):
            name = [*peers][(turn + place) % len(peers)]
            url, call = peers[name]
            dataset = _drawn(folder / f"data-{turn}-{name}", images, seed=f"{turn}{name}")
            counted, begun = _tokens(url), time.perf_counter()
            call(dataset, url, folder / f"RUN-{turn}-{name}")
            seconds[name].append(time.perf_counter() - begun)
            asked, found = (now - then for now, then in zip(_tokens(url), counted, strict=True))
            tokens[name] = asked, asked - found
    questions = images * QUESTIONS_EACH
    return {
        "images": images,
        "questions": questions,
        "rounds": rounds,
        "prompt_tokens_without_cache": tokens[_BARE][1],
        "peers": [
            {
                "name": name,
                "questions_per_s": round(questions / median(spent), 3),
                "ratio": round(median(b / a for a, b in zip(seconds[_OURS], spent, strict=True)), 3),
                "prompt_tokens": tokens[name][0],
                "computed": tokens[name][1],
            }
            for name, spent in seconds.items()
        ],
    }


def _ask(dataset: Dataset, url: str, out: Path) -> None:
    found = ask(dataset.root, out, endpoint=url, model=MODEL, settings=AskSettings(max_tokens=MOST_TOKENS))
    if found.answered != len(dataset.questions):
        raise TallymillError(f"{found.answered} of {len(dataset.questions)} questions were answered")


def _loop(dataset: Dataset, url: str, _out: Path) -> None:
    """One question after another, each with a picture that is read and encoded for it, on a connection of its own."""
    place = urlsplit(url)
    for question in dataset.questions:
        body = json.dumps(_body(dataset, question))
        connection = http.client.HTTPConnection(place.netloc)
        connection.request("POST", f"{place.path}/chat/completions", body, _JSON)
        reply = json.loads(connection.getresponse().read())
        connection.close()
        _require_answer(reply)


def _gather(dataset: Dataset, url: str, _out: Path) -> None:
    """All questions at once in the order of their file, so many in flight, over one session that keeps connections."""
    import aiohttp

    async def one(question: Question, session: aiohttp.ClientSession, room: asyncio.Semaphore) -> None:
        async with room, session.post(f"{url}/chat/completions", json=_body(dataset, question)) as reply:
            _require_answer(await reply.json())

    async def every() -> None:
        room = asyncio.Semaphore(CONCURRENCY)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            await asyncio.gather(*(one(question, session, room) for question in dataset.questions))

    asyncio.run(every())


def _body(dataset: Dataset, question: Question) -> dict[str, Any]:
    """A request with its picture, read and encoded for it."""
    file = io.BytesIO()
    with Image.open(dataset.image_path(question)) as image:
        image.convert("RGB").save(file, "PNG")
    picture = {"url": "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()}
    content = [
        {"type": "image_url", "image_url": picture},
        {"type": "text", "text": independent_prompt(question.question)},
    ]
    return {
        "model": MODEL,
        "max_completion_tokens": MOST_TOKENS,
        "messages": [{"role": "user", "content": content}],
    }


def _require_answer(reply: Any) -> None:
    if "choices" not in reply:
        raise TallymillError(f"the server answered {str(reply)[:200]}")


def _tokens(url: str) -> tuple[int, int]:
    """Prompt tokens so far, and those of them that came from the cache, as the server counts them."""
    with build_opener(ProxyHandler({})).open(url.removesuffix("/v1") + "/metrics") as reply:
        text = reply.read().decode()
    names = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")
    asked, found = (sum(float(n) for n in re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)) for name in names)
    return int(asked), int(found)


def _drawn(root: Path, images: int, *, seed: str) -> Dataset:
    """Pictures that nobody has seen, with eight questions each; JPEG files as photographs are."""
    rng = np.random.default_rng(list(seed.encode()))
    lines: dict[str, list[str]] = {QUESTIONS: [], ANNOTATIONS: []}
    (root / "images").mkdir(parents=True)
    for number in range(images):
        noise = Image.fromarray(rng.integers(0, 255, (21, 28, 3), dtype=np.uint8))
        image = f"images/{number}.jpg"
        noise.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(root / image, quality=92)
        common = {"group_id": f"g{number}", "image_id": f"i{number}", "image": image}
        one = {"appearance_id": "a", "entity_id": "e", "mode": "direct", "x": 0.5, "y": 0.5}
        lines[ANNOTATIONS].append(json.dumps({**common, "width": WIDTH, "height": HEIGHT, "appearances": [one]}))
        for at in range(QUESTIONS_EACH):
            text = f"How many objects of kind {at} are there in the mirror, of the same physical object?"
            family = FAMILIES[min(at, len(FAMILIES) - 1)]
            own = {"question_id": f"g{number}q{at}", "question_type": family, "question": text, "answer": at}
            lines[QUESTIONS].append(json.dumps({**common, **own}))
    (root / "data").mkdir()
    for name, rows in lines.items():
        (root / name).write_text("".join(row + "\n" for row in rows), "utf-8")
    return read_dataset(root)
