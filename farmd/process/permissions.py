"""Tells whether this process's token may do in Consul what its role needs.

A farm with an agent's token reads and renews its session as if all were well, and each of its changes is
refused. So the process asks Consul by itself, without changing anything: to check in a transaction that a key
is absent needs the right to write the key, and to check its index the right to read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from farmd.process.lifecycle import ProcessService
from farmd.runtime import tasks
from store import access, config, operations, secrets
from store.consul.client import ConsulClient
from store.errors import AccessDenied, StoreError, TransactionRejected
from store.families import FAMILIES
from store.keys import Keys
from store.ports import Clock, Recorder

log = structlog.get_logger()

METRIC = "farmd_token_denied"
DENIED_SECONDS, GOOD_SECONDS = 5.0, 600.0
NOTHING = "nothing"
"""The last part of keys that nobody writes."""
_PEOPLES = {secrets.FAMILY, secrets.VERSIONS, secrets.GROUPS}
_OTHERS_WRITE = {"reality", access.FAMILY, config.FAMILY, config.HISTORY, *_PEOPLES}


class Needed(NamedTuple):
    """Keys that a process must be able to write, and to read."""

    writes: Sequence[str]
    reads: Sequence[str] = ()


def of_farm(keys: Keys) -> Needed:
    """What a farm needs of each tree that it reads or writes, whether it works on such items now or not."""
    recordless = {each.name for each in FAMILIES.values() if each.claimed and each.record is None}
    trees = FAMILIES.keys() - recordless
    writes = [f"{keys.tree(name)}{NOTHING}" for name in sorted(trees - _OTHERS_WRITE)]
    return Needed(writes, [keys.reality(NOTHING, NOTHING)])


def of_agent(keys: Keys, node: str) -> Needed:
    """What the agent of a node needs."""
    return Needed([keys.agent(node), keys.reality(node, NOTHING)])


class Rights:
    """What this process's token lacks, for people; ``denied`` is empty if it lacks nothing."""

    def __init__(self) -> None:
        self.denied = ""
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, tell: Callable[[str], None]) -> None:
        """Call ``tell`` now and after each change."""
        self._watchers.append(tell)
        tell(self.denied)

    def found(self, denied: str) -> None:
        """Set the rights that the token lacks from now on."""
        self.denied = denied
        for tell in self._watchers:
            tell(denied)


class Permitted:
    """A service that is not ready while its token may not do what it needs."""

    def __init__(
        self,
        service: ProcessService,
        client: ConsulClient,
        needed: Needed,
        policy: str,
        clock: Clock,
        recorder: Recorder,
        rights: Rights,
    ) -> None:
        self._service = service
        self._client = client
        self._needed = needed
        self._policy = policy
        self._clock = clock
        self._recorder = recorder
        self._rights = rights

    def lacks(self) -> str:
        """What the token lacks, or else what the service waits for."""
        return self._rights.denied or self._service.lacks()

    async def run(self, stop: asyncio.Event) -> None:
        """Run the service, and ask for its rights meanwhile."""
        asking = asyncio.create_task(self._ask(), name="permissions")
        try:
            await self._service.run(stop)
        finally:
            await tasks.end(asking)

    async def _ask(self) -> None:
        while True:
            found = await self._missing()
            if found is not None and found != self._rights.denied:
                self._rights.found(found)
                if found:
                    log.error("token.denied", reason=found)
                else:
                    log.info("token.permitted")
            self._recorder.set(METRIC, 1 if self._rights.denied else 0)
            await self._clock.sleep(DENIED_SECONDS if self._rights.denied or found is None else GOOD_SECONDS)

    async def _missing(self) -> str | None:
        """The rights that the token lacks; None: Consul does not answer that now."""
        writes, reads = self._needed
        asked = [operations.check_not_exists(key) for key in writes]
        try:
            await self._client.transaction([*asked, *(operations.check_index(key, 1) for key in reads)])
        except AccessDenied as error:
            denied = error.fields.get("keys", ())
            told = ("write", [key for key in denied if key in writes]), ("read", [*set(reads) & set(denied)])
            what = " and ".join(
                f"may not {verb} {', '.join(key.removesuffix(NOTHING) for key in found)}"
                for verb, found in told
                if found
            )
            return f"Consul's token: {what or error.message}; {self._policy} has the rules"
        except TransactionRejected:
            return ""  # a key is there: the token was allowed to ask
        except StoreError:
            return None
        return ""
