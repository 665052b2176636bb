"""Waiting until an app has reached a revision, or is gone, with its progress."""

from __future__ import annotations

from farmd import overview
from farmd.commands import waiting
from farmd.commands.mutation import Call
from farmd.commands.waiting import Look, Report
from farmd.dispatch.plan import falls_back
from farmd.dispatch.standing import AppState, standing
from farmd.runtime.errors import EndedOtherwise, WaitTimeout
from store.apps import KIND, AppStore, ObjectStatus
from store.errors import AccessDenied, NotFound, RecordInvalid
from store.words import listed


async def reached(call: Call, name: str, revision: int, timeout: float, report: Report) -> AppState:
    """Wait until an app has reached a revision and collected what that left.

    Raises:
        EndedOtherwise: the revision failed, another one was wanted meanwhile, or the app is being deleted.
        WaitTimeout: it is not there yet; it goes on.
    """

    def done(now: AppState, _: bool) -> bool:
        if now.stored is None or now.stored.record.deleting or now.stored.record.revision != revision:
            return True
        if falls_back(now.stored.record, now.state):
            back = now.state.effective == now.state.reached and now.state.swept >= revision
            return back or bool(_stuck(now))
        failed = now.state.refused == revision
        return failed or (now.state.reached == revision and now.state.swept >= revision)

    async def late(now: AppState) -> WaitTimeout:
        text = f"app {name!r} has not reached revision {revision} after {timeout:g} s: {told(now)}"
        return WaitTimeout(text, hint=await _why(call, now))

    found = await waiting.until(
        call,
        lambda: standing(call, name),
        done,
        late,
        timeout,
        lambda now: report(look(now)),
        lambda now: (now.status, now.state.wave, now.state.effective),
    )
    await _refuse_otherwise(call, found, revision)
    return found


async def _refuse_otherwise(call: Call, found: AppState, revision: int) -> None:
    name, record = found.name, found.stored.record if found.stored is not None else None
    if record is None or record.deleting:
        raise EndedOtherwise(f"app {name!r} was deleted before it reached revision {revision}")
    if record.revision != revision:
        by = await _author(call, name, record.revision)
        raise EndedOtherwise(f"app {name!r}: {by} applied revision {record.revision} meanwhile")
    if stuck := _stuck(found):
        raise EndedOtherwise(f"app {name!r}: {stuck}", hint=f"farmctl app describe {name}")
    if found.state.refused == revision:
        back = f"; revision {found.state.effective} is back" if found.state.effective != revision else ""
        raise EndedOtherwise(
            f"app {name!r}: revision {revision} failed: {found.state.failure}{back}",
            hint=f"farmctl app describe {name}",
        )


def _stuck(now: AppState) -> str:
    """Why the way back from the wanted revision failed, too; empty: it did not."""
    told, record = now.status, now.stored.record if now.stored is not None else None
    if told is None or record is None or not (now.reported and falls_back(record, now.state)):
        return ""
    return told.reason if told.phase == "failed" and told.effective == now.state.effective else ""


async def _author(call: Call, name: str, revision: int) -> str:
    """Who applied a revision, as far as that can be told."""
    try:
        return (await AppStore(call.client, call.keys).tracker(name, revision)).by
    except (NotFound, RecordInvalid, AccessDenied):
        return "somebody"


async def gone(call: Call, name: str, timeout: float, report: Report) -> None:
    """Wait until a deleted app is gone, with its objects or the marks on them.

    Raises:
        WaitTimeout: it is still there; it goes on.
    """

    async def late(now: AppState) -> WaitTimeout:
        text = f"app {name!r} is still there after {timeout:g} s: {told(now)}"
        return WaitTimeout(text, hint=await _why(call, now))

    await waiting.until(
        call,
        lambda: standing(call, name),
        lambda now, _: now.stored is None,
        late,
        timeout,
        lambda now: report(look(now)),
        lambda now: (now.status, now.stored is None),
    )


def look(now: AppState) -> Look:
    """How far an app is, for the progress."""
    return Look(noun="app", name=now.name, state=told(now), desired=0, counts=False)


def told(now: AppState) -> str:
    """How far an app is, in one line: ``applying, wave 1 of 2, 3 of 5 ready: waits for rc/web (2 of 3)``."""
    if now.stored is None:
        return "gone"
    if now.unowned or now.lost:
        return now.unowned or now.lost
    if now.status is None or not now.reported:
        return f"no farm has looked at {'it' if now.status is None else 'its last change'} yet"
    waits = listed([_waits(each) for each in now.status.waiting], 3)
    why = now.status.reason or (f"waits for {waits}" if now.status.waiting else "")
    return f"{now.status.progress}{f': {why}' if why else ''}"


def _waits(each: ObjectStatus) -> str:
    return f"{each.ref} ({each.why})" if each.why else each.ref


async def _why(call: Call, now: AppState) -> str:
    members = await overview.farms(call.client, call.keys)
    if not any(KIND in member.kinds for member in members):
        return "no farm that is alive applies apps: start one with farmd run; it goes on then"
    blocked = now.reported and now.status is not None and now.status.state == "blocked"
    return f"{'' if blocked else 'it goes on; '}farmctl app describe {now.name}"
