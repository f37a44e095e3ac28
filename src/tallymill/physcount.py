"""PhysCount from Python: ask models, score predictions, compare, report.

>>> from tallymill import physcount
>>> physcount.example("DATA")
>>> physcount.ask("DATA", "RUN", endpoint="http://localhost:8000/v1", model="some/model")
>>> physcount.score("DATA", "RUN")[0].headline.score
"""

from __future__ import annotations

from tallymill.runners.physcount.ask import ask
from tallymill.runners.physcount.check import check
from tallymill.runners.physcount.example import example
from tallymill.runners.physcount.pace import Patience
from tallymill.runners.physcount.plan import AskSettings
from tallymill.runners.physcount.report import report
from tallymill.runners.physcount.score import compare, score
from tallymill.runners.physcount.serve import Serve

__all__ = ["AskSettings", "Patience", "Serve", "ask", "check", "compare", "example", "report", "score"]
