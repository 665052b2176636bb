"""Deployments among many troubles at once, others for each seed: on a whole fleet in virtual time."""

from __future__ import annotations

import random

import pytest

from farmd.deploy.spec import ServiceSpec
from farmd.nodes import commands as nodes
from store.services import Hook
from tests.stateful.deploying import BAD, FIRST, SECOND, Deploying, spec
from tests.stateful.fleet import KEYS
from tests.stateful.lines import FAULTS
from tests.stateful.scene import Scene

NAMES = ("a", "b", "c", "everywhere")
FARMS = ("ash", "birch")
OF_FARMS = ("kill", "freeze", "thaw", "spoil", "cut")
TROUBLES = (*OF_FARMS, "machine", "machine", "drain", "slow", "intent", "ask", "ask")


class Walk:
    """One fleet, its services, and whoever disturbs them."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene = scene
        self.deploying = Deploying(scene, machines=6, farms=FARMS)
        self.rng = random.Random(seed)

    def wanted(self) -> list[ServiceSpec]:
        """Services as people may want them, some of which never run."""
        rng, found = self.rng, list[ServiceSpec]()
        for name in NAMES:
            image = rng.choice([FIRST, SECOND, f"web:{rng.randint(3, 9)}", BAD])
            update = {
                "order": rng.choice(["", "stop-first"]),
                "parallelism": rng.randint(1, 3),
                "on_failure": rng.choice(["rollback", "rollback", "pause"]),
                "delay": rng.choice([0.0, 2.0]),
            }
            hook = Hook(command=[image], timeout=40.0) if rng.random() < 0.3 else None
            mode = "global" if name == "everywhere" else "replicated"
            made = spec(name, image, replicas=rng.randint(0, 4), update=update, pre_deploy=hook, mode=mode)
            if hook is not None:
                digest = self.deploying.hook(made)
                if rng.random() < 0.8:
                    self.deploying.ends(digest, rng.choice([0, 0, 1]))
            if image == BAD:
                self.deploying.break_(made)
            found.append(made)
        return found

    def trouble(self, ident: str) -> None:
        """One of the things that happen."""
        scene, rng = self.scene, self.rng
        farm, agent = scene.farms[rng.choice(FARMS)], rng.choice(list(scene.agents.values()))
        kind = rng.choice(
            [
                "kill",
                "freeze",
                "thaw",
                "spoil",
                "cut",
                "machine",
                "machine",
                "drain",
                "ask",
                "ask",
                "intent",
                "slow",
            ]
        )
        if kind == "kill":
            scene.run(farm.kill())
            scene.farm(farm.name)
        elif kind == "freeze" and farm.alive:
            farm.freeze()
        elif kind == "thaw" and farm.alive:
            farm.thaw()
        elif kind == "spoil" and farm.alive:
            farm.line.spoil(rng.randint(0, 5), rng.choice(FAULTS))
        elif kind == "cut" and farm.alive:
            farm.line.cut(True)
        elif kind == "machine":
            scene.run(agent.die(at_once=rng.random() < 0.5) if agent.alive else agent.start())
        elif kind == "drain":
            word = nodes.drain(scene.call, agent.node, 3600.0) if rng.random() < 0.5 else None
            scene.ask(lambda: word or nodes.undrain(scene.call, agent.node))
        elif kind == "slow":
            agent.delay = rng.choice([0.2, 3.0])
        elif kind == "intent":
            places = sorted(place for place, intent in scene.sight.intents.items() if intent is not None)
            if places:
                place = rng.choice(places)
                scene.witness.tampered.add(place)
                scene.delete(KEYS.intent(*place))
        elif kind == "ask" and (record := self.deploying.record(ident)) is not None:
            word = rng.choice(["pause", "run", "run", "rollback"])
            self.deploying.say(ident, ask=word, resumed=record.resumed + (word == "run"))

    def calm(self, ident: str) -> None:
        """All is well again, and people say what they want of what waits for them."""
        scene = self.scene
        scene.well(*FARMS)
        for _ in range(20):
            record = self.deploying.record(ident)
            if record is None:
                return
            for agent in scene.agents.values():
                agent.lives.clear()
            back = record.ask == "rollback" or "its hook failed" in self.deploying.state(ident).halted
            ask = "rollback" if back else "run"  # a hook does not run again
            self.deploying.say(ident, ask=ask, resumed=record.resumed + 1)
            scene.advance(30.0)
            scene.check()
        self.deploying.until(lambda: self.deploying.endings(ident))

    def whole(self) -> None:
        """Every service is what it was released as, its pods serve, and no hook was left or ran twice."""
        self.deploying.until(lambda: not self.unlike())
        owners = {each.id for each in (*self.scene.sight.rcs.values(), *self.scene.sight.daemonsets.values())}
        assert {owner for owner, _, _ in self.scene.sight.pods} <= owners
        assert not any(service.deployment for service in self.scene.sight.services.values())

    def unlike(self) -> list[str]:
        found = []
        for name, service in self.scene.sight.services.items():
            version, owner = service.version, self.deploying.owner(name)
            if version is None or owner is None or owner.manifest != version.manifest or owner.taken:
                found.append(f"{name}: {service} {owner}")
            elif {pod.manifest for pod in self.deploying.pods(name).values()} - {version.manifest}:
                found.append(f"{name} runs something else")
            elif version.mode == "replicated" and len(self.deploying.pods(name)) != version.replicas:
                found.append(f"{name} has another number of pods")
        return found


@pytest.mark.parametrize("seed", [0, 3, 6, 14])
def test_services_end_as_they_were_released_whatever_happens_meanwhile(scene: Scene, seed: int) -> None:
    walk = Walk(scene, seed)
    for _ in range(3):
        ident = walk.deploying.deploy(*walk.wanted(), atomic=walk.rng.random() < 0.2)
        for _ in range(6):
            scene.advance(walk.rng.uniform(0.05, 6.0))
            scene.check()
            walk.trouble(ident)
        walk.calm(ident)
        walk.whole()
        assert len(walk.deploying.endings(ident)) == 1
        placed = [
            a
            for _, a in scene.sight.dump.audits
            if a.id == ident and a.action == "deployment.hook" and a.placed
        ]
        assert len({a.placed[0].partition("/")[0] for a in placed}) == len(placed)  # once a service
