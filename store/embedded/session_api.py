"""``/v1/session/``: create, renew, destroy, and the lists of sessions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from store.embedded import answers, encoding
from store.embedded.answers import HttpError, Query, QueryResult
from store.embedded.calls import Call
from store.embedded.encoding import Field, InvalidDuration, Malformed, parse
from store.embedded.state import CreateSession, DestroySession
from store.embedded.verbs import NANOSECONDS, Refused, Session, check_session_id
from store.ports import Response

SERF_CHECK = "serfHealth"
# Consul takes a smaller lock-delay for seconds, because people write 15 for 15 s (measured).
_PROBABLY_SECONDS = 1000
_FIELDS = {
    "ID": Field("any", ""),
    "Name": Field("string", "string"),
    "Node": Field("string", "string"),
    "LockDelay": Field("any", ""),
    "Behavior": Field("string", "structs.SessionBehavior"),
    "TTL": Field("string", "string"),
    "Checks": Field("array", "[]types.CheckID"),
    "NodeChecks": Field("array", "[]string"),
    "ServiceChecks": Field("array", "[]structs.ServiceCheck"),
}


def create(call: Call) -> Response:
    """``PUT /v1/session/create``."""
    call.options()
    try:
        session = _decoded(call)
    except (Malformed, InvalidDuration) as error:
        raise HttpError(400, f"Request decode failed: {error}") from error
    call.need_sessions()
    _check(call, session)
    call.state.commit(CreateSession(session))
    return answers.json({"ID": session.id})


def renew(call: Call) -> Response:
    """``PUT /v1/session/renew/<id>``: changes the leader's memory only and uses no raft index."""
    call.options()
    session = call.state.sessions.get(_session_id(call).lower())
    if session is None:
        raise HttpError(404, f"Session id '{call.rest}' not found")
    call.need_sessions()
    call.state.renew(session)
    return answers.json([session])


def destroy(call: Call) -> Response:
    """``PUT /v1/session/destroy/<id>``: true, also if the session does not exist."""
    call.options()
    session_id = _session_id(call).lower()
    call.need_sessions()
    call.state.commit(DestroySession(session_id))
    return answers.json(True)


def info(call: Call) -> Query:
    """``GET /v1/session/info/<id>``: a list of one, or empty."""
    call.options()
    session_id = _session_id(call).lower()
    sessions, watches = call.state.sessions, call.state.session_watches

    def read() -> list[Session]:
        session = sessions.get(session_id)
        return [] if session is None else [session]

    def watch(wake: Callable[[], None]) -> Callable[[], None]:
        return watches.key(session_id, wake) if sessions.get(session_id) else watches.prefix("", wake)

    return Query(lambda: _reading(call, read()), watch)


def of_node(call: Call) -> Query:
    """``GET /v1/session/node/<node>``."""
    call.options()
    if not call.rest:
        raise HttpError(400, "Missing node name")
    return _list(call, lambda session: session.node == call.rest)


def every(call: Call) -> Query:
    """``GET /v1/session/list``."""
    call.options()
    return _list(call, lambda _: True)


def _list(call: Call, wanted: Callable[[Session], bool]) -> Query:
    sessions, watches = call.state.sessions, call.state.session_watches
    return Query(
        lambda: _reading(call, [session for session in sessions.all() if wanted(session)]),
        lambda wake: watches.prefix("", wake),
    )


def _reading(call: Call, found: list[Session]) -> QueryResult:
    index = call.state.sessions.table_index()
    return QueryResult(index, lambda: answers.json(found, headers=answers.meta(index)))


def _session_id(call: Call) -> str:
    if not call.rest:
        raise HttpError(400, "Missing session")
    try:
        check_session_id(call.rest)
    except Refused as error:
        raise HttpError(500, error.what) from error
    return call.rest


def _decoded(call: Call) -> Session:
    """The session of the body, with Consul's defaults; an empty body is legal."""
    defaults: dict[str, Any] = {"Node": call.identity.node}
    if call.length > 0:
        value = encoding.first_value(call.request.body)
        whole = "value of type struct { LockDelay interface {}; *structs.Alias }"
        if value is not None:
            owner = call.state.dialect.session_fields
            defaults |= encoding.fields(value, _FIELDS, owner=owner, strict=False, whole=whole)
            if isinstance(value, dict) and any(n.lower() in {"checks", "nodechecks"} for n in value):
                defaults.setdefault("NodeChecks", defaults.get("Checks", []))
    return Session(
        id=call.new_session_id,
        name=defaults.get("Name", ""),
        node=defaults["Node"],
        lock_delay=_lock_delay(defaults.get("LockDelay", "15s")),
        behavior=defaults.get("Behavior") or "release",
        ttl=defaults.get("TTL", ""),
        node_checks=defaults.get("NodeChecks", [SERF_CHECK]),
        service_checks=defaults.get("ServiceChecks"),
    )


def _lock_delay(value: Any) -> int:
    """Nanoseconds from a number or a duration."""
    if isinstance(value, str):
        given = parse(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        given = int(value)
    else:
        return 0
    return given * NANOSECONDS if given < _PROBABLY_SECONDS else given


def _check(call: Call, session: Session) -> None:
    """Check a session as Consul does before it stores one; errors are 500 with Consul's text."""
    limits = call.state.limits
    if not session.node:
        raise HttpError(500, "Must provide Node")
    if session.behavior not in {"release", "delete"}:
        raise HttpError(500, f"Invalid Behavior setting '{session.behavior}'")
    if session.ttl:
        try:
            ttl = parse(session.ttl)
        except InvalidDuration as error:
            raise HttpError(500, f"Session TTL '{session.ttl}' invalid: {error}") from error
        if ttl and not limits.session_ttl_min <= ttl / NANOSECONDS <= limits.session_ttl_max:
            raise HttpError(
                500,
                f"Invalid Session TTL '{ttl}', must be between "
                f"[{limits.session_ttl_min:g}s={limits.session_ttl_max / 3600:g}h0m0s]",
            )
    refused = call.state.dialect.session_refused
    if session.node != call.identity.node:
        raise HttpError(500, f"{refused}Missing node registration")
    named = [*session.node_checks, *(str(each.get("ID", "")) for each in session.service_checks or [])]
    for check in named:
        if check != SERF_CHECK:
            raise HttpError(500, f"{refused}Missing check '{check}' registration")
