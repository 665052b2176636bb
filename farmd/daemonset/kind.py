"""Daemon sets as a kind of work."""

from __future__ import annotations

from farmd.daemonset.commands import DAEMON_SET
from farmd.daemonset.contention import Rivals
from farmd.daemonset.reader import Reader
from farmd.daemonset.worker import DaemonSetWorker
from farmd.runtime.wake import Wake
from farmd.work.context import Context
from farmd.work.owner import ReplicaKind
from store.daemonsets import KIND
from store.locks import Claim
from store.sessions import Session


class DaemonSets(ReplicaKind):
    """The kind ``daemonsets``."""

    name = KIND
    noun = DAEMON_SET
    BUDGET_SPENT = "pods: daemon sets would remove more in a minute than the budget allows"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rivals = Rivals(context)

    def worker(self, claim: Claim, session: Session, wake: Wake) -> DaemonSetWorker:
        """A worker for one daemon set."""
        reader = Reader(self, claim.item, self._rivals)
        return DaemonSetWorker(self, claim, session, wake, reader)
