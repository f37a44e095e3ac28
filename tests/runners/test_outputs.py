"""Where results may be written, and that nothing which is read or is no plain file is replaced."""

import json
import os

import pytest

import tallymill
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing, write_json
from tallymill.runners.numbench.gallery import _hashes


@pytest.fixture(scope="module")
def run(tmp_path_factory, manifest_file, ensemble_file):
    folder = tmp_path_factory.mktemp("outputs")
    ensemble = ensemble_file(folder / "e.toml", "one", "two")
    tallymill.sweep(manifest_file(folder / "m.jsonl", 12), folder / "RUN", ensemble=ensemble, workers=0)
    return folder / "RUN"


def test_nothing_is_written_into_a_run(run):
    before = (run / "run.json").read_bytes()
    for call in (
        lambda: tallymill.report(run, run / "run.json", resamples=0),
        lambda: tallymill.analyse(run, run / "tables", resamples=0),
        lambda: tallymill.dump(run, run / "boxes.parquet"),
    ):
        with pytest.raises(UsageError, match=r"lies in the RUN"):
            call()
    assert (run / "run.json").read_bytes() == before
    assert not (run / "tables").exists()


def test_inputs_devices_and_folders_are_not_replaced(run, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("{}\n")
    with pytest.raises(UsageError, match="is the file that is read"):
        tallymill.report(run, file, prompts=file)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(UsageError, match=r"no regular file|is a folder"):
            tallymill.collision(10, counts=[1], trials=0, out=tmp_path / name)
    with pytest.raises(UsageError, match="no regular file"), appearing(tmp_path / "pipe.png"):
        pass
    assert file.read_text() == "{}\n"


def test_a_folder_does_not_replace_what_is_read(run, tmp_path):
    lines = ["item_id,category,annotator,count", "item-0,dog,a,3", "item-0,dog,b,3"]
    tallymill.analyse(run, tmp_path / "A", resamples=0)
    people = tmp_path / "A" / "agreement.csv"
    people.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match=r"--out .*/A would replace agreement\.csv that is read\n  choose"):
        tallymill.analyse(run, tmp_path / "A", annotations=people, resamples=0)
    assert people.read_text().splitlines() == lines


def test_a_calibration_named_by_its_folder_is_not_replaced(run, tmp_path):
    (tmp_path / "CAL").mkdir()
    (tmp_path / "CAL" / "calibration.json").write_text("{}")
    with pytest.raises(UsageError, match="is the file that is read"):
        tallymill.report(run, tmp_path / "CAL" / "calibration.json", calibration=tmp_path / "CAL")
    assert (tmp_path / "CAL" / "calibration.json").read_text() == "{}"


def test_names_that_are_no_utf8_and_titles(run, tmp_path):
    write_json(tmp_path / "x.json", {"file": "a\udcff"})
    assert b'"a\\udcff"' in (tmp_path / "x.json").read_bytes()
    tallymill.report(run, tmp_path / "r.html", resamples=0, title="a\udcff", images=0)
    assert b"a\\udcff" in (tmp_path / "r.html").read_bytes()


def test_a_report_without_proposals_and_of_foreign_compositions(run, tmp_path, ensemble_file):
    (run / "proposals").rename(tmp_path / "away")
    told = tallymill.report(run, tmp_path / "r.html", resamples=0)
    (tmp_path / "away").rename(run / "proposals")
    assert told.images == 12
    rows = [{"image": f"{k}.jpg", "targets": {"cat": 3}, "composition": "crowd"} for k in range(4)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ensemble = ensemble_file(tmp_path / "e.toml", "one")
    tallymill.sweep(tmp_path / "m.jsonl", tmp_path / "RUN", ensemble=ensemble, workers=0)
    assert tallymill.report(tmp_path / "RUN", tmp_path / "c.html", resamples=5).scored == 4


def test_seeds_and_resamples_that_are_huge(run):
    import pyarrow as pa

    assert len(_hashes(pa.array(["a", "b"]), 1 << 80 | 12345)) == 2
    with pytest.raises(UsageError, match="1,000,000 or fewer"):
        tallymill.analyse(run, resamples=1_000_001)


def test_a_run_whose_name_is_no_utf8(run, tmp_path):
    (tmp_path / "R\udcff").symlink_to(run)
    for call in (tallymill.load, tallymill.analyse, tallymill.rescore):
        with pytest.raises(RunError, match=r"the name of a RUN must be UTF-8\n  give its folder another"):
            call(tmp_path / "R\udcff")


def test_files_whose_names_are_no_utf8(run, tmp_path):
    import pyarrow.parquet as pq

    place = tmp_path / "in\udcff"
    rows = tallymill.dump(run, place / "d\udcff.parquet")
    with (place / "d\udcff.parquet").open("rb") as file:
        assert pq.read_table(file).num_rows == rows > 0
    assert tallymill.dump(run, place / "d\udcff.json") == rows
    tallymill.analyse(run, place / "O\udcff", resamples=0)
    tallymill.collision(10, trials=0, out=place / "c\udcff.svg")
    names = {"O\udcff", "c\udcff.svg", "d\udcff.json", "d\udcff.parquet"}
    assert {path.name for path in place.iterdir()} == names
