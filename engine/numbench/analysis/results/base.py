"""What all tables share."""

from __future__ import annotations

ALL = "all"
# Of cores, where nobody says how many.
RESAMPLES = 2_000
