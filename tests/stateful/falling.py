"""A farm that falls away after exactly the k-th transaction of a kind of work, on virtual time."""

from __future__ import annotations

from tests.stateful.scene import Scene

FATES = ("killed", "killed unanswered", "stopped", "handed over", "late")


def transactions(scene: Scene, kind: str) -> int:
    """How many transactions of that kind of work farms made."""
    return sum(audit.kind == kind and audit.actor.startswith("farm/") for _, audit in scene.sight.dump.audits)


def worker(scene: Scene, kind: str) -> str:
    """The farm that works on items of a kind now; empty: nobody does."""
    for name, process in scene.farms.items():
        for loop in process.farm.loops if process.farm is not None else []:
            if loop.kind.name == kind and loop.supervisor.owned:
                return name
    return ""


class Fall:
    """Lets the farm that works on a kind fall away after ``k`` more transactions; called until it has.

    ``came``: it has fallen away.
    """

    def __init__(self, scene: Scene, kind: str, fate: str, k: int) -> None:
        self._scene, self._kind, self._fate = scene, kind, fate
        self._count = transactions(scene, kind) + k
        self.came = False

    def __call__(self) -> bool:
        name = worker(self._scene, self._kind)
        if name and transactions(self._scene, self._kind) >= self._count:
            self.came = True
            _fall(self._scene, name, self._fate)
        return self.came


def _fall(scene: Scene, name: str, fate: str) -> None:
    process = scene.farms[name]
    if fate == "stopped":
        process.freeze()
        scene.advance(25.0)
        process.thaw()
    elif fate == "handed over":
        scene.run(process.stop())
        scene.run(process.start())
    elif fate == "late":
        process.line.spoil(0, "late")
    elif fate == "killed unanswered":
        process.line.spoil(0, "unanswered")
        scene.advance(3.0)
        scene.run(process.kill())
    else:
        scene.run(process.kill())
