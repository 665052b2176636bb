"""What holds of verdicts on nodes (R21)."""

from __future__ import annotations

from collections.abc import Iterable

from store.failsafe import Failsafe, frozen
from tests.stateful.farms import TIMES
from tests.stateful.moment import Look, Moment


def verdicts(look: Look, moment: Moment) -> Iterable[str]:
    """Nobody is given up who is there, was there a moment ago, or while the kind is frozen."""
    for audit in moment.audits:
        if audit.kind != "nodes" or audit.action != "node.lost":
            continue
        agent, freeze = look.keys.agent(audit.id), look.keys.failsafe("nodes")
        if look.kv.get(agent) is not None:
            yield f"gave up {audit.id}, whose agent is there"
        if look.age(agent) < TIMES["lost_after"] - 0.01:
            yield f"gave up {audit.id} after {look.age(agent):.1f} s"
        held = look.record(Failsafe, moment.before[freeze])
        known = look.settled(freeze) and not look.troubled(moment.farm)
        if held is not None and known and frozen(held, look.clock.now()):
            yield f"gave up {audit.id} while frozen: {held}"
