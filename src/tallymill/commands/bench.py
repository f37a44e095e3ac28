"""``tallymill bench``."""

from __future__ import annotations

from tallymill.commands.base import DONE, app
from tallymill.runners import console


@app.command
def bench(name: str) -> int:
    """Run one benchmark; prints a table, and the result as JSON on the last line.

    Parameters
    ----------
    name
        decode, sweep, rescore or analyse (the engine); candidates, nms, count, match or mask_iou, or kernels for these
        five, which need `pip install 'tallymill[bench]'` (`make bench` sets that up); gpu (needs a card).
    """
    from tallymill.bench.runner import run_bench

    result, text = run_bench(name)
    console.show_bench(result, text)
    return DONE
