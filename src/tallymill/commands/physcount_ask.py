"""``tallymill physcount ask``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tallymill.commands.base import DONE, SOME_FAILED, Json, print_json
from tallymill.commands.physcount import Data, physcount
from tallymill.engine.physcount.request import Mode
from tallymill.errors import UsageError
from tallymill.runners import console
from tallymill.runners.physcount import ask as asking
from tallymill.runners.physcount.ask import CONCURRENCY
from tallymill.runners.physcount.client import KEY_VARIABLE
from tallymill.runners.physcount.pace import Patience
from tallymill.runners.physcount.plan import AskSettings
from tallymill.runners.physcount.serve import WAIT, Serve

Several = Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
_SETTINGS, _PATIENCE = AskSettings(), Patience()


@physcount.command
def ask(
    *,
    data: Data,
    out: Path,
    endpoint: str | None = None,
    model: str | None = None,
    serve: str | None = None,
    vllm_python: Path | None = None,
    vllm_arg: Several = (),
    serve_wait: float = WAIT,
    key_from: str = KEY_VARIABLE,
    mode: Mode = _SETTINGS.mode,
    long_edge: int = _SETTINGS.long_edge,
    temperature: float | None = _SETTINGS.temperature,
    top_p: float | None = _SETTINGS.top_p,
    reasoning_effort: str = _SETTINGS.reasoning_effort,
    max_tokens: int = _SETTINGS.max_tokens,
    token_field: str = _SETTINGS.token_field,
    seed: int | None = _SETTINGS.seed,
    limit: int | None = None,
    groups: Several = (),
    retry_refused: Annotated[bool, Parameter(negative=())] = False,
    concurrency: int = CONCURRENCY,
    attempts: int = _PATIENCE.attempts,
    retry_wait: float = _PATIENCE.first_wait,
    timeout: float = _PATIENCE.timeout,
    as_json: Json = False,
) -> int:
    """Ask a model every question, and keep every answer; the same command continues what was stopped.

    Parameters
    ----------
    out
        The RUN folder.
    endpoint
        Base URL of an OpenAI-compatible server, such as http://localhost:8000/v1.
    model
        The name by which that server knows the model; with --serve, what the model is called in the RUN.
    serve
        Start vLLM with this model (a name or a folder) for as long as it is needed.
    vllm_python
        The Python that has vLLM; by default the one that runs tallymill.
    vllm_arg
        An argument for vLLM, repeatable: --vllm-arg=--max-model-len=16384.
    serve_wait
        Seconds that vLLM may take until it is ready.
    key_from
        The environment variable that holds the server's key. The key is written nowhere.
    mode
        independent: a request a question. joint: a request a group.
    long_edge
        Larger images are made smaller to this many pixels.
    temperature
        Sent only when given.
    top_p
        Sent only when given.
    reasoning_effort
        auto: the strongest that the server takes (xhigh, high, or none); none: not sent; or a word of the server's.
    max_tokens
        The most tokens of an answer with its reasoning.
    token_field
        The name by which the server knows that limit: max_completion_tokens or max_tokens.
    seed
        Sent only when given.
    limit
        The first groups only, this many.
    groups
        These groups only, repeatable.
    retry_refused
        Ask also what the server refused before.
    concurrency
        The most requests in flight. Fewer are sent while the server says that it is too much.
    attempts
        How often a request is sent that fails with an error that can pass.
    retry_wait
        Seconds before the second attempt; they double with each.
    timeout
        Seconds after which a request without a reply is given up.
    """
    from tallymill.runners.physcount.tables import show_asked

    if serve is None and (vllm_python is not None or vllm_arg):
        raise UsageError("--vllm-python and --vllm-arg go with --serve")
    served = None if serve is None else Serve(serve, vllm_python or sys.executable, vllm_arg, serve_wait)
    with console.Bar(
        show=not as_json, doing="asking", unit="questions", items="questions", lost="refused or failed"
    ) as bar:
        summary = asking.ask(
            data,
            out,
            endpoint=endpoint,
            model=model,
            serve=served,
            key_from=key_from,
            settings=AskSettings(mode, long_edge, temperature, top_p, reasoning_effort, max_tokens, token_field, seed),
            limit=limit,
            groups=groups,
            retry_refused=retry_refused,
            concurrency=concurrency,
            patience=Patience(attempts, retry_wait, timeout),
            progress=bar,
        )
    if as_json:
        print_json(summary.as_dict())
    else:
        show_asked(summary)
    return DONE if summary.answered == summary.questions else SOME_FAILED
