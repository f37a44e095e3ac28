import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

import tallymill
from tallymill.errors import (
    DeviceError,
    ImageError,
    MissingExtraError,
    ModelError,
    RunError,
    TallymillError,
    UsageError,
)
from tallymill.exporters import hub
from tallymill.runners import local, worker
from tallymill.runners.build import require_recorded
from tallymill.runners.local import default_workers, require_workers, run_shards
from tallymill.runners.plan import shards_of
from tallymill.runners.sweep import prepare
from tallymill.runners.worker import shard_message, spec_message


def prepared(folder, manifest_file, n=64):
    return prepare(manifest_file(folder / "m.jsonl", n), folder / "RUN", ensemble="synthetic")


@pytest.mark.parametrize("workers", [0, 1, 9])
def test_every_shard_has_a_summary_whatever_the_number_of_workers(workers, tmp_path, manifest_file):
    job = prepared(tmp_path, manifest_file)
    told = []
    summaries = run_shards(job.shards(), job.spec, workers, lambda items, failed: told.append((items, failed)))
    assert sum(summary.items for summary in summaries) == 64
    assert sum(summary.scored for summary in summaries) == 64
    assert [sum(column) for column in zip(*told, strict=True)] == [64, 0]
    assert len(summaries) == 4


@pytest.mark.parametrize("workers", [0, 3])
def test_no_shards_no_work(workers, tmp_path, manifest_file):
    job = prepared(tmp_path, manifest_file)
    assert run_shards([], job.spec, workers, lambda *_: None) == []


def test_the_number_of_workers():
    assert require_workers(None) == default_workers()
    assert 1 <= default_workers() <= len(os.sched_getaffinity(0))
    assert require_workers(3) == 3
    assert require_workers(0) == 0
    with pytest.raises(UsageError, match="workers = -1"):
        require_workers(-1)


@pytest.mark.parametrize(
    ("quota", "workers"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("", 8),
        (None, 8),
    ],
)
def test_there_are_no_more_workers_than_the_control_group_lets_run(quota, workers, monkeypatch):
    def read_text(path, *_args):
        assert str(path) == "/sys/fs/cgroup/cpu.max"
        if quota is None:
            raise FileNotFoundError
        return f"{quota}\n"

    monkeypatch.setattr(local.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(local.Path, "read_text", read_text)
    assert default_workers() == workers


def test_no_more_workers_than_shards(tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)
    started = []
    popen = subprocess.Popen

    def counted(*args, **options):
        started.append(args)
        return popen(*args, **options)

    monkeypatch.setattr(local.subprocess, "Popen", counted)
    run_shards(job.shards()[:2], job.spec, 8, lambda *_: None)
    assert len(started) == 2


def test_no_workers_means_this_process(tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)
    monkeypatch.setattr(local.subprocess, "Popen", pytest.fail)
    assert len(run_shards(job.shards(), job.spec, 0, lambda *_: None)) == 4


DIES_ON_SHARD_1 = """
import os, signal
from tallymill.runners import worker
score = worker.Worker.score
def score_or_die(self, shard, report):
    if shard.index == 1:
        report(7, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    return score(self, shard, report)
worker.Worker.score = score_or_die
worker.main()
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_that_kills_its_workers_leaves_the_others_done(workers, tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)
    told = []
    monkeypatch.setattr(local, "_CHILD", DIES_ON_SHARD_1)
    with pytest.raises(RunError) as caught:
        run_shards(job.shards(), job.spec, workers, lambda *counts: told.append(counts))
    assert "died 2 times on 1 of 4 shards" in caught.value.message
    assert "rows 16 to 31 (exit status -9)" in caught.value.message
    assert "fewer --workers" in caught.value.hint
    assert [job.sink.done(shard) for shard in job.shards()] == [True, False, True, True]
    assert [sum(column) for column in zip(*told, strict=True)] == [48, 0]  # what was lost is taken off again
    monkeypatch.undo()
    run_shards(job.shards()[1:2], job.spec, workers, lambda *_: None)
    assert job.sink.done(job.shards()[1])


HALF_A_MESSAGE = """
import os, pathlib, signal, sys
if pathlib.Path({flag!r}).exists():
    from tallymill.runners.worker import main
    main()
else:
    pathlib.Path({flag!r}).touch()
    sys.stdin.readline(), sys.stdin.readline()
    print('{{"items": 3, "failed": 0}}', '{{"items": 2, "fai', sep=chr(10), end="", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_dies_in_the_middle_of_a_message_is_replaced(tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)
    told = []
    monkeypatch.setattr(local, "_CHILD", HALF_A_MESSAGE.format(flag=str(tmp_path / "flag")))
    summaries = run_shards(job.shards(), job.spec, 1, lambda *counts: told.append(counts))
    assert sum(summary.scored for summary in summaries) == 64
    assert [sum(column) for column in zip(*told, strict=True)] == [64, 0]
    assert (3, 0) in told


def test_an_error_in_a_worker_is_raised_here_with_its_kind_and_hint():
    for kind in (ModelError, UsageError, RunError, MissingExtraError):
        event = {"error": {"kind": kind.__name__, "message": "what", "hint": "do this"}}
        with pytest.raises(kind) as caught:
            local._read(json.dumps(event))
        assert type(caught.value) is kind
        assert (caught.value.message, caught.value.hint) == ("what", "do this")
    with pytest.raises(RuntimeError, match="Traceback"):
        local._read(json.dumps({"crash": "Traceback: ..."}))


@pytest.mark.parametrize("kind", [TallymillError, ImageError, ModelError])
def test_errors_survive_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("what", hint="do this", retryable=True)))
    assert type(error) is kind
    assert (error.message, error.hint, error.retryable, str(error)) == ("what", "do this", True, "what\n  do this")


def test_an_extra_that_is_missing_in_the_workers_is_told_with_its_hint(tmp_path, image_folder, image_ensemble_file):
    """The reader meets a kind of URL whose package is not there: an error of the sweep, not of an image."""
    images = image_folder(tmp_path / "images", 2)
    rows = [
        {"item_id": f"i{k}", "image": "lakefs://bucket/a.jpg" if k == 20 else f"{images}/0.png", "targets": {"cat": 1}}
        for k in range(40)
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    with pytest.raises(MissingExtraError) as caught:
        tallymill.sweep(tmp_path / "m.jsonl", tmp_path / "RUN", ensemble=ensemble, workers=2)
    assert "pip install" in caught.value.hint


def test_a_defect_in_a_worker_is_shown_with_its_traceback(tmp_path, manifest_file):
    job = prepared(tmp_path, manifest_file)
    shards = shards_of(64 + 5000, 16)  # rows that the items file does not have
    with pytest.raises(RuntimeError, match="a worker failed:\nTraceback"):
        run_shards(shards, job.spec, 2, lambda *_: None)
    assert not list((tmp_path / "RUN").rglob(".*.parquet.*"))


def talk(job, *shards, **options):
    text = spec_message(job.spec) + "".join(map(shard_message, shards))
    return subprocess.run(
        [sys.executable, "-m", "tallymill.runners.worker"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_a_worker_speaks_lines_of_json(tmp_path, manifest_file):
    job = prepared(tmp_path, manifest_file)
    done = talk(job, *job.shards()[:2])
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(message) for message in messages] == [["items", "failed"], ["items", "failed"], ["done"]] * 2
    assert done.returncode == 0
    assert done.stderr == ""
    again = talk(job, job.shards()[0])  # a shard that is done is answered without work
    assert [list(json.loads(line)) for line in again.stdout.splitlines()] == [["done"]]
    assert json.loads(again.stdout)["done"]["items"] == 16


def test_a_worker_that_cannot_start_says_why(tmp_path, image_folder, image_ensemble_file):
    images = image_folder(tmp_path / "images", 1)
    job = prepare(images, tmp_path / "RUN", ensemble=image_ensemble_file(tmp_path / "e.toml", "x"))
    (tmp_path / "x.onnx").unlink()
    done = talk(job, *job.shards())
    [message] = map(json.loads, done.stdout.splitlines())
    assert message["error"]["kind"] == "ModelError"
    assert "x.onnx" in message["error"]["message"]


def test_devices_are_dealt_to_workers_in_turn(tmp_path, manifest_file, contents, monkeypatch):
    """Nothing of the synthetic detector runs on a card, so that three can be had."""
    job = prepared(tmp_path, manifest_file)
    plain = tmp_path / "plain"
    plain.mkdir()
    other = prepared(plain, manifest_file)
    run_shards(other.shards(), other.spec, 1, lambda *_: None)
    told = []

    def message(spec):
        told.append(spec.devices)
        return spec_message(spec)

    monkeypatch.setattr(local, "spec_message", message)
    spec = replace(job.spec, devices=("cuda:0", "cuda:2", "cuda:5"))
    run_shards(job.shards(), spec, 4, lambda *_: None)
    assert sorted(told) == [("cuda:0",), ("cuda:0",), ("cuda:2",), ("cuda:5",)]
    assert contents(job.run.path) == contents(other.run.path)


def test_a_card_has_two_workers_by_default(monkeypatch):
    monkeypatch.setattr(local, "default_workers", lambda: 5)
    assert local.default_workers_on(("cpu",)) == 5
    assert local.default_workers_on(("cuda:1",)) == 2
    assert local.default_workers_on(("cuda:0", "cuda:1")) == 4
    assert local.default_workers_on(("cuda:0", "cuda:1", "cuda:2")) == 5


def test_a_worker_makes_its_card_the_current_one(monkeypatch):
    used = []
    card = SimpleNamespace(is_available=lambda: True, set_device=used.append)
    monkeypatch.setattr(worker, "find_spec", lambda _name: object())
    monkeypatch.setattr(worker.importlib, "import_module", lambda _name: SimpleNamespace(cuda=card))
    worker._use("cpu")
    assert used == []
    worker._use("cuda:1")
    assert used == ["cuda:1"]


@pytest.mark.parametrize(
    ("device", "text", "kind"),
    [
        ("cuda:0", "CUDA out of memory. Tried to allocate 2.00 GiB.", DeviceError),
        ("cuda:0", "CUDA error: an illegal memory access was encountered", DeviceError),
        ("cpu", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.", DeviceError),
        ("cuda:0", "a defect of ours", RuntimeError),
        ("cpu", "CUDA error: this would be odd", RuntimeError),
    ],
)
def test_what_torch_raises_of_a_card_is_told_as_such(device, text, kind, tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)

    def fail(*_args):
        raise RuntimeError(text)

    monkeypatch.setattr(worker, "score_shard", fail)
    with pytest.raises(kind) as caught:
        run_shards(job.shards(), replace(job.spec, devices=(device,)), 0, lambda *_: None)
    assert type(caught.value) is kind
    assert text in str(caught.value)


def test_memory_that_runs_out_ends_the_work(tmp_path, manifest_file, monkeypatch):
    job = prepared(tmp_path, manifest_file)

    def fail(*_args):
        raise MemoryError

    monkeypatch.setattr(worker, "score_shard", fail)
    with pytest.raises(DeviceError, match=r"memory ran out: MemoryError\n.*fewer --workers"):
        run_shards(job.shards(), job.spec, 0, lambda *_: None)


def test_a_model_that_was_replaced_meanwhile_is_not_mixed_in(tmp_path):
    file = tmp_path / "model.onnx"
    file.write_bytes(b"one")
    detectors = [{"name": "a", "model_sha256": hub.sha256(file)}, {"name": "b", "model_sha256": None}]
    record = {"ensemble": {"detectors": detectors}}
    require_recorded(record, {"a": str(file), "b": None})
    file.write_bytes(b"two")
    with pytest.raises(ModelError, match=r"model\.onnx: is not the model of 'a' that this RUN was begun with"):
        require_recorded(record, {"a": str(file), "b": None})
