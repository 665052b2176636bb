"""What a change lets start, and the signatures for that (R32): made before the change, or asked for.

Where a node enforces signatures, a change that nobody signed is refused before it is written. What decides
are the agents; this only spares people the wait for their refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from farmd.commands.mutation import Call, Change, Mutation, Scalar
from farmd.kinds import KINDS
from store import codec, families, operations, revocations, signatures
from store.errors import Conflict, InputInvalid, RecordInvalid, refuse
from store.features import BOUND, ENFORCED, SIGNATURES
from store.keys import Keys
from store.manifests import digest
from store.named import sifted
from store.nodes import Agent, NodeStore
from store.operations import Operation
from store.registration import cluster_id
from store.revocations import Revocation, Revoked
from store.signatures import Signature, Statement
from store.times import rfc3339
from store.words import listed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


LONGEST = 300
"""How much a record keeps of a name or a reason, which are for people: it has room for so much."""
MOST_GONE = 32
"""How many revocations that are over go with a new one, because a transaction holds few operations."""


class Start(NamedTuple):
    """Pods of ``owner``, as ``<family>/<name>``, may run the manifest of this digest."""

    owner: str
    digest: str


def starts(keys: Keys, mutation: Mutation) -> list[Start]:
    """What a mutation lets start: the manifests that it stores, for the owners that it writes."""
    change = mutation.change
    own = KINDS.get(change.kind)
    if own is not None and own.starts:
        return list(own.starts()(keys, mutation))
    stored = {digest(body) for body in bodies(keys, mutation.operations)}
    if not stored:
        return []
    return [
        # A manager makes the record that replaces another one, and is called as that one is.
        Start(f"{family.name}/{record.name if change.kind == family.name else change.name}", sha)
        for family in families.owners()
        for write in mutation.operations
        if write.value and write.key.startswith(keys.tree(family.name))
        for record in (codec.decode(family.record or dict, write.value, write.key),)
        for sha in record.manifests
        if sha in stored
    ]


def bodies(keys: Keys, operations: Iterable[Operation]) -> list[bytes]:
    """The manifests among some writes."""
    return [each.value for each in operations if each.value and each.key.startswith(keys.manifest(""))]


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs starts from now on for ``seconds``, in the cluster with the id ``cluster`` alone.

    ``older`` are nodes whose agents take signatures that name a cluster for false; while there are any, the
    signatures name none, and hold in every cluster.
    """

    call: Call
    key: Ed25519PrivateKey
    seconds: float
    cluster: str
    revoked: Revoked
    older: Sequence[str] = ()

    def signed(self, start: Start, beside: Sequence[Operation] = ()) -> Mutation:
        """Sign a start, with what is written ``beside``; a revocation does not concern it.

        Raises:
            InputInvalid: signatures cannot last for so long.
        """
        from farmd.signing import keys as signing

        begins = max(int(self.call.clock.now()), self.revoked.before.get((start.digest, start.owner), 0))
        cluster = "" if self.older else self.cluster
        said = Statement(start.digest, start.owner, begins, begins + int(self.seconds), cluster)
        made = signing.sign(self.key, said, self.call.actor)
        return _kept(self.call.keys, made, "manifest.sign", beside)


async def signer(call: Call, key: Ed25519PrivateKey, seconds: float) -> Signer:
    """A signer with this key for this cluster.

    Raises:
        NotRegistered: no cluster is registered here.
    """
    agents, _ = await NodeStore(call.client, call.keys).agents()
    older = [
        agent.record.node
        for agent in agents.values()
        if BOUND not in agent.record.features
        and any(each.startswith(SIGNATURES) for each in agent.record.features)
    ]
    cluster = await cluster_id(call.client, call.keys)
    revoked = revocations.revoked(await revocations.stored(call.client, call.keys))
    return Signer(call, key, seconds, cluster, revoked, sorted(older))


def _kept(keys: Keys, made: Signature, action: str, beside: Sequence[Operation] = ()) -> Mutation:
    """The mutation that stores a signature."""
    said = made.statement
    after: dict[str, Scalar] = {"owner": said.owner, "key": made.key_id, "until": rfc3339(said.ends)}
    change = Change("manifests", said.digest, said.digest[:12], action, after=after, manifest=said.digest)
    return Mutation(change, (*beside, signatures.put(keys, made)))


def flaw(signature: Signature, now: float, cluster: str, revoked: Revoked) -> str:
    """Why no node starts anything by a signature now, whomever it trusts; empty: one that trusts its key may.

    Without the library only its times are looked at.
    """
    from farmd.signing import keys as signing

    said = signature.statement
    if not signing.missing() and not signing.genuine(signature):
        return "false"
    if said.cluster not in ("", cluster):
        return "for another cluster"
    if revoked.covers(said):
        return "revoked"
    if said.ends <= now:
        return "expired"
    return "begins later" if now < said.begins - signatures.EARLY else ""


async def standing(call: Call, start: Start) -> list[Signature]:
    """The signatures of a start that hold now, as far as they can be checked without knowing whom nodes
    trust.
    """
    found, _ = await signatures.of(call.client, call.keys, start.digest)
    now, cluster = call.clock.now(), await cluster_id(call.client, call.keys)
    revoked = revocations.revoked(await revocations.stored(call.client, call.keys))
    return [
        each
        for each in found
        if signatures.covers(each.statement.owner, start.owner) and not flaw(each, now, cluster, revoked)
    ]


async def refuse_unsigned(call: Call, wanted: Sequence[Start]) -> None:
    """Refuse what nodes would refuse.

    Raises:
        Conflict: nodes enforce signatures, and one of these starts has none that one of them trusts.
    """
    agents = await enforcing(call) if wanted else []
    for start in wanted if agents else ():
        held = await standing(call, start)
        if any(trusts(agent, each) for agent in agents for each in held):
            continue
        nodes, what = listed(sorted(agent.node for agent in agents), 3), f"manifest {start.digest[:12]} is"
        said = f"{what} not signed for {start.owner}; signatures are enforced by {nodes}"
        if held:
            keys = listed(sorted({each.key_id for each in held}), 3)
            said = f"{what} signed for {start.owner} by key {keys}, which none of {nodes} trusts for it"
        hint = (
            "--sign KEYFILE signs it; if a node should not enforce: farmctl node set NODE --signatures none"
        )
        raise Conflict(said, id=start.digest, hint=hint)


def trusts(agent: Agent, signature: Signature) -> bool:
    """Whether a node trusts the key of a signature for its owner, as its agent reports."""
    if agent.trusts is None:
        return True
    from farmd.signing.trust import fits

    return fits(signature.statement.owner, agent.trusts.get(signature.key_id, ()))


async def enforcing(call: Call) -> list[Agent]:
    """The agents that start only what is signed, by the settings of their nodes, else by their own report."""
    listing = await NodeStore(call.client, call.keys).list()  # farmctl doctor names what does not decode
    return [
        view.agent
        for view in listing.items.values()
        if view.agent is not None
        and (
            view.record.signatures == "enforce" if view.record.signatures else ENFORCED in view.agent.features
        )
    ]


async def saved(call: Call) -> list[str]:
    """The signatures that nobody revoked, as lines of JSON that ``restored`` takes, in order."""
    page = await call.client.list(call.keys.tree(signatures.KIND))
    found, _ = sifted(page.items, partial(signatures.decode, call.keys))  # farmctl doctor names the others
    revoked = revocations.revoked(revocations.of_page(call.keys, page.items))
    return sorted(codec.encode(each).decode() for each in found if not revoked.covers(each.statement))


def restored(call: Call, text: str, source: str) -> list[Mutation]:
    """Write signatures that were saved; no key is needed, because nodes judge them as before.

    Raises:
        InputInvalid: a line is no signature.
    """
    made = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            found = codec.decode(Signature, line.encode(), f"{source}: line {number}")
            signatures.check(found.statement)
        except (RecordInvalid, InputInvalid) as error:
            refuse(f"{source}: line {number}", error.message, "a signature as farmctl export writes it")
        made.append(_kept(call.keys, found, "manifest.restore"))
    return made


async def revoke(call: Call, wanted: Sequence[Start]) -> list[Mutation]:
    """Revoke all signatures of these starts that were made so far, also those that are not stored any more.

    A revocation of which no signature is left that could start anything goes with the first one.
    """
    held = await revocations.stored(call.client, call.keys)
    known = revocations.revoked(held).before
    over = [each for each in held if each.over(call.clock.now())]
    made: list[Mutation] = []
    for start in dict.fromkeys(wanted):
        found, _ = await signatures.of(call.client, call.keys, start.digest)
        begun = [each.statement.begins + 1 for each in found if each.statement.owner == start.owner]
        ends = max([int(call.clock.now()), known.get((start.digest, start.owner), 0), *begun])
        said = Statement(start.digest, start.owner, 0, ends)
        revocation = Revocation(statement=said, by=call.actor[:LONGEST], reason=call.reason[:LONGEST])
        after: dict[str, Scalar] = {"owner": start.owner, "before": rfc3339(ends)}
        change = Change(
            "manifests", start.digest, start.digest[:12], "manifest.revoke",
            after=after, manifest=start.digest, destructive=True,
        )  # fmt: skip
        gone = [
            operations.delete(call.keys.revocation(each.statement.digest, each.statement.owner))
            for each in (over if not made else [])
            if (each.statement.digest, each.statement.owner) != (start.digest, start.owner)
        ]
        made.append(Mutation(change, (*gone[:MOST_GONE], revocations.put(call.keys, revocation))))
    return made
