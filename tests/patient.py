"""A test's own way to Consul: on a loaded machine an answer that takes longer is an answer all the same."""

from __future__ import annotations

from store.errors import StoreUnavailable
from store.ports import Clock, Request, Response, Transport


class Patient:
    """Passes requests on with a limit of time that only what is broken comes to.

    A connection that is refused or cut ends a request at once, as for everybody.
    """

    def __init__(self, transport: Transport, clock: Clock, limit: float) -> None:
        self._transport, self._clock, self._limit = transport, clock, limit

    async def send(self, request: Request, timeout: float) -> Response:
        """See ``store.ports.Transport``."""
        over = self._clock.mono() + self._limit
        while True:
            try:
                return await self._transport.send(request, max(timeout, self._limit))
            except StoreUnavailable as error:  # it never left
                if not isinstance(error.__cause__, TimeoutError) or self._clock.mono() > over:
                    raise

    async def close(self) -> None:
        """See ``store.ports.Transport``."""
        await self._transport.close()
