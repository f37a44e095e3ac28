"""A sweep that was stopped, whatever stopped it, goes on to the same numbers and leaves nothing behind."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tallymill.errors import RunError
from tallymill.runners.files import appearing, remove_leftovers, require_writable
from tallymill.runners.sweep import Quiet

SHARD, ITEMS, MANY = 12, 120, 960  # of the RUNs ``plain`` and ``long``


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


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_run_killed_again_and_again_ends_with_the_same_numbers(
    go_on, leftovers, long, contents, command_line, tmp_path
):
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


def test_a_worker_that_is_killed_is_replaced(leftovers, long, contents, command_line, tmp_path):
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


def test_when_only_the_parent_is_killed_its_workers_end_and_the_run_goes_on(
    go_on, leftovers, long, contents, command_line, tmp_path
):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_says_so_and_goes_on(go_on, leftovers, number, long, contents, command_line, tmp_path):
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
def test_an_interrupt_in_the_only_process_leaves_whole_files(go_on, leftovers, reports, plain, contents, tmp_path):
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


def test_workers_that_die_on_every_shard_end_the_sweep_with_a_hint(go_on, leftovers, plain, tmp_path, monkeypatch):
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


def test_leftovers_of_the_living_are_left(tmp_path, monkeypatch):
    (tmp_path / "scores").mkdir()
    host, dead = socket.gethostname(), subprocess.Popen(["true"])
    dead.wait()
    gone = tmp_path / "scores" / f".part-00002.parquet.{host}-{dead.pid}-0.tmp"
    before = tmp_path / "scores" / f".part-00003.parquet.{host}-{os.getpid()}.tmp"  # as older versions called them
    elsewhere = tmp_path / f".items.arrow.{host}x-{dead.pid}-0.tmp"
    other = tmp_path / ".notes.tmp"
    for path in (gone, before, elsewhere, other):
        path.write_bytes(b"")
    # In another container of this name: a number that no process here has.
    monkeypatch.setattr(os, "getpid", lambda: dead.pid)
    with appearing(tmp_path / "scores" / "part-00001.parquet") as mine:
        mine.write_text("half")
        remove_leftovers(tmp_path)
        require_writable(tmp_path / "scores" / "part-00001.parquet")
        assert sorted(path.name for path in tmp_path.rglob(".*")) == sorted(p.name for p in (mine, elsewhere, other))
    assert (tmp_path / "scores" / "part-00001.parquet").read_text() == "half"


def test_a_file_that_a_killed_process_was_writing_is_removed(tmp_path):
    code = (
        "import os, sys; from pathlib import Path; from tallymill.runners.files import appearing\n"
        "with appearing(Path(sys.argv[1])) as path: path.write_text('half'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.txt"], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())
