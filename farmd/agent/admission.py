"""Whether this node may start what an intent asks for: reads the signatures and decides by them (R32).

An agent with the policy ``none`` has no such object. The trust file is read again at each decision, so a key
that is added or removed counts at once. Whatever cannot be read or understood refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from farmd.agent.model import SigningConfig
from farmd.agent.revocations import Revocations
from farmd.signing import keys as signing_keys
from farmd.signing import trust
from farmd.signing.trust import Decision, Question, Refused, judge
from store import codec, families, signatures
from store.consul.client import ConsulClient
from store.credentials import CredentialFiles
from store.errors import AccessDenied, CredentialInvalid, RecordInvalid, TooLarge
from store.keys import Keys
from store.manifests import Manifest
from store.ports import Clock


@dataclass(eq=False, kw_only=True)
class Admission:
    """Decides about starts on one node."""

    config: SigningConfig
    node: str
    client: ConsulClient
    keys: Keys
    clock: Clock
    cluster: Callable[[], str]
    revocations: Revocations

    def __post_init__(self) -> None:
        # Asked for at each look at the presence, so it is not read anew while it stays as it is.
        self._trusted = CredentialFiles([self.config.trust], self._owners_by_key, keeps=False)

    def trusts(self) -> dict[str, list[str]]:
        """The patterns of the owners that each key may sign for on this node, by the key's id."""
        try:
            return self._trusted()
        except CredentialInvalid:
            return {}  # whoever asks for a start is told why nothing is permitted

    def _owners_by_key(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in trust.read(self.config.trust):
            if line.may_reach(self.node):
                found.setdefault(signatures.key_id(line.key), []).extend(line.owners)
        return found

    async def decide(
        self, digest: str, owner: str, instance: str, manifest: Manifest, *, again: bool
    ) -> Decision:
        """Decide about one start; ``owner`` is the id of the owner that the intent names.

        Raises:
            StoreError: the store did not answer.
        """
        if text := signing_keys.missing():
            return Refused(text)
        try:
            trusted = await asyncio.to_thread(trust.read, self.config.trust)
        except CredentialInvalid as error:
            return Refused(error.message)
        try:
            found, broken = await signatures.of(self.client, self.keys, digest)
            revoked = await self.revocations.read()
            named = await self._owner(owner, {each.statement.owner for each in found})
        except AccessDenied as error:
            return Refused(f"this agent's token may not read signatures and names: {error.message}")
        except (RecordInvalid, TooLarge) as error:
            return Refused(error.message)
        if not found:
            return Refused(f"{broken[0].message if broken else 'nobody signed'} manifest {digest[:12]}")
        if not named:
            return Refused(f"manifest {digest[:12]} is signed for {_owners(found)}, not for {owner}")
        question = Question(
            digest,
            named,
            self.node,
            instance,
            manifest.id,
            now=self.clock.now(),
            cluster=self.cluster(),
            again=again,
        )
        return await asyncio.to_thread(judge, question, found, trusted, revoked)

    async def revokes(self, digest: str, owner: str) -> bool:
        """Whether a signature by which pods of this owner may have started a manifest was revoked.

        Raises:
            StoreError: the store did not answer.
        """
        owners = self.revocations.known.owners(digest)
        try:
            named = await self._owner(owner, owners) if owners else ""
            return any(signatures.covers(each, named) for each in owners)
        except (RecordInvalid, TooLarge):
            return True  # ``decide`` says what is wrong with it

    async def _owner(self, ident: str, signed: Iterable[str]) -> str:
        """The owner's ``<family>/<name>``, if its name is one of the signed ones; empty: it is none of them.

        The keys of names tell it, which make names unique: an owner that says that it is another one would
        have to take that one's name away.
        """
        able = {family.name for family in (*families.owners(), *families.actors())}
        for family, _, name in sorted(each.partition("/") for each in signed):
            if family not in able:
                continue
            key = self.keys.name(family, signatures.stem(name))
            page = await self.client.list(key, mode="consistent", most=signatures.MOST_BYTES)
            for raw in page.items:
                if codec.decode(str, raw.decoded(), raw.key) == ident:
                    return f"{family}/{self.keys.last_part(raw.key)}"
        return ""


def _owners(found: Iterable[signatures.Signature]) -> str:
    return ", ".join(sorted({each.statement.owner for each in found}))
