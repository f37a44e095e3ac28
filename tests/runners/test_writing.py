"""Places that cannot be written are told before the work, with the file and what to do; nothing is left behind."""

import errno
import os
import resource
import socket
from contextlib import contextmanager

import pytest

import tallymill
from tallymill.errors import OutputError
from tallymill.runners.files import appearing, appearing_together, require_writable
from tallymill.runners.outputs import require_file, require_folder
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.writing import naming_output, told


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file):
    folder = tmp_path_factory.mktemp("writing")
    ensemble = ensemble_file(folder / "e.toml", "one", "two")
    tallymill.sweep(manifest_file(folder / "m.jsonl", 12), folder / "RUN", ensemble=ensemble, workers=0)
    (folder / "t.jsonl").write_text('{"item_id": "item-0", "target": 0, "box": [0, 0, 5, 5]}\n')
    return folder / "RUN"


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def commands(run, out):
    """Every command that writes, by its name and the end of the name that it asks for."""
    truth, manifest = run.with_name("t.jsonl"), run.with_name("m.jsonl")
    return {
        "build": ["prompts", "build", "--out", f"{out}.parquet"],
        "subset": ["prompts", "subset", "--out", f"{out}.parquet"],
        "calibrate": ["calibrate", run, "--truth", truth, "--out", out],
        "analyse": ["analyse", run, "--out", out],
        "collision": ["collision", "--out", f"{out}.svg"],
        "report": ["report", run, "--out", f"{out}.html"],
        "dump": ["dump", run, "--out", f"{out}.json"],
        "rescore": ["rescore", run, "--out", out],
        "sweep": ["sweep", manifest, "--ensemble", run.with_name("e.toml"), "--out", out],
        "demo": ["demo", "--out", out],
    }


# What each command begins its work with: it must not come so far.
WORK = {
    "build": "tallymill.runners.numbench.prompts.build",
    "subset": "tallymill.runners.numbench.prompts.build",
    "calibrate": "tallymill.runners.numbench.calibrate.label_run",
    "analyse": "tallymill.runners.numbench.analyse._gather",
    "collision": "tallymill.runners.numbench.collision.model_curve",
    "report": "tallymill.runners.numbench.report.analyse",
    "dump": "tallymill.runners.dump._rows",
    "rescore": "tallymill.runners.rescore.score_table",
    "sweep": "tallymill.runners.sweep.lay_out",
    "demo": "tallymill.runners.demo.demo._fetch_models",
}


@pytest.mark.parametrize("command", WORK)
@pytest.mark.parametrize("place", ["file/x", "/proc/nowhere/x", "new/" + "n" * 300])
def test_a_place_that_cannot_be_written_is_told_before_the_work(command, place, run, tmp_path, monkeypatch, capsys):
    from tallymill import cli

    def work(*_, **__):
        raise AssertionError("the work began")

    (tmp_path / "file").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(WORK[command], work)
    assert cli.run([str(argument) for argument in commands(run, place)[command]]) == 1
    told = capsys.readouterr().err
    assert f"{place[:20]}" in told
    assert "cannot be written: " in told
    assert "Errno" not in told
    assert len(told.splitlines()) == 2
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("place", ["OUT", "new/OUT", "OUT/" + "n" * 255, "a\udcff"])
def test_a_place_that_can_be_written_is_left_as_it_was(place, tmp_path):
    (tmp_path / "OUT").mkdir()
    require_writable(tmp_path / place)
    assert names(tmp_path) == ["OUT"]
    file = place + ("" if "n" * 255 in place else ".txt")
    with appearing(tmp_path / file) as path:
        path.write_text("x")
    assert names(tmp_path) == sorted({"OUT", file, *(["new"] if place.startswith("new/") else [])})


@pytest.fixture
def barred(tmp_path):
    """A file in a folder that one may not enter."""
    (tmp_path / "barred" / "in").mkdir(parents=True)
    (tmp_path / "barred").chmod(0)
    user = os.geteuid()
    os.seteuid(user or 65534)  # root may enter every folder
    yield tmp_path / "barred" / "in" / "x"
    os.seteuid(user)
    (tmp_path / "barred").chmod(0o700)


def test_below_a_folder_that_one_may_not_enter(barred):
    def appear():
        with appearing(barred):
            pass

    def appear_together():
        with appearing_together(barred.parent, ["x"]):
            pass

    calls = (
        appear,
        appear_together,
        lambda: require_writable(barred),
        lambda: require_file(barred),
        lambda: require_folder(barred),
        lambda: RunFolder.to_write(barred),
    )
    for call in calls:
        with pytest.raises(OutputError, match="cannot be written: Permission denied\n  choose a place that you may"):
            call()


@contextmanager
def limited(size):
    """What this process may write into one file, as if the disk were full behind it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("kind", ["analyse", "report", "dump", "calibrate", "collision"])
def test_a_file_that_has_no_room(kind, run, tmp_path):
    out = tmp_path / "x"
    write = {
        "analyse": lambda: tallymill.analyse(run, out, resamples=0),
        "report": lambda: tallymill.report(run, out, resamples=0, images=0),
        "dump": lambda: tallymill.dump(run, out, form="parquet"),
        "calibrate": lambda: tallymill.calibrate(run, run.with_name("t.jsonl"), out),
        "collision": lambda: tallymill.collision(10, trials=0, out=out.with_name("x.svg")),
    }[kind]
    write()
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if (tmp_path / name).is_file()}
    with (
        limited(4096),
        pytest.raises(OutputError, match=r"cannot be written: File too large\n  files may not become so large here"),
    ):
        write()
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if (tmp_path / name).is_file()} == before


def test_a_sweep_whose_parts_have_no_room(run, tmp_path, command):
    arguments = commands(run, tmp_path / "x")["sweep"]
    # What a process may write is passed on to its workers.
    done = command(
        *arguments, "--workers", 1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096,) * 2)
    )
    assert done.returncode == 1
    assert "part-00000.parquet cannot be written: File too large" in done.stderr
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]
    assert tallymill.sweep(arguments[1], tmp_path / "x", ensemble=arguments[3], workers=0).complete


def test_a_full_disk_is_worth_another_try(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def full(_handle):
        raise OSError(errno.ENOSPC, "x")

    def write():
        with appearing(tmp_path / "a") as path:
            path.write_text("new")

    def write_both():
        with appearing_together(tmp_path, ["a", "b"]) as paths:
            for path in paths.values():
                path.write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for call in (write, write_both):
            with pytest.raises(
                OutputError, match=r"cannot be written: No space left on device\n  make room there"
            ) as caught:
                call()
            assert caught.value.retryable
            assert names(tmp_path) == ["a"]
            assert (tmp_path / "a").read_text() == "old"
    write_both()
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["new", "new"]


def test_an_error_of_another_file_stays_what_it_is(tmp_path):
    with pytest.raises(FileNotFoundError), appearing(tmp_path / "a"):
        (tmp_path / "nothing").read_text()
    with pytest.raises(PermissionError, match="other"), appearing(tmp_path / "a"):
        raise PermissionError(errno.EACCES, "other")  # as Arrow says it
    with pytest.raises(OSError, match="odd"), naming_output(tmp_path / "a"):
        raise OSError("odd")


def test_what_a_killed_process_left_of_a_file_goes(tmp_path):
    host = socket.gethostname()
    for name in (f".a.txt.{host}-4194999-0.tmp", f".b.txt.{host}-4194999-0.tmp"):
        (tmp_path / name).write_text("half")
    with appearing(tmp_path / "a.txt") as path:
        path.write_text("ha")
        require_writable(tmp_path / "a.txt")
        assert names(tmp_path) == sorted([path.name, f".b.txt.{host}-4194999-0.tmp"])
        with path.open("a") as file:
            file.write("lf")
    assert (tmp_path / "a.txt").read_text() == "half"


def test_errors_of_the_system_have_no_number():
    assert told(FileNotFoundError(2, "No such file or directory", "x")) == "x: No such file or directory"
    assert told(OSError(5, "Input/output error")) == "Input/output error"
    assert told(OSError("odd")) == "odd"
