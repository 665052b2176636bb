"""The keys that an agent trusts: a file with one line ``name public-key owners nodes [bound]`` each.

``owners`` (``rcs/web-*,jobs/*``) and ``nodes`` (``edge-*``) are patterns with commas between. A person signs
only for owners that the line allows, and only nodes that it allows obey; with ``bound`` only signatures count
that name the cluster. The file grants; what no line grants
is refused, and a file that cannot be read or has a mistake grants nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from farmd.signing.keys import genuine, valid_public
from store.credentials import content, invalid
from store.errors import InputInvalid
from store.keys import valid_name
from store.mistakes import shown
from store.own_files import own_content
from store.revocations import NOTHING, Revoked
from store.signatures import EARLY, Signature, covers

FIELD = "agent.trust"
BOUND = "bound"
MOST_KEYS = 1000
_PATTERNS = re.compile(r"[A-Za-z0-9._/*-]+(,[A-Za-z0-9._/*-]+)*")


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Whether an owner or a node is one of those that the patterns of a line are for."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


class Trusted(NamedTuple):
    """One line: a person's key, for whose pods and to which nodes it may deploy.

    ``bound``: its signatures count only where they name the cluster.
    """

    name: str
    key: str
    owners: tuple[str, ...]
    nodes: tuple[str, ...]
    bound: bool = False

    def may_deploy(self, owner: str) -> bool:
        """Whether the person signs for this owner, ``<family>/<name>``."""
        return fits(owner, self.owners)

    def may_reach(self, node: str) -> bool:
        """Whether a node obeys the person."""
        return fits(node, self.nodes)


Trust = Sequence[Trusted]
"""The lines of a file; a person may have several, with the same key or others."""


def read(path: str, *, own: bool = True) -> Trust:
    """The lines of a file. ``own`` is off for one that grants nothing here: a person's copy of a node's file.

    Raises:
        CredentialInvalid: the file cannot be read, others may change or replace it, or a line is wrong.
    """
    text = own_content(FIELD, path) if own else content(FIELD, path, may_be_empty=True)
    lines = enumerate(text.decode("utf-8", "replace").splitlines(), start=1)
    words = [(number, line.partition("#")[0].split()) for number, line in lines]
    keys = [(number, found) for number, found in words if found]
    if len(keys) > MOST_KEYS:
        raise invalid(f"{FIELD}: {path}", f"{len(keys)} keys", f"at most {MOST_KEYS}")
    return [_line(f"{FIELD}: {path}: line {number}", found) for number, found in keys]


def _line(where: str, words: list[str]) -> Trusted:
    if len(words) not in (4, 5):
        raise invalid(where, f"{len(words)} words", "name, public key, owners and nodes")
    name, key, owners, nodes, *more = words
    if more not in ([], [BOUND]):
        raise invalid(where, shown(more[0]), f"{BOUND} or nothing behind the nodes")
    try:
        valid_name(name)
        valid_public(key)
    except InputInvalid as error:
        raise invalid(where, shown(name), error.message) from error
    for patterns in (owners, nodes):
        if not _PATTERNS.fullmatch(patterns):
            raise invalid(where, shown(patterns), "patterns such as FAMILY/web-*,FAMILY/*")
    return Trusted(name, key, tuple(owners.split(",")), tuple(nodes.split(",")), bool(more))


# The decision whether a node may start a manifest for an owner: pure (R32).
#
# Only a reason to allow allows: a signature that is genuine, whose key the node trusts for this owner and
# for itself, over this digest, for this owner, in this cluster, at this time, and that nobody revoked.
# Whatever is doubtful is refused.


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

    Of several refusals, the one of the signature that passed the most checks is reported.
    """
    if not _fits(question):
        return Refused(
            f"instance {question.instance} does not belong to {question.owner} with pod {question.pod}"
        )
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
    """The verdict of one signature: allowed, or how many checks it passed and which one failed."""
    said = signature.statement
    if said.digest != question.digest:
        return 1, "it is signed for another manifest"
    if not covers(said.owner, question.owner):
        return 2, f"it is signed for {said.owner} only"
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
        return 7, f"the signature by {line.name} is for cluster {said.cluster}, not for this one"
    if line.bound and not said.cluster:
        return 8, f"the signature by {line.name} names no cluster, but agent.trust requires one"
    if revoked.covers(said):
        return 9, f"the signature by {line.name} was revoked"
    if question.now < said.begins - EARLY:
        return 10, f"the signature by {line.name} is not valid yet by this node's clock"
    if question.now >= said.ends and not question.again:
        return 11, f"the signature by {line.name} has expired"
    return Allowed(line.name, said.ends)


def _fits(question: Question) -> bool:
    """Whether the instance bears the pod's id, or the owner's name as members of a set do
    (``<owner>-<type>-<index>~<attempt>``): else one signed pod could take another one's place.
    """
    pod, owner = re.escape(question.pod), re.escape(question.owner.partition("/")[2])
    return re.fullmatch(rf"{pod}(~\d+)?|{owner}-[a-z0-9-]+-\d+~\d+", question.instance) is not None
