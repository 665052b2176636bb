"""Writing under a claim: every transaction carries the fence, and a lost claim ends the work (R12)."""

from __future__ import annotations

import structlog

from farmd.farm.errors import ClaimLost
from store.consul.client import ConsulClient
from store.errors import TransactionRejected
from store.locks import Claim
from store.operations import Operation
from store.sessions import Session

log = structlog.get_logger()


class Pen:
    """Writes fenced transactions for one claim."""

    def __init__(self, client: ConsulClient, claim: Claim, session: Session) -> None:
        self._client = client
        self._claim = claim
        self._session = session

    async def write(self, *operations: Operation) -> int | None:
        """Commit; the index of the commit, or None if somebody else's change came first.

        Raises:
            ClaimLost: the lock is no longer this claim's.
            SessionSuspended: the session may have expired; nothing was sent.
            StoreError: the store could not be written, or nobody knows whether it was.
        """
        self._session.require()
        try:
            entries = await self._client.transaction([*self._claim.fence(), *operations])
        except TransactionRejected as error:
            if self._claim.refused(error):
                raise ClaimLost(str(error)) from error
            log.info("housekeeping.overtaken", key=operations[0].key, reason=str(error))
            return None
        return max(entry.modify_index for entry in entries)
