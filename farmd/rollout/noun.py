"""Rollouts as people name them, and the noun of the controllers that they change."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd import kinds
from farmd.commands.edits import Ending
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile
from farmd.kinds import KINDS
from store.families import RCS
from store.policies import Policy
from store.rcs import ReplicationController
from store.rollouts import History, Rollout, RolloutStatus


class RolloutSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A rollout as ``get --file`` shows it."""

    name: str
    replicas: int
    policy: Policy = Policy()


def _facts(rollout: Rollout, status: RolloutStatus | None) -> list[tuple[str, str]]:
    one = KINDS[rollout.of].one
    found = [
        ("From", f"{rollout.from_manifest[:12]} ({one} {rollout.old})"),
        ("To", f"{rollout.to_manifest[:12]} ({one} {rollout.new})"),
        ("Replicas", f"{rollout.replicas} in the end" if rollout.of == RCS.name else "one per node"),
        ("Begun by", rollout.by),
    ]
    if status is not None:
        found.insert(0, ("Phase", f"{status.phase}, stage {status.stage} of {status.stages}"))
        for title, side in (("Old", status.old), ("New", status.new)):
            told = f"{side.desired} desired, {side.placed} placed, {side.available} available"
            found.append((title, told))
        found.append(("Floor", f"{status.minimum} available"))
    return found


async def _past(call: Call, name: str) -> Ending | None:
    """How the last rollout of a controller ended, from its history."""
    over = (await History(call.client, call.keys).read(name)).items
    if not over:
        return None
    last = over[0].record
    reason = "" if last.outcome == "done" else last.reason
    return Ending(last.ended, last.outcome, reason, f"farmctl rollout history {name}")


ROLLOUT: Noun[RolloutSpec, Rollout] = Noun(
    file=SpecFile(spec=RolloutSpec, record=Rollout, kept={}),
    told=lambda rollout: {"replicas": rollout.replicas},
    facts=_facts,
    past=_past,
)


def controller() -> Noun[Any, ReplicationController]:
    """The noun of controllers: another kind's, so the registry names it."""
    return kinds.asked(RCS.name)
