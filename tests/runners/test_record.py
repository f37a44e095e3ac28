"""A run.json that was edited, cut short or written by something else: one error that names the file and the key."""

import copy
import json
from dataclasses import replace

import pytest

import tallymill
from tallymill import cli
from tallymill.errors import RunError, UsageError
from tallymill.runners import console
from tallymill.runners import record as records
from tallymill.runners.record import fault_of
from tallymill.runners.run_folder import RunFolder, differences, ensemble_of, plan_of, stamps_of

GONE = object()
WRONG: list[object] = [GONE, None, "x", "", -1, 0, 10**30, 1.5, True, [], {}, [1], {"a": 1}, float("nan"), "\udcff"]
WRONG += [10**400, -(10**400), "a\0b", float("inf"), {"rows": 1}, {"rows": 1, "used": "x"}, {"rows": 2, "used": 1}]


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file):
    folder = tmp_path_factory.mktemp("record")
    ensemble_file(folder / "e.toml", "one", "two")
    manifest_file(folder / "m.jsonl", 12)
    tallymill.sweep(folder / "m.jsonl", folder / "RUN", ensemble=folder / "e.toml", workers=0)
    (folder / "t.jsonl").write_text('{"item_id": "item-0", "target": 0, "box": [0, 0, 5, 5]}\n')
    return folder / "RUN"


@pytest.fixture
def record(run):
    """The record as it was swept; whatever a test writes into the file is taken back."""
    file = run / "run.json"
    before = file.read_bytes()
    yield json.loads(before)
    file.write_bytes(before)


def places(value, above=()):
    """Every key of a record, and the first of each list."""
    keys = value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ()
    for key in keys:
        yield (*above, key)
        yield from places(value[key], (*above, key))


def changed(record, place, value):
    result = copy.deepcopy(record)
    inside = result
    for key in place[:-1]:
        inside = inside[key]
    if value is GONE:
        del inside[place[-1]]
    else:
        inside[place[-1]] = value
    return result


def test_no_value_breaks_a_reader(record, run):
    """What is let through can be worked with; there is no third way."""
    summary = tallymill.load(run).summary()
    record["manifest"]["prompts"] = {"file": "p.jsonl", "rows": 3, "used": 1}
    record["proposals_of"] = "."
    record["ensemble"]["detectors"][0]["accepted"] = {"device": "cuda:0"}
    assert fault_of(record) is None
    refused = 0
    for place in places(record):
        for value in WRONG:
            other = changed(record, place, value)
            if fault_of(other) is not None:
                refused += 1
                continue
            stamps_of(other), ensemble_of(other), plan_of(other)
            RunFolder(run).proposals_path(other).exists()
            if place[:2] == ("manifest", "prompts"):
                console.show_summary(replace(summary, prompts=other["manifest"].get("prompts")))
            assert isinstance([*differences(record, other), *differences(other, record)], list)
    assert refused > 300


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("created",), GONE, "created is missing"),
        (("manifest", "rows"), "12", "manifest.rows is '12', not a whole number of at least 1"),
        (("manifest", "rows"), 10**15, "more than 10,000,000 shards"),
        (("shard_items",), 0, "shard_items is 0, not"),
        (("ensemble", "detectors"), [], "ensemble.detectors is [], not a list of objects, at least one"),
        (("ensemble", "detectors", 0, "tau"), None, "ensemble.detectors[0].tau is None, not a positive number"),
        (("ensemble", "detectors", 1, "name"), "one", "ensemble.detectors[1].name: 'one' was there before"),
        (("ensemble", "detectors", 0, "name"), "../x", "detector name '../x'"),
        (("ensemble", "detectors", 0, "accepted"), True, "detectors[0].accepted is True, not an object or null"),
        (("settings", "floor"), GONE, "settings.floor is missing"),
        (("settings", "later"), 1, "settings.later is not known to this version"),
        (("settings", "coverage"), "some", "coverage='some'"),
        (("schedule",), [0.5] * 99, "schedule is [0.5, 0.5"),
        (("proposals_of",), 3, "proposals_of is 3, not a path"),
        (("proposals_of",), "a\0b", "proposals_of is 'a\\x00b', not a path"),
        (("manifest", "prompts"), {}, "manifest.prompts.rows is missing"),
        (("ensemble", "detectors", 0, "tau"), 10**400, "not a positive number"),
        (("schedule", 0), 10**400, "not 100 numbers in 0..1"),
        (("settings", "window_edge"), 10**400, "must be pixels, 0 or more"),
        (("user_score",), {"name": 3}, "user_score.name is 3, not text"),
    ],
)
def test_the_key_is_named(place, value, told, record, run):
    (run / "run.json").write_text(json.dumps(changed(record, place, value)))
    with pytest.raises(RunError) as caught:
        tallymill.load(run)
    assert str(caught.value).startswith(f"{run / 'run.json'} is no record of this tallymill: ")
    assert told in caught.value.message
    assert caught.value.hint.startswith("put back the run.json")


def test_a_run_of_too_many_shards_is_not_begun(run, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_SHARDS", 5)
    with pytest.raises(UsageError, match=r"12 items in shards of 2 are more than 5 shards\n  .*--shard-items 3 or"):
        tallymill.sweep(run.parent / "m.jsonl", tmp_path / "RUN", ensemble="synthetic", workers=0, shard_items=2)
    assert not list(tmp_path.iterdir())
    tallymill.sweep(run.parent / "m.jsonl", tmp_path / "RUN", ensemble="synthetic", workers=0, shard_items=3)


def test_another_version_is_named(record, run):
    del record["schedule"]
    record["versions"]["tallymill"] = "0.0.7"
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"schedule is missing \(tallymill 0\.0\.7 wrote it, this is"):
        tallymill.load(run)


@pytest.mark.usefixtures("record")
@pytest.mark.parametrize("text", ["", '{"created": "20', "\udcff", "[" * 100_000, "null"])
@pytest.mark.parametrize("command", ["analyse", "report", "rescore", "dump", "calibrate", "sweep"])
def test_a_record_that_is_cut_short(text, command, run, tmp_path, capsys):
    (run / "run.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    folder = run.parent
    arguments = {
        "analyse": [run],
        "report": [run, "--out", tmp_path / "r.html"],
        "rescore": [run],
        "dump": [run, "--out", tmp_path / "d.json"],
        "calibrate": [run, "--truth", folder / "t.jsonl"],
        "sweep": [folder / "m.jsonl", "--ensemble", folder / "e.toml", "--out", run],
    }[command]
    assert cli.run([command, *map(str, arguments)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert str(run / "run.json") in lines[0]
    assert lines[1:] == ["  put back the run.json that the sweep wrote, or sweep again into another folder"]
