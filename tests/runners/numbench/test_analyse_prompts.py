"""The prompts of an analysis: what their file brings, and that one id means one prompt everywhere."""

import json

import pytest

import tallymill
from tallymill.errors import UsageError


def test_a_prompts_file_brings_factors(item, made, tmp_path):
    prompts = [
        {"prompt_id": f"p{k}", "core_id": f"c{k // 2}", "layout": ("free", "grid")[k % 2], "appearance": "clean"}
        for k in range(6)
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({**p, "targets": {"cat": 3}}) + "\n" for p in prompts))
    rows = [item(k, {"cat": 3}, prompt_id=f"p{k}") for k in range(4)] + [item(9, {"cat": 3}, prompt_id="else")]
    run = made(tmp_path, rows)
    analysis = tallymill.analyse(run, resamples=0, prompts=file)
    assert {(row.level, row.items) for row in analysis.levels if row.factor == "layout" and row.items} == {
        ("free", 2),
        ("grid", 2),
        ("unknown", 1),
    }
    assert (analysis.systems[0].cores, analysis.systems[0].prompts_missing) == (3, 2)
    assert "Of the 5 prompts of the images 1 are not in prompts.jsonl." in analysis.notes
    # The same factors in the RUN itself give the same.
    joined = made(tmp_path, [{**row, **prompt} for row, prompt in zip(rows, prompts, strict=False)], "JOINED")
    again = tallymill.analyse(joined, resamples=0)
    assert [row.cw_nps for row in again.contrasts] == [row.cw_nps for row in analysis.contrasts]


def prompts_file(path, asked):
    rows = [{"prompt_id": name, "targets": targets, "layout": "free"} for name, targets in asked.items()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def swept(folder, name, prompts, ids):
    manifest = folder / f"{name}.csv"
    manifest.write_text("image,prompt_id\n" + "".join(f"{name}-{k}.jpg,{i}\n" for k, i in enumerate(ids)))
    tallymill.sweep(manifest, folder / name, ensemble="synthetic", prompts=prompts, workers=0)
    return folder / name


def test_another_prompts_file_with_the_same_ids_is_refused(tmp_path):
    """As the files of two seeds are."""
    mine = prompts_file(tmp_path / "mine.jsonl", {f"p{k}": {"cat": 1 + k, "dog": 2} for k in range(6)})
    other = prompts_file(tmp_path / "other.jsonl", {f"p{k}": {"cat": 1 + k, "dog": 2 + (k > 0)} for k in range(6)})
    same = prompts_file(tmp_path / "same.jsonl", {f"p{k}": {"dog": 2, "cat": 1 + k} for k in range(5)})
    run = swept(tmp_path, "RUN", mine, [f"p{k}" for k in (5, 0, 3, 3, 2, 1)])
    told = r"other.jsonl is not the prompts file of .*RUN: p1, p2, p3 and others ask for something else there"
    with pytest.raises(UsageError, match=told):
        tallymill.analyse(run, resamples=0, prompts=other)
    with pytest.raises(UsageError, match=told):
        tallymill.report(run, tmp_path / "r.html", resamples=0, prompts=other)
    assert tallymill.analyse(run, resamples=0, prompts=mine).systems[0].prompts_missing == 1
    # The order of targets is nothing, and a part of the file is only that.
    notes = tallymill.analyse(run, resamples=0, prompts=same).notes
    assert "Of the 5 prompts of the images 1 are not in same.jsonl." in notes


def test_what_a_row_asks_for_itself_goes_before_its_prompt(tmp_path):
    """So that the file which the RUN was swept with is always its own."""
    mine = prompts_file(tmp_path / "mine.jsonl", {"p": {"cat": 1}})
    manifest = tmp_path / "m.csv"
    manifest.write_text("image,prompt_id,targets\na.jpg,p,cat=2\nb.jpg,p,\n")
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", prompts=mine, workers=0)
    assert tallymill.analyse(tmp_path / "RUN", resamples=0, prompts=mine).systems[0].items == 2


def test_runs_whose_ids_mean_different_things_are_not_joined(tmp_path):
    one = prompts_file(tmp_path / "one.jsonl", {f"p{k}": {"cat": 1 + k} for k in range(6)})
    two = prompts_file(tmp_path / "two.jsonl", {f"p{k}": {"cat" if k < 2 else "dog": 1 + k} for k in range(6)})
    first = swept(tmp_path, "A", one, [f"p{k}" for k in range(6)])
    alike = swept(tmp_path, "B", one, [f"p{k}" for k in range(3)])
    clash = swept(tmp_path, "C", two, [f"p{k}" for k in (5, 4, 3, 2, 1, 0)])
    apart = swept(tmp_path, "D", two, ["p1"])
    told = r"A and .*C ask for different targets under the same prompt_id \(p2, p3, p4 and 1 more\)"
    with pytest.raises(UsageError, match=told):
        tallymill.analyse([first, alike, clash], resamples=0)
    notes = tallymill.analyse([first, alike], resamples=0).notes
    assert not any("another prompts file" in note for note in notes)
    notes = tallymill.analyse([first, apart], resamples=0).notes
    assert any(note.startswith(f"{apart} was swept with another prompts file than {first}: ") for note in notes)


def test_cores_that_mean_different_things_are_not_joined(item, made, tmp_path):
    def rows(category, second=None):
        asked = [category, second or category]
        return [item(k, {asked[k]: 3}, prompt_id=f"{category}-{k}", core_id="s-1") for k in range(2)]

    cats, dogs, both = (made(tmp_path, rows(*w), w[-1]) for w in (["cat"], ["dog"], ["bird", "horse"]))
    with pytest.raises(UsageError, match=r"cat and .*dog ask for different targets under the same core_id \(s-1\)"):
        tallymill.analyse([cats, dogs], resamples=0)
    # Where a core is not one set of targets there is nothing to compare.
    assert tallymill.analyse([cats, both], resamples=0).systems[0].cores == 1


def test_a_prompt_that_asks_for_several_things_within_a_run_is_told(item, made, tmp_path):
    one = made(tmp_path, [item(k, {"cat": 3 + k}, prompt_id="p") for k in range(2)], "one")
    two = made(tmp_path, [item(0, {"cat": 9}, prompt_id="q")], "two")
    assert "Under 1 prompt_id images of one RUN ask for different targets." in (
        tallymill.analyse([one, two], resamples=0).notes
    )
