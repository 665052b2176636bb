"""Waiting for the end of a deployment, with its progress."""

from __future__ import annotations

from dataclasses import dataclass, replace

from farmd import overview
from farmd.commands import waiting
from farmd.commands.mutation import Call, Change
from farmd.commands.waiting import Look, Report, fitting
from farmd.deploy import view
from farmd.deploy.noun import DEPLOYMENT
from farmd.deploy.pulls import Pulls
from farmd.deploy.reader import state_of
from farmd.runtime.errors import EndedOtherwise, Stale, WaitTimeout
from store.audit import Audit, AuditReader, Filter
from store.deployments import FAILED, KIND, Deployment, halted
from store.errors import NotFound

ASKED = {"deployment.rollback": "reverted"}
"""How a deployment ends if it ends as was asked; otherwise it is done."""
ENDINGS = ("done", "reverted", "stale", "abandoned")
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class DeploymentView:
    """One look: what is told of each service, and of the whole; ``over`` once it is gone, ``halted``: why it
    waits for a person's word, ``failed``: because of the pod at which place.
    """

    services: dict[str, str]
    record: Deployment | None = None
    reason: str = ""
    over: bool = False
    halted: str = ""
    failed: str = ""
    lines: tuple[str, ...] = ()


async def end(call: Call, change: Change, timeout: float, report: Report) -> None:
    """Wait until a deployment ends as the change asked: done or reverted.

    Raises:
        Stale: it did not begin, because the plan had changed.
        EndedOtherwise: it ended in another way, or waits for a person after a failure.
        WaitTimeout: it is not over; it goes on.
    """
    began, last, pulls = call.clock.now(), DeploymentView({}), Pulls(call)

    def show(now: DeploymentView) -> None:
        nonlocal last
        for name, text in {**now.services, "": now.reason}.items():
            if text and text != (last.services.get(name) if name else last.reason):
                report(_look(change, name, text, now))
        last = last if now.over else now

    async def late(now: DeploymentView) -> WaitTimeout:
        told = "; ".join(f"{name} {text}" for name, text in now.services.items())
        return WaitTimeout(
            f"deployment {change.name!r} is not over after {timeout:g} s: {told or now.reason}",
            hint=f"it goes on; farmctl deployment status {change.name}",
        )

    def settled(now: DeploymentView, _: float) -> bool:
        return now.over or bool(now.halted)

    found = await waiting.until(call, lambda: _sight(call, change, pulls), settled, late, timeout, show)
    if found.halted:
        raise EndedOtherwise(
            f"deployment {change.name!r} waits for a person: {found.halted}",
            hint=f"farmctl deployment resume|rollback {change.name}",
            failed=_places(found.failed),
        )
    over = await ended(call, change.id, since=began - HOUR)
    ending = over.action.partition(".")[2]
    if last.record is not None and ending == "done":
        told = {goal.name: view.done(goal, last.services[goal.name]) for goal in last.record.goals}
        show(replace(last, services=told, reason="", lines=tuple(view.drawn(last.record, told, ending))))
    if ending == ASKED.get(change.action, "done"):
        if ending != "done":
            report(_look(change, "", _words(ending), replace(last, lines=())))
        return
    kind = Stale if ending == "stale" else EndedOtherwise
    why = f": {over.reason}" if over.reason else ""
    raise kind(
        f"deployment {change.name!r} was {_words(ending)}{why}",
        hint=f"farmctl audit list --item {change.name}",
        failed=_places(str((over.after or {}).get(FAILED, ""))),
    )


async def ended(call: Call, ident: str, since: float = 0.0) -> Audit:
    """The end of a deployment, as the audit log tells it.

    Raises:
        NotFound: it does not.
    """
    reader = AuditReader(call.client, call.keys)
    for record in await reader.read(Filter(kind=KIND, item=ident, since=since), 8):
        if record.action.partition(".")[2] in ENDINGS:
            return record
    raise NotFound(f"deployment {ident!r} is gone, and the audit log does not know its end", id=ident)


async def _sight(call: Call, change: Change, pulls: Pulls) -> DeploymentView:
    try:
        records = DEPLOYMENT.records(call.client, call.keys)
        row: overview.Row[Deployment] = await overview.row(call.client, call.keys, records, change.id)
    except NotFound:
        return DeploymentView({}, over=True)
    doing = await pulls.of(row.record, row.status)
    told = view.lines(row.record, row.status, row.state, row.reason, doing)
    state = await state_of(call, change.id)
    why = halted(row.record, state)
    failed = state.failed if state is not None and why else ""
    reason = view.besides(row.status, row.news)
    # In a pipe each other text is a line of its own, so amounts are shown on a terminal alone.
    services = view.services(row.record, row.status, await pulls.of(row.record, row.status, exact=False))
    return DeploymentView(services, row.record, reason, halted=why, failed=failed, lines=tuple(told))


def _look(change: Change, name: str, text: str, now: DeploymentView) -> Look:
    """A look for the progress: of a service, or of the whole where it has no name."""
    noun, title = ("service", name) if name else ("deployment", change.name)
    draw = (lambda width: fitting(now.lines, width)) if now.lines else None
    return Look(noun=noun, name=title, state=text, desired=0, counts=False, draw=draw)


def _places(said: str) -> list[list[str]]:
    """Node and instance of each of some places."""
    return [place.split("/") for place in said.split()]


def _words(ending: str) -> str:
    return "rolled back" if ending == "reverted" else ending
