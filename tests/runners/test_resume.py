"""A sweep that was stopped, whatever stopped it, goes on to the same numbers."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import tallymill
from tallymill.engine.settings import Settings
from tallymill.errors import RunError
from tallymill.runners.files import remove_leftovers
from tallymill.runners.sweep import Quiet

SHARD, ITEMS, MANY = 12, 120, 960


def made(folder, manifest_file, items):
    manifest = manifest_file(folder / "m.jsonl", items)
    tallymill.sweep(manifest, folder / "RUN", ensemble="synthetic", workers=0, shard_items=SHARD)
    return manifest, folder / "RUN"


@pytest.fixture(scope="module")
def plain(tmp_path_factory, manifest_file):
    """A manifest and its uninterrupted RUN of 10 shards."""
    return made(tmp_path_factory.mktemp("plain"), manifest_file, ITEMS)


@pytest.fixture(scope="module")
def long(tmp_path_factory, manifest_file):
    """The same with 80 shards, so that there is time to stop it."""
    return made(tmp_path_factory.mktemp("long"), manifest_file, MANY)


@pytest.fixture
def copy(plain, tmp_path):
    """A copy of the finished RUN to be damaged."""
    shutil.copytree(plain[1], tmp_path / "RUN")
    return tmp_path / "RUN"


def go_on(manifest, run, **options):
    return tallymill.sweep(manifest, run, **{"ensemble": "synthetic", "workers": 0, "shard_items": SHARD, **options})


def leftovers(run):
    return [path for path in run.rglob("*") if path.name.startswith(".")]


def start(command_line, manifest, run, workers):
    arguments = ["sweep", manifest, "--out", run, "--ensemble", "synthetic", "--workers", workers]
    return subprocess.Popen(
        [*command_line, *map(str, arguments), "--shard-items", str(SHARD), "--json"],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_parts(run, process, n):
    """Wait until ``n`` shards are done, or the process is."""
    deadline = time.monotonic() + 60
    while process.poll() is None and len(list((run / "scores").glob("part-*"))) < n:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()] + [
        int(pid)
        for task in Path(f"/proc/{process.pid}/task").iterdir()
        if task.name != str(process.pid)
        for pid in (task / "children").read_text().split()
    ]


def end(process):
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_a_run_killed_again_and_again_ends_with_the_same_numbers(long, contents, command_line, tmp_path):
    manifest, expected = long
    run, rng, killed = tmp_path / "RUN", random.Random(7), 0
    for done in (1, 20, 45):
        process = start(command_line, manifest, run, 2)
        wait_for_parts(run, process, done + rng.randrange(4))
        time.sleep(rng.random() * 0.02)
        os.killpg(process.pid, signal.SIGKILL)
        killed += end(process)[0] == -signal.SIGKILL
    assert killed == 3
    before = len(list((run / "scores").glob("part-*")))
    assert 0 < before < MANY // SHARD
    summary = go_on(manifest, run)
    assert summary.complete
    assert contents(run) == contents(expected)
    assert not leftovers(run)


def test_a_worker_that_is_killed_is_replaced(long, contents, command_line, tmp_path):
    manifest, expected = long
    run = tmp_path / "RUN"
    process = start(command_line, manifest, run, 2)
    wait_for_parts(run, process, 3)
    victims = children(process)
    assert len(victims) == 2
    os.kill(victims[0], signal.SIGKILL)
    code, errors = end(process)
    assert code == 0, errors
    assert contents(run) == contents(expected)
    assert not leftovers(run)


def test_when_only_the_parent_is_killed_its_workers_end_and_the_run_goes_on(long, contents, command_line, tmp_path):
    manifest, expected = long
    run = tmp_path / "RUN"
    process = start(command_line, manifest, run, 2)
    wait_for_parts(run, process, 3)
    workers = children(process)
    assert workers
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    summary = go_on(manifest, run)  # at once, beside workers that may still be about
    assert summary.complete
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.01)
    process.communicate()
    go_on(manifest, run)
    assert contents(run) == contents(expected)
    assert not leftovers(run)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_says_so_and_goes_on(number, long, contents, command_line, tmp_path):
    manifest, expected = long
    run = tmp_path / "RUN"
    process = start(command_line, manifest, run, 2)
    wait_for_parts(run, process, 3)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # Ctrl-C reaches the whole group
    else:
        os.kill(process.pid, number)
    code, errors = end(process)
    assert code == 1, errors
    done = len(list((run / "scores").glob("part-*")))
    assert errors.startswith(f"stopped: {done * SHARD} of {MANY} items are done and kept; the same command goes on")
    assert len(errors.splitlines()) == 1
    assert not leftovers(run)
    assert 3 <= done < MANY // SHARD
    assert go_on(manifest, run).complete
    assert contents(run) == contents(expected)


@pytest.mark.parametrize("reports", [1, 2, 7])
def test_an_interrupt_in_the_only_process_leaves_whole_files(reports, plain, contents, tmp_path):
    class Impatient(Quiet):
        left = reports

        def advance(self, *_):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    run = tmp_path / "RUN"
    with pytest.raises(KeyboardInterrupt, match=rf"^\d+ of {ITEMS} items are done and kept"):
        go_on(plain[0], run, progress=Impatient())
    assert not leftovers(run)
    assert len(list((run / "scores").glob("part-*"))) < ITEMS // SHARD
    assert contents(run).items() <= contents(plain[1]).items()
    assert go_on(plain[0], run).complete
    assert contents(run) == contents(plain[1])


def test_workers_that_die_on_every_shard_end_the_sweep_with_a_hint(plain, tmp_path, monkeypatch):
    from tallymill.runners import local

    # Each child is killed as soon as it is started: what a machine without memory does.
    popen = subprocess.Popen

    def doomed(*args, **options):
        child = popen(*args, **options)
        child.kill()
        return child

    monkeypatch.setattr(local.subprocess, "Popen", doomed)
    with pytest.raises(
        RunError, match=r"died 2 times on 10 of 10 shards; .*: rows 0 to 11 \(exit status -9\)"
    ) as caught:
        go_on(plain[0], tmp_path / "RUN", workers=2)
    assert "fewer --workers" in caught.value.hint
    assert not leftovers(tmp_path / "RUN")


def test_a_complete_run_run_again_does_no_work(plain, times, copy):
    before = times(copy)
    summary = go_on(plain[0], copy, workers=2)
    assert times(copy) == before
    assert (summary.complete, summary.done) == (True, ITEMS)


@pytest.mark.parametrize("part", ["scores/part-00007.parquet", "proposals/synthetic-b/part-00007.parquet"])
@pytest.mark.parametrize("left", [0, 3, 200, -1])
def test_a_part_that_was_cut_short_is_rewritten(part, left, plain, contents, times, copy):
    data = (copy / part).read_bytes()
    (copy / part).write_bytes(data[:left])
    if part.startswith("proposals"):  # the scores of that shard are not to be had without it
        (copy / "scores" / "part-00007.parquet").unlink()
    before = times(copy)
    assert go_on(plain[0], copy).complete
    assert contents(copy) == contents(plain[1])
    changed = {name for name, when in times(copy).items() if before.get(name) != when}
    assert changed == {part, "scores/part-00007.parquet"}


def test_a_part_that_rotted_is_told_and_rewritten(plain, contents, copy, tmp_path):
    part = copy / "proposals" / "synthetic-b" / "part-00007.parquet"
    data = bytearray(part.read_bytes())
    data[60:200] = bytes(140)  # the footer is as it was
    part.write_bytes(data)
    with pytest.raises(RunError, match=r"synthetic-b/part-00007\.parquet is damaged") as caught:
        tallymill.rescore(copy, tmp_path / "AGAIN")
    assert "scores" in caught.value.hint
    (copy / "scores" / "part-00007.parquet").unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_scores_that_rotted_are_named(plain, contents, copy):
    part = copy / "scores" / "part-00004.parquet"
    data = bytearray(part.read_bytes())
    footer = 8 + int.from_bytes(data[-8:-4], "little")
    data[4:-footer] = bytes(len(data) - footer - 4)
    part.write_bytes(data)
    for look in (lambda: tallymill.load(copy).scores, lambda: go_on(plain[0], copy)):
        with pytest.raises(RunError, match=r"RUN/scores/part-00004\.parquet is damaged") as caught:
            look()
        assert "remove it" in caught.value.hint
    part.unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


def test_scores_that_are_gone_are_made_from_the_proposals(plain, contents, times, copy):
    shutil.rmtree(copy / "scores")
    before = {name: when for name, when in times(copy).items() if name.startswith("proposals/")}
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])
    assert {name: when for name, when in times(copy).items() if name.startswith("proposals/")} == before


def test_parts_of_another_run_are_not_taken_over(plain, contents, tmp_path, copy, manifest_file):
    other = manifest_file(tmp_path / "other.jsonl", ITEMS, start=5)
    go_on(other, tmp_path / "OTHER")
    for part in ("scores/part-00002.parquet", "proposals/synthetic-a/part-00003.parquet"):
        shutil.copy(tmp_path / "OTHER" / part, copy / part)
    (copy / "scores" / "part-00003.parquet").unlink()
    go_on(plain[0], copy)
    assert contents(copy) == contents(plain[1])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"settings": Settings(floor=0.1)}, ["settings.floor: 0.05 in the RUN, 0.1 now"]),
        ({"settings": Settings(nms_iou=0.4)}, ["settings.nms_iou: 0.5 in the RUN, 0.4 now"]),
        ({"settings": Settings(slices=(2,))}, ["settings.slices: [] in the RUN, [2] now"]),
        ({"settings": Settings(window_edge=2)}, ["settings.window_edge: 1.0 in the RUN, 2.0 now"]),
        ({"settings": Settings(coverage="all")}, ['settings.coverage: "covered" in the RUN, "all" now']),
        ({"settings": Settings(floor=0.1, nms_iou=0.4)}, ["settings.floor: ", "settings.nms_iou: "]),
        ({"shard_items": 13}, ["shard_items: 12 in the RUN, 13 now"]),
        ({"keep_suppressed": True}, ["keep_suppressed: false in the RUN, true now"]),
        ({"system": "mine"}, ["manifest.sha256 (what the manifest's rows say, or the prompts given with them): "]),
    ],
)
def test_other_settings_are_refused_with_their_names(options, named, plain, times, copy):
    record, before = (copy / "run.json").read_bytes(), times(copy)
    with pytest.raises(RunError) as caught:
        go_on(plain[0], copy, **options)
    for line in named:
        assert f"\n  {line}" in caught.value.message
    assert len(caught.value.message.splitlines()) == 1 + len(named)
    assert "rescore" in caught.value.hint
    assert (copy / "run.json").read_bytes() == record
    assert times(copy) == before
    assert not leftovers(copy)


def test_the_size_of_a_shard_need_not_be_told_again(plain, times, copy):
    before = times(copy)
    assert go_on(plain[0], copy, shard_items=None).complete
    assert times(copy) == before


def test_another_manifest_is_refused(copy, tmp_path, manifest_file):
    with pytest.raises(RunError) as caught:
        go_on(manifest_file(tmp_path / "m.jsonl", ITEMS + 1), copy)
    assert f"manifest.rows: {ITEMS} in the RUN, {ITEMS + 1} now" in caught.value.message
    assert "\n  manifest.sha256 (" in caught.value.message


def test_another_temperature_is_refused(plain, copy, ensemble_file, tmp_path):
    other = ensemble_file(tmp_path / "e.toml", "synthetic-a", "synthetic-b", "synthetic-c", taus=(1.0, 1.2, 1.0))
    with pytest.raises(RunError, match=r"synthetic-b\.tau: 1\.0 in the RUN, 1\.2 now"):
        go_on(plain[0], copy, ensemble=other)


def test_a_detector_that_was_removed_is_refused(plain, copy, ensemble_file, tmp_path):
    with pytest.raises(RunError, match=r"ensemble\.detectors: synthetic-b is in the RUN but not asked for now"):
        go_on(plain[0], copy, ensemble=ensemble_file(tmp_path / "e.toml", "synthetic-a", "synthetic-c"))


def test_a_folder_with_parts_but_no_record(plain, copy):
    (copy / "run.json").unlink()
    with pytest.raises(RunError, match=r"is not empty \(.*\) and is not a RUN"):
        go_on(plain[0], copy)


@pytest.mark.parametrize(
    ("text", "named"), [("{", "cannot be read"), ("[]", "not written by tallymill"), ("{}", "not written")]
)
def test_a_record_that_is_none(text, named, plain, copy):
    (copy / "run.json").write_text(text)
    with pytest.raises(RunError, match=named):
        go_on(plain[0], copy)


def test_a_detector_that_was_added_runs_alone(plain, contents, times, ensemble_file, tmp_path):
    two = ensemble_file(tmp_path / "two.toml", "synthetic-a", "synthetic-b")
    three = ensemble_file(tmp_path / "three.toml", "synthetic-a", "synthetic-b", "synthetic-c")
    run = tmp_path / "RUN"
    go_on(plain[0], run, ensemble=two)
    before = times(run)
    small = contents(run)
    summary = go_on(plain[0], run, ensemble=three, workers=2)
    assert summary.complete
    after = times(run)
    assert all(after[name] == when for name, when in before.items() if name.startswith("proposals/"))
    assert {name.split("/")[1] for name in set(after) - set(before)} == {"synthetic-c"}
    assert contents(run) == contents(plain[1])
    assert any(contents(run)[name] != rows for name, rows in small.items() if name.startswith("scores/"))
    with pytest.raises(RunError, match="synthetic-c is in the RUN but not asked for now"):
        go_on(plain[0], run, ensemble=two)


def test_a_detector_added_to_a_stopped_run(plain, contents, ensemble_file, tmp_path):
    two = ensemble_file(tmp_path / "two.toml", "synthetic-a", "synthetic-b")
    run = tmp_path / "RUN"
    assert not go_on(plain[0], run, ensemble=two, part=(2, 3)).complete
    assert go_on(plain[0], run).complete
    assert contents(run) == contents(plain[1])


def test_the_record_remembers_when_it_was_made(plain, copy):
    before = json.loads((copy / "run.json").read_text())
    go_on(plain[0], copy)
    after = json.loads((copy / "run.json").read_text())
    assert after["created"] == before["created"]
    assert after["versions"] == before["versions"]
    before["versions"]["numpy"] = "1.0"
    (copy / "run.json").write_text(json.dumps(before))
    go_on(plain[0], copy)
    third = json.loads((copy / "run.json").read_text())
    assert third["versions"]["numpy"] == "1.0"
    assert third["continued"] == [after["versions"]]


# An image that changes between one detector and the next


def test_an_image_that_changed_before_a_detector_was_added_is_an_error_row(tmp_path, image_folder, image_ensemble_file):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    one, two = (image_ensemble_file(tmp_path / f"{n}.toml", *names) for n, names in ((1, ["x"]), (2, ["x", "y"])))
    tallymill.sweep(images, run, ensemble=one, workers=0)
    Image.fromarray(np.full((30, 40, 3), 77, np.uint8)).save(images / "5.png")
    (images / "6.png").unlink()
    summary = tallymill.sweep(images, run, ensemble=two, workers=0)
    assert (summary.scored, summary.error) == (18, 2)
    rows = {row["item_id"]: row for row in tallymill.load(run).scores.to_pylist()}
    assert rows["5.png"]["error"] == "image: the file changed since the other detectors of this RUN looked at it"
    assert rows["6.png"]["error"] == "image: not found"
    assert rows["5.png"]["cw_nps"] is None
    image_folder(tmp_path / "fresh", 20)
    tallymill.sweep(tmp_path / "fresh", tmp_path / "FRESH", ensemble=two, workers=0)
    fresh = {row["item_id"]: row for row in tallymill.load(tmp_path / "FRESH").scores.to_pylist()}
    assert [name for name in rows if rows[name] != fresh[name]] == ["5.png", "6.png"]


def test_scores_alone_are_made_again_without_decoding(tmp_path, image_folder, image_ensemble_file, contents):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    before = contents(run)
    shutil.rmtree(run / "scores")
    summary = tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    assert contents(run) == before
    assert summary.stage_seconds.get("model", 0.0) == 0.0


def test_scores_made_again_carry_the_hash_of_the_image_that_was_seen(
    tmp_path, image_folder, image_ensemble_file, contents
):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x", "y")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    before = contents(run)
    Image.fromarray(np.full((30, 40, 3), 77, np.uint8)).save(images / "5.png")
    (images / "6.png").unlink()
    shutil.rmtree(run / "scores")
    summary = tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    assert summary.scored == 20
    assert contents(run) == before
    assert all(row["image_hash"] for row in tallymill.load(run).scores.to_pylist())


def test_images_of_another_folder_are_refused(tmp_path, image_folder, image_ensemble_file, times):
    """Their manifests say the same, but the images are others."""
    run, ensemble = tmp_path / "RUN", image_ensemble_file(tmp_path / "e.toml", "x")
    for name in ("one", "other"):
        image_folder(tmp_path / name, 3)
    tallymill.sweep(tmp_path / "one", run, ensemble=ensemble, workers=0)
    before = times(run)
    with pytest.raises(RunError) as caught:
        tallymill.sweep(tmp_path / "other", run, ensemble=ensemble, workers=0)
    differences = caught.value.message.splitlines()[1:]
    assert len(differences) == 1
    assert differences[0].startswith("  manifest.image_root (the folder that image references start from): ")
    assert f'"{tmp_path / "one"}" in the RUN, "{tmp_path / "other"}" now' in differences[0]
    assert times(run) == before


def test_a_manifest_of_absolute_references_can_lie_anywhere(tmp_path, image_folder, image_ensemble_file, times):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    rows = [{"item_id": f"i{k}", "image": f"{images}/{k}.png", "targets": {"cat": 1}} for k in range(3)]
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tallymill.sweep(tmp_path / "here" / "m.jsonl", run, ensemble=ensemble, workers=0)
    before = times(run)
    assert tallymill.sweep(tmp_path / "there" / "m.jsonl", run, ensemble=ensemble, workers=0).scored == 3
    assert times(run) == before
    assert json.loads((run / "run.json").read_text())["manifest"]["image_root"] is None


def test_relative_references_of_a_table_start_from_the_current_folder(
    tmp_path, image_folder, image_ensemble_file, monkeypatch
):
    run, ensemble = tmp_path / "RUN", image_ensemble_file(tmp_path / "e.toml", "x")
    for name in ("one", "other"):
        image_folder(tmp_path / name, 1)
    table = pa.Table.from_pylist([{"item_id": "a", "image": "0.png", "targets": "cat=1"}])
    monkeypatch.chdir(tmp_path / "one")
    assert tallymill.sweep(table, run, ensemble=ensemble, workers=0).scored == 1
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(RunError, match=r"manifest\.image_root"):
        tallymill.sweep(table, run, ensemble=ensemble, workers=0)


def test_a_model_that_moved_is_the_same_model(tmp_path, image_folder, image_ensemble_file, times):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    tallymill.sweep(images, run, ensemble=image_ensemble_file(tmp_path / "here" / "e.toml", "x", "y"), workers=0)
    before = times(run)
    for name in ("e.toml", "x.onnx", "y.onnx"):
        (tmp_path / "here" / name).rename(tmp_path / "there" / name)
    assert tallymill.sweep(images, run, ensemble=tmp_path / "there" / "e.toml", workers=0).complete
    assert times(run) == before
    part = run / "scores" / "part-00000.parquet"
    part.unlink()
    assert tallymill.sweep(images, run, ensemble=tmp_path / "there" / "e.toml", workers=0).complete
    assert {name for name, when in times(run).items() if before[name] != when} == {"scores/part-00000.parquet"}


@pytest.mark.parametrize("workers", [0, 1])
def test_only_shards_with_errors_are_tried_again_and_only_when_asked(
    workers, tmp_path, image_folder, image_ensemble_file, contents, times
):
    images, run = image_folder(tmp_path / "images", 10), tmp_path / "RUN"
    options = {"ensemble": image_ensemble_file(tmp_path / "e.toml", "x", "y"), "workers": 0, "shard_items": 2}
    tallymill.sweep(images, tmp_path / "FRESH", **options)
    (images / "5.png").rename(tmp_path / "5.png")
    assert tallymill.sweep(images, run, **options).reasons == [("image: not found", 1, "5.png")]
    (tmp_path / "5.png").rename(images / "5.png")
    before = times(run)
    assert tallymill.sweep(images, run, **options).error == 1
    assert tallymill.sweep(images, run, **options, part=(1, 2), retry_errors=True).error == 0
    assert contents(run) == contents(tmp_path / "FRESH")
    changed = {name for name, when in times(run).items() if before[name] != when}
    parts = [f"{folder}/part-00002.parquet" for folder in ("scores", "proposals/x", "proposals/y")]
    assert changed == set(parts)
    after = times(run)
    assert tallymill.sweep(images, run, **{**options, "workers": workers}, retry_errors=True).error == 0
    assert times(run) == after


# Two jobs that start the same new RUN at the same time

RUNS = 12
PREPARES = """
import sys, time
from pathlib import Path
from tallymill.engine.settings import Settings
from tallymill.errors import RunError
from tallymill.runners.sweep import prepare

folder, mine, other = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
for k in range(int(sys.argv[4])):
    (folder / f"ready-{k}-{mine}").touch()
    while not (folder / f"ready-{k}-{other}").exists():
        time.sleep(0)
    try:
        prepare(folder / "m.jsonl", folder / f"RUN-{k}", ensemble="synthetic", settings=Settings(floor=float(mine)))
        print(k, "won", flush=True)
    except RunError as exc:
        assert f"{other} in the RUN, {mine} now" in exc.message, exc.message
        print(k, "lost", flush=True)
"""


def test_of_two_that_start_a_run_with_other_settings_one_wins(tmp_path, manifest_file):
    manifest_file(tmp_path / "m.jsonl", 5)
    racers = {
        mine: subprocess.Popen(
            [sys.executable, "-c", PREPARES, str(tmp_path), mine, other, str(RUNS)], stdout=subprocess.PIPE, text=True
        )
        for mine, other in (("0.1", "0.2"), ("0.2", "0.1"))
    }
    told = {mine: racer.communicate(timeout=60)[0].split()[1::2] for mine, racer in racers.items()}
    assert [racer.returncode for racer in racers.values()] == [0, 0]
    for k, pair in enumerate(zip(*told.values(), strict=True)):
        assert sorted(pair) == ["lost", "won"]
        run = tmp_path / f"RUN-{k}"
        record = json.loads((run / "run.json").read_text())
        assert record["settings"]["floor"] == float(next(mine for mine, results in told.items() if results[k] == "won"))
        assert sorted(path.name for path in run.iterdir()) == ["items.arrow", "run.json"]
    assert len(told["0.1"]) == RUNS


def test_another_model_under_the_same_name_is_refused(tmp_path, image_folder, image_ensemble_file, model_file):
    images, run = image_folder(tmp_path / "images", 3), tmp_path / "RUN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    model_file(tmp_path / "x.onnx", seed=99)
    with pytest.raises(RunError, match=r"x\.model_sha256: "):
        tallymill.sweep(images, run, ensemble=ensemble, workers=0)


def test_leftovers_of_the_living_are_left(tmp_path):
    (tmp_path / "scores").mkdir()
    host, dead = socket.gethostname(), subprocess.Popen(["true"])
    dead.wait()
    mine = tmp_path / "scores" / f".part-00001.parquet.{host}-{os.getpid()}.tmp"
    gone = tmp_path / "scores" / f".part-00002.parquet.{host}-{dead.pid}.tmp"
    elsewhere = tmp_path / f".items.arrow.{host}x-{dead.pid}.tmp"
    other = tmp_path / ".notes.tmp"
    for path in (mine, gone, elsewhere, other):
        path.write_bytes(b"")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob(".*")) == sorted(p.name for p in (mine, elsewhere, other))


def test_leftovers_of_a_process_that_nobody_waited_for_are_removed(tmp_path):
    zombie = subprocess.Popen(["true"])
    while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.001)
    left = tmp_path / f".part.{socket.gethostname()}-{zombie.pid}.tmp"
    left.write_bytes(b"")
    remove_leftovers(tmp_path)
    assert not left.exists()
    zombie.wait()
