"""ABACUS from Python: verify counted edits, instance by instance.

>>> from tallymill import abacus
>>> abacus.example("DATA")
>>> abacus.score("DATA/edits.jsonl", "RUN", panoptic="DATA/panoptic.json").table[0]["score"]
"""

from __future__ import annotations

from tallymill.engine.abacus.settings import EditSettings
from tallymill.runners.abacus.example import example
from tallymill.runners.abacus.report import report
from tallymill.runners.abacus.score import score
from tallymill.runners.abacus.tiers import tiers

__all__ = ["EditSettings", "example", "report", "score", "tiers"]
