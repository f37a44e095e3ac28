import json
import shutil
import socket
import subprocess

import pytest

import tallymill
from tallymill.engine.ensemble import DetectorConfig, EnsembleConfig
from tallymill.engine.settings import Settings
from tallymill.errors import RunError, UsageError
from tallymill.runners.rescore import load_function

ITEMS = 120
NAMES = ("synthetic-a", "synthetic-b", "synthetic-c")


@pytest.fixture(scope="module")
def plain(tmp_path_factory, manifest_file):
    """A manifest with an item that cannot be scored, and its RUN."""
    folder = tmp_path_factory.mktemp("plain")
    manifest = manifest_file(folder / "m.jsonl", ITEMS)
    lines = manifest.read_text().splitlines()
    lines[50] = json.dumps({**json.loads(lines[50]), "targets": [{"category": "cat", "count": 101}]})
    manifest.write_text("\n".join(lines))
    tallymill.sweep(manifest, folder / "RUN", ensemble="synthetic", workers=0)
    return manifest, folder / "RUN"


def scores(run):
    return tallymill.load(run).scores.to_pylist()


def numbers(run):
    return [
        (r["item_id"], r["status"], r["error"], r["cw_nps"], r["b_nps"], [(t["soft"], t["hard"]) for t in r["targets"]])
        for r in scores(run)
    ]


def test_the_same_settings_give_the_same_scores(plain, tmp_path):
    summary = tallymill.rescore(plain[1], tmp_path / "AGAIN")
    assert scores(tmp_path / "AGAIN") == scores(plain[1])
    before = tallymill.load(plain[1]).summary()
    assert (summary.cw_nps, summary.b_nps, summary.reasons) == (before.cw_nps, before.b_nps, before.reasons)
    assert (summary.scored, summary.error, summary.complete) == (ITEMS - 1, 1, True)
    assert summary.detectors == before.detectors  # it refers to the proposals that it was made from


@pytest.mark.parametrize("gone", [["scores"], ["items.arrow"], ["scores", "items.arrow", "summary.json"]])
def test_proposals_alone_are_enough(gone, plain, tmp_path):
    run = tmp_path / "RUN"
    shutil.copytree(plain[1], run)
    for name in gone:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
    tallymill.rescore(run, tmp_path / "AGAIN")
    assert numbers(tmp_path / "AGAIN") == numbers(plain[1])
    categories = {t["category"] for row in scores(tmp_path / "AGAIN") for t in row["targets"]}
    assert (categories == {None}) is ("items.arrow" in gone)


def test_scores_that_were_cut_short_do_not_matter(plain, tmp_path):
    run = tmp_path / "RUN"
    shutil.copytree(plain[1], run)
    part = run / "scores" / "part-00003.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    tallymill.rescore(run, tmp_path / "AGAIN")
    assert numbers(tmp_path / "AGAIN") == numbers(plain[1])


def test_other_temperatures_are_those_of_a_sweep_with_them(plain, ensemble_file, tmp_path):
    tallymill.rescore(plain[1], tmp_path / "AGAIN", taus={"synthetic-b": 1.42, "synthetic-a": 0.8})
    ensemble = ensemble_file(tmp_path / "e.toml", *NAMES, taus=(0.8, 1.42, 1.0))
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert scores(tmp_path / "AGAIN") == scores(tmp_path / "RUN")
    assert tallymill.load(tmp_path / "AGAIN").taus == {"synthetic-a": 0.8, "synthetic-b": 1.42, "synthetic-c": 1.0}
    old, new = scores(plain[1]), scores(tmp_path / "AGAIN")
    assert [r["b_nps"] for r in old] == [r["b_nps"] for r in new]
    assert [r["cw_nps"] for r in old] != [r["cw_nps"] for r in new]


@pytest.mark.parametrize("as_function", [True, False])
def test_a_schedule_of_ones_own(as_function, plain, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def strict(n):\n    return 0.999999 if n > 50 else 0.0 + n / 100\n\n\nhalf = lambda n: 0.5\n")
    schedule = (lambda _: 0.5) if as_function else f"{file}:half"
    tallymill.rescore(plain[1], tmp_path / "HALF", schedule=schedule)
    soft = [r["targets"][0]["soft"] for r in scores(tmp_path / "HALF") if r["status"] == "scored"]
    assert json.loads((tmp_path / "HALF" / "run.json").read_text())["schedule"] == [0.5] * 100
    expected = [r["targets"][0] for r in scores(plain[1]) if r["status"] == "scored"]
    # At tau = 1 a proposal counts by T = .5 exactly when it counts for the hard sum.
    assert all((s == 0) == (t["hard"] == 0) for s, t in zip(soft, expected, strict=True))
    with pytest.raises(UsageError, match="floor") as caught:
        tallymill.rescore(plain[1], tmp_path / "STRICT", schedule=f"{file}:strict")
    assert caught.value.hint == "raise T to at least 0.0500, or sweep again with a lower floor"
    assert not (tmp_path / "STRICT").exists()


@pytest.mark.parametrize(
    ("reference", "named"),
    [
        ("nothing.py:f", "no such file"),
        ("mine.py", "mine.py names no function; give it as FILE.py:FUNC"),
        (":f", ":f names no file; give it as FILE.py:FUNC"),
        ("mine.py:g", "has no function 'g'"),
        ("mine.py:", "mine.py names no function; give it as FILE.py:FUNC"),
        ("a:b.py", "a:b.py names no function"),
        ("mine.py:value", "has no function 'value'"),
        ("broken.py:f", "importing it raised ZeroDivisionError"),
        ("syntax.py:f", "importing it raised SyntaxError"),
        ("notes.txt:f", "not a Python file"),
        ("mine.py:fails", "the schedule fails for T(1): KeyError"),
        ("mine.py:high", "T(1) = 2.0"),
    ],
)
def test_a_schedule_that_is_none(reference, named, plain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "value = 3\ndef f(n): return 0.5\ndef fails(n): return {}[n]\ndef high(n): return 2\n"
    )
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "syntax.py").write_text("def f(:")
    (tmp_path / "notes.txt").write_text("def f(n): return 0.5")
    with pytest.raises(UsageError) as caught:
        tallymill.rescore(plain[1], tmp_path / "AGAIN", schedule=reference)
    assert named in caught.value.message
    assert not (tmp_path / "AGAIN").exists()


def test_a_function_is_found_by_file_and_name(tmp_path):
    (tmp_path / "a:b.py").write_text("def f(n):\n    return n + 1\n")
    assert load_function(f"{tmp_path}/a:b.py:f")(1) == 2


def test_some_of_the_detectors(plain, ensemble_file, tmp_path):
    ensemble = ensemble_file(tmp_path / "e.toml", "synthetic-c", "synthetic-a", taus=(1.0, 1.2))
    tallymill.rescore(plain[1], tmp_path / "AGAIN", ensemble=ensemble)
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert scores(tmp_path / "AGAIN") == scores(tmp_path / "RUN")
    assert {t["covering"] for r in scores(tmp_path / "AGAIN") for t in r["targets"]} == {2}
    assert tallymill.load(tmp_path / "AGAIN").detectors == ("synthetic-c", "synthetic-a")


def test_an_ensemble_made_in_python(plain, tmp_path):
    one = EnsembleConfig("one", (DetectorConfig("synthetic-b", "synthetic"),))
    assert tallymill.rescore(plain[1], tmp_path / "AGAIN", ensemble=one).scored == ITEMS - 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"taus": {"synthetic-x": 1.0}}, "--tau synthetic-x: no such detector"),
        ({"taus": {"synthetic-a": 0.0}}, "tau = 0.0"),
        ({"taus": {"synthetic-a": float("nan")}}, "tau = nan"),
        ({"taus": {"synthetic-a": 4.0}}, "synthetic-a: with tau = 4.0 a proposal at the floor 0.05"),
        ({"ensemble": "nothing"}, "no ensemble 'nothing'"),
        ({"ensemble": "coco-cpu"}, "has no proposals of 'coco-ssd'"),
        ({"overrides": ["floor=0.1"]}, "floor = 0.1: the stored proposals were made with 0.05"),
        ({"overrides": ["nms_iou=0.4"]}, "nms_iou = 0.4"),
        ({"overrides": ["slices=[2]"]}, "slices = [2]"),
        ({"overrides": ["window_edge=2"]}, "window_edge = 2.0"),
        ({"overrides": ["max_pixels=10"]}, "max_pixels = 10"),
        ({"overrides": ["decoder=nvimgcodec"]}, "decoder = 'nvimgcodec': the stored proposals were made with 'cpu'"),
        ({"overrides": ["nothing=1"]}, "nothing=1: not a setting"),
    ],
)
def test_what_cannot_be_had_from_stored_proposals_is_refused(options, named, plain, tmp_path):
    with pytest.raises(UsageError) as caught:
        tallymill.rescore(plain[1], tmp_path / "AGAIN", **options)
    assert named in caught.value.message
    assert not (tmp_path / "AGAIN").exists()


def test_a_refusal_does_not_stand_in_the_way_of_the_next_try(plain, tmp_path):
    with pytest.raises(UsageError):
        tallymill.rescore(plain[1], tmp_path / "AGAIN", taus={"synthetic-a": 4.0})
    assert tallymill.rescore(plain[1], tmp_path / "AGAIN", taus={"synthetic-a": 1.4}).complete


def test_overrides_that_change_nothing_are_fine(plain, tmp_path):
    overrides = ["floor=0.05", "slices=[]", "nms_iou=0.5"]
    assert tallymill.rescore(plain[1], tmp_path / "AGAIN", overrides=overrides).complete
    assert scores(tmp_path / "AGAIN") == scores(plain[1])


def test_coverage_can_change(tmp_path, image_folder, image_ensemble_file):
    images = image_folder(tmp_path / "images", 3)
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    tallymill.sweep(images, tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert tallymill.rescore(tmp_path / "RUN", tmp_path / "ALL", overrides=["coverage=all"]).scored == 3
    assert json.loads((tmp_path / "ALL" / "run.json").read_text())["settings"]["coverage"] == "all"
    assert scores(tmp_path / "ALL") == scores(tmp_path / "RUN")  # one detector that covers everything asked


def test_the_run_itself_is_not_written_over(plain, times, tmp_path):
    before = times(plain[1])
    for out in (plain[1], plain[1] / ".." / "RUN"):
        with pytest.raises(UsageError, match="is the RUN itself"):
            tallymill.rescore(plain[1], out)
    tallymill.rescore(plain[1], tmp_path / "OTHER")
    for source, out in (
        (plain[1], plain[1] / "NEW"),
        (plain[1], plain[1] / "scores" / "NEW"),
        (tmp_path / "OTHER", plain[1] / "NEW"),
        (tmp_path / "OTHER", tmp_path / "OTHER" / "NEW"),
    ):
        with pytest.raises(UsageError, match="lies in the RUN"):
            tallymill.rescore(source, out)
    assert times(plain[1]) == before


def test_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"is not a RUN: it has no run\.json"):
        tallymill.rescore(tmp_path, tmp_path / "AGAIN")


def test_a_rescoring_goes_on_and_refuses_others(plain, times, tmp_path):
    out = tmp_path / "AGAIN"
    tallymill.rescore(plain[1], out, taus={"synthetic-a": 1.2})
    before, rows = times(out), scores(out)
    tallymill.rescore(plain[1], out, taus={"synthetic-a": 1.2})
    # The shard of the item that cannot be scored is done again: the fault might have passed.
    assert {name for name, when in times(out).items() if before[name] != when} == {"scores/part-00003.parquet"}
    assert scores(out) == rows
    with pytest.raises(RunError, match=r"synthetic-a\.tau: 1\.2 in the RUN, 1\.0 now") as caught:
        tallymill.rescore(plain[1], out)
    assert "tallymill rescore" not in caught.value.hint
    part = out / "scores" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert tallymill.rescore(plain[1], out, taus={"synthetic-a": 1.2}).complete


def test_a_rescored_run_can_be_rescored_and_is_not_swept_over(plain, tmp_path):
    tallymill.rescore(plain[1], tmp_path / "deep" / "A", taus={"synthetic-a": 1.2})
    tallymill.rescore(tmp_path / "deep" / "A", tmp_path / "B", taus={"synthetic-a": 1.0})
    assert scores(tmp_path / "B") == scores(plain[1])
    assert tallymill.load(tmp_path / "B").proposals("synthetic-a") == tallymill.load(plain[1]).proposals("synthetic-a")
    with pytest.raises(RunError, match=r"proposals_of: .* in the RUN, null now"):
        tallymill.sweep(plain[0], tmp_path / "B", ensemble="synthetic", workers=0)


def test_proposals_are_found_through_linked_folders(plain, tmp_path):
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    tallymill.rescore(plain[1], tmp_path / "link" / "AGAIN")
    assert tallymill.load(tmp_path / "link" / "AGAIN").proposals("synthetic-a").num_rows == ITEMS
    assert scores(tmp_path / "link" / "AGAIN") == scores(plain[1])


def test_a_run_that_is_not_complete_is_refused(plain, tmp_path):
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0, part=(1, 2))
    with pytest.raises(RunError, match=r"RUN has no whole proposals of synthetic-a for part-00001\.parquet") as caught:
        tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN")
    assert "run its sweep again" in caught.value.hint
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN").complete
    assert scores(tmp_path / "AGAIN") == scores(plain[1])


@pytest.mark.parametrize("left", [None, 0, 100, -1])
def test_the_part_that_is_lacking_is_named(left, plain, tmp_path):
    run = tmp_path / "RUN"
    shutil.copytree(plain[1], run)
    part = run / "proposals" / "synthetic-b" / "part-00003.parquet"
    if left is None:
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:left])
    with pytest.raises(RunError, match=r"synthetic-b/part-00003\.parquet is missing or damaged, though it was scored"):
        tallymill.rescore(run, tmp_path / "AGAIN")
    assert not tallymill.load(tmp_path / "AGAIN").summary().complete


def test_what_a_killed_process_left_is_removed(plain, tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = tmp_path / "AGAIN" / "scores" / f".part-00001.parquet.{socket.gethostname()}-{dead.pid}.tmp"
    tallymill.rescore(plain[1], tmp_path / "AGAIN")
    left.write_bytes(b"half")
    tallymill.rescore(plain[1], tmp_path / "AGAIN")
    assert not left.exists()


def test_a_source_that_was_swept_anew_is_another(plain, times, tmp_path):
    run, out = tmp_path / "RUN", tmp_path / "AGAIN"
    shutil.copytree(plain[1], run)
    tallymill.rescore(run, out)
    before = times(out)
    shutil.rmtree(run)
    tallymill.sweep(plain[0], run, ensemble="synthetic", workers=0)
    with pytest.raises(RunError, match=r"source_created \(the RUN that is scored again was made anew\): "):
        tallymill.rescore(run, out)
    assert times(out) == before
    shutil.rmtree(run)
    tallymill.sweep(plain[0], run, ensemble="synthetic", workers=0)  # within the same second
    tallymill.rescore(run, tmp_path / "THIRD")
    shutil.rmtree(run)
    tallymill.sweep(plain[0], run, ensemble="synthetic", workers=0)
    with pytest.raises(RunError, match="source_created"):
        tallymill.rescore(run, tmp_path / "THIRD")


def test_a_source_that_went_on_with_a_detector_more_is_the_same(plain, ensemble_file, tmp_path):
    two = ensemble_file(tmp_path / "two.toml", *NAMES[:2])
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble=two, workers=0)
    tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN")
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0)
    assert tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN").complete
    assert scores(tmp_path / "AGAIN") == scores(plain[1])


def test_images_that_came_back_since_are_scored(tmp_path, image_folder, image_ensemble_file):
    images, run, out = image_folder(tmp_path / "images", 6), tmp_path / "RUN", tmp_path / "AGAIN"
    ensemble = image_ensemble_file(tmp_path / "e.toml", "x")
    (images / "2.png").rename(tmp_path / "2.png")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0)
    assert tallymill.rescore(run, out).error == 1
    (tmp_path / "2.png").rename(images / "2.png")
    tallymill.sweep(images, run, ensemble=ensemble, workers=0, retry_errors=True)
    assert tallymill.rescore(run, out).error == 0
    assert scores(out) == scores(run)


def test_hashes_are_those_of_the_proposals(tmp_path, image_folder, image_ensemble_file):
    images, run = image_folder(tmp_path / "images", 4), tmp_path / "RUN"
    tallymill.sweep(images, run, ensemble=image_ensemble_file(tmp_path / "e.toml", "x"), workers=0)
    before = scores(run)
    shutil.rmtree(run / "scores")
    shutil.rmtree(images)
    tallymill.rescore(run, tmp_path / "AGAIN")
    assert scores(tmp_path / "AGAIN") == before
    assert all(row["image_hash"] for row in before)


def test_suppressed_boxes_do_not_count(plain, tmp_path):
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0, keep_suppressed=True)
    tallymill.rescore(tmp_path / "RUN", tmp_path / "AGAIN", taus={"synthetic-a": 1.1})
    tallymill.rescore(plain[1], tmp_path / "PLAIN", taus={"synthetic-a": 1.1})
    assert scores(tmp_path / "AGAIN") == scores(tmp_path / "PLAIN")


def test_a_lower_floor_lets_a_high_temperature_in(plain, tmp_path):
    tallymill.sweep(plain[0], tmp_path / "RUN", ensemble="synthetic", workers=0, settings=Settings(floor=0.01))
    assert tallymill.rescore(tmp_path / "RUN", tmp_path / "HOT", taus={"synthetic-a": 4.0}).complete
