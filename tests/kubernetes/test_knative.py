"""The rules by which the stand-in for Knative's controllers plays; progressive rollouts stand on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from farmd.kubernetes.errors import Invalid
from farmd.kubernetes.install import install
from farmd.kubernetes.knative.objects import AUTOSCALERS, REVISIONS, ROUTES, SERVICES
from farmd.kubernetes.objects import PODS
from farmd.runtime.clock import SystemClock
from tests.fleet import eventually
from tests.kubernetes.knative import Knative, playing
from tests.kubernetes.knative_world import says

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")
MIN = "autoscaling.knative.dev/min-scale"
OLD, NEW = "web-00001", "web-00002"


@pytest.fixture
async def knative(api, namespace, connect) -> AsyncIterator[Knative]:
    """Knative 1.21 in a namespace of the test's own."""
    async with connect(api) as admin:
        await install(admin, (), SystemClock(), progressive=True)
        async with playing(admin, namespace) as found:
            yield found


async def until(what: str, check: Callable[[], Any]) -> None:
    async def checked() -> Any:
        return check()

    await eventually(checked, what=what)


def traffic(knative: Knative) -> dict[str, int]:
    """The traffic of the Route of ``web``."""
    route = knative.stores[ROUTES].get(knative.namespace, "web")
    entries = route.status.get("traffic", ()) if route else ()
    return {each["revisionName"]: each.get("percent", 0) for each in entries}


async def serves(knative: Knative, revision: str, pods: int, share: int = 100) -> None:
    await until(
        f"{revision} with {pods} pods and {share} % of the traffic",
        lambda: len(knative.ready(revision)) == pods and traffic(knative).get(revision) == share,
    )


async def annotate(knative: Knative, kind, name: str, **annotations: str) -> None:
    body = {"metadata": {"annotations": {key.replace("_", "/"): value for key, value in annotations.items()}}}
    await knative.objects[kind].patch(knative.namespace, name, body)


async def test_a_push_moves_all_traffic_once_the_new_revision_has_its_pods(knative):
    await knative.push("web", least=2)
    await serves(knative, OLD, 2)
    await knative.push("web", "web:2", least=3)
    await until("pods of both", lambda: len(knative.pods(OLD)) == 2 and knative.pods(NEW))
    await serves(knative, NEW, 3)
    await until("no old pods", lambda: not knative.pods(OLD))
    assert not knative.restarts


async def test_a_lagging_reordered_knative_comes_to_the_same_end(knative):
    knative.lag, knative.digest = 0.5, 0.1
    await knative.push("web", least=2)
    await serves(knative, OLD, 2)


@pytest.mark.parametrize(("version", "restarts"), [("1.21.0", 0), ("1.20.3", 1), ("devel", 0)])
async def test_bounds_on_a_revision_reach_its_autoscaler_and_up_to_1_20_its_pods(knative, version, restarts):
    await knative.upgrade(version)
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    await knative.objects[REVISIONS].patch(knative.namespace, OLD, {"metadata": {"annotations": {MIN: "2"}}})
    if restarts:
        await until("a restart", lambda: knative.restarts[OLD] == 1)
        assert len(knative.pods(OLD)) == 1
    else:
        await serves(knative, OLD, 2)
        assert not knative.restarts


@pytest.mark.parametrize(("version", "pods"), [("1.20.3", 2), ("1.21.0", 1)])
async def test_bounds_on_an_autoscaler_stay_up_to_1_20_and_are_overwritten_since(knative, version, pods):
    await knative.upgrade(version)
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    await knative.objects[AUTOSCALERS].patch(
        knative.namespace, OLD, {"metadata": {"annotations": {MIN: "2"}}}
    )

    def minimum() -> str:
        return knative.stores[AUTOSCALERS].get(knative.namespace, OLD).metadata.annotations[MIN]

    await until("what stays", lambda: minimum() == str(pods) and len(knative.ready(OLD)) == pods)
    assert not knative.restarts


async def test_any_other_annotation_on_a_revision_restarts_its_pods(knative):
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    await annotate(knative, REVISIONS, OLD, **{"farmd.io/x": "1"})
    await until("a restart", lambda: knative.restarts[OLD] == 1)


async def test_a_route_to_a_revision_that_is_not_ready_stays_as_it_was(knative):
    knative.broken.add(NEW)
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    await knative.pin("web", {"revisionName": OLD, "percent": 100, "latestRevision": False})
    await knative.push("web", "web:2", least=1)
    await until("a pod of the new one", lambda: knative.pods(NEW))
    half = [{"revisionName": each, "percent": 50} for each in (OLD, NEW)]
    await knative.pin("web", *half)
    route = knative.stores[ROUTES]

    def observed() -> bool:
        found = route.get(knative.namespace, "web")
        return (
            found.spec["traffic"] == half and found.status["observedGeneration"] == found.metadata.generation
        )

    await until("a Route that saw it", observed)
    assert traffic(knative) == {OLD: 100}
    knative.broken.clear()
    knative.changed.set()
    await serves(knative, NEW, 1, 50)


async def test_a_revision_without_an_entry_loses_its_least_and_one_of_0_percent_gives_it_back(knative):
    await knative.push("web", least=2)
    await serves(knative, OLD, 2)
    await knative.push("web", "web:2", least=1)
    await serves(knative, NEW, 1)
    await until("no old pods", lambda: not knative.pods(OLD))
    await knative.pin("web", {"revisionName": NEW, "percent": 100}, {"revisionName": OLD, "percent": 0})
    await serves(knative, OLD, 2, 0)


async def test_a_new_revision_that_a_route_leaves_is_ready_with_one_pod(knative):
    await knative.push("web", least=2)
    await serves(knative, OLD, 2)
    knative.room = 2
    await knative.push("web", "web:2", least=2)
    await until("its pods", lambda: len(knative.pods(NEW)) == 2)
    await knative.pin("web", {"revisionName": OLD, "percent": 100, "latestRevision": False})
    await until("one pod of them", lambda: len(knative.pods(NEW)) == 1)
    knative.room = 10
    knative.changed.set()
    revisions = knative.stores[REVISIONS]
    await until("readiness", lambda: says(revisions.get(knative.namespace, NEW), "Ready") == "True")
    assert len(knative.pods(NEW)) == 1


@pytest.mark.parametrize(
    "entry",
    [
        {"revisionName": OLD, "percent": 90},
        {"configurationName": "web", "percent": 100},
        {"revisionName": OLD, "latestRevision": True, "percent": 100},
    ],
)
async def test_what_the_webhook_refuses_is_refused(knative, entry):
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    with pytest.raises(Invalid):
        await knative.pin("web", entry)


async def test_pods_end_when_they_are_let_go_and_want_of_room_leaves_them_pending(api, knative):
    knative.room, knative.stubborn = 2, True
    await knative.push("web", least=3)
    await until(
        "a pod that is not placed", lambda: len(knative.pods(OLD)) == 3 and len(knative.ready(OLD)) == 2
    )
    pending = next(each for each in knative.pods(OLD) if "nodeName" not in each.spec)
    await until(
        "its reason",
        lambda: "Insufficient cpu" in str(knative.stores[PODS].get(knative.namespace, pending.name)),
    )
    await knative.evict(OLD)
    await until("one that ends", lambda: any(each.metadata.terminating for each in knative.pods(OLD)))
    knative.stubborn, knative.room = False, 10
    knative.changed.set()
    await serves(knative, OLD, 3)


async def test_an_eviction_takes_a_pod_that_does_not_end_already_though_the_watch_shows_none_that_ends(
    api, knative
):
    knative.stubborn = True
    await knative.push("web", least=2)
    await serves(knative, OLD, 2)
    first, second = knative.pods(OLD)
    api.ask("DELETE", PODS.path(knative.namespace, first.name))  # no event comes while this blocks
    assert len(knative.ready(OLD)) == 2
    await knative.evict(OLD)
    ending = {each.name for each in knative.pods(OLD) if each.metadata.terminating}
    assert ending == {first.name, second.name}


async def test_what_a_deleted_service_owns_goes_with_it(api, knative):
    await knative.push("web", least=1)
    await serves(knative, OLD, 1)
    await asyncio.to_thread(api.ask, "DELETE", SERVICES.path(knative.namespace, "web"))
    await until("nothing", lambda: not any(len(store) for store in knative.stores.values()))
