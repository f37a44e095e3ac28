"""What systems differ by, against a few lines over the rows; and intervals that say nothing."""

import json
import math
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

import tallymill
from tallymill.engine.numbench.analysis.differences import MOST_COMPARED, cores_both
from tallymill.engine.report.tables import differences_table

RESAMPLES, SEED = 12, 5
RANGES = ("1-25", "26-50", "51-75", "76-100")


def swept(folder, rows, name="RUN"):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tallymill.sweep(folder / f"{name}.jsonl", folder / name, ensemble="synthetic", workers=0)
    return folder / name


def images(systems, cores=30):
    """Two images a core and system; each system lacks every fifth core, another one each."""
    for core in range(cores):
        counts = {"cat": 1 + core * 37 % 100, **({"dog": 1 + core * 11 % 100} if core % 2 else {})}
        for s, system in enumerate(systems):
            for sample in range(2):
                if core % 5 != s:
                    yield {
                        "item_id": f"{core}-{system}-{sample}",
                        "image": f"{core}-{s}-{sample}.jpg",
                        "system": system,
                        "core_id": f"core-{core:02d}",
                        "targets": counts,
                    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("differences"), list(images(["b", "c", "a"])))


@pytest.fixture(scope="module")
def rows(run):
    found = tallymill.load(run).scores.to_pylist()
    for row in found:
        counts = [target["requested"] for target in row["targets"]]
        row["range"] = RANGES[(max(counts) - 1) // 25]
        row["composition"] = ("single", "double")[len(counts) - 1]
    return found


@pytest.fixture(scope="module")
def analysis(run):
    return tallymill.analyse(run, resamples=RESAMPLES, seed=SEED, workers=1)


def of_cell(rows, row, system):
    return [
        one
        for one in rows
        if one["system"] == system
        and row.composition in ("all", one["composition"])
        and row.count_range in ("all", one["range"])
    ]


def mean(rows, score):
    return math.fsum(row[score] for row in rows) / len(rows) if rows else math.nan


def drawn(rows, number):
    rng = np.random.default_rng([SEED, number])
    found = []
    for composition in ("single", "double"):
        for name in RANGES:
            of = [row for row in rows if (row["composition"], row["range"]) == (composition, name)]
            cores = sorted({row["core_id"] for row in of})
            for at in rng.integers(0, len(cores), len(cores)) if cores else ():
                found += [row for row in of if row["core_id"] == cores[at]]
    return found


def test_each_system_minus_each_before_it(analysis, rows):
    pairs = list(dict.fromkeys((row.system, row.reference) for row in analysis.differences))
    assert pairs == [("b", "a"), ("c", "a"), ("c", "b")]
    assert len(analysis.differences) == 3 * 3 * 5
    draws = [drawn(rows, number) for number in range(RESAMPLES)]
    for row in analysis.differences:
        sides = [of_cell(rows, row, system) for system in (row.system, row.reference)]
        cores = [{one["core_id"] for one in side} for side in sides]
        assert (row.cores, row.cores_reference) == tuple(map(len, cores))
        assert row.cores_both == len(cores[0] & cores[1])
        assert row.stress_test == (row.count_range in RANGES[2:])
        for score in ("cw_nps", "b_nps"):
            found = getattr(row, score)
            value = mean(sides[0], score) - mean(sides[1], score)
            assert found.value == (None if math.isnan(value) else value)
            values = [
                np.subtract(*(mean(of_cell(d, row, s), score) for s in (row.system, row.reference))) for d in draws
            ]
            kept = [v for v in values if not math.isnan(v)]
            assert found.null_resamples == RESAMPLES - len(kept)
            if kept and max(kept) - min(kept) > 1e-9:
                assert [found.low, found.high] == pytest.approx(np.percentile(kept, [2.5, 97.5]).tolist(), abs=1e-9)
            else:
                assert (found.low, found.high) == (None, None)


def test_a_pair_that_shares_its_hard_cores_is_told_apart_better(tmp_path):
    """The same images in two RUNs: the difference is nothing, in every resample, though each mean has an interval."""
    rows = [{**row, "system": None} for row in images(["a"]) if row["targets"]["cat"] <= 25]
    analysis = tallymill.analyse([swept(tmp_path, rows, name) for name in ("one", "two")], resamples=RESAMPLES)
    (row,) = [one for one in analysis.differences if (one.composition, one.count_range) == ("all", "all")]
    assert (row.cw_nps.value, row.cw_nps.low, row.cw_nps.high) == (0.0, None, None)
    assert all(cell.cw_nps.low < cell.cw_nps.high for cell in analysis.overall)


def test_one_system_differs_from_none(tmp_path):
    analysis = tallymill.analyse(swept(tmp_path, list(images(["a"], 4))), resamples=3)
    assert analysis.differences == []
    assert differences_table(analysis).rows == differences_table(analysis, whole=True).rows == []


def test_very_many_systems_are_compared_with_the_first(tmp_path):
    systems = [f"s{k:02d}" for k in range(MOST_COMPARED + 1)]
    for number, references in ((MOST_COMPARED, None), (MOST_COMPARED + 1, {"s00"})):
        rows = [row for row in images(systems[:number], 2) if row["targets"]["cat"] < 99]
        analysis = tallymill.analyse(swept(tmp_path, rows, f"RUN{number}"), resamples=0)
        pairs = {(row.system, row.reference) for row in analysis.differences}
        assert len(pairs) == (number * (number - 1) // 2 if references is None else number - 1)
        assert references is None or {reference for _, reference in pairs} == references
        told = [row for row in analysis.differences if (row.composition, row.count_range) == ("all", "all")]
        seen = {name: {r["core_id"] for r in rows if r["system"] == name} for name in systems}
        assert [row.cores_both for row in told] == [len(seen[row.system] & seen[row.reference]) for row in told]


def test_cores_of_both_are_counted_without_a_table_of_cores_and_systems():
    """A core has images of few systems: a byte for each core and system would be 10 MB here."""
    systems, cores = 255, 40_000
    core = np.repeat(np.arange(cores), 2)
    system = np.where(np.arange(2 * cores) % 2, 1 + core % (systems - 1), 0).astype(np.int32)
    nothing = np.zeros(2 * cores, np.int32)
    names = SimpleNamespace(settled=range(cores))
    grid = SimpleNamespace(
        axes=SimpleNamespace(shape=(systems, 1, 4, 1, 1)),
        leaves=SimpleNamespace(core=core, names=names, number=lambda _: np.ones(2 * cores, np.int64)),
        system=system,
        composition=nothing,
        count=nothing + 30,
    )
    tracemalloc.start()
    try:
        both = cores_both(grid, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    for cell in (both[0, 1], both[0, -1], both[-1, 1], both[-1, -1]):
        assert cell[:, 0].tolist() == [cores, *np.bincount(core[::2] % (systems - 1))]
    assert not both[:, [0, 2, 3]].any()
    assert peak < 8e6


def test_the_table_of_differences(analysis):
    whole, everything = differences_table(analysis, whole=True), differences_table(analysis)
    assert [row[:3] for row in whole.rows] == [[pair, "all", "all"] for pair in ("b - a", "c - a", "c - b")]
    assert len(everything.rows) == sum(row.cw_nps.value is not None for row in analysis.differences)
    assert {row[2] for row in everything.rows} == {"1-25", "26-50", "51-75 ‡", "76-100 ‡", "all"}
    assert "stress test" in everything.note
    assert all(row[6].startswith(("+", "-")) and "[" in row[6] for row in whole.rows)


def test_an_interval_without_width_is_none(tmp_path):
    """One core, whose images score differently: every resample is that core."""
    rows = [row for row in images(["b"]) if row["core_id"] == "core-01"]
    analysis = tallymill.analyse(swept(tmp_path, rows), resamples=RESAMPLES)
    for cell in [*analysis.overall, *analysis.cells]:
        for found in (cell.cw_nps, cell.b_nps, cell.gap, *cell.single_cw.values()):
            assert (found.low, found.high) == (None, None)
            assert found.null_resamples == (RESAMPLES if found.value is None else 0)
    assert any(found.cw_nps.value is not None for found in analysis.curve)
    assert all(found.cw_nps.low is None for found in [*analysis.curve, *analysis.levels])
