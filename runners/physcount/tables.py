"""What the commands of PhysCount show."""

from __future__ import annotations

from rich.table import Table

from tallymill.runners import console
from tallymill.runners.physcount.summary import AskSummary

_SHOWN_REASONS = 10


def show_asked(summary: AskSummary) -> None:
    """Counts, tokens and speed of a RUN that asks, and why some questions have no answer."""
    table = Table(show_header=False, box=None)
    whole = summary.questions_of_set
    part = "" if whole in (None, summary.questions) else f" of {whole:,} questions of the set"
    table.add_row("questions", f"{summary.questions:,}{part}")
    for name in ("answered", "refused", "failed", "left"):
        if name != "left" or summary.left:
            table.add_row(name, f"{getattr(summary, name):,}")
    if summary.prompt_tokens is not None:
        table.add_row("prompt tokens", f"{summary.prompt_tokens:,}")
        table.add_row("of these cached", _cached(summary.cached_tokens, summary.prompt_tokens))
    if summary.completion_tokens is not None:
        table.add_row("completion tokens", f"{summary.completion_tokens:,}")
    table.add_row("reasoning effort", summary.reasoning_effort or "not sent")
    if summary.speed is not None:
        rate = f"{summary.speed.questions_per_second:,.1f} questions/s"
        at_once = summary.speed.questions == summary.questions
        table.add_row(
            "speed" if at_once else "speed of the last call",
            f"{rate} ({summary.speed.requests:,} requests in {summary.speed.seconds:,.1f} s)",
        )
    console.out.print(table)
    for reason, count, question, text in summary.reasons[:_SHOWN_REASONS]:
        what = "" if text == reason else f": {text.removeprefix(reason).removeprefix(': ')}"
        console.out.print(f"  {count:,} x {reason} (first: {question}{what})", markup=False, soft_wrap=True)
    if len(summary.reasons) > _SHOWN_REASONS:
        console.out.print("  and others: --json and summary.json list more")
    if summary.refused:
        console.out.print("--retry-refused asks the refused ones again")
    if summary.failed:
        console.out.print("the same command asks the failed ones again")
    console.out.print(f"written to {summary.run}", markup=False, soft_wrap=True)


def _cached(cached: int | None, prompt: int) -> str:
    if cached is None:
        return "not told by the server"
    return f"{cached:,} ({100 * cached / prompt:.1f} %)" if prompt else f"{cached:,}"
