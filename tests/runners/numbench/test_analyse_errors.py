"""Intervals of failure families and signed errors, recomputed from the rows; and the ensemble beside one detector."""

import json
import math
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pytest

import tallymill
from tallymill.engine.numbench.analysis import error_sums
from tallymill.engine.numbench.analysis.counting import ERRORS
from tallymill.engine.numbench.factors import COUNT_RANGES

RESAMPLES, SEED = 12, 5
SHARES = {"none_share": "none", "cardinality_share": "cardinality", "binding_share": "binding"}
RANGE_BY = ("max", "mean", "per-target")


def images(item):
    """Of each core two images of two systems; of cores of two the counts lie in different ranges, mostly."""
    rng = np.random.default_rng(2)
    for core in range(40):
        asked = [int(n) for n in rng.integers(1, 101, 1 + core % 2)]
        for k in range(4):
            errors = rng.choice([0, 0, 0.25, -1, 1, 1 / 3, -7.1], len(asked))
            counted = [float(max(n + e, 0)) for n, e in zip(asked, errors, strict=True)]
            if k == 3 and len(asked) == 2:
                counted = [asked[0] + 2.0, max(asked[1] - 2.0, 0.0)]
            targets = dict(zip(("cat", "dog"), asked, strict=False))
            core_id, system = f"core-{core:02d}", ("left", "right")[k % 2]
            yield item(4 * core + k, targets, core_id=core_id, system=system, counted=counted)


def range_of(count):
    return COUNT_RANGES[(count - 1) // 25]


def of_rows(run, range_by):
    """By image: system, composition, core, range, family, and of each target its range and errors."""
    for row in tallymill.load(run).scores.to_pylist():
        counts = [target["requested"] for target in row["targets"]]
        number = -(-sum(counts) // len(counts)) if range_by == "mean" else max(counts)
        errors = [(target["hard"] - n, target["soft"] - n) for target, n in zip(row["targets"], counts, strict=True)]
        hard = [error for error, _ in errors]
        none, total = all(abs(e) <= 0.5 for e in hard), abs(math.fsum(hard)) <= 0.5
        yield {
            "system": row["system"],
            "composition": ("single", "double")[len(counts) - 1],
            "core": row["core_id"],
            "range": range_of(number),
            "family": "none" if none else "binding" if total and len(counts) > 1 else "cardinality",
            "targets": [
                (range_of(n if range_by == "per-target" else number), h, s, h / n, s / n)
                for n, (h, s) in zip(counts, errors, strict=True)
            ],
        }


def drawn(rows, number):
    rng = np.random.default_rng([SEED, number])
    for composition in ("single", "double"):
        for name in COUNT_RANGES:
            of = [row for row in rows if (row["composition"], row["range"]) == (composition, name)]
            cores = sorted({row["core"] for row in of})
            for at in rng.integers(0, len(cores), len(cores)) if cores else ():
                yield from (row for row in of if row["core"] == cores[at])


def shares_of(rows, row):
    """Shares of images by family and of targets by side, and mean errors, of the cell of ``row``; NaN of nothing."""
    rows = [r for r in rows if r["system"] == row.system and row.composition in ("all", r["composition"])]
    families = Counter(r["family"] for r in rows if row.count_range in ("all", r["range"]))
    targets = np.array(
        [t[1:] for r in rows for t in r["targets"] if row.count_range in ("all", t[0])], np.float64
    ).reshape(-1, 4)
    with np.errstate(invalid="ignore"):
        found = {name: np.divide(families[family], families.total()) for name, family in SHARES.items()}
        found |= zip(
            ("hard", "soft", "hard_relative", "soft_relative"), targets.sum(axis=0) / len(targets), strict=True
        )
        sides = {"under": targets[:, 0] < -0.5, "exact": abs(targets[:, 0]) <= 0.5, "over": targets[:, 0] > 0.5}
        found |= {f"{side}_share": np.divide(of.sum(), len(of)) for side, of in sides.items()}
    return found


@pytest.fixture(scope="module")
def run(made, item, tmp_path_factory):
    return made(tmp_path_factory.mktemp("errors"), list(images(item)))


@pytest.mark.parametrize("range_by", RANGE_BY)
def test_families_and_errors_of_every_resample(range_by, run):
    analysis = tallymill.analyse(run, resamples=RESAMPLES, seed=SEED, range_by=range_by, workers=1)
    rows = list(of_rows(run, range_by))
    draws = [list(drawn(rows, number)) for number in range(RESAMPLES)]
    widths = Counter()
    for row in [*analysis.families, *analysis.signed_errors]:
        values = [shares_of(of, row) for of in draws]
        for name, value in shares_of(rows, row).items():
            if not hasattr(row, name):
                continue
            found, of = getattr(row, name), np.array([one[name] for one in values])
            kept = of[~np.isnan(of)]
            assert found.null_resamples == RESAMPLES - len(kept)
            assert found.value == (None if np.isnan(value) else pytest.approx(value, abs=1e-12))
            if len(kept) and np.ptp(kept) > 1e-9:
                widths[name] += 1
                assert [found.low, found.high] == pytest.approx(np.percentile(kept, [2.5, 97.5]).tolist(), abs=1e-12)
            else:
                assert (found.low, found.high) == (None, None)
    assert set(widths) == {*SHARES, "hard", "soft", "hard_relative", "soft_relative"} | {
        f"{side}_share" for side in ("under", "exact", "over")
    }


def test_errors_of_so_many_cores_that_they_are_cut_into_more_pieces(run, monkeypatch):
    """Ten million cores have 26 bits a piece; here the same happens with 40."""
    wanted = tallymill.analyse(run, resamples=RESAMPLES).signed_errors
    monkeypatch.setattr(error_sums, "_EXACT_BITS", 30)
    monkeypatch.setattr(error_sums, "_PIECE_BITS", 18)
    for row, other in zip(tallymill.analyse(run, resamples=RESAMPLES).signed_errors, wanted, strict=True):
        for name in ERRORS:
            (low, high), ends = ((getattr(of, name).low, getattr(of, name).high) for of in (row, other))
            assert [low, high] == ([None] * 2 if ends[0] is None else pytest.approx(list(ends), abs=1e-12))


def whole(analysis):
    return next(row for row in analysis.signed_errors if (row.composition, row.count_range) == ("all", "all"))


def test_cores_whose_mean_errors_are_the_same_have_no_interval(item, made, tmp_path):
    """1/3 in each core: no resample has anything else, however the errors of its images are made up."""
    counts = {"A": [10 + 1 / 3] * 3, "B": [10.0, 10 + 1 / 3, 10 + 2 / 3]}
    rows = [(core, count) for core, of in counts.items() for count in of]
    run = made(tmp_path, [item(k, {"cat": 10}, core_id=core, counted=[n]) for k, (core, n) in enumerate(rows)])
    row = whole(tallymill.analyse(run, resamples=50))
    for found, value in (
        (row.hard, 1 / 3),
        (row.soft, 1 / 3),
        (row.hard_relative, 1 / 30),
        (row.soft_relative, 1 / 30),
    ):
        assert (found.value, found.low, found.high) == (pytest.approx(value, abs=1e-15), None, None)


def test_one_very_large_error_makes_no_other_interval_coarser(item, made, tmp_path):
    """The core with it is in another count range, and its errors in the same columns."""
    few = [item(k, {"cat": 10}, core_id=f"c{k}", counted=[10 + (k % 4) / 3]) for k in range(30)]
    large = [
        item(90 + k, {"dog": 90}, core_id=f"z{k}", counted=[2.0**20 - 1 / 3 if k == 0 else 91.0]) for k in range(3)
    ]
    analysis = tallymill.analyse(made(tmp_path, few + large), resamples=RESAMPLES, seed=SEED)
    errors, cores = np.array([k % 4 / 3 for k in range(30)]), sorted(f"c{k}" for k in range(30))
    errors = errors[[int(core[1:]) for core in cores]]
    off = np.array([2.0**20 - 1 / 3 - 90, 1.0, 1.0])
    means, everything = [], []
    for number in range(RESAMPLES):
        rng = np.random.default_rng([SEED, number])
        one, other = errors[rng.integers(0, 30, 30)], off[rng.integers(0, 3, 3)]
        means.append(math.fsum(one) / 30)
        everything.append(math.fsum([*one, *other]) / 33)
    (row,) = (r for r in analysis.signed_errors if (r.composition, r.count_range) == ("single", "1-25"))
    for found, values in ((row.hard, means), (whole(analysis).hard, everything)):
        wanted = np.percentile(values, [2.5, 97.5]).tolist()
        assert [found.low, found.high] == pytest.approx(wanted, rel=1e-12)
    assert [row.hard_relative.low, row.hard_relative.high] == pytest.approx(
        [row.hard.low / 10, row.hard.high / 10], rel=1e-12
    )


@pytest.mark.parametrize("range_by", RANGE_BY)
def test_neither_cuts_nor_workers_nor_order_show_in_errors(range_by, run, tmp_path):
    """What a sweep counts itself is the same in any shards; here the intervals are, to the bit."""
    rows = [json.loads(line) for line in run.with_suffix(".jsonl").read_text().splitlines()]
    found = []
    for at, (size, order) in enumerate(((1_000, 1), (7, -1))):
        (tmp_path / f"{at}").mkdir()
        manifest = tmp_path / f"{at}" / "m.jsonl"
        manifest.write_text("".join(json.dumps(row) + "\n" for row in rows[::order]))
        swept = tmp_path / f"{at}" / "RUN"
        tallymill.sweep(manifest, swept, ensemble="synthetic", workers=0, shard_items=size)
        analysis = tallymill.analyse(swept, resamples=RESAMPLES, range_by=range_by, workers=3 * at)
        systems = [replace(row, run="") for row in analysis.systems]
        found.append(asdict(replace(analysis, runs=[], systems=systems)))
    assert found[0] == found[1]
    assert any(row["hard"]["low"] is not None for row in found[0]["signed_errors"])


def test_without_resamples_there_are_no_intervals(run):
    with_, without = (tallymill.analyse(run, resamples=number) for number in (RESAMPLES, 0))
    for one, other in zip(
        [*with_.families, *with_.signed_errors], [*without.families, *without.signed_errors], strict=True
    ):
        for name in (f.name for f in type(one).__dataclass_fields__.values()):
            value = getattr(other, name)
            if hasattr(value, "low"):
                assert (value.low, value.high, value.null_resamples) == (None, None, 0)
                assert value.value == getattr(one, name).value


def test_counts_that_no_detector_gives_are_refused(item, made, tmp_path):
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[2.0**21])])
    with pytest.raises(tallymill.errors.RunError, match="more than 1,048,576 objects"):
        tallymill.analyse(run, resamples=0)
    run = made(tmp_path, [item(0, {"cat": 3}, counted=[2.0**20])], "LARGE")
    (row, *_) = (row for row in tallymill.analyse(run, resamples=3).signed_errors if row.targets)
    assert row.hard.value == 2**20 - 3


def test_the_ensemble_over_the_images_of_one_detector(cell, tmp_path, image_folder, model_file):
    """A detector that does not know raccoons is to be compared over images without any."""
    folder = image_folder(tmp_path / "images", 4)
    wanted = [{"cat": 2, "dog": 2}, {"raccoon": 2, "dog": 1}, {"raccoon": 3}, {"cat": 9}]
    rows = [{"file_name": f"{k}.png", "targets": targets} for k, targets in enumerate(wanted)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model_file(tmp_path / "coco.onnx")
    ensemble = tmp_path / "mixed.toml"
    ensemble.write_text(
        '[[detectors]]\nname = "coco"\nfamily = "coco_ssd"\nmodel = "coco.onnx"\n'
        '[[detectors]]\nname = "any"\nfamily = "synthetic"\n'
    )
    tallymill.sweep(folder, tmp_path / "RUN", ensemble=str(ensemble), workers=0)
    scores = tallymill.load(tmp_path / "RUN").scores["cw_nps"].to_pylist()
    whole = cell(tallymill.analyse(tmp_path / "RUN", resamples=200))
    assert whole.single_scored == {"coco": 2, "any": 4}
    assert whole.ensemble_same["any"].value == whole.cw_nps.value == math.fsum(scores) / 4
    known = [scores[0], scores[3]]
    assert whole.ensemble_same["coco"].value == math.fsum(known) / 2 != whole.cw_nps.value
    # Many resamples have only one of the two, some have neither.
    same = whole.ensemble_same["coco"]
    assert [same.low, same.high] == pytest.approx(sorted(known), abs=1e-9)
    assert 0 < same.null_resamples == whole.single_cw["coco"].null_resamples
    targets = cell(tallymill.analyse(tmp_path / "RUN", resamples=0, range_by="per-target"))
    assert targets.single_scored == {"coco": 4, "any": 6}
    assert targets.ensemble_same["any"].value == targets.cw_nps.value != targets.ensemble_same["coco"].value
