"""One request and its answer: token, metrics and typed errors around a ``Transport``.

Every request to Consul goes through here, the library's rare calls included, so that no error of
aiohttp or of the library ever reaches a caller.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from email.utils import parsedate_to_datetime

from store.consul import errors
from store.consul.errors import Op
from store.errors import AccessDenied, OutcomeUnknown, StoreError, UnexpectedAnswer
from store.ports import Clock, Recorder, Request, Response, Transport

# Without a leader Consul answers a read with 500 after 7 s: a shorter limit would hide that reason.
SHORT_SECONDS = 10.0
RENEW_SECONDS = 3.0
WATCH_MARGIN_SECONDS = 10.0
CONSUL_DEFAULT_WAIT = 300.0
_KV = "/v1/kv/"
# The statuses that have a metric of their own; ``farmd/observe/metrics.py`` declares the same.
STATUSES = {200, 400, 401, 403, 404, 409, 413, 429, 500, 502, 503, 504}


def blocking_limit(wait: float) -> float:
    """The time limit of a blocking query: Consul adds up to 1/16 to the wait; a wait of 0 is 5 min."""
    wait = wait or CONSUL_DEFAULT_WAIT
    return wait + wait / 16 + WATCH_MARGIN_SECONDS


class Exchange:
    """Sends requests for ``ConsulClient``."""

    def __init__(
        self,
        transport: Transport,
        *,
        clock: Clock,
        recorder: Recorder | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        self.transport = transport
        self._clock = clock
        self._recorder = recorder
        self._token = token
        self._dated: tuple[str, float] | None = None

    def date(self) -> float | None:
        """The time by the clock that dates Consul's answers, at most a second too late; None: unknown."""
        if self._dated is None:
            return None
        text, heard = self._dated
        try:
            return parsedate_to_datetime(text).timestamp() + 1.0 + self._clock.mono() - heard
        except ValueError:
            return None

    async def __call__(self, op: Op, request: Request, timeout: float = SHORT_SECONDS) -> Response:
        """Send and return a success or a proven absence (404).

        Raises:
            StoreError: any other answer, or none; see ``store.consul.errors``.
        """
        start, code = self._clock.mono(), "cancelled"
        try:
            response = await self._answered(op, self._with_token(request), timeout)
            failure = errors.problem(op, response, request.path.partition(_KV)[2])
            code = str(response.status) if response.status in STATUSES else "other"
            if isinstance(failure, AccessDenied):  # of a transaction by 409, as a check that failed
                code = "403"
        except StoreError as error:
            code = error.code
            raise
        finally:
            self._record(op, code, start)
        if failure is None:
            return response
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame: only the collector of cycles would free both

    async def _answered(self, op: Op, request: Request, timeout: float) -> Response:
        try:
            response = await self.transport.send(request, timeout)
        except (OutcomeUnknown, UnexpectedAnswer) as error:
            raise errors.unanswered(op, error) from error
        if date := response.headers.get("date"):
            self._dated = date, self._clock.mono()
        return response

    def _with_token(self, request: Request) -> Request:
        token = self._token() if self._token is not None else ""
        if not token:
            return request
        return replace(request, headers={**request.headers, "X-Consul-Token": token})

    def _record(self, op: Op, code: str, start: float) -> None:
        if self._recorder is None:
            return
        self._recorder.count("farmd_store_requests_total", 1, op=op.value, code=code)
        if code != "cancelled":
            self._recorder.set("farmd_store_reachable", 1 if code == "other" or code.isdigit() else 0)
        seconds = self._clock.mono() - start
        self._recorder.observe("farmd_store_request_duration_seconds", seconds, op=op.value)
