"""A small dataset, and a chat server that does what a test tells it to."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from PIL import Image

from tallymill.runners.physcount.ask import ask
from tallymill.runners.physcount.pace import Patience
from tallymill.runners.physcount.plan import AskSettings

KEY = "sk-a-key-that-nobody-may-see"
FAMILIES = ("appearance", "entity", "correspondence")
CUT = object()


def write_dataset(root: Path, images: int = 3, groups: int = 1, questions: int = 2, size=(24, 16)) -> Path:
    """Ids are i0, i0g0, i0g0q0, …; a question asks "What of i0g0q0?" and the answer to the k-th is k."""
    rows: dict[str, list[dict[str, Any]]] = {"questions": [], "annotations": []}
    for i in range(images):
        (root / "images").mkdir(parents=True, exist_ok=True)
        picture = np.full((size[1], size[0], 3), (40 * i) % 256, np.uint8)
        Image.fromarray(picture).save(root / f"images/i{i}.png")
        for g in range(groups):
            about = {"group_id": f"i{i}g{g}", "image_id": f"i{i}", "image": f"images/i{i}.png"}
            point = {"appearance_id": "a", "entity_id": "e", "mode": "direct", "x": 0.5, "y": 0.5}
            rows["annotations"].append({**about, "width": size[0], "height": size[1], "appearances": [point]})
            for q in range(questions):
                own = f"i{i}g{g}q{q}"
                family = FAMILIES[min(q, 2)]
                text = {"question_id": own, "question_type": family, "question": f"What of {own}?", "answer": q}
                rows["questions"].append({**about, **text})
    (root / "data").mkdir()
    for name, lines in rows.items():
        (root / f"data/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return root


@dataclass
class Seen:
    """A request as the server saw it."""

    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    nth: int  # how often this text has come, from 1

    @property
    def text(self) -> str:
        return self.body["messages"][0]["content"][1]["text"]

    @property
    def question(self) -> str:
        """The id that the (last) question is about."""
        return self.text.rpartition("What of ")[2].partition("?")[0]

    @property
    def url(self) -> str:
        return self.body["messages"][0]["content"][0]["image_url"]["url"]


def completion(content: Any, *, finish: str = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    counted = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 60}}
    return {"choices": [choice], "usage": counted if usage is None else usage}


@dataclass
class ChatServer:
    """Answers with what ``answer`` makes of a request: a text, a whole reply, a ``web.Response``, or ``CUT``."""

    answer: Callable[[Seen], Any] = lambda seen: seen.question[-1]
    seen: list[Seen] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    url: str = ""

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.json()
        text = body["messages"][0]["content"][1]["text"]
        nth = 1 + sum(one.text == text for one in self.seen)
        seen = Seen(body, dict(request.headers), request.path_qs, nth)
        self.seen.append(seen)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            said = self.answer(seen)
            if inspect.isawaitable(said):
                said = await said
        finally:
            self.in_flight -= 1
        if said is CUT:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(said, web.Response):
            return said
        return web.json_response(said if isinstance(said, dict) else completion(said))

    @property
    def questions(self) -> list[str]:
        return [one.question for one in self.seen]


def error(status: int, message: str = "no", **headers: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


@pytest.fixture
def chat() -> Iterator[ChatServer]:
    """A server in a thread of its own."""
    server, loop = ChatServer(), asyncio.new_event_loop()
    runner: web.AppRunner | None = None

    async def start() -> None:
        nonlocal runner
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{path:.*}", server.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield server
    finally:
        assert runner is not None
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@dataclass
class Asker:
    """Asks ``chat`` about ``data``; rows are read back from ``run``."""

    chat: ChatServer
    data: Path
    run: Path

    def __call__(self, **options: Any) -> Any:
        settings = {name: options.pop(name) for name in AskSettings.__dataclass_fields__ if name in options}
        settings.setdefault("reasoning_effort", "none")
        patience = Patience(options.pop("attempts", 3), options.pop("first_wait", 0.001), options.pop("timeout", 20.0))
        options = {"endpoint": self.chat.url, "model": "tiny", **options}
        return ask(self.data, self.run, settings=AskSettings(**settings), patience=patience, **options)

    def rows(self) -> list[dict[str, Any]]:
        data = (self.run / "answers.jsonl").read_bytes()
        assert data.endswith(b"\n") or not data
        return [json.loads(line) for line in data.split(b"\n")[:-1]]

    def by_question(self) -> dict[str, dict[str, Any]]:
        return {question: row for row in self.rows() for question in row["question_ids"]}

    def record(self) -> dict[str, Any]:
        return json.loads((self.run / "run.json").read_text())


@pytest.fixture
def asker(chat, tmp_path, monkeypatch) -> Asker:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NETRC", os.devnull)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return Asker(chat, write_dataset(tmp_path / "DATA"), tmp_path / "RUN")


@pytest.fixture(scope="session")
def reply() -> Any:
    """Ways for a server to answer: ``completion``, ``error``, ``CUT``."""

    class Reply:
        completion = staticmethod(completion)
        error = staticmethod(error)
        cut = CUT

    return Reply


@pytest.fixture(scope="session")
def dataset_at() -> Callable[..., Path]:
    return write_dataset


@pytest.fixture(scope="session")
def key() -> str:
    return KEY


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    """A gray PNG of some size."""

    def make(width: int, height: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(file, "PNG")
        return file.getvalue()

    return make
