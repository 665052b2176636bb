"""What people see of an app: its status, its alerts, and the words of its audit records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, islice

from farmd.apps.facts import Act, Plan, Ref, Snapshot, owner_of
from farmd.apps.sweep import steps, unwanted
from farmd.farm.alerts import Incidents
from farmd.work.model import Blocked
from store.apps import AppStatus, DispatchState, ObjectStatus
from store.ports import Clock

TOLD = 20
# Bytes of the objects of one verb in an audit record, which shares a transaction with the app's state.
MOST_TOLD = 100_000
PATIENCE_SECONDS = 600.0
# That nothing could be planned, or a plan not be carried out.
OBSTRUCTED = "obstructed"


def status(shot: Snapshot, plan: Plan, farm: str, since: float) -> AppStatus:
    """How far the app is, and what it waits for. ``since``: when a new status begins."""
    blocked, found = plan.blocked, steps(shot.wanted)
    kind = "blocked" if blocked is not None else "converged"
    if blocked is not None and blocked.frozen:
        kind = "frozen"
    elif blocked is None and (plan.waiting or plan.phase not in ("reached", "")):
        kind = "progressing"
    troubles = {**plan.waiting, **plan.refused}
    told = (
        ObjectStatus(ref, "refused" if ref in plan.refused else "waiting", why)
        for ref, why in sorted(troubles.items())
    )
    wanted = {str(entry.ref) for entry in shot.wanted}
    ready = sum(_stands(shot, plan, ref) for ref in wanted - troubles.keys())
    return AppStatus(
        state=kind,
        reason=blocked.text if blocked is not None else _first(troubles),
        farm=farm,
        since=since,
        phase=plan.phase,
        effective=shot.state.effective,
        reached=shot.state.reached,
        wave=min(shot.state.wave + 1, len(found)),
        waves=len(found),
        objects=len(wanted),
        ready=ready,
        left=len(unwanted(shot)),
        waiting=tuple(islice(told, TOLD)),
        mark=plan.mark,
    )


def _stands(shot: Snapshot, plan: Plan, ref: Ref) -> bool:
    """Whether an object is as the revision says; of one that was reached no verdict is needed."""
    live = shot.live.get(ref)
    if live is None or live.owner != owner_of(shot.name):
        return False
    return plan.phase == "reached" or not (live.differs or live.verdict in ("progressing", "failed"))


def _first(troubles: dict[str, str]) -> str:
    return next((f"{ref}: {why}" for ref, why in sorted(troubles.items())), "")


def acts(done: Iterable[Act]) -> dict[str, int | str | bool]:
    """The fields of an audit record: the objects of each verb."""
    found: dict[str, list[str]] = {}
    for act in done:
        found.setdefault(act.verb, []).append(str(act.ref))
    return {verb: _cut(refs) for verb, refs in found.items()}


def _cut(refs: Sequence[str]) -> str:
    """These objects as text, as many as an audit record may tell of."""
    ends = accumulate(len(ref) + 2 for ref in refs)
    shown = sum(end <= MOST_TOLD for end in ends)
    rest = len(refs) - shown
    return ", ".join([*refs[:shown], *([f"and {rest} more"] if rest else [])])


def noted(before: DispatchState, after: DispatchState) -> dict[str, int | str | bool]:
    """The fields of an audit record: what of the state changes."""
    names = ("seq", "effective", "reached", "wave", "refused")
    return {name: getattr(after, name) for name in names if getattr(before, name) != getattr(after, name)}


class AppAlerts:
    """The alerts of one app: it failed or is blocked for long, and somebody else writes its fields."""

    __slots__ = ("_blocked_since", "_clock", "_farm", "_incidents")

    def __init__(self, incidents: Incidents, clock: Clock, farm: str) -> None:
        self._incidents, self._clock, self._farm = incidents, clock, farm
        self._blocked_since: float | None = None

    async def tell(self, name: str, found: Blocked | None) -> float | None:
        """Fire and end an app's alerts by what keeps it from going on; the seconds until one is due."""
        blocked = found if found is not None and not found.wanted else None
        contended = blocked.text if blocked is not None and blocked.code == "contended" else ""
        if blocked is None or blocked.code != OBSTRUCTED:  # which says nothing of who else writes
            await self._keep(f"app_contended_{name}", f"app {name}: {contended}", bool(contended))
        trouble = blocked if blocked is not None and not (blocked.frozen or contended) else None
        now = self._clock.mono()
        if trouble is None:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        waited = 0.0 if self._blocked_since is None else now - self._blocked_since
        due = trouble is not None and (trouble.code == "failed" or waited >= PATIENCE_SECONDS)
        over = trouble is None
        key = f"app_{name}"
        if due or over or key in self._incidents.open():
            text = f"app {name}: {trouble.text if trouble is not None else ''}"
            await self._keep(key, text, trouble is not None)
        return None if due or over else PATIENCE_SECONDS - waited

    async def _keep(self, key: str, text: str, firing: bool) -> None:
        await self._incidents.say(key, text if firing else "", {"farm": self._farm})
