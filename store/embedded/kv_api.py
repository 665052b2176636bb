"""``/v1/kv/``: reading keys and trees, writing, locking and deleting one at a time."""

from __future__ import annotations

from collections.abc import Callable

from store.embedded import answers, calls
from store.embedded.answers import HttpError, Query, QueryResult
from store.embedded.calls import Call, uint
from store.embedded.kv import Pair
from store.embedded.state import Transaction
from store.embedded.verbs import KvOperation
from store.ports import Response

_Render = Callable[[list[Pair], int], Response]

METHODS = ("GET", "PUT", "DELETE")
_LIMIT_PAGE = "https://www.consul.io/docs/agent/options.html"
_RAW = {
    "content-type": "text/plain",
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox",
}


def handle(call: Call) -> Response | Query:
    """Any request under ``/v1/kv/``."""
    call.options()
    match call.request.method:
        case "PUT":
            return _put(call)
        case "DELETE":
            return _delete(call)
    if "keys" in call.params:
        return _tree(call, lambda pairs, index: _keys(call, pairs, index))
    if "recurse" in call.params:
        return _tree(call, lambda pairs, index: _pairs(call, pairs, index))
    return _one(call)


def refusal(call: Call, operation: KvOperation) -> str | None:
    """Why an operation is refused before it is tried: no key, no permission, or lock-delay.

    Consul also checks these before the operation reaches the replicated state.
    """
    key = operation.key
    if not key and operation.verb != "delete-tree":
        return "Must provide key"
    if operation.verb == "delete-tree":
        return None if call.policy.may_write_tree(key) else calls.DENIED
    if operation.verb in {"check-session", "check-index"}:
        return None if call.policy.may_read(key) else calls.DENIED
    if operation.verb not in {"get", "get-tree"} and not call.policy.may_write(key):
        return calls.DENIED
    if operation.verb == "lock" and call.state.lock_delay(key) > 0:
        return f'failed to lock key "{key}" due to lock delay'
    return None


def _one(call: Call) -> Query:
    key = _key(call)
    call.need_key_read(key)
    kv, watches = call.state.kv, call.state.kv_watches

    def read() -> QueryResult:
        pair, index = kv.get(key), kv.index_of(key)
        return QueryResult(index, lambda: _pairs(call, [] if pair is None else [pair], index))

    return Query(
        read,
        lambda wake: (
            watches.prefix(kv.watched_for(key), wake) if kv.get(key) is None else watches.key(key, wake)
        ),
    )


def _tree(call: Call, render: _Render) -> Query:
    prefix = call.rest
    kv, watches = call.state.kv, call.state.kv_watches

    def read() -> QueryResult:
        pairs = kv.under(prefix)
        index = kv.index_under(prefix, pairs)
        seen = pairs if call.policy is calls.EVERYTHING else [p for p in pairs if call.policy.may_read(p.key)]
        return QueryResult(index, lambda: render(seen, index))

    return Query(
        read,
        lambda wake: watches.prefix(prefix if kv.under(prefix) else kv.watched_for(prefix), wake),
    )


def _pairs(call: Call, pairs: list[Pair], index: int) -> Response:
    """The pairs as JSON; ``?raw`` gives the value of one key, and has no effect with ``?recurse``."""
    headers = answers.meta(index)
    if not pairs:
        return answers.nothing(404, headers)
    if "raw" in call.params and "recurse" not in call.params:
        return Response(200, {**headers, **_RAW, "vary": "Accept-Encoding"}, pairs[0].value or b"")
    return answers.json(pairs, headers=headers)


def _keys(call: Call, pairs: list[Pair], index: int) -> Response:
    headers = answers.meta(index)
    if not pairs and call.rest:
        return answers.nothing(404, headers)
    separator = call.params.get("separator", "")
    start = len(call.rest)
    keys: list[str] = []
    for pair in pairs:
        cut = pair.key.find(separator, start) if separator else -1
        key = pair.key if cut < 0 else pair.key[: cut + len(separator)]
        if cut < 0 or not keys or keys[-1] != key:
            keys.append(key)
    return answers.json(keys, headers=headers)


def _put(call: Call) -> Response:
    key = _key(call)
    _no_conflict(call, "cas", "acquire", "release")
    flags = uint(call.params["flags"]) if "flags" in call.params else 0
    operation = KvOperation("set", key, call.request.body or None, flags)
    if "cas" in call.params:
        operation = KvOperation("cas", key, operation.value, flags, index=uint(call.params["cas"]))
    elif "acquire" in call.params:
        operation = KvOperation("lock", key, operation.value, flags, session=call.params["acquire"])
    elif "release" in call.params:
        operation = KvOperation("unlock", key, operation.value, flags, session=call.params["release"])
    limit = call.state.limits.value_bytes
    if call.length > limit:
        raise HttpError(
            413,
            f"Request body({call.length} bytes) too large, max size: {limit} bytes. "
            f"See {_LIMIT_PAGE}#kv_max_value_size.",
        )
    return _apply(call, operation)


def _delete(call: Call) -> Response:
    _no_conflict(call, "recurse", "cas")
    if "recurse" in call.params:
        return _apply(call, KvOperation("delete-tree", call.rest))
    key = _key(call)
    if "cas" in call.params:
        return _apply(call, KvOperation("delete-cas", key, index=uint(call.params["cas"])))
    return _apply(call, KvOperation("delete", key))


def _apply(call: Call, operation: KvOperation) -> Response:
    """``true``; ``false`` if the condition does not hold; 500 if the request is invalid."""
    reason = refusal(call, operation)
    if reason == calls.DENIED:
        raise HttpError(403, reason)
    if reason is not None:
        return answers.json(False)
    _, failures = call.state.commit(Transaction([operation]))
    if failures and not failures[0].quiet:
        raise HttpError(500, call.state.dialect.write_refused + failures[0].what)
    return answers.json(not failures)


def _key(call: Call) -> str:
    if not call.rest:
        raise HttpError(400, "Missing key name")
    return call.rest


def _no_conflict(call: Call, *names: str) -> None:
    if sum(name in call.params for name in names) > 1:
        raise HttpError(400, f"Conflicting flags: {call.query()}")
