from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time

import pyarrow.parquet as pq
import pytest

from tallymill import abacus
from tallymill.errors import RunError

ADDED = ("add 2 cats", (0, 1), (0, 1, 2, 3))
SEVERAL = (
    ADDED,
    ("add 1 cat", (0, 1), (1, 2)),
    ("remove 1 cat", (0, 1, 2), (0, 1)),
    ("remove 2 cats", (0, 1, 2), (0, 3)),
    ("add 2 cats", (0, 3), (0, 3)),
    ("add 3 cats", (), (0,)),
)


def scores_of(run):
    return pq.read_table(run / "scores.parquet").to_pylist()


def run(manifest, out, suite, **options):
    return abacus.score(manifest, out, suite=suite, workers=0, resamples=20, **options)


def test_parts_make_a_whole(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "WHOLE", suite, shard_items=2)
    first = run(manifest, tmp_path / "RUN", suite, shard_items=2, part=(1, 2))
    assert (first.complete, first.done) == (False, 4)
    assert run(manifest, tmp_path / "RUN", suite, part=(2, 2)).complete
    assert scores_of(tmp_path / "RUN") == scores_of(tmp_path / "WHOLE")


def test_a_finished_run_is_left_alone(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "RUN", suite)
    part = tmp_path / "RUN/evidence/part-00000.parquet"
    before = part.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "images")
    assert run(manifest, tmp_path / "RUN", suite).done == 6
    assert part.stat().st_mtime_ns == before


def test_a_part_that_was_cut_short_is_made_anew(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "RUN", suite, shard_items=3)
    before = scores_of(tmp_path / "RUN")
    part = tmp_path / "RUN/evidence/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    run(manifest, tmp_path / "RUN", suite)
    assert scores_of(tmp_path / "RUN") == before


def test_a_run_that_was_killed_goes_on(tmp_path, suite, edits_file, command_line):
    manifest = edits_file(tmp_path, *(SEVERAL * 2))
    run(manifest, tmp_path / "WHOLE", suite, shard_items=1)
    out = tmp_path / "RUN"
    options = ["--out", out, "--suite", suite, "--workers", "1", "--shard-items", "1", "--json"]
    arguments = [*command_line, "abacus", "score", *map(str, [manifest, *options])]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while child.poll() is None and len(list((out / "evidence").glob("part-*"))) < 3:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    done = {path.name: path.stat().st_mtime_ns for path in (out / "evidence").glob("part-*")}
    assert 3 <= len(done) < 12
    run(manifest, out, suite, shard_items=1)
    assert scores_of(out) == scores_of(tmp_path / "WHOLE")
    assert all((out / "evidence" / name).stat().st_mtime_ns == when for name, when in done.items())


def test_what_would_mix_two_runs_is_refused(tmp_path, suite, half_blind, edits_file):
    manifest = edits_file(tmp_path, ADDED)
    run(manifest, tmp_path / "RUN", suite)
    with pytest.raises(RunError, match=r"models\.confirmer 2: b \(coco_ssd, SHA-256 .*\) in the RUN, b \("):
        run(manifest, tmp_path / "RUN", half_blind)
    with pytest.raises(RunError, match=r"settings\.match_iou: 0\.3 in the RUN, 0\.4 now"):
        run(manifest, tmp_path / "RUN", suite, settings=abacus.EditSettings(match_iou=0.4))
    with pytest.raises(RunError, match=r"manifest\.rows: 1 in the RUN, 6 now"):
        run(edits_file(tmp_path, *SEVERAL), tmp_path / "RUN", suite)


def test_models_in_other_parts_are_another_suite(tmp_path, half_blind, edits_file):
    manifest = edits_file(tmp_path, ADDED)
    run(manifest, tmp_path / "RUN", half_blind)
    text = half_blind.read_text()
    for old, new in (("s", "?"), ("b", "s"), ("?", "b")):
        text = text.replace(f'"{old}"', f'"{new}"').replace(f'"{old}.onnx"', f'"{new}.onnx"')
    other = half_blind.with_name("exchanged.toml")
    other.write_text(text)  # segmenter b, confirmers a and s: the same three models
    with pytest.raises(RunError, match=r"(?s)models\.segmenter: s .* in the RUN, b .*models\.confirmer 2: b "):
        run(manifest, tmp_path / "RUN", other)
    file = tmp_path / "RUN/run.json"
    record = json.loads(file.read_text())
    record["suite"]["upscaler"] = {"family": "conv2x", "model": "u"}
    record["models"]["upscaler"] = {"name": "upscaler", "family": "conv2x", "sha256": "0"}
    file.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"models\.upscaler: upscaler \(conv2x, SHA-256 0\) in the RUN, none now"):
        run(manifest, tmp_path / "RUN", half_blind)
    record["models"] = dict.fromkeys("sab", "0")  # as it was written before parts were told
    file.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"run\.json: models is not as it must be"):
        run(manifest, tmp_path / "RUN", half_blind)


def test_errors_can_be_tried_again(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, ADDED, ADDED)
    image = tmp_path / "images/1-b.png"
    hidden = image.rename(tmp_path / "hidden.png")
    assert run(manifest, tmp_path / "RUN", suite).error == 1
    hidden.rename(image)
    assert run(manifest, tmp_path / "RUN", suite).error == 1
    assert run(manifest, tmp_path / "RUN", suite, retry_errors=True).error == 0
