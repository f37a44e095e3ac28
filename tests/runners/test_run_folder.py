import copy

import pytest

from tallymill.engine.ensemble import load_ensemble
from tallymill.engine.settings import Settings
from tallymill.errors import RunError
from tallymill.runners import run_folder
from tallymill.runners.build import plan_for
from tallymill.runners.files import create_json
from tallymill.runners.run_folder import RunFolder, differences, ensemble_of, make_record, plan_of, stamps_of


def record_of(ensemble="synthetic", **settings):
    config = load_ensemble(ensemble)
    chosen = Settings(**settings)
    return make_record(
        manifest={"source": "m.jsonl", "image_root": None, "rows": 10, "sha256": "0" * 64},
        shard_items=16,
        ensemble=config,
        model_hashes={d.name: None if d.model is None else "f" * 64 for d in config.detectors},
        settings=chosen,
        plan=plan_for(config, chosen),
        keep_suppressed=False,
        created="2000-01-01T00:00:00+00:00",
    )


def test_a_record_describes_the_run_that_made_it():
    record = record_of("coco-cpu", floor=0.1)
    config = load_ensemble("coco-cpu")
    assert ensemble_of(record) == config
    assert plan_of(record) == plan_for(config, Settings())
    assert record["settings"]["slices"] == [2, 3]  # the ensemble's, since the user left it to it
    assert record_of("coco-cpu", slices=())["settings"]["slices"] == []
    assert {"python", "numpy", "pyarrow"} <= set(record["versions"])


@pytest.mark.parametrize(
    ("change", "proposals", "scores"),
    [
        (lambda r: r["settings"].update(floor=0.1), True, True),
        (lambda r: r["settings"].update(nms_iou=0.4), True, True),
        (lambda r: r["settings"].update(slices=[2]), True, True),
        (lambda r: r["settings"].update(max_pixels=5), True, True),
        (lambda r: r["settings"].update(decoder="nvimgcodec"), True, True),
        (lambda r: r["settings"].update(coverage="all"), False, True),
        (lambda r: r["settings"].update(window_edge=2.0), True, True),
        (lambda r: r["manifest"].update(sha256="1" * 64), True, True),
        (lambda r: r["manifest"].update(image_root="/elsewhere"), True, True),
        (lambda r: r["manifest"].update(source="n.jsonl"), False, False),
        (lambda r: r.update(shard_items=17), True, True),
        (lambda r: r.update(keep_suppressed=True), True, True),
        (lambda r: r["schedule"].__setitem__(0, 0.6), False, True),
        (lambda r: r["ensemble"]["detectors"][0].update(tau=2.0), False, True),
        (lambda r: r["ensemble"]["detectors"][0].update(model_sha256="e" * 64), True, True),
        (lambda r: r["ensemble"]["detectors"][0].update(model="/moved/a.onnx"), False, False),
        (lambda r: r["ensemble"]["detectors"].pop(), False, True),
        (lambda r: r.update(source_created="earlier"), False, True),
        (lambda r: r.update(device="cuda"), True, True),
        (lambda r: r.update(device_choice={"asked": "cpu", "devices": ["cpu"], "why": "so"}), False, False),
        (lambda r: r.pop("device"), False, False),
        (lambda r: r.update(created="now", versions={}), False, False),
    ],
)
def test_stamps_follow_what_shapes_the_numbers(change, proposals, scores):
    before, after = record_of(), record_of()
    change(after)
    one, other = stamps_of(before), stamps_of(after)
    assert (one.detectors["synthetic-a"] != other.detectors["synthetic-a"]) is proposals
    assert (one.scores != other.scores) is scores


def test_every_difference_is_told_once():
    before, after = record_of(), copy.deepcopy(record_of(floor=0.2, coverage="all"))
    after["manifest"].update(rows=11, sha256="1" * 64, image_root="/elsewhere")
    after["source_created"] = "now"
    after["ensemble"]["detectors"][1]["tau"] = 1.5
    del after["ensemble"]["detectors"][2]
    found = list(differences(before, after))
    assert [line.partition(":")[0].partition(" (")[0] for line in found] == [
        "manifest.sha256",
        "manifest.rows",
        "manifest.image_root",
        "settings.coverage",
        "settings.floor",
        "source_created",
        "synthetic-b.tau",
        "ensemble.detectors",
    ]
    assert all("\n" not in line and len(line) < 250 for line in found)
    assert not list(differences(before, record_of()))


def test_another_schedule_is_told_in_a_short_line():
    after = record_of()
    after["schedule"] = [0.5] * 100
    [line] = differences(record_of(), after)
    assert line.startswith("schedule: [")
    assert len(line) < 200


def test_a_record_is_written_once_and_read_back(tmp_path):
    run = RunFolder(tmp_path / "RUN")
    assert run.continue_with(record_of()) == record_of()
    assert run.read() == record_of()
    times = run.record_path.stat().st_mtime_ns
    later = {**record_of(), "created": "2001-01-01T00:00:00+00:00"}
    assert run.continue_with(later)["created"] == record_of()["created"]
    run.continue_with(later)
    assert run.record_path.stat().st_mtime_ns >= times


def test_a_folder_with_other_things_in_it_does_not_become_a_run(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"is not empty \(notes\.txt\) and is not a RUN"):
        RunFolder.to_write(tmp_path)


def test_what_a_killed_process_left_does_not_stand_in_the_way(tmp_path):
    (tmp_path / ".run.json.host-1.tmp").write_text("{")
    assert RunFolder.to_write(tmp_path).continue_with(record_of()) == record_of()


def test_versions_that_went_on_are_told_once_each(tmp_path):
    run, now = RunFolder(tmp_path), record_of()
    older = [{**now, "versions": {**now["versions"], "numpy": number}} for number in ("1.0", "1.1", "1.2")]
    for record in (older[0], older[1], now, older[1], older[2], older[0], now):
        run.continue_with(record)
    record = run.read()
    assert record["versions"]["numpy"] == "1.0"
    assert record["continued"] == [older[1]["versions"], now["versions"], older[2]["versions"]]


@pytest.mark.parametrize("floor", [0.1, 0.2])
def test_when_another_process_was_first_its_record_stands(floor, tmp_path, monkeypatch):
    """Between the look whether there is a record and the writing of one, another process writes its own."""
    others = {**record_of(floor=0.1), "created": "1999-01-01T00:00:00+00:00"}

    def late(path, record):
        assert create_json(path, others)
        return create_json(path, record)

    monkeypatch.setattr(run_folder, "create_json", late)
    run = RunFolder(tmp_path / "RUN")
    if floor == 0.1:
        assert run.continue_with(record_of(floor=floor))["created"] == others["created"]
    else:
        with pytest.raises(RunError, match=r"settings\.floor: 0\.1 in the RUN, 0\.2 now"):
            run.continue_with(record_of(floor=floor))
    assert run.read()["settings"]["floor"] == 0.1
    assert [path.name for path in run.path.iterdir()] == ["run.json"]


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"no run\.json"):
        RunFolder(tmp_path).read()
