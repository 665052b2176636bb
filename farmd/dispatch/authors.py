"""Who said last what the objects of an app are."""

from __future__ import annotations

from farmd.commands.mutation import Call
from store.apps import AppStore
from store.errors import AccessDenied, NotFound, RecordInvalid
from store.times import rfc3339


async def latest(call: Call, name: str) -> str:
    """An app's revision, and who applied it and when, as far as that can be told; empty: there is no such
    app.
    """
    store = AppStore(call.client, call.keys)
    try:
        found = await store.find(name)
    except RecordInvalid:
        return "its record does not decode"
    if found is None:
        return ""
    number = found.record.revision
    try:
        tracker = await store.tracker(name, number)
    except (NotFound, RecordInvalid, AccessDenied):  # a person removed it, or the doctor tells of it
        return f"revision {number}"
    return f"revision {number}, applied by {tracker.by} at {rfc3339(tracker.at)}"
