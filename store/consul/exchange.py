"""One request and its answer: token, metrics and typed errors around a ``Transport``.

Every request to Consul goes through here, the library's rare calls included, so that no error of
aiohttp or of the library ever reaches a caller.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from store.errors import (
    AccessDenied,
    InputInvalid,
    InvalidTTL,
    NoLeader,
    OperationError,
    OutcomeUnknown,
    SessionGone,
    StoreError,
    StoreUnavailable,
    Throttled,
    TooLarge,
    TransactionRejected,
    UnexpectedAnswer,
)
from store.mistakes import shown
from store.operations import Operation
from store.ports import Clock, Recorder, Request, Response, Transport

# Maps Consul's answers to the store's typed errors, in pure functions.
#
# Most failures of Consul differ only in their text: every server-side error is a 500. Only this module
# decides whether a write's outcome is known (R12). A message holds at most 80 characters of a body.


class Op(enum.StrEnum):
    """The kind of a request to Consul: the closed set of the metrics' label ``op``."""

    GET = "get"
    LIST = "list"
    KEYS = "keys"
    WATCH = "watch"
    PUT = "put"
    DELETE = "delete"
    TRANSACTION = "transaction"
    SESSION_CREATE = "session_create"
    SESSION_RENEW = "session_renew"
    SESSION_DESTROY = "session_destroy"
    SESSION_INFO = "session_info"
    STATUS = "status"
    AGENT = "agent"
    SERVERS = "servers"
    ACL = "acl"
    ACL_WRITE = "acl_write"
    CATALOG = "catalog"

    @property
    def writes(self) -> bool:
        """Whether an unanswered request has an unknown outcome. A renewal has none: it may be repeated."""
        return self in _WRITES


_WRITES = {Op.PUT, Op.DELETE, Op.TRANSACTION, Op.SESSION_CREATE, Op.SESSION_DESTROY, Op.ACL_WRITE}
_KV_READS = {Op.GET, Op.LIST, Op.KEYS, Op.WATCH}
_UNKNOWN_TOKEN = "acl not found"
_DENIED = ("permission denied", _UNKNOWN_TOKEN, "acl support disabled")


class _TxnError(msgspec.Struct):
    index: int = msgspec.field(name="OpIndex", default=0)
    what: str = msgspec.field(name="What", default="")


class _TxnErrors(msgspec.Struct):
    errors: list[_TxnError] | None = msgspec.field(name="Errors")


_rejection = msgspec.json.Decoder(_TxnErrors)


def problem(op: Op, response: Response, target: str = "") -> StoreError | None:
    """The error of an answer; None for a success or a proven absence.

    ``target`` is the requested key, which the message of a denial names.
    """
    status = response.status
    if status == 200:
        return None if _from_consul(op, response) else not_consul(op, response)
    text = first_words(response.body)
    low = text.lower()
    where = f"{op}: {status} {text}".rstrip()
    if status == 429 and op is Op.SERVERS and response.body.startswith(b"{"):
        return None  # this is how Consul tells that a server is not healthy
    if status == 429:
        return Throttled(where, status=status)
    if _is_page(response):
        return not_consul(op, response)
    if status == 404:
        return _absent(op, response, low)
    if status == 409 and op is Op.TRANSACTION:
        return _rejected(response)
    if status == 413:
        return TooLarge(where, status=status)
    if status in (401, 403) or (status == 500 and any(words in low for words in _DENIED)):
        denied = f"{op} {target}: {status} {text}" if target else where
        return _denied(low, denied, status=status, **({"key": target} if target else {}))
    if status >= 500:
        return _failed(op, low, where, status)
    if op is Op.SESSION_CREATE and "ttl" in low:
        return InvalidTTL(where, status=status)
    return not_consul(op, response)


def _denied(low: str, where: str, **fields: Any) -> AccessDenied:
    """The error of a denial; it says so if Consul does not know the token."""
    if _UNKNOWN_TOKEN not in low:
        return AccessDenied(where, **fields)
    hint = (
        "the token belongs to another cluster, or was deleted or has expired:"
        " check CONSUL_HTTP_TOKEN_FILE or --token-file"
    )
    return AccessDenied(f"unknown token: {where}", hint=hint, **fields)


def not_consul(op: Op, response: Response) -> StoreError:
    """The error of an answer that is not Consul's: of unknown outcome if a write may have been done."""
    kind = response.headers.get("content-type", "no content type").partition(";")[0]
    where = f"{op}: found {response.status} {kind} {first_words(response.body)!r}, expected Consul's answer"
    if op.writes and (response.status < 300 or response.status >= 500):
        return OutcomeUnknown(where, status=response.status)
    return UnexpectedAnswer(where, status=response.status)


def denied_operations(error: AccessDenied, tried: Sequence[Operation]) -> AccessDenied:
    """A transaction's denial that names the first denied operation; all denied keys are in the fields."""
    places = [place for place in error.fields.get("operations", ()) if place < len(tried)]
    if not places:
        return AccessDenied(error.message, **error.fields)
    # Consul also denies checks; a denied change tells people more.
    first = next(
        (tried[place] for place in places if not tried[place].verb.startswith("check")), tried[places[0]]
    )
    others = f", and {len(places) - 1} more" if len(places) > 1 else ""
    return _denied(
        str(error.fields["what"]).lower(),
        f"{Op.TRANSACTION}: 409 {error.fields['what']} ({first.verb} {first.key}{others})",
        status=409,
        operations=places,
        keys=[tried[place].key for place in places],
    )


def failed_operations(error: TransactionRejected, tried: Sequence[Operation]) -> TransactionRejected:
    """The rejection with the failed operations in its errors."""
    named = (
        OperationError(each.index, each.what, tried[each.index] if each.index < len(tried) else None)
        for each in error.errors
    )
    return TransactionRejected(tuple(named))


def unanswered(op: Op, error: OutcomeUnknown | UnexpectedAnswer) -> StoreError:
    """The error of a request that left and got no whole answer.

    A read changed nothing; if the server hung up without a status, its limit of connections is reached (R23).
    """
    if op.writes:
        return OutcomeUnknown(error.message, **error.fields)
    if isinstance(error, UnexpectedAnswer):
        return UnexpectedAnswer(error.message, **error.fields)
    kind = Throttled if error.fields.get("disconnected") else StoreUnavailable
    return kind(error.message, **error.fields)


def first_words(body: bytes) -> str:
    """At most 80 characters of a body, on one line."""
    return " ".join(body[:400].decode("utf-8", "replace").split())[:80]


def _from_consul(op: Op, response: Response) -> bool:
    """Whether a success is Consul's: it is JSON, and a read has one of Consul's headers."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return False
    return op not in _KV_READS or _has_consul_header(response)


def _has_consul_header(response: Response) -> bool:
    return any(name.startswith("x-consul-") for name in response.headers)


def _is_page(response: Response) -> bool:
    kind = response.headers.get("content-type", "")
    return "html" in kind or response.body[:64].lstrip().startswith(b"<")


def _absent(op: Op, response: Response, low: str) -> StoreError | None:
    """The error of a 404; None if it comes from Consul and proves that the key is absent."""
    if op in _KV_READS and _has_consul_header(response):
        return None
    if op is Op.SESSION_RENEW and low.startswith("session id"):
        return SessionGone(f"{op}: 404 {first_words(response.body)}", status=404)
    return not_consul(op, response)


def _rejected(response: Response) -> StoreError:
    try:
        found = _rejection.decode(response.body).errors or []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return not_consul(Op.TRANSACTION, response)
    errors = tuple(OperationError(error.index, error.what) for error in found)
    denied = [e for e in errors if any(words in e.what.lower() for words in _DENIED)]
    if denied:
        return _denied(
            denied[0].what.lower(),
            f"{Op.TRANSACTION}: 409 operation {denied[0].index}: {denied[0].what[:80]}",
            status=409,
            what=denied[0].what[:80],
            operations=[e.index for e in denied],
        )
    return TransactionRejected(errors)


def _failed(op: Op, low: str, where: str, status: int) -> StoreError:
    """The error of a 5xx. A write's outcome is known only if the text proves that it was not tried."""
    if op is Op.PUT and "invalid session" in low:
        return SessionGone(where, status=status)
    if op is Op.SESSION_CREATE and "session ttl" in low:
        return InvalidTTL(where, status=status)
    no_leader = "no cluster leader" in low or "no leader" in low
    if op.writes:
        return OutcomeUnknown(where, status=status, no_leader=no_leader)
    return (NoLeader if no_leader else StoreUnavailable)(where, status=status)


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
            StoreError: any other answer, or none; see ``store.consul.exchange``.
            InputInvalid: a path with a character that Consul refuses, without a word in its answer.
        """
        if not request.path.isprintable():
            raise InputInvalid(f"found {shown(request.path)}, expected a key of printable characters")
        start, code = self._clock.mono(), "cancelled"
        try:
            response = await self._answered(op, self._with_token(request), timeout)
            failure = problem(op, response, request.path.partition(_KV)[2])
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
            raise unanswered(op, error) from error
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
