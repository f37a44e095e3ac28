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
    return tallymill.analyse(run, resamples=20, seed=7, workers=1)


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


def test_single_detectors(run, analysis, rows, ensemble_file, tmp_path):
    """The same as a re-scoring with an ensemble of one."""
    for name in ("synthetic-a", "synthetic-c"):
        ensemble = ensemble_file(tmp_path / f"{name}.toml", name)
        tallymill.rescore(run, tmp_path / name, ensemble=ensemble)
        alone = tallymill.load(tmp_path / name).scores["cw_nps"].to_pylist()
        for cell in [*analysis.overall, *analysis.cells]:
            of = [
                value
                for value, row in zip(alone, rows, strict=True)
                if value is not None
                and row in chosen([row], system=cell.system, composition=cell.composition, range=cell.count_range)
            ]
            assert cell.single_cw[name].value == mean(of)
            assert cell.ensemble_same[name].value == cell.cw_nps.value  # they cover everything
            assert ends(cell.ensemble_same[name]) == pytest.approx(ends(cell.cw_nps), abs=1e-12, nan_ok=True)


def contrast(rows, factor, level, reference, score):
    """Mean over cores of the mean over the other factor of the difference of means; and the number of cores."""
    other = "appearance" if factor == "layout" else "layout"
    differences = []
    for core in sorted({row["core_id"] for row in rows}):
        of = scored(chosen(rows, core_id=core))
        pairs = []
        for held in sorted({row[other] for row in of}):
            has, lacks = ([row[score] for row in of if row[other] == held and pick(row)] for pick in (level, reference))
            if has and lacks:
                pairs.append(np.mean(has) - np.mean(lacks))
        if pairs:
            differences.append(np.mean(pairs))
    return np.mean(differences), len(differences)


def levels_of(factor, name):
    if name == "guided":
        return lambda row: row["layout"] != "free"
    if name in GROUPS:
        return lambda row: row["modifier_group"] == name
    return lambda row: row[factor] == name


def test_contrasts(analysis, rows):
    assert [(row.factor, row.level) for row in analysis.contrasts if row.system == "left"] == [
        *(("layout", name) for name in ("grid", "scene", "random", "guided")),
        *(("appearance", name) for name in ("modified", *GROUPS)),
    ]
    for found in analysis.contrasts:
        sides = (levels_of(found.factor, name) for name in (found.level, found.reference))
        value, cores = contrast(chosen(rows, system=found.system), found.factor, *sides, "cw_nps")
        assert found.cores == cores
        assert found.cw_nps.value == pytest.approx(value, abs=1e-12)


def spread(rows, factor, pick):
    """Relative and absolute spreads of one system's cells, and how many were left out."""
    others = [name for name in ("range", "layout", "composition", "appearance") if name != factor]
    cells = defaultdict(lambda: defaultdict(list))
    for row in filter(pick, scored(rows)):
        held = tuple(row[name] for name in others)
        cells[held][row[factor]].append(row["cw_nps"])
    relative, absolute, one = [], [], 0
    for levels in cells.values():
        means = [math.fsum(values) / len(values) for values in levels.values()]
        if len(means) < 2:
            one += 1
        else:
            relative.append((max(means) - min(means)) / max(means))
            absolute.append(max(means) - min(means))
    return np.mean(relative), np.mean(absolute), len(relative), one


def test_sensitivity(analysis, rows):
    sums = defaultdict(list)
    for found in analysis.sensitivity:
        if found.system == "all":
            assert found.relative.value == pytest.approx(np.mean(sums[found.factor]), abs=1e-12)
            continue
        factor, _, group = found.factor.partition(": ")
        factor = {"count_range": "range"}.get(factor, factor)

        def pick(row, group=group):
            return not group or row["modifier_group"] in (None, group)

        relative, absolute, cells, one = spread(chosen(rows, system=found.system), factor, pick)
        assert (found.cells, found.cells_best_zero, found.cells_one_level) == (cells, 0, one)
        assert found.relative.value == pytest.approx(relative, abs=1e-12)
        assert found.absolute.value == pytest.approx(absolute, abs=1e-12)
        sums[found.factor].append(relative)
    assert len(sums) == 6


def test_families(analysis, rows):
    for found in analysis.families:
        of = chosen(rows, system=found.system, composition=found.composition, range=found.count_range)
        kinds = []
        for row in scored(of):
            errors = [target["hard"] - target["requested"] for target in row["targets"]]
            none = all(abs(error) <= 0.5 for error in errors)
            binding = len(errors) > 1 and abs(sum(errors)) <= 0.5
            kinds.append("none" if none else "binding" if binding else "cardinality")
        assert found.scored == len(kinds)
        assert [found.none, found.cardinality, found.binding] == [
            kinds.count(kind) for kind in ("none", "cardinality", "binding")
        ]
        for kind in ("none", "cardinality", "binding"):
            assert getattr(found, f"{kind}_share").value == (kinds.count(kind) / len(kinds) if kinds else None)


def test_signed_errors(analysis, rows):
    for found in analysis.signed_errors:
        of = chosen(rows, system=found.system, composition=found.composition, range=found.count_range)
        targets = [target for row in scored(of) for target in row["targets"]]
        hard = [target["hard"] - target["requested"] for target in targets]
        soft = [target["soft"] - target["requested"] for target in targets]
        assert found.targets == len(targets)
        assert (found.hard.value, found.soft.value) == (mean(hard), mean(soft))
        requested = [target["requested"] for target in targets]
        assert found.hard_relative.value == mean(e / n for e, n in zip(hard, requested, strict=True))
        assert found.soft_relative.value == mean(e / n for e, n in zip(soft, requested, strict=True))
        assert found.under == sum(error < -0.5 for error in hard)
        assert found.over == sum(error > 0.5 for error in hard)
        assert found.exact == len(targets) - found.under - found.over
        for side in ("under", "exact", "over"):
            share = getattr(found, f"{side}_share").value
            assert share == (getattr(found, side) / len(targets) if targets else None)


def test_visible_counts(analysis, rows):
    points = defaultdict(list)
    for row in scored(rows):
        if len(row["targets"]) == 1 and row["appearance"] == "clean":
            points[row["system"], row["layout"], row["targets"][0]["requested"]].append(row["targets"][0])
    assert {(p.system, p.layout, p.count) for p in analysis.visible} == set(points)
    for point in analysis.visible:
        of = points[point.system, point.layout, point.count]
        assert (point.scored, point.hard, point.soft) == (
            len(of),
            mean(target["hard"] for target in of),
            mean(target["soft"] for target in of),
        )
    assert {(row.system, row.layout) for row in analysis.collision if row.points} == {key[:2] for key in points}


def test_systems_and_failures(analysis, rows, run):
    all_prompts = {row["prompt_id"] for row in rows}
    for found in analysis.systems:
        of = chosen(rows, system=found.system)
        uses = defaultdict(int)
        for row in of:
            uses[row["prompt_id"]] += 1
        assert (found.run, found.items, found.scored) == (str(run), len(of), len(scored(of)))
        assert (found.error, found.uncovered) == (len(of) - len(scored(of)), 0)
        assert (found.prompts, found.prompts_missing) == (len(uses), len(all_prompts) - len(uses))
        assert (found.samples_least, found.samples_most) == (min(uses.values()), max(uses.values()))
        assert found.cores == len({row["core_id"] for row in of})
        assert (found.items_without_prompt, found.not_1024) == (0, 0)
    for failure in analysis.failures:
        of = [row["item_id"] for row in chosen(rows, system=failure.system) if row["error"] == failure.reason]
        assert (failure.items, failure.first_item) == (len(of), min(of))
    assert sum(failure.items for failure in analysis.failures) == len(rows) - len(scored(rows))
    for seen in analysis.saturation:
        of = chosen(rows, system=seen.system)
        assert (seen.items, seen.failed, seen.saturated) == (len(of), len(of) - len(scored(of)), 0)
    proposals = sum(seen.proposals for seen in analysis.saturation if seen.detector == "synthetic-b")
    counts = tallymill.load(run).summary().detectors["synthetic-b"]
    assert proposals == counts["proposals"]


def resampled(rows, seed, number):
    """The rows of one resample, each as often as its core was drawn."""
    rng = np.random.default_rng([seed, number])
    found = []
    for composition in ("single", "double"):
        for name in COUNT_RANGES:
            of = defaultdict(list)
            for row in scored(chosen(rows, composition=composition, range=name)):
                of[row["core_id"]].append(row)
            cores = sorted(of)
            if cores:
                found += [of[cores[at]] for at in rng.integers(0, len(cores), len(cores))]
    return found


def interval(values):
    """NaN where all that there are agree: see ``ends``."""
    found = [v for v in values if v is not None]
    return [float(v) for v in np.percentile(found, [2.5, 97.5])] if max(found) > min(found) + 1e-9 else [math.nan] * 2


def ends(estimate):
    return [math.nan if end is None else end for end in (estimate.low, estimate.high)]


def test_intervals(analysis, rows):
    draws = [resampled(rows, 7, number) for number in range(20)]
    flat = [[row for core in draw for row in core] for draw in draws]
    for cell in [*analysis.overall, *analysis.cells]:
        where = {"system": cell.system, "composition": cell.composition, "range": cell.count_range}
        values = [mean(row["cw_nps"] for row in chosen(of, **where)) for of in flat]
        assert cell.cw_nps.null_resamples == sum(value is None for value in values)
        assert ends(cell.cw_nps) == pytest.approx(interval(values), abs=1e-9, nan_ok=True)
        gaps = [mean(row["b_nps"] for row in chosen(of, **where)) for of in flat]
        gaps = [b - cw for b, cw in zip(gaps, values, strict=True) if b is not None]
        assert ends(cell.gap) == pytest.approx(interval(gaps), abs=1e-9, nan_ok=True)
    for level in analysis.levels:
        where = {"system": level.system, level.factor: level.level}
        values = [mean(row["b_nps"] for row in chosen(of, **where)) for of in flat]
        assert ends(level.b_nps) == pytest.approx(interval(values), abs=1e-9, nan_ok=True)
    for point in analysis.curve[::9]:
        where = {"system": point.system, "composition": point.composition, "count": point.count}
        values = [mean(row["cw_nps"] for row in chosen(of, **where)) for of in flat]
        assert point.cw_nps.null_resamples == sum(value is None for value in values)
        assert ends(point.cw_nps) == pytest.approx(interval(values), abs=1e-9, nan_ok=True)
    for found in analysis.sensitivity:
        assert found.relative.low is found.absolute.high is None
        assert 0 < found.chance < 1


def test_intervals_of_contrasts(analysis, rows):
    """A core that is drawn twice is two cores."""
    draws = [resampled(rows, 7, number) for number in range(20)]
    twice = [[{**row, "core_id": f"{k}"} for k, core in enumerate(draw) for row in core] for draw in draws]
    for found in (analysis.contrasts[0], analysis.contrasts[3], analysis.contrasts[-2]):
        sides = [levels_of(found.factor, name) for name in (found.level, found.reference)]
        values = [contrast(chosen(of, system=found.system), found.factor, *sides, "cw_nps")[0] for of in twice]
        assert ends(found.cw_nps) == pytest.approx(interval(values), abs=1e-9, nan_ok=True)


def test_a_run_that_is_not_complete(run, tmp_path):
    with pytest.raises(RunError, match="is not a RUN"):
        tallymill.analyse(tmp_path)
    with pytest.raises(UsageError, match="is given twice"):
        tallymill.analyse([run, run / ".." / "RUN"])


@pytest.mark.parametrize("workers", [0, 3])
def test_neither_order_nor_shards_nor_workers_matter(workers, run, analysis, rows, tmp_path):
    shuffled = [list(images())[k] for k in np.random.default_rng(0).permutation(len(rows))]
    other = sweep(tmp_path, "RUN", shuffled, shard_items=150)
    again = tallymill.analyse(other, resamples=20, seed=7, workers=workers)
    same = replace(again, runs=analysis.runs, systems=[replace(row, run=str(run)) for row in again.systems])
    assert asdict(same) == asdict(analysis)
