"""Every table of an analysis against a few lines over the rows of the RUN; no order, shard or worker shows in it."""

import json
import math
from collections import defaultdict
from dataclasses import asdict, replace

import numpy as np
import pytest

import tallymill
from tallymill.engine.numbench.factors import COUNT_RANGES
from tallymill.errors import RunError, UsageError

GROUPS = ("quality", "evidence", "mixed")


def prompts(cores=48):
    """Cores of one and two categories over all ranges, each with its four prompts."""
    rng = np.random.default_rng(3)
    for core in range(cores):
        counts = [int(n) for n in rng.integers(1, 101, 1 + core % 2)]
        targets = [{"category": name, "count": n} for name, n in zip(("cat", "dog"), counts, strict=False)]
        guided = ("grid", "scene", "random")[core // 2 % 3]
        for layout in ("free", guided):
            for look in ("clean", "modified"):
                yield {
                    "prompt_id": f"{core:03d}-{layout}-{look}",
                    "core_id": f"core-{core}",
                    "composition": ("single", "double")[core % 2],
                    "layout": layout,
                    "appearance": look,
                    "modifier_group": GROUPS[core % 3] if look == "modified" else None,
                    "targets": targets,
                }


def images(systems=("left", None, "right")):
    """Up to two samples of each prompt by three systems; some cannot be scored, some are missing."""
    rng = np.random.default_rng(4)
    for k, (prompt, system, sample) in enumerate(
        (prompt, system, sample) for prompt in prompts() for system in systems for sample in range(2)
    ):
        if rng.random() < 0.1:
            continue
        row = {**prompt, "item_id": f"item-{k}", "image": f"{k}.jpg", "sample": sample}
        if system is not None:
            row["system"] = system
        if rng.random() < 0.05:
            row["targets"] = [{**prompt["targets"][0], "count": 101}, *prompt["targets"][1:]]
        yield row


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sweep(folder, name, rows, **options):
    manifest = write(folder / f"{name}.jsonl", rows)
    tallymill.sweep(manifest, folder / name, ensemble="synthetic", workers=0, **options)
    return folder / name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("analysed"), "RUN", list(images()), shard_items=64)


@pytest.fixture(scope="module")
def rows(run):
    found = tallymill.load(run).scores.to_pylist()
    for row in found:
        counts = [target["requested"] for target in row["targets"]]
        row["system"] = row["system"] or "RUN"
        row["count"] = min(max(counts), 100)
        row["range"] = COUNT_RANGES[(row["count"] - 1) // 25]
    return found


@pytest.fixture(scope="module")
def analysis(run):
    return tallymill.analyse(run, resamples=50, seed=7, workers=1)


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values) if values else None


def chosen(rows, **wanted):
    return [row for row in rows if all(row[key] == value or value == "all" for key, value in wanted.items())]


def scored(rows):
    return [row for row in rows if row["status"] == "scored"]


def test_table_4(analysis, rows):
    assert [row.system for row in analysis.overall] == ["left", "right", "RUN"]
    seen = set()
    for cell in [*analysis.overall, *analysis.cells]:
        seen.add((cell.system, cell.composition, cell.count_range))
        of = chosen(rows, system=cell.system, composition=cell.composition, range=cell.count_range)
        good = scored(of)
        assert (cell.items, cell.scored, cell.error, cell.uncovered) == (len(of), len(good), len(of) - len(good), 0)
        assert cell.cw_nps.value == mean(row["cw_nps"] for row in good)
        assert cell.b_nps.value == mean(row["b_nps"] for row in good)
        assert cell.stress_test == (cell.count_range in ("51-75", "76-100"))
    assert len(seen) == len(analysis.overall) + len(analysis.cells) == 3 * 3 * 5


def test_levels(analysis, rows):
    for level in analysis.levels:
        of = chosen(rows, **{"system": level.system, level.factor: level.level})
        assert (level.items, level.scored) == (len(of), len(scored(of)))
        assert level.cw_nps.value == mean(row["cw_nps"] for row in scored(of))
        assert level.b_nps.value == mean(row["b_nps"] for row in scored(of))
    assert [level.level for level in analysis.levels[:9]] == [
        *("free", "grid", "scene", "random", "clean", "modified"),
        *GROUPS,
    ]


def test_the_curve(analysis, rows):
    points = defaultdict(list)
    for row in scored(rows):
        points[row["system"], row["composition"], row["count"]].append(row)
    assert {(p.system, p.composition, p.count) for p in analysis.curve} == set(points)
    for point in analysis.curve:
        of = points[point.system, point.composition, point.count]
        assert point.scored == len(of)
        assert point.cw_nps.value == mean(row["cw_nps"] for row in of)


def test_a_run_that_is_not_complete(run, tmp_path):
    with pytest.raises(RunError, match="is not a RUN"):
        tallymill.analyse(tmp_path)
    with pytest.raises(UsageError, match="is given twice"):
        tallymill.analyse([run, run / ".." / "RUN"])


@pytest.mark.parametrize("workers", [0, 3])
def test_neither_order_nor_shards_nor_workers_matter(workers, run, analysis, rows, tmp_path):
    shuffled = [list(images())[k] for k in np.random.default_rng(0).permutation(len(rows))]
    other = sweep(tmp_path, "RUN", shuffled, shard_items=17)
    again = tallymill.analyse(other, resamples=50, seed=7, workers=workers)
    same = replace(again, runs=analysis.runs, systems=[replace(row, run=str(run)) for row in again.systems])
    assert asdict(same) == asdict(analysis)
