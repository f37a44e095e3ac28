"""Prompt files: written, read again, checked, and what the command line says of them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill import cli
from tallymill.engine.items import PromptsTable
from tallymill.errors import ManifestError, UsageError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of all prompts and one of the subset."""
    folder = tmp_path_factory.mktemp("prompts")
    assert cli.run(["prompts", "build", "--out", str(folder / "all.parquet"), "--json"]) == 0
    whole, subset = str(folder / "all.parquet"), str(folder / "some.parquet")
    assert cli.run(["prompts", "subset", "--from", whole, "--out", subset]) == 0
    return folder


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_the_full_set(files, call):
    code, out, _ = call("prompts", "check", files / "all.parquet")
    assert code == 0
    assert "640,000 prompts, checked as the full set of 640,000: every condition holds" in out
    assert "106,668 / 106,666 / 106,666" in out
    assert "FAIL" not in out


def test_the_subset(files, call):
    code, out, _ = call("prompts", "check", files / "some.parquet")
    assert code == 0
    assert "3,200 prompts, checked as the balanced subset of 3,200: every condition holds" in out
    assert "800 of 800 do" in out
    some, whole = pq.read_table(files / "some.parquet"), pq.read_table(files / "all.parquet")
    ids = some["prompt_id"].to_pylist()
    wanted = whole.filter(pa.compute.is_in(whole["prompt_id"], value_set=pa.array(ids)))
    assert some.equals(wanted)
    assert not tallymill.subset_prompts(whole, seed=1).equals(some)


def test_as_json(files, call):
    code, out, _ = call("prompts", "check", files / "some.parquet", "--json")
    result = json.loads(out)
    assert (code, result["passed"], result["kind"]) == (0, True, "subset")
    assert (result["facts"]["seed"], result["facts"]["subset_seed"]) == (0, 0)
    assert result["facts"]["tallymill"] == tallymill.__version__
    assert [line["passed"] for line in result["conditions"]] == [True] * len(result["conditions"])


def test_the_subset_is_not_the_full_set(files, call):
    code, out, _ = call("prompts", "check", files / "some.parquet", "--full")
    assert code == 1
    assert "required 640,000, found 3,200" in out


def test_jsonl_as_well(files, tmp_path, call):
    rows = pq.read_table(files / "some.parquet").to_pylist()
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = call("prompts", "check", tmp_path / "some.jsonl")
    assert (code, "every condition holds" in out) == (0, True)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("no.parquet", None, "no such file"),
        ("empty.parquet", b"", "not a Parquet file"),
        ("noise.parquet", b"PAR1" + bytes(range(256)) * 9 + b"PAR1", "not a Parquet file"),
        ("a.txt", b"x", "none of .parquet"),
        ("empty.jsonl", b"", "has no items"),
        ("broken.jsonl", b'{"prompt_id": \n', "line 1"),
        ("other.jsonl", b'{"prompt_id": "a", "text": "3 cats"}\n', "no column core_id"),
        ("other.csv", b"prompt_id,text\na,3 cats\n", "no column core_id"),
    ],
)
def test_files_that_are_none(tmp_path, call, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    code, out, err = call("prompts", "check", tmp_path / name)
    assert (code, out) == (1, "")
    assert message in err


def test_a_file_that_was_cut_or_changed(files, tmp_path, call):
    data = bytearray((files / "some.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    assert call("prompts", "check", tmp_path / "cut.parquet")[0] == 1
    for at in range(4, len(data), len(data) // 40):
        changed = data.copy()
        changed[at] ^= 0xFF
        (tmp_path / "changed.parquet").write_bytes(changed)
        code, out, err = call("prompts", "check", tmp_path / "changed.parquet")
        assert code in (0, 1)
        assert "Traceback" not in out + err


@pytest.mark.parametrize("out", ["prompts.csv", "prompts", "."])
def test_out_is_a_parquet_file(out):
    with pytest.raises(UsageError, match="written as Parquet"):
        tallymill.build_prompts(out)


def test_out_is_no_folder(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        tallymill.subset_prompts(out=tmp_path / "x.parquet")


def test_a_seed_that_is_none(call):
    code, _, err = call("prompts", "build", "--out", "x.parquet", "--seed", "-1")
    assert code == 2
    assert "whole number, 0 or more" in err


def test_a_subset_of_too_little(files, tmp_path):
    some = files / "some.parquet"
    with pytest.raises(ManifestError, match="cannot be chosen"):
        tallymill.subset_prompts(some, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
    with pytest.raises(ManifestError, match="has no prompts"):
        tallymill.subset_prompts(pq.read_table(some).slice(0, 0))


FACTORS = ("core_id", "text", "composition", "layout", "appearance", "modifiers", "modifier_group", "count_range")


@pytest.fixture
def manifest(files, tmp_path):
    """Two images of each of twelve prompts of the subset."""
    ids = pq.read_table(files / "some.parquet")["prompt_id"].to_pylist()[::270]
    rows = [{"image": f"{name}-{k}.png", "prompt_id": name, "sample": k} for name in ids for k in range(2)]
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_sweep_brings_the_factors_in_and_tells_prompts_without_an_image(files, manifest, tmp_path, call):
    prompts = str(files / "some.parquet")
    sweep = ("sweep", manifest, "--out", tmp_path / "RUN", "--prompts", prompts, "--ensemble", "synthetic")
    code, out, _ = call(*sweep)
    assert code == 0
    assert "12 of 3,200 have an image" in " ".join(out.split())
    expected = {"file": prompts, "rows": 3200, "used": 12, "kind": "subset", "seed": 0}
    expected["sha256"] = PromptsTable(files / "some.parquet").sha256
    assert json.loads((tmp_path / "RUN" / "run.json").read_text())["manifest"]["prompts"] == expected
    assert json.loads((tmp_path / "RUN" / "summary.json").read_text())["prompts"] == expected
    assert tallymill.rescore(tmp_path / "RUN").prompts == expected
    assert tallymill.rescore(tmp_path / "RUN", tmp_path / "RUN2").prompts == expected
    scores = tallymill.load(tmp_path / "RUN").scores
    by_id = {row["prompt_id"]: row for row in pq.read_table(prompts).to_pylist()}
    for row in scores.to_pylist():
        prompt = by_id[row["prompt_id"]]
        assert {name: row[name] for name in FACTORS} == {name: prompt[name] for name in FACTORS}
        assert [(t["category"], t["requested"]) for t in row["targets"]] == [
            (t["category"], t["count"]) for t in prompt["targets"]
        ]
    # A moved file with the same prompts is the same manifest.
    (tmp_path / "moved.parquet").write_bytes((files / "some.parquet").read_bytes())
    assert call(*sweep[:5], tmp_path / "moved.parquet", *sweep[6:])[0] == 0


def test_a_prompts_file_that_nothing_refers_to(files, tmp_path):
    table = pa.table({"image": ["a.png"], "targets": ["cat=3"]})
    summary = tallymill.sweep(table, tmp_path / "RUN", ensemble="synthetic", prompts=files / "some.parquet", workers=0)
    assert summary.prompts["used"] == 0
    assert tallymill.sweep(table, tmp_path / "RUN2", ensemble="synthetic", workers=0).prompts is None


def test_an_image_of_an_unknown_prompt(files, manifest, tmp_path, call):
    with manifest.open("a") as file:
        file.write('{"image": "x.png", "prompt_id": "s-00000-heap-clean"}\n')
    code, _, err = call("sweep", manifest, "--out", tmp_path / "RUN", "--prompts", files / "some.parquet")
    assert code == 1
    assert "line 25, column prompt_id: not in some.parquet: 's-00000-heap-clean'" in err


def test_a_category_outside_the_vocabulary_is_told_by_the_check(files, tmp_path, call):
    rows = pq.read_table(files / "some.parquet").to_pylist()
    rows[3]["targets"][0]["category"] = "wombat of the north"
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    code, out, _ = call("prompts", "check", tmp_path / "x.parquet")
    assert code == 1
    assert f"row 4, {rows[3]['prompt_id']}: {rows[3]['targets'][0]['count']} wombat of the north" in out
    assert "conditions fail" in out
