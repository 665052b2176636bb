"""From a prepared revision of an app to its end: show it, ask, write it, wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import click

from farmd.apps import commands
from farmd.apps.commands import Application
from farmd.apps.facts import Act
from farmd.apps.plan import Preview
from farmd.apps.scene import AppState
from farmd.cli.asking import ask
from farmd.cli.changes import CHANGES_DUE, replanned, settled
from farmd.cli.invocation import Invocation
from farmd.cli.noun_edit import going_on
from farmd.cli.output import document, emit
from farmd.cli.progress import progress
from farmd.commands.mutation import Change, Mutation, Scalar
from farmd.kinds import KINDS, family_of
from farmd.tables.model import clean, differences
from store.times import plain as plainly
from store.words import count_of, listed

# A revision of an app as people see it before it is written: one line for each object that changes.

SIGNS = {
    "create": "+",
    "update": "~",
    "repair": "~",
    "adopt": "a",
    "replace": "r",
    "remove": "-",
    "release": "o",
    "hand": ">",
}
_DUE = {
    "create": "to create",
    "update": "to change",
    "repair": "to repair",
    "adopt": "to adopt",
    "replace": "to replace",
    "remove": "to remove",
    "release": "to release",
    "hand": "to hand over",
}
_WIDEST = 40
_MOST = 20


def lines(found: Application) -> list[str]:
    """The head, the acts step by step, what stays, what is refused, and a sum."""
    return [_head(found), *acts(found.preview, found.changes), *_superseding(found), _sum(found)]


def _superseding(found: Application) -> Iterator[str]:
    """What this command itself gives to rollouts that are under way."""
    for ref, made in found.superseding.items():
        yield f"   ~ {ref}  takes the place of the version that is coming"
        for line in made.change.details:
            yield f"{'':<7}{line}"


def acts(preview: Preview, changes: Any) -> list[str]:
    """One line for each act, with more below it; then what stays, is waited for, or refused."""
    refs = [str(act.ref) for _, act in preview.acts]
    width = min(_WIDEST, max(map(len, refs), default=0))
    told, last = [], 0
    for step, act in preview.acts:
        number = str(step) if step != last else ""
        last = step
        first, *more = _told(act, changes.get(str(act.ref)), preview.values.get(str(act.ref), ()))
        if note := preview.notes.get(str(act.ref)):
            first = f"{first} ({note})".lstrip()
        told.append(f"{number:<3}{SIGNS[act.verb]} {act.ref!s:<{width}}  {first}".rstrip())
        told += [f"{'':<{7 + width}}{line}" for line in more]
    if preview.same:
        told.append(f"   = {listed(preview.same, 5)}")
    if preview.left:
        told.append(f"   not in the files: {listed(preview.left, 5)} (--prune removes them)")
    told += [f"   waits: {ref}: {why}" for ref, why in sorted(preview.waits.items())]
    told += [f"   ! {ref}: {why}" for ref, why in sorted(preview.refused.items())]
    if preview.blocked is not None:
        told.append(f"   ! {preview.blocked.text}")
    return told


def plain(found: Application) -> dict[str, Any]:
    """A revision for programs."""
    preview = found.preview
    return {
        "app": found.now.name,
        "revision": found.revision,
        "needed": found.needed,
        "steps": preview.steps,
        "acts": [
            _plain(step, act, found.changes.get(str(act.ref)), preview.values.get(str(act.ref), ()))
            for step, act in preview.acts
        ],
        "superseding": {ref: list(made.change.details) for ref, made in found.superseding.items()},
        "same": preview.same,
        "left": preview.left,
        "waits": preview.waits,
        "notes": preview.notes,
        "refused": preview.refused,
        "blocked": preview.blocked.text if preview.blocked is not None else "",
        "settings": plainly(found.app),
    }


def _plain(step: int, act: Act, mutation: Mutation | None, values: Sequence[str]) -> dict[str, Any]:
    change = mutation.change if mutation is not None else None
    return {
        "step": step,
        "act": act.verb,
        "object": str(act.ref),
        "why": act.why,
        "before": change.before if change is not None else {},
        "after": change.after if change is not None else {},
        "details": list(change.details if change is not None else values),
    }


def _revision(found: Application) -> int:
    return found.now.stored.record.revision if found.now.stored is not None else 0


def _head(found: Application) -> str:
    before, count = _revision(found), sum(not entry.left for entry in found.entries)
    number = f"revision {before} -> {found.app.revision}" if before else f"revision {found.app.revision}"
    if not found.mutation.needed:
        number = f"revision {before}"
    steps = f" in {count_of(found.preview.steps, 'step')}" if found.preview.steps > 1 else ""
    return f"app/{found.now.name}: {number}, {count_of(count, 'object')}{steps}"


def _told(act: Act, mutation: Mutation | None, values: Sequence[str]) -> list[str]:
    """What an act does, the fields first; ``values`` are those of an object in Kubernetes."""
    if values and act.verb in ("update", "repair", "adopt", "replace"):
        more = [f"and {len(values) - _MOST} more"] if len(values) > _MOST else []
        return [*([act.why] if act.verb in ("adopt", "replace") else []), *values[:_MOST], *more]
    if act.verb == "adopt" and (mutation is None or not mutation.change.details):
        return [f"adopted: {act.why}"]
    if act.verb == "hand":
        return [f"handed over to app {act.to}: {act.why}"]
    if mutation is None or act.verb in ("release", "replace"):
        return [act.why]
    return _changed(act, mutation.change) or [act.why]


def _changed(act: Act, change: Change) -> list[str]:
    told = differences(_spoken(change.before), _spoken(change.after))
    if change.action.endswith("mark-deleted") or change.action.endswith("delete"):
        told = []
    way = [] if change.kind == family_of(act.ref.kind) else [f"by a {KINDS[change.kind].one}"]
    head = ", ".join([*told, *way])
    return [*([head] if head else []), *change.details]


def _spoken(fields: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The fields of a change that files speak of."""
    silent = {"exists", "deleting", "disabled", "part_of"}
    return {
        name: value for name, value in fields.items() if name not in silent and not name.startswith("parts.")
    }


def _sum(found: Application) -> str:
    if not found.due:
        return "nothing to change"
    counts: dict[str, int] = {}
    for _, act in found.preview.acts:
        counts[_DUE[act.verb]] = counts.get(_DUE[act.verb], 0) + 1
    told = [f"{number} {word}" for word, number in counts.items()]
    if found.superseding:
        told.append(f"{len(found.superseding)} to supersede")
    if found.preview.refused:
        told.append(f"{len(found.preview.refused)} refused")
    return f"{', '.join(told) or 'settings to change'}."


async def carry_out(
    invocation: Invocation, make: Callable[[], Awaitable[Application]], *, detailed: bool = False
) -> str:
    """Show a revision, ask, write it, and wait until it is reached. If the app changed meanwhile, prepare it
    again, at most three times. ``detailed``: exit 3 where a dry run finds changes. The app's name.

    Raises:
        Conflict: objects that the app may not take. Unconfirmed, Declined: nobody agreed.
        EndedOtherwise: the revision failed. WaitTimeout: it is not reached in time.
    """

    name = ""

    async def prepare() -> Application | None:
        nonlocal name
        found = await make()
        name = found.now.name
        if invocation.settings.dry_run:
            rehearse(invocation, found, detailed=detailed)
            return None
        for line in lines(found):
            invocation.say(clean(line))
        found.refuse()
        if not found.needed:
            _result(invocation, found, "unchanged")
            return None
        ask(invocation, "Apply?", "applying a revision changes what runs")
        await settled(invocation, [*found.changes.values(), *found.superseding.values()])
        return found

    written = await replanned(invocation, prepare, lambda found: found.commit(invocation.call))
    if written is not None:
        await _follow(invocation, written)
    return name


def rehearse(invocation: Invocation, found: Application, *, detailed: bool) -> None:
    """Show what a revision would do.

    Raises:
        Conflict: objects that the app may not take.
    """
    if invocation.settings.output in {"json", "yaml"}:
        emit(invocation, document("AppPlan", plain(found)))
    elif invocation.settings.output == "name":
        for ref in dict.fromkeys(str(act.ref) for _, act in found.preview.acts):
            click.echo(ref)
    else:
        for line in lines(found):
            click.echo(clean(line))
    found.refuse()
    if detailed and found.due:
        raise click.exceptions.Exit(CHANGES_DUE)


async def _follow(invocation: Invocation, found: Application) -> None:
    """Wait for the end of what was written."""
    name, settings, clock = found.now.name, invocation.settings, invocation.call.clock
    if found.app.paused:
        _result(invocation, found, f"revision {found.revision} recorded; paused: farmctl app resume {name}")
        return
    if settings.wait is False:
        _result(invocation, found, f"revision {found.revision} recorded")
        return
    began = clock.mono()
    with going_on(invocation, [found.mutation]), progress(invocation) as report:
        now = await commands.reached(invocation.call, name, found.revision, settings.end_timeout, report)
    _result(invocation, found, _reached(now, clock.mono() - began))


def _reached(now: AppState, seconds: float) -> str:
    status = now.status
    newest = status is not None and status.reached == now.state.reached  # it may be of a moment before
    count = f": {status.ready} of {status.objects} objects ready" if status is not None and newest else ""
    return f"reached revision {now.state.reached} in {seconds:.0f} s{count}"


def _result(invocation: Invocation, found: Application, outcome: str) -> None:
    output, name = invocation.settings.output, found.now.name
    if output in {"json", "yaml"}:
        emit(invocation, document("AppApply", {"outcome": outcome, **plain(found)}))
    elif output == "name":
        click.echo(f"app/{name}")
    elif not invocation.settings.quiet:
        click.echo(f"app/{name} {outcome}")
