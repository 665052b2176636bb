"""Finds owners whose new pods nodes refuse, or soon will: unsigned, or signed for a short time (R32)."""

from __future__ import annotations

from collections.abc import Iterator

from farmd.commands.signing import trusts
from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from farmd.kinds import title
from farmd.signing.keys import genuine, missing
from store import revocations, signatures
from store.features import ENFORCED
from store.nodes import Agent
from store.signatures import EARLY, Signature, Statement
from store.times import rfc3339
from store.words import listed

SOON_SECONDS = 7 * 86_400.0


def check(survey: Survey) -> Iterator[Finding]:
    """The findings; none where no node enforces signatures."""
    agents = [agent for _, agent in survey.decoded("agents", Agent) if ENFORCED in agent.features]
    if not agents:
        return
    nodes = listed(sorted(agent.node for agent in agents), 3)
    signed: dict[str, list[Signature]] = {}
    for one in _counting(survey):
        signed.setdefault(one.statement.digest, []).append(one)
    for family, entry, owner in survey.owners():
        for sha in () if owner.deleting else owner.manifests:
            said = f"{family.name}/{owner.name}"
            held = [each for each in signed.get(sha, ()) if signatures.covers(each.statement.owner, said)]
            by_node = ([one.statement for one in held if trusts(agent, one)] for agent in agents)
            until = max(_until(statements, survey.now) for statements in by_node)
            named = title(family.name, owner.name)
            sign = f"farmctl manifest sign {named.partition('/')[0]} -f FILE --key KEYFILE"
            fix = f"sign the file that {named} comes from: {sign}"
            if until <= survey.now:
                what = f"no signature of manifest {sha[:12]} is valid{_by(held, survey.now)}: {nodes}"
                yield Finding("unsigned", survey.short(entry.key), f"{what} start no new pod of it", fix)
            elif until <= survey.now + SOON_SECONDS:
                when = f"the signature of manifest {sha[:12]} ends at {rfc3339(until)}"
                yield Finding("signature-ends", survey.short(entry.key), f"{when}: no pod starts then", fix)


def _counting(survey: Survey) -> Iterator[Signature]:
    """The signatures that are genuine, of this cluster or of version 1, and not revoked."""
    able, cluster = not missing(), survey.cluster_id
    found = list(survey.decoded(signatures.KIND, Signature))
    below = survey.keys.revocations
    revoked = revocations.revoked(one for entry, one in found if entry.key.startswith(below))
    for entry, one in found:
        counts = one.statement.cluster in ("", cluster) and not revoked.covers(one.statement)
        if counts and not entry.key.startswith(below) and (not able or genuine(one)):
            yield one


def _by(held: list[Signature], now: float) -> str:
    """The keys that nobody trusts, of the signatures that would hold now otherwise."""
    keys = sorted({each.key_id for each in held if _until([each.statement], now) > now})
    return f", because no node trusts key {listed(keys, 3)} for it" if keys else ""


def _until(statements: list[Statement], now: float) -> float:
    """Until when a start is permitted from now on without a break; not later than ``now``: it is not."""
    until = now
    for each in sorted(statements, key=lambda said: said.begins):
        if each.begins - EARLY <= until:
            until = max(until, each.ends)
    return until
