"""``/v1/txn``: first the limits, then refusals without a try, then all operations or none."""

from __future__ import annotations

from typing import Any

import msgspec

from store.embedded import answers, catalog_api, encoding
from store.embedded.answers import HttpError
from store.embedded.calls import Call
from store.embedded.catalog import CatalogOperation
from store.embedded.encoding import Field, Malformed
from store.embedded.kv import Pair
from store.embedded.kv_api import refusal
from store.embedded.state import Failure, Operation, Result, Transaction
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
        if isinstance(operation, KvOperation) and (size := len(operation.value or b"")) > most:
            raise HttpError(413, f'Value for key "{operation.key}" is too large ({size} > {most} bytes)')
    if any(_writes(operation) for operation in operations):
        return _answer(call, *_write(call, operations), extra={}, headers={})
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
    return _answer(call, *_read(call, operations), extra=extra, headers=answers.meta())


def _operations(call: Call) -> list[Operation]:
    """The operations of the body: decoded fast if farmd wrote it, else as Consul decodes."""
    try:
        wires = _fast.decode(call.request.body)
        operations: list[Operation] = [wire.kv for wire in wires]
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            operations = _slowly(call.request.body)
        except Malformed as error:
            raise HttpError(400, f"Failed to parse body: {error}") from error
    most = call.state.limits.operations
    if len(operations) > most:
        raise HttpError(413, f"Transaction contains too many operations ({len(operations)} > {most})")
    return operations


def _slowly(body: bytes) -> list[Operation]:
    value = encoding.first_value(body)
    if value is None:
        return []
    if not isinstance(value, list):
        raise encoding.wrong_kind(value, "value of type api.TxnOps")
    return [operation for each in value if (operation := _operation(each)) is not None]


def _operation(value: Any) -> Operation | None:
    kinds = encoding.fields(value, _KINDS, owner="", strict=True, whole="value of type api.TxnOp")
    if "KV" not in kinds:
        # Of several, Consul takes the first in this order.
        table = next((name for name in _KINDS if name in kinds), None)
        return None if table is None else catalog_api.operation(table, kinds[table])
    whole = "struct field TxnOp.KV of type api.KVTxnOp"
    found = encoding.fields(kinds["KV"], _FIELDS, owner="KVTxnOp.KV", strict=True, whole=whole)
    return KvOperation(**{name.lower(): each for name, each in found.items()})


def _write(call: Call, operations: list[Operation]) -> tuple[list[Result], list[Failure]]:
    refused = _refused(call, operations)
    if refused:
        return [], refused
    return call.state.commit(Transaction(operations))


def _read(call: Call, operations: list[Operation]) -> tuple[list[Result], list[Failure]]:
    refused = _refused(call, operations)
    if refused:
        return [], refused
    found, failures = call.state.read(operations)
    return [each for each in found if _may_read(call, each)], failures


def _may_read(call: Call, found: Result) -> bool:
    return call.policy.may_read(found.key) if isinstance(found, Pair) else call.policy.catalog


def _refused(call: Call, operations: list[Operation]) -> list[Failure]:
    reasons = [(place, _refusal(call, operation)) for place, operation in enumerate(operations)]
    return [Failure(place, reason) for place, reason in reasons if reason is not None]


def _refusal(call: Call, operation: Operation) -> str | None:
    if isinstance(operation, CatalogOperation):
        return catalog_api.refusal(call, operation)
    return refusal(call, operation)


def _writes(operation: Operation) -> bool:
    if isinstance(operation, CatalogOperation):
        return operation.verb != "get"
    return operation.verb in WRITES


def _answer(
    call: Call,
    found: list[Result],
    failures: list[Failure],
    *,
    extra: dict[str, Any],
    headers: dict[str, str],
) -> Response:
    if failures:
        errors = [{"OpIndex": failure.place, "What": failure.what} for failure in failures]
        return answers.json({"Results": None, "Errors": errors, **extra}, 409, headers)
    results = [_told(call, each) for each in found]
    return answers.json({"Results": results, "Errors": None, **extra}, 200, headers)


def _told(call: Call, found: Result) -> dict[str, Any]:
    if isinstance(found, Pair):
        return {"KV": found}
    return {type(found).__name__: catalog_api.told(call.state.dialect, found)}
