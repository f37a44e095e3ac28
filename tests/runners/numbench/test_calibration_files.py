"""A calibration.json that was edited or cut short: one error that names the file and the key."""

import json

import pytest

from tallymill.errors import RunError
from tallymill.runners.numbench.calibration_files import as_dict, load_calibration


@pytest.fixture
def document(report_example):
    return as_dict(report_example.make_calibration(images={"ab" * 16: "item-0"}))


def test_what_is_written_comes_back(document, report_example, tmp_path):
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    assert load_calibration(tmp_path) == report_example.make_calibration(images={"ab" * 16: "item-0"})
    for measures in (document["detectors"][0]["before"], document["detectors"][0]["before"]["bins"][0]):
        name = "nll" if "nll" in measures else "accuracy"
        measures[name] = None
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    before = load_calibration(tmp_path).detectors[0].before
    assert before.nll != before.nll
    assert before.bins[0].accuracy != before.bins[0].accuracy


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda d: d.pop("detectors"), "detectors is missing"),
        (lambda d: d["detectors"][1].pop("tau"), "detectors[1].tau is missing"),
        (lambda d: d["detectors"][1].update(tau="1.4"), "detectors[1].tau is '1.4', not a number or null"),
        (lambda d: d["detectors"][0].update(items=True), "detectors[0].items is True, not a whole number"),
        (lambda d: d["detectors"][0]["before"].update(bins={}), "detectors[0].before.bins is {}, not a list"),
        (lambda d: d["detectors"][0]["before"]["bins"][2].update(count=None), "bins[2].count is None, not a whole"),
        (lambda d: d.update(images=["a"]), "images is ['a'], not an object"),
        (lambda d: d.update(images={"a": 1}), "images.a is 1, not text"),
        (lambda d: d.update(notes="a note"), "notes is 'a note', not a list"),
        (lambda d: d.update(later=1), "later is not known to this version"),
        (lambda d: d.update(tallymill="0.0.7", later=1), "(tallymill 0.0.7 wrote it, this is"),
    ],
)
def test_the_key_is_named(edit, told, document, tmp_path):
    edit(document)
    (tmp_path / "calibration.json").write_text(json.dumps(document))
    with pytest.raises(RunError) as caught:
        load_calibration(tmp_path)
    assert caught.value.message.startswith(f"{tmp_path / 'calibration.json'} is not a calibration that tallymill wrote")
    assert told in caught.value.message
    assert "tallymill calibrate --out FOLDER" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "null", '{"run": ', "[" * 100_000, "\udcff"])
def test_a_file_that_is_cut_short(text, tmp_path):
    (tmp_path / "calibration.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError, match=r"calibration\.json is not a calibration that tallymill wrote: "):
        load_calibration(tmp_path)
