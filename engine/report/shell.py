"""What every page is made in: its templates, how they show values, and the one script that may run.

A page is one self-contained HTML file: everything inline, nothing fetched, every text escaped. Its security policy
forbids whatever is not inline, and of scripts all but ours (by its digest), so that no text of a manifest could run
even if it were not escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

from tallymill.engine.report import text
from tallymill.errors import MissingExtraError

# Rows of one table; the files of a command have them all.
MOST_ROWS = 500
TEMPLATES = Path(__file__).parent / "templates"


def filled(template: str, **values: Any) -> str:
    """A template as HTML. ``values`` has at least ``version``, ``title``, ``contents``, (anchor, name) of each section,
    and ``all_rows``, the command that writes the rows which a table leaves out. Raises ``MissingExtraError`` without
    jinja2.
    """
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    html: str = (
        _environment()
        .get_template(template)
        .render(script=script, script_hash=f"sha256-{digest}", limit=MOST_ROWS, **values)
    )
    return html


def require_templates() -> None:
    """Raise ``MissingExtraError`` now where the package that fills templates in is not there."""
    _environment()


def _environment() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.partition(".")[0] != "jinja2":
            raise
        raise MissingExtraError.of("jinja2", "report") from None
    return _made_environment(jinja2)


@functools.cache
def _made_environment(jinja2: Any) -> Any:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        shown=text.shown,
        score=text.score,
        difference=text.difference,
        amount=text.amount,
        signed=text.signed,
        percent=text.percent,
        share=text.share,
    )
    return environment


def _script() -> str:
    environment = _environment()
    source: str = environment.loader.get_source(environment, "script.html")[0]
    return f"\n{source}"
