"""The decision whether a node may start a manifest for an owner: pure (R32).

Only a reason to allow allows: a signature that is genuine, whose key the node trusts for this owner and for
itself, over this digest, for this owner, in this cluster, at this time, and that nobody revoked. Whatever is
doubtful is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from farmd.signing.keys import genuine
from farmd.signing.trust import Trust
from store.revocations import NOTHING, Revoked
from store.signatures import EARLY, Signature, covers


@dataclass(frozen=True, slots=True)
class Question:
    """A start that is asked for. ``owner`` is ``<family>/<name>``, ``pod`` the manifest's own id; ``now`` is
    seconds since the epoch. ``cluster`` is the id of the node's own cluster. ``again``: the instance started
    this manifest before, so the time is over only for others.
    """

    digest: str
    owner: str
    node: str
    instance: str
    pod: str
    now: float
    cluster: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """The start is signed by ``by``; it must happen before ``until``, seconds since the epoch."""

    by: str
    until: float


@dataclass(frozen=True, slots=True)
class Refused:
    """No signature permits the start; ``reason`` is one line for people."""

    reason: str


Decision = Allowed | Refused


def judge(
    question: Question, found: Iterable[Signature], trust: Trust, revoked: Revoked = NOTHING
) -> Decision:
    """Decide about one start, from all signatures of its manifest and what people revoked.

    Of several refusals the one of the signature that came furthest is told.
    """
    if not _fits(question):
        return Refused(f"instance {question.instance} is none of {question.owner} with pod {question.pod}")
    allowed: list[Allowed] = []
    refused = [(0, "nobody signed it")]
    for signature in found:
        match _one(question, signature, trust, revoked):
            case Allowed() as good:
                allowed.append(good)
            case rank, text:
                refused.append((rank, text))
    if allowed:
        return max(allowed, key=lambda good: good.until)
    return Refused(f"{max(refused)[1]}: manifest {question.digest[:12]} for {question.owner}")


def _one(
    question: Question, signature: Signature, trust: Trust, revoked: Revoked
) -> Allowed | tuple[int, str]:
    """What one signature says: allowed, or how far it came and why no further."""
    said = signature.statement
    if said.digest != question.digest:
        return 1, "it is signed for another manifest"
    if not covers(said.owner, question.owner):
        return 2, f"it is signed for {said.owner} alone"
    lines = [line for line in trust if line.key == signature.key]
    if not lines:
        return 3, f"key {signature.key_id} is not trusted here"
    if not genuine(signature):
        return 4, f"the signature by key {signature.key_id} is false"
    lines = [line for line in lines if line.may_deploy(said.owner)]
    if not lines:
        return 5, f"key {signature.key_id} may not sign for {said.owner}"
    line = next((line for line in lines if line.may_reach(question.node)), None)
    if line is None:
        return 6, f"{lines[0].name} may not deploy to {question.node}"
    if said.cluster and said.cluster != question.cluster:
        return 7, f"the signature by {line.name} is for cluster {said.cluster}, and this is another one"
    if line.bound and not said.cluster:
        return 8, f"the signature by {line.name} names no cluster, which agent.trust asks for"
    if revoked.covers(said):
        return 9, f"the signature by {line.name} was revoked"
    if question.now < said.begins - EARLY:
        return 10, f"the signature by {line.name} begins later than this node's clock says"
    if question.now >= said.ends and not question.again:
        return 11, f"the signature by {line.name} has expired"
    return Allowed(line.name, said.ends)


def _fits(question: Question) -> bool:
    """Whether the instance bears the pod's id, or the owner's name as members of a set do
    (``<owner>-<type>-<index>~<attempt>``): else one signed pod could take another one's place.
    """
    pod, owner = re.escape(question.pod), re.escape(question.owner.partition("/")[2])
    return re.fullmatch(rf"{pod}(~\d+)?|{owner}-[a-z0-9-]+-\d+~\d+", question.instance) is not None
