"""What is told of a job beside its status."""

from __future__ import annotations

from store.jobs import Run
from store.words import listed


def progress(run: Run) -> list[tuple[str, str]]:
    """What is durable of a job: slots that are done or given up, and its end."""
    found = [(f"Done {name}", text) for name, text in run.done.items() if text]
    found += [(f"Given up {name}", text) for name, text in run.given_up.items() if text]
    tried = [
        f"{name}/{index} attempt {slot.attempt}"
        for name, slots in run.slots.items()
        for index, slot in slots.items()
    ]
    if tried:
        found.append(("Tried again", listed(tried)))
    if run.outcome:
        found.append(("Outcome", ": ".join(filter(None, (run.outcome, run.reason, run.message)))))
    return found
