"""Times in which nothing was recorded: a recorder was away from its hub, or did not run.

An outage is one or more gaps of a journal without another row between them, and ends with the next message or event in
the same journal. Other gaps end none, since they have the time of what was lost.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Final, NamedTuple

from ..journal.format.recovery import CUT, OUTAGE
from .sql import Recorded

AWAY: Final = (OUTAGE, CUT, "away")
"""Causes of gaps that are a time rather than a number of messages."""

# One pass over the rows. By their numbers: two journals run at a time, and a clock may be set.
_OUTAGES = """
WITH marked AS (
  SELECT journal, sequence, time_ns, cause,
    kind = 'gap' AND lost IS NULL AND cause IN ({away}) AS away, kind = 'message' OR lost = 0 AS heard
  FROM sbus_recorded
), followed AS (
  SELECT journal, sequence, time_ns, cause, away,
    LAG(away) OVER (PARTITION BY journal ORDER BY sequence) AS follows,
    MIN(CASE WHEN heard THEN sequence END) OVER
      (PARTITION BY journal ORDER BY sequence ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS ending
  FROM marked
)
SELECT outage.journal, outage.time_ns, outage.cause, ending.time_ns FROM followed AS outage
LEFT JOIN sbus_recorded AS ending ON ending.journal = outage.journal AND ending.sequence = outage.ending
WHERE outage.away AND NOT COALESCE(outage.follows, false)
"""


class Outage(NamedTuple):
    """Time in which one journal got no row, in nanoseconds since the epoch, its cause, and the hubs of that journal.

    ``end_ns`` is ``None`` if no row came later, and before ``first_ns`` if the clock was set back meanwhile.
    """

    first_ns: int
    end_ns: int | None
    cause: str
    hubs: frozenset[str | None]


def outages(recorded: Recorded, first_ns: int) -> list[Outage]:
    """Find all outages.

    :param first_ns: start of an outage whose own start is unknown.
    """
    hubs = defaultdict[str, set[str | None]](set)
    for journal, hub in recorded.query("SELECT DISTINCT journal, hub FROM sbus_recorded"):
        hubs[journal].add(hub)

    causes = ", ".join(f"'{cause}'" for cause in AWAY)
    return [
        Outage(first_ns if start is None else start, end, cause, frozenset(hubs[journal]))
        for journal, start, cause, end in recorded.query(_OUTAGES.format(away=causes))
    ]
