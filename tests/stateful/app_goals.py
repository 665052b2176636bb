"""What must come true of apps once all is well again: their objects stand, and nothing else bears their mark.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from store.apps import KIND, App, AppStatus, DispatchState
from tests.fault.app_invariants import marks, named
from tests.stateful.sight import Sight


def unfinished(sight: Sight) -> Iterable[str]:
    """What an app has still to do, or does not say as it is."""
    for name, (app, state) in sight.apps.items():
        if app.deleting:
            yield f"app {name} is being deleted and is still there: {state}"
            continue
        if app.paused:
            continue
        status = _status(sight, name)
        if status is None or status.state not in ("converged", "blocked"):
            yield f"app {name} is not at rest: {status}"
        elif status.state == "blocked" and not status.reason:
            yield f"app {name} is blocked without a reason: {status}"
        elif status.state == "converged":
            yield from _whole(sight, name, app, state)


def _status(sight: Sight, name: str) -> AppStatus | None:
    entry = sight.entries.get(sight.keys.status(KIND, name))
    return None if entry is None else msgspec.json.decode(entry.value, type=AppStatus)


def _whole(sight: Sight, name: str, app: App, state: DispatchState) -> Iterable[str]:
    """Its marks are what its last revision wants, and what that one lists as left."""
    if {state.effective, state.reached, state.swept} != {app.revision}:
        yield f"app {name} says that it is converged, and revision {app.revision} is not reached: {state}"
    entries = named(sight.dump, name, app.revision)
    own = {ref.partition(" ")[0] for ref, owner in marks(sight.dump).items() if owner == f"{KIND}/{name}"}
    wanted = {ref for ref, entry in entries.items() if not entry.left}
    yield from (f"{ref} has not the mark of app {name}" for ref in sorted(wanted - own))
    yield from (f"{ref} bears the mark of app {name} for nothing" for ref in sorted(own - entries.keys()))
    if left := {ref for ref in own - wanted if app.prune and entries[ref].on_remove == "delete"}:
        yield f"app {name} was to prune {sorted(left)}"
