"""A Knative Service is rolled in stages by a farm, on a real API server: the thinnest path, and its ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from farmd.kubernetes.errors import Conflict
from farmd.kubernetes.knative.objects import (
    CONFIGURATIONS,
    FINALIZER,
    FOLLOW,
    MIN_SCALE,
    ORCHESTRATORS,
    REVISIONS,
    ROUTES,
    SERVICES,
)
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock
from store import codec
from store.entry import Entry
from store.failsafe import Failsafe
from tests.farmctl import Farmctl
from tests.fleet import CLOCK, eventually, in_time
from tests.kubernetes import admission
from tests.kubernetes.rollouts import Rollouts

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")
OLD, NEW = "web-00001", "web-00002"
QUARTERS = {"rollout.knative.dev/over-consumption-ratio": "25"}
TIGHT = QUARTERS | {"rollout.knative.dev/progressive-rollout-strategy": "resourceutil"}
HASTY = QUARTERS | {"rollout.farmd.io/progress-deadline": "5"}


async def serving(rollouts: Rollouts, pods: int) -> None:
    """Let the first revision serve, with so many pods."""
    await rollouts.play.push("web", least=pods)
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, pods))


async def staged(rollouts: Rollouts) -> None:
    """Roll four pods, and wait for the traffic of the first of four stages."""
    await serving(rollouts, 4)
    await rollouts.play.push("web", "web:2", least=4, annotations=QUARTERS)
    await rollouts.until("the first stage", lambda: rollouts.traffic() == {OLD: 75, NEW: 25})


async def test_a_push_goes_in_stages_and_ends_with_the_bounds_that_people_gave(rollouts: Rollouts) -> None:
    await serving(rollouts, 4)
    await rollouts.play.push("web", "web:2", least=4, annotations=QUARTERS)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    assert (await rollouts.audit()).count("progressive.stage") == 3
    assert rollouts.bounds(NEW) == ("4", None)
    await rollouts.until("the first one's bounds", lambda: rollouts.bounds(OLD) == ("4", None))
    assert rollouts.pods(OLD) == 0
    assert not rollouts.play.restarts
    said = rollouts.autoscalers()[NEW]["status"]
    assert {"Ready", "PodAutoscalerStageReady"} == {each["type"] for each in said["conditions"]}
    assert "desiredScale" in said


async def test_pods_of_the_old_revision_go_first_where_there_is_no_room_for_more(rollouts: Rollouts) -> None:
    await serving(rollouts, 3)
    rollouts.play.room = 4
    await rollouts.play.push("web", "web:2", least=3, annotations=TIGHT)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 3))
    assert not rollouts.play.restarts


async def test_a_pause_a_revert_and_a_retry_are_words_on_the_record(rollouts: Rollouts) -> None:
    await staged(rollouts)
    rollouts.say("paused")
    await rollouts.told("paused; farmctl rollout resume ksvc")
    assert rollouts.reason("StageReady") == "RolloutPaused"
    rollouts.say("revert", "1")
    rollouts.say("paused", None)
    await rollouts.until("the first revision again", lambda: rollouts.rests(OLD, 4))
    assert rollouts.record()["metadata"]["annotations"]["farmd.io/refused"] == NEW
    rollouts.say("retry", NEW)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    found = await rollouts.audit()
    assert [each for each in found if each in ("progressive.back", "progressive.word")] == [
        "progressive.back",
        "progressive.word",
    ]
    assert await rollouts.status() == ""


async def test_a_newcomer_that_breaks_is_reverted_after_its_deadline(rollouts: Rollouts) -> None:
    await serving(rollouts, 2)
    rollouts.play.broken.add(NEW)
    await rollouts.play.push("web", "web:2", least=2, annotations=HASTY)
    await rollouts.until("the way back", lambda: rollouts.ready() and rollouts.refused() == NEW)
    assert rollouts.traffic() == {OLD: 100}
    assert rollouts.pods(OLD) == 2
    assert (
        "5 s without progress: web-00002: ExitCode1"
        in rollouts.record()["metadata"]["annotations"]["farmd.io/cause"]
    )


async def test_a_service_without_its_label_is_left_as_people_asked(rollouts: Rollouts) -> None:
    await staged(rollouts)
    rollouts.enable("false")
    await rollouts.until(
        "nobody's service", lambda: rollouts.released() and not rollouts.running["first"].owned
    )
    assert rollouts.bounds(OLD) == rollouts.bounds(NEW) == ("4", None)
    assert rollouts.traffic() == {OLD: 75, NEW: 25}
    rollouts.enable("true")
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))


async def test_a_service_that_is_deleted_leaves_nothing(rollouts: Rollouts) -> None:
    await serving(rollouts, 2)
    await rollouts.play.push("web", "web:2", least=2)
    await rollouts.until("a stage", lambda: bool(rollouts.record()["metadata"].get("finalizers")))
    rollouts.server.ask("DELETE", SERVICES.path(rollouts.namespace, "web"))
    await rollouts.until("no record", lambda: not rollouts.record())
    await rollouts.until("no item", lambda: not rollouts.running["first"].owned)


async def test_traffic_that_a_tool_pins_is_followed_in_stages(rollouts: Rollouts) -> None:
    await serving(rollouts, 4)
    await rollouts.play.push("web", "web:2", least=4)
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    await rollouts.play.pin("web", {"revisionName": OLD, "percent": 100, "latestRevision": False})
    await rollouts.until("the first revision again", lambda: rollouts.rests(OLD, 4))
    assert rollouts.record()["metadata"]["annotations"]["farmd.io/follow"] == f"{OLD}=100"


async def test_a_revision_with_a_tag_keeps_it_and_ends_with_the_bounds_that_people_gave(
    rollouts: Rollouts,
) -> None:
    await serving(rollouts, 2)
    tag = {"revisionName": OLD, "percent": 0, "latestRevision": False, "tag": "stable"}
    await rollouts.play.pin("web", {"revisionName": OLD, "percent": 100, "latestRevision": False}, tag)
    await rollouts.play.push("web", "web:2", least=2)
    await rollouts.until("the second revision", lambda: rollouts.traffic() == {NEW: 100, OLD: 0})
    await rollouts.until("the first one's bounds", lambda: rollouts.bounds(OLD) == ("2", None))
    await rollouts.until("no finalizer", lambda: not rollouts.record()["metadata"].get("finalizers"))
    entries = rollouts.service()["spec"]["traffic"]
    assert [(each["revisionName"], each.get("percent"), each.get("tag")) for each in entries] == [
        (NEW, 100, None),
        (OLD, None, "stable"),
    ]


async def test_up_to_1_20_bounds_are_written_on_autoscalers_and_no_pod_restarts(idle: Rollouts) -> None:
    await idle.play.upgrade("1.20.3")
    try:
        await idle.farm("first")
        await idle.play.push("web", least=3)
        await idle.until("the first revision", lambda: idle.rests(OLD, 3))
        await idle.play.push("web", "web:2", least=3)
        await idle.until("the second revision", lambda: idle.rests(NEW, 3))
        assert not idle.play.restarts
    finally:
        await idle.play.upgrade("1.21.0")


async def test_a_bad_value_of_the_config_map_blocks_all_services_and_names_its_key(idle: Rollouts) -> None:
    idle.configure(**{"over-consumption-ratio": "18u"})
    await idle.farm("first")
    await idle.play.push("web", least=1)
    await idle.told("config-rolloutorchestrator: over-consumption-ratio: found '18u', expected 1 to 100")
    assert not idle.record()


async def test_another_farm_goes_on_where_the_first_one_fell(rollouts: Rollouts) -> None:
    await staged(rollouts)
    before = rollouts.service()["metadata"]["annotations"]["farmd.io/claim"]
    await rollouts.stop("first")
    await rollouts.farm("second")
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    assert rollouts.service()["metadata"]["annotations"]["farmd.io/claim"] != before


async def test_a_record_that_somebody_deletes_is_made_anew_from_what_serves(rollouts: Rollouts) -> None:
    await staged(rollouts)
    uid = rollouts.record()["metadata"]["uid"]
    rollouts.server.ask("DELETE", ORCHESTRATORS.path(rollouts.namespace, "web"))
    await rollouts.until("another record", lambda: rollouts.uid() not in ("", uid))
    await rollouts.until("the second revision", lambda: rollouts.rests(NEW, 4))
    assert not rollouts.play.restarts


async def test_traffic_that_a_former_owner_still_sends_is_refused(idle: Rollouts) -> None:
    late = await idle.changed("first", Late)
    await serving(idle, 4)
    late.hold()
    await idle.play.push("web", "web:2", least=4, annotations=QUARTERS)
    await in_time(late.held.wait())
    await idle.stop("first")
    await idle.farm("second")
    await idle.until("the second revision", lambda: idle.rests(NEW, 4))
    with pytest.raises(Conflict):
        await late.send_now()
    assert idle.traffic() == {NEW: 100}


class Late:
    """Holds the first apply of traffic that a transport sends once it is told to, and sends it much later."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self.held = asyncio.Event()
        self._send, self._waits, self._part = transport.send, False, (b"", "")
        self._request: ApiRequest | None = None
        self._access = transport.access
        transport.send = self.send  # type: ignore[method-assign]

    def hold(self, word: bytes = b"traffic", path: str = "/services/") -> None:
        """Hold the next one, or the next write with another word in it to another path."""
        self._waits, self._part = True, (word, path)

    async def send(self, request: ApiRequest, timeout: float = 10.0) -> bytes:
        """In place of the transport's."""
        word, path = self._part
        if self._waits and word in request.body and path in request.path:
            self._waits, self._request = False, request
            self.held.set()
            await asyncio.Event().wait()
        return await self._send(request, timeout)

    async def send_now(self) -> None:
        """Send what was held, by a connection of its own, as if its session had been asked just before."""
        assert self._request is not None
        asked, clock = replace(self._request, validity=lambda: 10.0), SystemClock()
        async with KubernetesTransport(self._access, clock=clock, rng=random.Random(1)) as transport:
            await transport.send(asked)


async def test_people_are_alerted_of_a_revert_until_another_revision_is_there(
    rollouts: Rollouts,
) -> None:
    await serving(rollouts, 2)
    uid = rollouts.service()["metadata"]["uid"]
    rollouts.play.broken.add(NEW)
    await rollouts.play.push("web", "web:2", least=2, annotations=HASTY)
    await rollouts.until("the way back", lambda: rollouts.ready() and rollouts.refused() == NEW)
    await rollouts.until("an alert", lambda: rollouts.alerts() == [f"rollout_{uid}"])
    await rollouts.until("an event", lambda: "RolloutReverted" in rollouts.events())
    await rollouts.play.push("web", "web:3", least=2)
    await rollouts.until("the third revision", lambda: rollouts.traffic() == {"web-00003": 100})
    await rollouts.until("the end of the alert", lambda: not rollouts.alerts())


async def test_rights_that_farms_lack_are_told_with_verb_and_resource(idle: Rollouts) -> None:
    sight = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    group = ["serving.knative.dev"]
    records = {"apiGroups": group, "resources": ["rolloutorchestrators"], "verbs": ["create"]}
    # The owner of a new record is blocked from deletion until the record is gone.
    owners = {"apiGroups": group, "resources": ["services/finalizers"], "verbs": ["update"]}
    idle.server.grant("farm", sight, records, owners)
    await idle.farm("first", "farm")
    await idle.play.push("web", least=1)
    await idle.told("rolloutorchestrators/web/status: 403")
    assert not idle.service()["spec"].get("traffic")


async def test_a_refusal_is_told_at_once_and_fills_no_audit(idle: Rollouts, tmp_path: Path) -> None:
    (config := tmp_path / "kubeconfig").write_text(idle.server.kubeconfig())
    farmctl = Farmctl(idle.consul, idle.cluster.keys.prefix, variables={"KUBECONFIG": str(config)})
    refused = admission.rule("rolloutorchestrators", "serving.knative.dev")
    with admission.policy(idle.server, idle.namespace, refused) as words:
        await idle.farm("first")
        await idle.play.push("web", least=1)
        await idle.told(words)
        await idle.until("an event", lambda: "RolloutRefused" in idle.events())
        for command in (("list", "-n", idle.namespace), ("status", f"ksvc/{idle.namespace}/web")):
            shown = await asyncio.to_thread(farmctl, "rollout", *command)
            assert "blocked" in shown.out
            assert words in " ".join(shown.out.split())
        for number in range(20):  # each of these wakes the worker
            body = {"metadata": {"annotations": {"poke": str(number)}}}
            idle.server.patch(SERVICES.path(idle.namespace, "web"), body)

        async def tried_again() -> bool:
            page = await idle.cluster.client.list(idle.cluster.keys.tree("audit"))
            found = [json.loads(Entry.of(raw).value) for raw in page.items]
            return any(each.get("after", {}).get("tries", 0) >= 2 for each in found)

        await eventually(tried_again, what="another try")
        assert await idle.audit() == ["progressive.create", "progressive.refused"]
    await idle.until("the first revision", lambda: idle.rests(OLD, 1))


async def test_settings_that_farms_may_not_read_block_with_verb_and_resource(idle: Rollouts) -> None:
    sight = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    groups = ["apiextensions.k8s.io", "serving.knative.dev", "autoscaling.internal.knative.dev"]
    idle.server.grant(
        "farm", sight | {"apiGroups": groups}, sight | {"apiGroups": [""], "resources": ["pods"]}
    )
    await idle.farm("first", "farm")
    await idle.play.push("web", least=1)
    await idle.told("configmaps/config-rolloutorchestrator: 403")


@pytest.mark.parametrize("command", ["revert", "pin"])
async def test_a_freeze_holds_a_rollout_until_a_person_says_what_to_do(idle: Rollouts, command: str) -> None:
    idle.settings["thaw_after"] = 3600.0
    await idle.farm("first")
    await staged(idle)
    # Times of what people wrote are whole seconds.
    record = Failsafe(evidence="a test doubts it", by="test", since=CLOCK.now() - 2.0)
    key = idle.cluster.keys.failsafe("progressive")
    await idle.cluster.client.put(key, codec.encode(record))
    await idle.told("frozen: a test doubts it")
    before = (idle.bounds(OLD), idle.traffic())
    assert before[1][OLD] >= 50
    if command == "revert":
        idle.say("revert", "1")
    else:
        await idle.play.pin("web", {"revisionName": OLD, "percent": 100, "latestRevision": False})
    await idle.until("the first revision again", lambda: idle.rests(OLD, 4))
    await idle.cluster.client.delete(key)


class Meddled:
    """Lets somebody pin the traffic right before a transport's write of traffic, once, when it is told to."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self.pin: Callable[[], Awaitable[None]] | None = None
        self.conflicts = 0
        self._send = transport.send
        transport.send = self.send  # type: ignore[method-assign]

    async def send(self, request: ApiRequest, timeout: float = 10.0) -> bytes:
        """In place of the transport's."""
        if self.pin is None or b'"traffic"' not in request.body or "/services/" not in request.path:
            return await self._send(request, timeout)
        pin, self.pin = self.pin, None
        await pin()
        try:
            return await self._send(request, timeout)
        except Conflict:
            self.conflicts += 1
            raise


async def test_traffic_that_a_person_pins_right_before_a_farm_writes_it_is_a_word(idle: Rollouts) -> None:
    meddled = await idle.changed("first", Meddled)
    await serving(idle, 4)
    entry = {"revisionName": OLD, "percent": 100, "latestRevision": False, "tag": "mine"}
    meddled.pin = lambda: idle.play.pin("web", entry)
    await idle.play.push("web", "web:2", least=4, annotations=QUARTERS)
    await idle.until(
        "the pin on record", lambda: idle.record()["metadata"]["annotations"][FOLLOW] != "latest"
    )
    assert meddled.conflicts == 1
    await idle.until("the first revision again", lambda: idle.rests(OLD, 4))


async def test_a_record_that_is_nobody_s_blocks_until_somebody_deletes_it(rollouts: Rollouts) -> None:
    records = ORCHESTRATORS.path(rollouts.namespace)
    kind = {"apiVersion": ORCHESTRATORS.api_version, "kind": ORCHESTRATORS.kind}
    rollouts.server.ask("POST", records, kind | {"metadata": {"name": "web"}})
    await rollouts.play.push("web", least=1)
    await rollouts.told("RolloutOrchestrator web: found no owner, expected the service web: delete it")
    rollouts.server.ask("DELETE", f"{records}/web")
    await rollouts.until("the first revision", lambda: rollouts.rests(OLD, 1))


async def test_a_record_that_lost_its_service_is_ended_once_somebody_deletes_it(rollouts: Rollouts) -> None:
    await staged(rollouts)
    await rollouts.until("bounds of a stage", lambda: rollouts.bounds(OLD) == ("3", "3"))
    # What the garbage collector does of kubectl delete --cascade=orphan.
    for kind in (CONFIGURATIONS, ROUTES, ORCHESTRATORS):
        rollouts.server.patch(kind.path(rollouts.namespace, "web"), {"metadata": {"ownerReferences": None}})
    rollouts.server.ask("DELETE", SERVICES.path(rollouts.namespace, "web"))
    await rollouts.until("no item", lambda: not rollouts.running["first"].owned)
    assert rollouts.record()["metadata"]["finalizers"] == [FINALIZER]
    rollouts.server.ask("DELETE", ORCHESTRATORS.path(rollouts.namespace, "web"))
    await rollouts.until("no record", lambda: not rollouts.record())
    assert rollouts.bounds(OLD) == rollouts.bounds(NEW) == ("4", None)
    assert rollouts.traffic() == {OLD: 75, NEW: 25}
    await rollouts.until("no item", lambda: not rollouts.running["first"].owned)


async def test_a_service_that_is_made_anew_under_its_name_is_another_one(rollouts: Rollouts) -> None:
    await staged(rollouts)
    uid = rollouts.uid()
    rollouts.server.ask("DELETE", SERVICES.path(rollouts.namespace, "web"))
    await rollouts.until(
        "no service", lambda: rollouts.play.stores[SERVICES].get(rollouts.namespace, "web") is None
    )
    await rollouts.play.push("web", "web:3", least=2)
    await rollouts.until("a record of its own", lambda: rollouts.uid() not in ("", uid))
    await rollouts.until("its revision", lambda: rollouts.rests(OLD, 2))
    await rollouts.until("one item", lambda: len(rollouts.running["first"].owned) == 1)


async def test_a_tool_that_writes_bounds_of_a_stage_again_and_again_is_named_by_one_alert(
    rollouts: Rollouts,
) -> None:
    await staged(rollouts)
    rollouts.play.room = 1  # no other pod starts, so the next stage waits
    stage, key = ("3", "3"), f"rollout_contended_{rollouts.service()['metadata']['uid']}"
    await rollouts.until("the bounds of the stage", lambda: rollouts.bounds(OLD) == stage)
    path = REVISIONS.path(rollouts.namespace, OLD) + "?fieldManager=keda"

    def rewritten() -> bool:
        if rollouts.bounds(OLD) == stage:
            rollouts.server.patch(path, {"metadata": {"annotations": {MIN_SCALE: "4"}}})
        return key in rollouts.alerts()

    await rollouts.until("an alert", rewritten)
    alert = rollouts.running["first"].alerts.firing[key]
    assert alert.summary.endswith(f"the bounds of {OLD} are also written by keda")
    await rollouts.until("the stage's bounds", lambda: rollouts.bounds(OLD) == stage)
    assert [each.incident_key for each in rollouts.running["first"].alerts.fired] == [key]
