"""Score one shard: the function that the command line, the process pool and a cluster all call."""

from __future__ import annotations

from tallymill.engine.pipeline import Pipeline, Report
from tallymill.runners.plan import ItemFile, Shard
from tallymill.runners.sink import ShardSummary, Sink


def score_shard(shard: Shard, items: ItemFile, pipe: Pipeline, sink: Sink, report: Report) -> ShardSummary:
    """Detect with the detectors whose proposals are missing, score, and commit; a shard that is done is left alone.

    ``report(items, failed)`` is called as images are looked at. Proposals are committed before scores, so that a kill
    between the two costs no model time.
    """
    if sink.done(shard):
        return sink.summary(shard)
    with sink.open(shard) as out:
        for batch in pipe.read(items.rows(shard), out.missing):
            out.check(batch)
            proposals = out.keep(batch, pipe.detect(batch, out.missing, report))
            report(0, out.write(pipe.score(batch, proposals)))
        return out.commit(pipe.clock.take(), pipe.clock.take_encoded())
