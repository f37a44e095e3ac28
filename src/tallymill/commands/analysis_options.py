"""The options that ``analyse`` and ``report`` share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from tallymill.engine.numbench.analysis.results import RESAMPLES
from tallymill.engine.numbench.factors import RangeBy


@dataclass(frozen=True, slots=True)
class AnalysisOptions:
    """What an analysis takes besides RUNs.

    Parameters
    ----------
    range_by
        How an image with several counts gets its count range: by the largest, by their mean rounded up, or each target
        by its own.
    resamples
        Bootstrap resamples of cores for the intervals; 0 for none.
    seed
        Of all that is drawn by chance.
    prompts
        The prompts file: tells which prompts have no image, and brings factors and texts that a RUN does not know.
    annotations
        Counts by people, to compare the detectors with: Parquet, JSONL or CSV with a row an image, category and
        annotator: item_id, category (or target), annotator, count, and perhaps ambiguous and system.
    kappa_width
        Width of the bins of counts for Fleiss' kappa; 1 tells all counts apart.
    workers
        Threads; by default one for each processor.
    """

    range_by: RangeBy = "max"
    resamples: int = RESAMPLES
    seed: int = 0
    prompts: Path | None = None
    annotations: Path | None = None
    kappa_width: int = 1
    workers: int | None = None

    def arguments(self) -> dict[str, Any]:
        """As the Python functions take them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


Options = Annotated[AnalysisOptions, Parameter(name="*")]
DEFAULTS = AnalysisOptions()
