"""``/v1/txn``: first the limits, then refusals without a try, then all operations or none."""

from __future__ import annotations

from typing import Any

import msgspec

from store.embedded import answers, gojson
from store.embedded.answers import HttpError
from store.embedded.calls import Call
from store.embedded.gojson import Field, Malformed
from store.embedded.kv import Pair
from store.embedded.kv_api import refusal
from store.embedded.state import Failure, Transaction
from store.embedded.verbs import WRITES, KvOperation
from store.ports import Response

METHODS = ("PUT",)
_LIMIT_PAGE = "https://www.consul.io/docs/agent/options.html#txn_max_req_len"
_FIELDS = {
    "Verb": Field("string", "api.KVOp"),
    "Key": Field("string", "string"),
    "Value": Field("bytes", "[]uint8"),
    "Flags": Field("uint", "uint64"),
    "Index": Field("uint", "uint64"),
    "Session": Field("string", "string"),
    "Namespace": Field("string", "string"),
}
_KINDS = {"KV": Field("any", ""), **{kind: Field("any", "") for kind in ("Node", "Service", "Check")}}


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    kv: KvOperation = msgspec.field(name="KV")


_fast = msgspec.json.Decoder(list[_Wire], strict=True)


def handle(call: Call) -> Response:
    """``PUT /v1/txn``; a transaction that only reads uses no raft index and has a read's headers."""
    limit = call.state.limits.transaction_bytes
    if call.length > limit:
        raise HttpError(
            413, f"Request body({call.length} bytes) too large, max size: {limit} bytes. See {_LIMIT_PAGE}."
        )
    operations = _operations(call)
    most = call.state.limits.value_bytes
    for operation in operations:
        size = len(operation.value or b"")
        if size > most:
            raise HttpError(413, f'Value for key "{operation.key}" is too large ({size} > {most} bytes)')
    if any(operation.verb in WRITES for operation in operations):
        return _answer(*_write(call, operations), extra={}, headers={})
    call.options()
    spoken = call.state.dialect
    extra: dict[str, Any] = {
        "Index": spoken.read_index,
        "LastContact": 0,
        "KnownLeader": True,
        "ConsistencyLevel": "",
    }
    if spoken.read_more:
        extra |= {"NotModified": False, "Backend": 0, "ResultsFilteredByACLs": False}
        if _refused(call, operations):
            extra |= {"Index": 0, "KnownLeader": False}  # no read was tried
    return _answer(*_read(call, operations), extra=extra, headers=answers.meta())


def _operations(call: Call) -> list[KvOperation]:
    """The operations of the body: decoded fast if farmd wrote it, else as Consul decodes."""
    try:
        wires = _fast.decode(call.request.body)
        operations = [wire.kv for wire in wires]
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            operations = _slowly(call.request.body)
        except Malformed as error:
            raise HttpError(400, f"Failed to parse body: {error}") from error
    most = call.state.limits.operations
    if len(operations) > most:
        raise HttpError(413, f"Transaction contains too many operations ({len(operations)} > {most})")
    return operations


def _slowly(body: bytes) -> list[KvOperation]:
    value = gojson.first_value(body)
    if value is None:
        return []
    if not isinstance(value, list):
        raise gojson.wrong_kind(value, "value of type api.TxnOps")
    return [operation for each in value if (operation := _operation(each)) is not None]


def _operation(value: Any) -> KvOperation | None:
    kinds = gojson.fields(value, _KINDS, owner="", strict=True, whole="value of type api.TxnOp")
    if "KV" not in kinds:
        if kinds:
            raise Malformed("the embedded server takes KV operations only")
        return None
    whole = "struct field TxnOp.KV of type api.KVTxnOp"
    found = gojson.fields(kinds["KV"], _FIELDS, owner="KVTxnOp.KV", strict=True, whole=whole)
    return KvOperation(**{name.lower(): each for name, each in found.items()})


def _write(call: Call, operations: list[KvOperation]) -> tuple[list[Pair], list[Failure]]:
    refused = _refused(call, operations)
    if refused:
        return [], refused
    return call.state.commit(Transaction(operations))


def _read(call: Call, operations: list[KvOperation]) -> tuple[list[Pair], list[Failure]]:
    refused = _refused(call, operations)
    if refused:
        return [], refused
    pairs, failures = call.state.read(operations)
    return [pair for pair in pairs if call.policy.may_read(pair.key)], failures


def _refused(call: Call, operations: list[KvOperation]) -> list[Failure]:
    reasons = [(place, refusal(call, operation)) for place, operation in enumerate(operations)]
    return [Failure(place, reason) for place, reason in reasons if reason is not None]


def _answer(
    pairs: list[Pair], failures: list[Failure], *, extra: dict[str, Any], headers: dict[str, str]
) -> Response:
    if failures:
        errors = [{"OpIndex": failure.place, "What": failure.what} for failure in failures]
        return answers.json({"Results": None, "Errors": errors, **extra}, 409, headers)
    results = [{"KV": pair} for pair in pairs]
    return answers.json({"Results": results, "Errors": None, **extra}, 200, headers)
