"""All pods of the node and their intents: the only place where an answer changes what is wanted (R20).

``obey`` takes a proven answer. An intent that the agent cannot act on changes only its pod's reason.
An answer that removes intents or has older ones (``missing_from``, ``older_than_known``) may be obeyed only
when a consistent read says the same (R16); the caller checks that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace

import msgspec
import structlog

from farmd.agent.errors import StartFailed, StateUnsaved
from farmd.agent.health import Damper
from farmd.agent.manifests import Manifests
from farmd.agent.model import Record, WantedPod
from farmd.agent.pod import Pod
from farmd.agent.state import StateDirectory
from store.ports import Clock, Recorder

log = structlog.get_logger()


class Pods:
    """The pods by instance; iterating is safe while pods come and go. ``enforced``: nothing starts for the
    first time without a signature (R32).
    """

    def __init__(
        self,
        *,
        state: StateDirectory,
        manifests: Manifests,
        clock: Clock,
        recorder: Recorder,
        enforced: bool = False,
    ) -> None:
        self._enforced = enforced
        self._state = state
        self._manifests = manifests
        self._clock = clock
        self._recorder = recorder
        self._pods: dict[str, Pod] = {}

    def __iter__(self) -> Iterator[Pod]:
        return iter(list(self._pods.values()))

    def __len__(self) -> int:
        return len(self._pods)

    def get(self, instance: str) -> Pod | None:
        """One pod."""
        return self._pods.get(instance)

    def new(self, record: Record) -> Pod:
        """Add a pod in memory; nothing is written yet."""
        pod = self._pods[record.instance] = Pod(record, Damper(self._clock.mono()))
        return pod

    def load(self, record: Record) -> Pod:
        """Add a pod from its record on disk, with its manifest if the node has it."""
        pod = self.new(record)
        pod.stored = True
        # Whether its lease was over while no agent ran is not known.
        pod.cut_off_at = self._clock.mono()
        pod.target = self._manifests.cached(record.manifest)
        if pod.target is None:
            pod.problem = f"manifest {record.manifest[:12]}: no copy on this node"
        elif record.peers and self._manifests.peers_here(record.peers) is None:
            pod.problem = f"peers {record.peers[:12]}: no copy on this node"
        elif self._enforced and not record.has_started(record.manifest) and not record.start_by:
            pod.target, pod.problem = None, "its signature was not checked yet"
        elif self._enforced and record.revoked:
            pod.target, pod.problem = None, record.revoked
        left = record.not_before - self._clock.now()
        longest = pod.target.restart.maximum if pod.target is not None else 0.0
        # If the clock was set back, the pod must still not wait for longer than its backoff.
        pod.not_before = self._clock.mono() + min(max(left, 0.0), longest)
        return pod

    def peers(self, record: Record) -> bytes:
        """The document that names a pod's peers; empty without one.

        Raises:
            StartFailed: this node has no copy of it.
        """
        if not record.peers:
            return b""
        found = self._manifests.peers_here(record.peers)
        if found is None:
            raise StartFailed(f"peers {record.peers[:12]}: no copy on this node")
        return found

    def drop(self, instance: str) -> None:
        """Forget a pod in memory."""
        del self._pods[instance]

    def save(self, pod: Pod) -> None:
        """Save a pod's record as soon as that is possible."""
        self._state.save(pod.record)
        pod.stored = True

    def any_workloads(self, cluster: str) -> bool:
        """Whether this node runs a pod of its cluster, or has the record of a pod that it should run.

        A workload whose record is lost does not count where the cluster's id is lost, too (empty).
        """
        counted = [pod for pod in self._pods.values() if pod.stored or pod.identity is not None]
        return any(cluster or pod.record.intent for pod in counted)

    def acted_on(self, indexes: Mapping[str, int]) -> bool:
        """Whether one of these intents, by instance, is the very one that this node acted on."""
        return any(
            pod.record.acted and indexes.get(name) == pod.record.acted for name, pod in self._pods.items()
        )

    def missing_from(self, wanted: Iterable[str]) -> list[str]:
        """The instances that would be stopped if an answer with only these were obeyed."""
        kept = set(wanted)
        return [name for name, pod in self._pods.items() if pod.record.wanted and name not in kept]

    def older_than_known(self, wanted: Mapping[str, WantedPod]) -> list[str]:
        """The instances whose ModifyIndex in an answer is lower than one already trusted (R16)."""
        return [
            name
            for name, pod in self._pods.items()
            if name in wanted and wanted[name].index < pod.record.intent
        ]

    def withhold(self, digests: Set[str]) -> None:
        """Start none of these manifests before the signatures of its pods were looked at again (R32)."""
        for pod in self._pods.values():
            if self._enforced and pod.record.manifest in digests and pod.target is not None:
                pod.target, pod.warning = None, "a signature of its manifest was revoked: it is checked again"

    def unconfirmed(self, asked: float) -> bool:
        """Whether a pod waits for an answer that is asked for later than then (R27)."""
        return any(pod.cut_off_at > asked and pod.may_be_cut_off for pod in self._pods.values())

    def confirm(self, asked: float) -> None:
        """An answer was obeyed that was asked for then: what it names may start, as far as leases go."""
        for pod in self._pods.values():
            if pod.cut_off_at <= asked:
                pod.cut_off_at = -math.inf

    def obey(self, wanted: Mapping[str, WantedPod]) -> None:
        """Adopt a proven answer: each intent in it, and the absence of all others."""
        for intent in wanted.values():
            self._want(intent)
        for name in self.missing_from(wanted):
            pod = self._pods[name]
            log.info("pod.unwanted", instance=name)
            pod.change(wanted=False)
            pod.not_before = -math.inf
            if pod.stored:
                # Save the record first: after a crash the agent must not start the pod again.
                self.save(pod)
        self._manifests.keep_only(
            sha
            for pod in self._pods.values()
            for sha in (pod.record.manifest, pod.record.running, pod.record.peers)
            if sha
        )

    def _want(self, intent: WantedPod) -> None:
        pod = self._pods.get(intent.instance)
        if pod is None:
            pod = self.new(_record(intent))
        if intent.manifest is None:
            self._refuse(pod, intent)
            return
        record = pod.record
        pod.warning = intent.unsigned
        told = (record.intent, record.manifest, record.restart, record.vars, record.hold, record.peers)
        asked = (intent.index, intent.sha, intent.restart, intent.vars, intent.hold, intent.peers)
        known = told == asked and record.start_by == intent.start_by and record.restarted >= 0
        if known and record.wanted and pod.target is not None:
            pod.problem = ""
            return
        before = record, pod.not_before, pod.start_failed
        # The counter of another pod is no rise, and a lower one (an older farm wrote it, or the store was
        # restored) is where the next rise begins (R28).
        restarted = min(record.restarted, intent.restart) if record.restarted >= 0 else intent.restart
        if not record.wanted or record.owner not in ("", intent.owner):
            pod.renew()
            restarted = intent.restart
        pod.change(wanted=True, manifest=intent.sha, owner=intent.owner, intent=intent.index)
        pod.change(restart=intent.restart, restarted=restarted)
        pod.change(vars=dict(intent.vars), hold=intent.hold, peers=intent.peers, start_by=intent.start_by)
        pod.change(revoked="")
        if record.manifest != intent.sha:
            pod.change(held=False)
        if not pod.record.superseded:
            pod.change(acted=intent.index)
        elif (record.manifest, record.restart) != asked[1:3]:
            # Another manifest and a restart are tried at once, without the backoff of the former start.
            pod.change(failures=0, failing_since=0.0, not_before=0.0, reason="")
            pod.not_before, pod.start_failed = -math.inf, False
        try:
            self._save_wanted(pod.record)
        except StateUnsaved as error:
            pod.record, pod.not_before, pod.start_failed = before
            self._refuse(pod, replace(intent, problem=error.message))
            return
        pod.target, pod.problem, pod.stored = intent.manifest, "", True

    def _save_wanted(self, record: Record) -> None:
        """Save the record that an intent changed; it must be on disk at once if the intent means a start.

        Raises:
            StateUnsaved: it cannot be saved, so no running process may be stopped for the intent.
        """
        if not record.superseded:
            self._state.save(record)
        else:
            self._state.require_room()
            self._state.save_first(record)

    def _refuse(self, pod: Pod, intent: WantedPod) -> None:
        if intent.revoked and self._revoke(pod, intent):
            return
        if (pod.problem, pod.refused) != (intent.problem, intent.index):
            log.warning("intent.refused", instance=pod.instance, intent=intent.index, reason=intent.problem)
            self._recorder.count("farmd_pod_events_total", event="refused")
        pod.problem, pod.refused = intent.problem, intent.index
        if intent.unsigned and pod.record.manifest == intent.sha and not pod.record.has_started(intent.sha):
            # It was signed when this agent obeyed, is not any more, and has not started yet.
            pod.target = None
        if not pod.record.wanted:
            # The instance was proven unwanted before, so there is no older intent to continue with.
            pod.target = None
            pod.renew()
            pod.change(wanted=True, manifest=intent.sha, owner=intent.owner, fresh=True, start_by=0.0)

    def _revoke(self, pod: Pod, intent: WantedPod) -> bool:
        """Let nothing start of a pod again; whether it still runs as its intent asks, and so goes on."""
        pod.target = None
        if pod.record.revoked != intent.problem:
            pod.change(revoked=intent.problem)
            self.save(pod)
        runs = pod.identity is not None and pod.stopping is None
        if not runs or pod.record.running != intent.sha or pod.record.acted != intent.index:
            return False
        pod.problem, pod.warning = "", intent.problem
        return True


def _record(intent: WantedPod) -> Record:
    """The record of a pod that has none: that of one that is done, if this agent told so before (R29)."""
    record = Record(instance=intent.instance, manifest=intent.sha, owner=intent.owner)
    if (told := intent.ended) is None:
        return record
    return msgspec.structs.replace(
        record,
        running=told.manifest,
        acted=told.intent,
        restarted=told.restart,
        started=told.started,
        ports=told.ports,
        restarts=told.restarts,
        exits=told.exits,
        reason=told.reason,
        done=True,
    )
