"""Two apps, two farms, people and troubles as a seed chooses them, on virtual time; then all is calm.

At rest the marks are what the last revisions want and what they left, every record of a person's is as it
was, and nothing is planned any more.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from farmd.apps import revision
from farmd.apps.scene import standing
from farmd.commands.mutation import commit
from farmd.replication.commands import RC
from store.apps import AppStore
from tests.app_fleet import KEYS, KINDS, AppFleet, app_fleet, document, rc, spec

APPS = ("shop", "next")
NAMES = ("a", "b", "c", "d", "e")


class Walk:
    """One fleet, and whoever disturbs it."""

    def __init__(self, fleet: AppFleet, seed: int) -> None:
        self.fleet, self.rng, self.starts = fleet, random.Random(seed), 2

    def documents(self) -> list[dict[str, Any]]:
        """What somebody may want: controllers in waves, of two versions, and a label of a node."""
        chosen = self.rng.sample(NAMES, self.rng.randint(0, 4))
        found = [
            rc(
                name,
                self.rng.choice(["--v1", "--v1", "--v2"]),
                wave=self.rng.randint(0, 1),
                replicas=self.rng.randint(0, 2),
                on_remove=self.rng.choice(["delete", "delete", "keep"]),
                rollout={"progress_deadline": 20},
            )
            for name in chosen
        ]
        if self.rng.random() < 0.4:
            found.append(document("node", "n1", labels={self.rng.choice("xy"): "1"}))
        return found

    async def step(self) -> None:
        """One of the things that happen."""
        fleet, rng = self.fleet, self.rng
        app = rng.choice(APPS)
        kind = rng.choice(["apply", "apply", "pause", "resume", "kill", "drift", "remove"])
        stored = await AppStore(fleet.call.client, KEYS).find(app)
        if kind == "apply" and (stored is None or not stored.record.deleting):
            said = {"prune": rng.random() < 0.6, "mass": True, "deadline": 60.0, "repair": True}
            said["adopt"] = rng.choice([[], ["*"]])
            said["on_failure"] = rng.choice(["stop", "rollback"])
            await fleet.apply(*self.documents(), app=app, **said)
        elif kind in ("pause", "resume") and stored is not None:
            await fleet.say(app, paused=kind == "pause")
        elif kind == "kill":
            name = rng.choice(list(fleet.fleet.farms))
            await fleet.fleet.crash(name)
            self.starts += 1
            await fleet.fleet.start(f"f{self.starts}", kinds=KINDS)
        elif kind in ("drift", "remove"):
            await self.meddle(kind)

    async def meddle(self, kind: str) -> None:
        """Somebody changes a controller by hand, or takes it away."""
        found = await self.fleet.records()
        standing = [name for name, each in found.items() if name in NAMES and not each.managed_by]
        if not standing:
            return
        records = RC.records(self.fleet.call.client, KEYS)
        stored = await records.find(self.rng.choice(standing))
        if kind == "drift":
            changed = msgspec.structs.replace(stored.record, replicas_desired=self.rng.randint(0, 2))
            await self.fleet.call.client.transaction([records.replace(stored, changed)])
        else:
            forced = msgspec.structs.replace(stored.record, deleting=True, replicas_desired=0)
            await self.fleet.call.client.transaction([records.replace(stored, forced)])

    async def calm(self) -> None:
        """People want one last thing of each app, which nothing prevents."""
        for number, app in enumerate(APPS):
            own = [rc(f"{app}-{each}", wave=each) for each in range(2)]
            await self.fleet.apply(
                *own,
                rc(NAMES[number], rollout={"progress_deadline": 20}),
                app=app,
                prune=True,
                mass=True,
                adopt=["*"],
                on_failure="stop",
                paused=False,
                deadline=3000.0,
                repair=True,
            )


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_happened_marks_are_what_is_wanted_in_the_end(seed: int) -> None:
    async with app_fleet("n1", "n2", farms=2) as fleet:
        walk = Walk(fleet, seed)
        await commit(fleet.call, await RC.create(fleet.call, spec("foreign", replicas=0)))
        for _ in range(14):
            await walk.step()
            await fleet.clock.advance(walk.rng.choice([0.5, 3.0, 15.0]))
        await walk.calm()
        numbers = {app: revision.wanted(await standing(fleet.call, app)).revision for app in APPS}
        for app, number in numbers.items():
            await fleet.reached(number, app=app, within=3000)
        found = await fleet.records()
        marked = {(name, each.part_of) for name, each in found.items() if each.part_of}
        wanted = {(f"{app}-{each}", f"apps/{app}") for app in APPS for each in range(2)}
        assert marked == wanted | {(NAMES[0], "apps/shop"), (NAMES[1], "apps/next")}
        assert found["foreign"].part_of == ""
        assert (await fleet.records("nodes"))["n1"].parts == {}
