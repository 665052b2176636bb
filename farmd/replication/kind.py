"""Replication controllers as a kind of work."""

from __future__ import annotations

from farmd.replication.commands import RC
from farmd.replication.moves import Moves
from farmd.replication.worker import ReplicationController
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.owner import ReplicaKind
from store.consul.client import ConsulClient
from store.keys import Keys
from store.locks import Claim, Locker, ReplicationControllerLocker
from store.rcs import KIND
from store.sessions import Session


class Replication(ReplicaKind):
    """The kind ``rcs``."""

    name = KIND
    noun = RC
    BUDGET_SPENT = "pods: more replacements in a minute than the removal budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._moves = Moves(context.caches, context.keys, context.settings.max_transfers)

    def locker(self, client: ConsulClient, keys: Keys) -> Locker:
        """As ``Kind.locker``."""
        return ReplicationControllerLocker(client, keys)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> ReplicationController:
        """A worker for one RC."""
        return ReplicationController(self, claim, session, wake, self._moves)
