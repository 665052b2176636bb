"""Checks that the sessions of farms outlive an election of Consul's leader, as far as both are told."""

from __future__ import annotations

from collections.abc import Iterator

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from store import quantities
from store.errors import InputInvalid
from store.farms import Member
from store.sessions import MARGIN, RENEWALS

# A server stands for election after one to two heartbeats without its leader.
HEARTBEATS = 2
# How much of the TTL is left at least when the leader is lost.
LEFT = 1 - MARGIN - 1 / RENEWALS


def check(survey: Survey, heartbeat: str) -> Iterator[Finding]:
    """Farms that suspend their work at each election; ``heartbeat`` is Consul's, as Go writes it."""
    try:
        election = HEARTBEATS * quantities.seconds(heartbeat)
    except InputInvalid:
        return  # not told
    for entry, member in survey.decoded("farms", Member):
        if 0 < member.ttl * LEFT < election:
            yield Finding(
                "ttl-short",
                survey.short(entry.key),
                f"its session lasts {member.ttl:g} s and is renewed every {member.ttl / RENEWALS:.1f} s; a"
                f" new leader of Consul may take {election:g} s (heartbeat {heartbeat}):"
                " its work pauses meanwhile",
                "set performance.raft_multiplier = 1 in Consul's servers, or farm.ttl to"
                f" {int(election / LEFT) + 1} or more",
            )
