"""Predicts what a fleet costs its Consul and its farms, and how many cells it takes. Connects to nothing.

``python -m bench.model --pods N --nodes N [--controllers N] [--farms N] [--changes-per-second N]
[--session-ttl SECONDS] [--consul 1.8|1.14]``

The figures of Consul are sums of unit costs that ``python -m bench.unit_costs`` measures, those of a farm
are slopes between sizes that P3 measured. ``docs/scale.md`` compares predictions with measurements. CPU is in
cores of the measuring machine.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from farmd.agent.reality import LOOK_AGAIN
from farmd.cache.caches import OWN_TREES_PAUSE
from store.cache import IN_PARTS_ABOVE, PAUSE_AN_ANSWER, PAUSE_AN_ENTRY
from store.parts import SHARE
from store.sessions import RENEWALS
from store.watch import WAIT_SECONDS

SHARDS = 16
PARTS = 1.3 * SHARE
"""A tree of ids or counted names is divided into this many parts, about."""
KEYS_A_CONTROLLER, KEYS_A_POD, KEYS_A_NODE = 6, 3, 6
"""Such as a pod's record, intent and reality."""
PARKED_A_FARM = 64
TREES_A_NODE = 4
ENTRY_BYTES, NAME_BYTES = 450, 45
WRITES_A_CHANGE, OPERATIONS_A_WRITE = 4, 4
"""A pod that starts again or moves: one transaction of its owner, and three of its agent."""
LIMITS = {"consul_cores": 1.0, "consul_megabytes": 8_000.0, "farm_megabytes": 1_000.0}
"""What a cell may take: one core and 8 GB of each Consul server, 1 GB of a farm."""


@dataclass(frozen=True)
class Costs:
    """Unit costs of a version of Consul. The memory of a key is that of large fleets, with Go's free room."""

    base_megabytes: float
    key_kilobytes: float
    session_kilobytes: float
    parked_kilobytes: float
    renewal_us: float
    read_us: float
    entry_us: float
    name_us: float
    transaction_us: float
    operation_us: float


CONSUL = {
    "1.8": Costs(55, 2.45, 12.5, 29, 293, 227, 3.5, 0.35, 176, 16),
    "1.14": Costs(93, 2.7, 16.6, 30, 333, 327, 1.6, 0.46, 185, 21),
}


@dataclass(frozen=True)
class FarmCosts:
    """What P3 measured of a farm: memory, and CPU time of an answer's entry and name."""

    base_megabytes: float = 62
    controller_kilobytes: float = 2.6
    pod_kilobytes: float = 1.16
    node_kilobytes: float = 2.3
    base_cores: float = 0.0029
    received_us: float = 0.2
    entry_us: float = 3.7
    request_us: float = 150


@dataclass(frozen=True)
class Fleet:
    """What is asked about; ``changes`` are pods a second that start again or move."""

    controllers: int
    pods: int
    nodes: int
    farms: int = 3
    changes: float = 1.0
    ttl: float = 15.0
    parked_a_node: int = 2
    """Queries that an agent parks; the bench's simulated agents share theirs."""

    def cell(self, cells: int) -> Fleet:
        """One of so many equal cells."""
        return replace(
            self,
            controllers=math.ceil(self.controllers / cells),
            pods=math.ceil(self.pods / cells),
            nodes=math.ceil(self.nodes / cells),
            changes=self.changes / cells,
        )


@dataclass(frozen=True)
class Prediction:
    """What one cell costs; network is what Consul sends."""

    consul_cores: float
    consul_megabytes: float
    consul_megabytes_a_second: float
    farm_cores: float
    farm_megabytes: float
    reaction_milliseconds: float


@dataclass(frozen=True)
class Tree:
    """A tree that grows with a fleet: its keys, its keys up to the next slash, queries, and changes a second.

    ``own``: a farm applies its own changes by itself, and pauses before it looks for those of others.
    """

    keys: float
    names: float
    shards: int = 1
    changes: float = 0.0
    own: bool = False

    def most(self, brought: Answers) -> float:
        """The most answers a second: large ones are followed by a rest."""
        if self.own:
            return self.shards / OWN_TREES_PAUSE
        return 1 / (PAUSE_AN_ANSWER + PAUSE_AN_ENTRY * brought.entries)

    def end_of_wait(self) -> Answers:
        """What its queries bring at the end of a wait."""
        if self.keys / self.shards > IN_PARTS_ABOVE:
            return Answers(self.shards, 0, self.names, self.keys)
        return Answers(self.shards, self.keys)

    def change(self) -> Answers:
        """What a change in it brings."""
        keys, names = self.keys / self.shards, self.names / self.shards
        if keys > IN_PARTS_ABOVE:
            return Answers(2 + PARTS, keys / PARTS, 2 * names, 2 * keys)
        return Answers(1, keys)


@dataclass(frozen=True)
class Answers:
    """What Consul sends: requests, entries with values, names; and the keys that it looks at for names."""

    requests: float = 0.0
    entries: float = 0.0
    names: float = 0.0
    looked_at: float = 0.0

    def plus(self, other: Answers, times: float) -> Answers:
        """These, and so many times the others."""
        return Answers(
            self.requests + times * other.requests,
            self.entries + times * other.entries,
            self.names + times * other.names,
            self.looked_at + times * other.looked_at,
        )


def _rcs(fleet: Fleet) -> Tree:
    return Tree(fleet.controllers, fleet.controllers, SHARDS)


def _trees(fleet: Fleet) -> list[Tree]:
    written = (WRITES_A_CHANGE - 1) * fleet.changes
    return [
        _rcs(fleet),
        Tree(fleet.pods, fleet.controllers, SHARDS, fleet.changes, own=True),
        Tree(fleet.pods, fleet.nodes, 1, fleet.changes, own=True),  # intents
        Tree(fleet.pods, fleet.nodes, SHARDS, written),  # reality
        *[Tree(fleet.nodes, fleet.nodes)] * TREES_A_NODE,
    ]


def answers(fleet: Fleet) -> Answers:
    """What a farm gets in a second."""
    found = Answers()
    for tree in _trees(fleet):
        brought = tree.change()
        found = found.plus(tree.end_of_wait(), 1 / WAIT_SECONDS)
        found = found.plus(brought, min(tree.changes, tree.most(brought)))
    return found


def predicted(fleet: Fleet, costs: Costs, farm: FarmCosts = FarmCosts()) -> Prediction:
    """What one Consul with this fleet, and each of its farms, costs."""
    got = answers(fleet)
    renewals, looks = fleet.nodes * RENEWALS / fleet.ttl, fleet.nodes / LOOK_AGAIN
    writes = fleet.changes * WRITES_A_CHANGE
    reads = got.requests * costs.read_us + got.entries * costs.entry_us + got.looked_at * costs.name_us
    consul_us = (
        renewals * costs.renewal_us
        + looks * costs.read_us
        + writes * (costs.transaction_us + OPERATIONS_A_WRITE * costs.operation_us)
        + fleet.farms * reads
    )
    keys = fleet.controllers * KEYS_A_CONTROLLER + fleet.pods * KEYS_A_POD + fleet.nodes * KEYS_A_NODE
    parked = fleet.nodes * fleet.parked_a_node + fleet.farms * PARKED_A_FARM
    kilobytes = (
        keys * costs.key_kilobytes + fleet.nodes * costs.session_kilobytes + parked * costs.parked_kilobytes
    )
    farm_us = got.requests * farm.request_us + (got.entries + got.names) * farm.received_us
    held = (
        fleet.controllers * farm.controller_kilobytes
        + fleet.pods * farm.pod_kilobytes
        + fleet.nodes * farm.node_kilobytes
    )
    return Prediction(
        consul_cores=round(consul_us / 1e6, 3),
        consul_megabytes=round(costs.base_megabytes + kilobytes / 1e3),
        consul_megabytes_a_second=round(
            fleet.farms * (got.entries * ENTRY_BYTES + got.names * NAME_BYTES) / 1e6, 2
        ),
        farm_cores=round(farm.base_cores + farm_us / 1e6, 4),
        farm_megabytes=round(farm.base_megabytes + held / 1e3),
        reaction_milliseconds=round(reaction(fleet, costs, farm), 1),
    )


def _simulated(controllers: int, ttl: float, changes: float = 0.0) -> Fleet:
    return Fleet(controllers, 5 * controllers, controllers // 5, 1, changes, ttl, parked_a_node=0)


MEASURED: list[tuple[Fleet, dict[str, float]]] = [
    (
        _simulated(10_000, 60),
        {"consul_cores": 0.046, "consul_megabytes": 581, "farm_cores": 0.0035, "farm_megabytes": 154},
    ),
    (_simulated(10_000, 60, 1.0), {"farm_cores": 0.0162}),
    (_simulated(25_000, 150), {"consul_megabytes": 1494}),
    (_simulated(100_000, 600), {"consul_megabytes": 6620, "farm_megabytes": 945}),
]
"""What P3 measured on Consul 1.8 (docs/scale.md): the fleet, and what is compared."""
FIXED_MILLISECONDS = 7.5
"""A reaction among few controllers: the wake-up, a manifest, decisions, the transaction."""


def reaction(fleet: Fleet, costs: Costs, farm: FarmCosts) -> float:
    """Milliseconds from a changed count to the written pods, on an idle machine."""
    brought = _rcs(fleet).change()
    us = (
        brought.entries * (costs.entry_us + farm.entry_us)
        + brought.looked_at * costs.name_us
        + (brought.requests - 1) * (farm.request_us + costs.read_us)
    )
    return FIXED_MILLISECONDS + us / 1e3


def cells(fleet: Fleet, costs: Costs) -> int:
    """The least number of equal cells of which each is within ``LIMITS``."""
    number = 1
    while any(getattr(predicted(fleet.cell(number), costs), name) > most for name, most in LIMITS.items()):
        number += 1
    return number


def main(given: Sequence[str] | None = None) -> None:
    """Print the prediction for the fleet on one Consul, and for one of the cells that it takes."""
    parser = argparse.ArgumentParser(prog="python -m bench.model")
    parser.add_argument("--pods", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--controllers", type=int, help="default: one for five pods")
    parser.add_argument("--farms", type=int, default=3)
    parser.add_argument("--changes-per-second", type=float, default=1.0)
    parser.add_argument("--session-ttl", type=float, default=15.0)
    parser.add_argument("--consul", choices=CONSUL, default="1.8")
    asked = parser.parse_args(given)
    controllers = math.ceil(asked.pods / 5) if asked.controllers is None else asked.controllers
    fleet = Fleet(
        controllers, asked.pods, asked.nodes, asked.farms, asked.changes_per_second, asked.session_ttl
    )
    costs = CONSUL[asked.consul]
    number = cells(fleet, costs)
    for name, part in (("one Consul", fleet), (f"each of {number} cells", fleet.cell(number))):
        print(json.dumps({"name": name, **asdict(part), **asdict(predicted(part, costs))}))


if __name__ == "__main__":
    main()
