"""Apps of a soak: two of them, which want some of the same controllers, and what must hold in the end.

At every look ``tests/fault/app_invariants.py`` judges their marks and revisions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from typing import Any

from farmd.apps import commands, revision
from farmd.apps.bundle import AppSpec, Bundle, parse_native
from farmd.commands.mutation import Call, Mutation
from store.apps import API_VERSION
from store.errors import Conflict
from tests.fault.app_invariants import marks, states
from tests.fault.invariants import Dump

APPS = ("shop", "till")
CONTROLLERS = ("counter", "shelf", "scale")
WORDS = ("apply", "apply", "apply", "apply", "pause", "resume", "resume", "rollback", "delete")


async def asked(call: Call, dump: Dump, pod: Callable[[str], dict[str, Any]], rng: random.Random) -> Mutation:
    """What somebody asks of apps now: a revision, or that one pauses, goes on, goes back or ends.

    ``pod`` makes the pod of a controller of that name.
    """
    name, word = rng.choice(APPS), rng.choice(WORDS)
    if word == "apply" or name not in states(dump):
        bundle = _bundle(name, pod, rng)
        application = await commands.apply(
            call, bundle, adopt=rng.choice(((), ("all",))), mass=rng.random() < 0.5
        )
    elif word == "rollback":
        application = await commands.rollback(call, name)
    else:
        fields = {"delete": {"deleting": "objects"}}.get(word, {"paused": word == "pause"})
        return await revision.said(call, await revision.existing(call, name), word, **fields)
    application.refuse()
    return application.mutation


def swapped(dump: Dump, pod: Callable[[str], dict[str, Any]], rng: random.Random) -> list[Bundle]:
    """Revisions of both apps, each with a controller that the other one has, if it has one."""
    first, second = CONTROLLERS[:2]
    has = marks(dump).get(f"rc/{first}") == f"apps/{APPS[0]}"
    ours, theirs = (second, first) if has else (first, second)
    return [_bundle(app, pod, rng, [name]) for app, name in zip(APPS, (ours, theirs), strict=True)]


def _bundle(
    name: str, pod: Callable[[str], dict[str, Any]], rng: random.Random, wanted: Collection[str] = ()
) -> Bundle:
    """Some of the controllers, in two waves; ``wanted`` are those, if any are said."""
    documents = [
        {
            "apiVersion": API_VERSION,
            "kind": "rc",
            "name": each,
            "replicas": rng.randint(0, 3),
            "min_healthy_time": 3.0,
            "rollout": {"progress_deadline": 30},
            "wave": rng.randint(0, 1),
            "pod": pod(each),
        }
        for each in wanted or rng.sample(CONTROLLERS, rng.randint(1, len(CONTROLLERS)))
    ]
    entries = tuple(parse_native(each, "soak") for each in documents)
    spec = AppSpec(
        name=name,
        prune=rng.random() < 0.7,
        on_failure=rng.choice(("stop", "rollback")),
        deadline=60.0,
        history=3,
    )
    return Bundle(app=spec, entries=entries, places={str(each.ref): "soak" for each in entries})


async def gone(call: Call, dump: Dump) -> list[Mutation]:
    """The deletions of all apps with their objects; one that is paused goes on first."""
    found = []
    for name in states(dump):
        now = await revision.found(call, name)
        try:
            revision.refuse_deleting(now)
        except Conflict:
            continue
        found.append(await revision.said(call, now, "delete", deleting="objects", paused=False))
    return found


def left(dump: Dump) -> Iterable[str]:
    """Apps, revisions, marks and objects that are there although people deleted all apps."""
    yield from (f"app {name} is there: {state}" for name, (_, state) in states(dump).items())
    yield from (f"{ref} bears the mark of {owner}" for ref, owner in marks(dump).items())
    yield from (f"{key} is there without its app" for key in _under(dump, "trackers"))
    yield from (f"work of an app is left: {key}" for key in _under(dump, "work/apps"))


def _under(dump: Dump, folder: str) -> list[str]:
    return [
        key for key in dump.entries if key.startswith(dump.keys.tree(folder)) and not key.endswith("present")
    ]
