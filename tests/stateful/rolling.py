"""A controller of a fleet on virtual time whose pods run, and the way of a new version to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from farmd.commands.mutation import Mutation
from farmd.replication.commands import RC
from store import codec
from store.rcs import NUMBERED
from store.rollouts import KIND, Ended, Rollout, RolloutState, RolloutStatus
from tests.people import hello
from tests.stateful import falling
from tests.stateful.farms import OWN_TREES_PAUSE
from tests.stateful.fleet import KEYS
from tests.stateful.scene import Scene

REPLICAS = 6


class Rolling:
    """A controller whose pods run, and the way of a new version to it."""

    def __init__(
        self,
        scene: Scene,
        replicas: int = REPLICAS,
        farms: Sequence[str] = ("ash", "birch"),
        pods_pause: float = OWN_TREES_PAUSE,
        **fields: Any,
    ) -> None:
        self.scene = scene
        self.fields = {"name": "web", "replicas": replicas, "max_unavailable": 2, **fields}
        scene.nodes(replicas + 2)
        for farm in farms:
            scene.farms[farm].own_trees_pause = pods_pause
            scene.farm(farm)
        self.old = scene.rc(**self.fields)
        scene.advance(15.0)
        assert len(scene.places(self.old)) == replicas

    def begin(self, *, version: int = 10, **policy: Any) -> Rollout:
        told = {"stages": [1, "100%"], "progress_deadline": 60, **policy}
        file = hello(**self.fields, rollout=told, pod_command=["sleep", str(version)])
        spec = RC.file.parse(file, "test")
        assert self.ask(lambda: RC.update(self.scene.call, spec, now=False)) is not None
        rollout = self.rollout
        assert rollout is not None
        return rollout

    def ask(self, word: Callable[[], Awaitable[Mutation]]) -> Mutation | None:
        return self.scene.ask(word)

    @property
    def rollout(self) -> Rollout | None:
        found = self.scene.sight.under(KIND)
        return self._read(Rollout, found[0]) if found else None

    @property
    def state(self) -> RolloutState | None:
        work = [work for name, work in self.scene.sight.work.items() if name.startswith("rollouts/")]
        return work[0].rollout if work else None

    @property
    def ended(self) -> list[str]:
        keys = sorted(self.scene.under(KEYS.history("web", "")))
        return [self._read(Ended, key).outcome for key in keys if not key.endswith("~")]

    def said(self, ident: str) -> RolloutStatus:
        key = KEYS.status(KIND, ident)
        none = RolloutStatus(state="")
        return self._read(RolloutStatus, key) if self.scene.read(key) is not None else none

    def _told(self) -> list[bytes]:
        return [entry.value for entry in self.scene.under(KEYS.tree("status/rollouts")).values()]

    def _read(self, kind: Any, key: str) -> Any:
        entry = self.scene.read(key)
        assert entry is not None, key
        return codec.decode(kind, entry.value, key)

    def until(self, so: Callable[[], object], seconds: float = 200.0, step: float = 0.25) -> None:
        for _ in range(round(seconds / step)):
            if so():
                return
            self.scene.advance(step)
            self.scene.check()
        story = "\n".join([*self.scene.witness.story, *self.scene.logged[-20:]])
        raise AssertionError(f"never came true; {self.state} {self._told()}\n{story}")

    def whole(self, outcome: str) -> None:
        """It is over once, one controller has the name and exactly its pods, and the audit adds up."""
        self.until(lambda: self.ended)
        self.scene.advance(20.0)
        self.scene.check()
        assert self.ended == [outcome]
        (rc,) = self.scene.sight.rcs.values()
        needs = [NUMBERED] if rc.numbered else []
        assert (rc.name, rc.managed_by, rc.taken, rc.needs) == ("web", "", False, needs)
        assert len(self.scene.places(rc.id)) == rc.replicas_desired == self.fields["replicas"]
        assert (rc.id == self.old) == (outcome == "reverted")
        for left in ("rollouts", "names/rollouts", "work/rollouts", "status/rollouts"):
            assert self.scene.sight.under(left) == []
        assert not self.scene.read(KEYS.mutation_lock("rcs", rc.id))


def worker(rolling: Rolling) -> str:
    """The farm that works on the rollout now."""
    return falling.worker(rolling.scene, KIND)
