"""A whole fleet with shorthands, for tests that know what happens: shortest ways to what the walk found."""

from __future__ import annotations

from typing import Any

import msgspec

from farmd.nodes import commands as nodes
from farmd.replication.commands import RC
from store import codec
from store.status import Status
from tests.people import hello
from tests.stateful.fleet import KEYS, Fleet


class Scene(Fleet):
    """A fleet with shorthands for a test that knows what happens."""

    def rc(self, **fields: Any) -> str:
        made = self.ask(lambda: RC.create(self.call, RC.file.parse(hello(**fields), "test")))
        assert made is not None
        key = KEYS.record("rcs", made.change.id)
        self.change(key, **{"x-team": "a", "unhealthy_after": 6.0, "transfer_timeout": 30.0})
        return made.change.id

    def change(self, key: str, **fields: Any) -> None:
        entry = self.read(key)
        assert entry is not None
        self.put(key, msgspec.json.encode(msgspec.json.decode(entry.value) | fields))

    def nodes(self, count: int, cpu: float = 4.0) -> None:
        for number in range(count):
            self.add_node(f"n{number}", {"zone": "a"}, cpu)

    def farm(self, name: str = "ash") -> Any:
        self.run(self.farms[name].start())
        self.advance(3.0)
        return self.farms[name]

    def well(self, *farms: str) -> None:
        """All faults of these farms and of machines end, and no node is drained any more."""
        for name in farms:
            self.farms[name].thaw()
            if self.farms[name].alive:
                self.farms[name].line.heal()
            self.farm(name)
        for agent in self.agents.values():
            agent.delay = 0.2
            self.run(agent.start())
            self.ask(lambda node=agent.node: nodes.undrain(self.call, node))

    def places(self, rc: str) -> list[tuple[str, str]]:
        return sorted(self.sight.pods_of(rc))

    def status(self, owner: str, kind: str = "rcs") -> Status:
        entry = self.read(KEYS.status(kind, owner))
        assert entry is not None
        return codec.decode(Status, entry.value, entry.key)

    def audits(self, action: str) -> int:
        return sum(audit.action == action for _, audit in self.sight.dump.audits)
