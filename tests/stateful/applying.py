"""Apps of a fleet on virtual time, and what people say of them and do to their objects."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec

from farmd.apps import commands, revision
from farmd.commands.mutation import Mutation
from farmd.replication.commands import RC, set_replicas
from farmd.rollout import commands as rollouts
from tests.app_fleet import apply, document, rc
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

APPS = ("shop", "till")
NAMES = ("a", "b", "c", "d")
SLOW = {"progress_deadline": 20}


class Applying:
    """Two apps that want some of the same controllers, and people as ``rng`` has them."""

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.scene, self.rng = scene, rng

    def documents(self) -> list[dict[str, Any]]:
        """What somebody may want: controllers in waves, of two versions, and a label of a node."""
        rng = self.rng
        found = [
            rc(
                name,
                rng.choice(["--v1", "--v1", "--v2"]),
                wave=rng.randint(0, 1),
                replicas=rng.randint(0, 2),
                on_remove=rng.choice(["delete", "delete", "keep"]),
                rollout=SLOW,
            )
            for name in rng.sample(NAMES, rng.randint(1, 3))
        ]
        return found + [document("node", "n0", labels={"rack": rng.choice("xy")})] * (rng.random() < 0.3)

    def apply(self, app: str, *documents: dict[str, Any], **settings: Any) -> None:
        """A revision, unless the app is being deleted."""
        known = self.scene.sight.apps.get(app)
        if known is None or not known[0].deleting:
            self.scene.run(apply(self.scene.call, app, *documents, **settings))

    def applied(self) -> None:
        rng = self.rng
        settings = {
            "prune": rng.random() < 0.6,
            "mass": rng.random() < 0.7,
            "adopt": rng.choice([[], ["*"]]),
            "on_failure": rng.choice(["stop", "rollback"]),
            "deadline": rng.choice([15.0, 90.0]),
            "history": rng.choice([2, 10]),
        }
        self.apply(rng.choice(APPS), *self.documents(), **settings)

    def said(self) -> None:
        """One word about an app."""
        app = self.rng.choice(APPS)
        fields: dict[str, Any] = self.rng.choice(
            [
                {"paused": True},
                {"paused": False},
                {"paused": False},
                {"deleting": "objects"},
                {"deleting": "keep"},
            ]
        )

        self.scene.ask(lambda: self._word(app, "edit", **fields))

    def rolled_back(self) -> None:
        """An earlier revision's documents as a new one."""
        call, name = self.scene.call, self.rng.choice(APPS)

        async def word() -> Mutation:
            return (await commands.rollback(call, name)).mutation

        self.scene.ask(word)

    def edited(self) -> None:
        """Somebody changes a controller, by a command or by hand, or takes it away."""
        rng, forced = self.rng, replace(self.scene.call, force=True)
        found = sorted(each.name for each in self.scene.sight.rcs.values() if each.name in NAMES)
        if not found:
            return
        name = rng.choice(found)
        words: list[Callable[[], Awaitable[Mutation]]] = [
            lambda: set_replicas(forced, name, rng.randint(0, 2)),
            lambda: RC.disable(self.scene.call, name),
            lambda: RC.enable(self.scene.call, name),
            lambda: RC.restart(self.scene.call, name),
            lambda: RC.delete(forced, name, cascade=True),
        ]
        self.scene.ask(rng.choice(words))

    def branded(self) -> None:
        """Bear a field of a newer version: every record that has none yet (see ``Sight``)."""
        for each in self.scene.sight.rcs.values():
            entry = self.scene.read(KEYS.record("rcs", each.id))
            if entry is not None and b'"x-team"' not in entry.value:
                value = msgspec.json.encode(msgspec.json.decode(entry.value) | {"x-team": "a"})
                self.scene.run(self.scene.hand.put(entry.key, value, cas=entry.modify_index))

    def calm(self) -> None:
        """People want one last thing of each app, which nothing prevents."""
        for app in APPS:
            self.scene.ask(lambda app=app: self._word(app, "resume", paused=False))
        for name in sorted(each.name for each in self.scene.sight.rcs.values() if each.disabled):
            self.scene.ask(lambda name=name: RC.enable(self.scene.call, name))
        for name in sorted(each.name for each in self.scene.sight.rollouts.values()):
            self.scene.ask(lambda name=name: rollouts.abort(self.scene.call, name))
        self.scene.advance(120.0)
        self.branded()
        for number, app in enumerate(APPS):
            own = [rc(f"{app}-{wave}", wave=wave) for wave in range(2)]
            shared = rc(NAMES[number], rollout=SLOW)
            self.apply(
                app, *own, shared, prune=True, mass=True, adopt=["*"], on_failure="stop",
                paused=False, deadline=3000.0,
            )  # fmt: skip

    async def _word(self, app: str, word: str, **fields: Any) -> Mutation:
        now = await revision.found(self.scene.call, app)
        return await revision.said(self.scene.call, now, word, **fields)

    def marks(self) -> dict[str, str]:
        """Controllers by name, with whose they are."""
        return {each.name: each.part_of for each in self.scene.sight.rcs.values()}
