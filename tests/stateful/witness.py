"""Sees every commit of the store as it happens, and has it judged: what no later look could tell.

It knows who wrote (``enter`` is called as each request is answered) and the store right before and after.
Farms are judged by all rules, people's commands by those on edits; bare hands may do anything. Rules that
depend on what a farm could know leave out those that were cut off or stopped a moment ago, and what changed
a moment ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from store import codec
from store.audit import Audit
from store.deployments import Deployment
from store.embedded.kv import Pair
from store.embedded.server import EmbeddedServer
from store.embedded.state import Command, CreateSession, Failure, Transaction
from store.embedded.verbs import WRITES, KvOperation
from store.failsafe import Failsafe
from store.keys import Keys, is_sentinel
from store.pods import Pod
from store.ports import Clock
from store.rollouts import Rollout
from tests.stateful import (
    app_rules,
    daemonset_rules,
    deployment_rules,
    fence_rules,
    node_rules,
    rollout_rules,
)
from tests.stateful.change_rules import changes
from tests.stateful.moment import KNOWN_AFTER, Look, Moment, Place
from tests.stateful.rc_rules import ControllerRules

__all__ = ["KNOWN_AFTER", "Witness"]

REMEMBERED = 80


class Witness:
    """Hooks itself into a server; ``violations`` is what it saw go wrong, ``story`` the last commits."""

    def __init__(
        self, server: EmbeddedServer, keys: Keys, clock: Clock, troubled: Callable[[str], bool]
    ) -> None:
        self.violations: list[str] = []
        self.story: deque[str] = deque(maxlen=REMEMBERED)
        self.commits = 0
        self._keys = keys
        self._clock = clock
        self._state = server.state
        self._kv = server.state.kv
        self._commit = server.state.commit
        self._who = ""
        self._look = Look(self._kv, keys, clock, troubled)
        self._controllers = ControllerRules(self._look)
        self._agents: set[str] = set()
        server.state.commit = self._seen  # type: ignore[method-assign]

    @property
    def tampered(self) -> set[Place]:
        """Places whose intent a person changed by hand, until a farm or a person mended them."""
        return self._look.tampered

    def freeze(self, kind: str) -> Failsafe | None:
        """The freeze of a kind, if there is one that decodes."""
        return self._look.freeze(kind)

    def enter(self, who: str) -> None:
        """Who is answered from now on."""
        self._who = who

    # -- the commit ----------------------------------------------------------------------------
    def _seen(self, command: Command) -> tuple[list[Pair], list[Failure]]:
        if not isinstance(command, Transaction):
            return self._other(command)
        who = self._who
        writes = [op for op in command.operations if op.verb in WRITES]
        moment = self._before(who, command.operations, writes)
        outcome = self._commit(command)
        if outcome[1]:
            return outcome
        self.commits += 1
        index = self._state.raft_index
        text = " ".join(f"{op.verb}:{op.key.removeprefix(self._keys.prefix)}" for op in writes)
        self.story.append(f"{self._clock.now() % 100_000:.2f} #{index} {who}: {text[:400]}")
        self._judged(who, index, moment)
        for op in writes:
            self._look.touch(op.key)
            self._mirror(op.key)
        self._presences()
        return outcome

    def _judged(self, who: str, index: int, moment: Moment) -> None:
        try:
            self._note(moment)
            for line in self._judge(who, moment):
                self.violations.append(f"{who} at #{index}: {line}")
        except Exception as error:  # a fault of the witness must not pass for one of the farm's
            self.violations.append(f"the witness failed at #{index}: {error!r}")

    def _judge(self, who: str, moment: Moment) -> Iterable[str]:
        if who == "people":
            yield from fence_rules.edits(self._look, moment)
        yield from app_rules.revisions(self._look, moment)
        if not moment.farm:
            return
        yield from fence_rules.fences(self._look, moment)
        yield from changes(self._look, moment)
        yield from node_rules.verdicts(self._look, moment)
        for audit in moment.audits:
            if audit.kind == "rcs":
                yield from self._controllers.judge(moment, audit)
            elif audit.kind == "daemonsets":
                yield from daemonset_rules.judge(self._look, moment, audit)
            elif audit.kind == "rollouts":
                yield from rollout_rules.judge(self._look, moment, audit)
            elif audit.kind == "deployments":
                yield from deployment_rules.judge(self._look, moment, audit)
            elif audit.kind == "apps":
                yield from app_rules.judge(self._look, moment, audit)

    def _other(self, command: Command) -> tuple[list[Pair], list[Failure]]:
        """Sessions come and go, and presences with them."""
        outcome = self._commit(command)
        if isinstance(command, CreateSession) and self._who.startswith("farm/"):
            said = f"{self._who} made a session"
            self.violations += [f"{said} {line}" for line in fence_rules.session(command.session)]
        self._presences()
        return outcome

    # -- before and after ----------------------------------------------------------------------
    def _before(self, who: str, operations: list[KvOperation], writes: list[KvOperation]) -> Moment:
        audits = [
            codec.decode(Audit, op.value, op.key)
            for op in writes
            if op.key.startswith(self._keys.tree("audit"))
            and self._keys.is_audit_record(op.key)
            and op.key != self._keys.checkpoint
            and op.verb in ("cas", "set")
        ]
        keys = {op.key for op in operations}
        for audit in audits:
            keys |= {self._keys.lock(audit.kind, audit.id), self._keys.record(audit.kind, audit.id)}
            keys |= {self._keys.mutation_lock(audit.kind, audit.id), self._keys.failsafe(audit.kind)}
        return Moment(
            who.removeprefix("farm/") if who.startswith("farm/") else "",
            operations,
            writes,
            audits,
            {key: self._kv.get(key) for key in keys},
            {audit.id: self._standing(audit) for audit in audits},
        )

    def _standing(self, audit: Audit) -> int:
        if audit.kind == "deployments":
            found = self._look.at(Deployment, self._keys.record(audit.kind, audit.id))
            return deployment_rules.standing(self._look, found, audit)
        if audit.kind != "rollouts":
            return len(self._look.standing(audit.id))
        record = self._look.at(Rollout, self._keys.record(audit.kind, audit.id))
        return rollout_rules.standing(self._look, record)

    def _note(self, moment: Moment) -> None:
        for op in moment.writes:
            if is_sentinel(op.key):
                continue
            if op.key.startswith(self._keys.tree("pods")):
                parts, there = self._keys.pod_parts(op.key), self._kv.get(op.key) is not None
                if there and op.key in self._look.manifests:
                    moment.changed.add(parts)
                elif there != (op.key in self._look.manifests):
                    (moment.added if there else moment.gone).add(parts)
            elif op.key.startswith(self._keys.tree("intent")):
                moment.intents.add(self._keys.intent_parts(op.key))

    def _mirror(self, key: str) -> None:
        """Keep the pods' manifests up to date; also forget what came back to health."""
        if key.startswith(self._keys.tree("pods")) and not is_sentinel(key):
            pair = self._kv.get(key)
            pod = self._look.record(Pod, pair)
            self._look.manifests.pop(key, None)
            if pair is not None:
                self._look.manifests[key] = pod.manifest if pod is not None else ""
        if key.startswith(self._keys.tree("reality")) and not is_sentinel(key):
            self._controllers.recovered(self._keys.reality_parts(key))

    def _presences(self) -> None:
        """Agents go with their sessions, which no write tells."""
        now = set(self._look.under("agents"))
        for key in now ^ self._agents:
            self._look.touch(key)
        self._agents = now
