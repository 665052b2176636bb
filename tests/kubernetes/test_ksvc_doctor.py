"""``farmctl doctor`` on Knative Services of a real API server: what it names, and that it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from farmd import overview
from farmd.kubernetes.knative.objects import CLAIM, CONFIG_MAPS, ENABLED, ORCHESTRATORS
from tests.farmctl import Farmctl, Result
from tests.fleet import eventually
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes.test_rollout_history import NEW, OLD, pushed

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")


async def examined(rollouts: Rollouts, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The doctor's findings by object: of this namespace, and of what belongs to none."""
    done = await ran(rollouts, folder, "doctor", "-o", "json")
    found: dict[str, list[dict[str, Any]]] = {}
    for each in done.json["items"]:
        told = {**each, "explanation": each["explanation"].replace(rollouts.namespace, "NS")}
        found.setdefault(each["object"].replace(rollouts.namespace, "NS"), []).append(told)
    return found


async def ran(rollouts: Rollouts, folder: Path, *words: str) -> Result:
    """farmctl of a person with the cluster's kubeconfig, once farms have said where they work."""

    async def told() -> bool:
        farms = await overview.farms(rollouts.cluster.client, rollouts.cluster.keys)
        return bool(farms) and all(each.clusters for each in farms)

    await eventually(told, what="where the farms work")
    path = folder / "kubeconfig"
    path.write_text(rollouts.server.kubeconfig())
    variables, prefix = {"KUBECONFIG": str(path)}, rollouts.cluster.keys.prefix
    run = Farmctl(rollouts.consul, prefix, variables=variables, inside=True)
    done = await asyncio.to_thread(run, *words)
    assert done.code in (0, 1), done
    return done


def shown(found: dict[str, list[dict[str, Any]]], name: str) -> str:
    """Codes and explanations of an object."""
    return "; ".join(f"{each['code']}: {each['explanation']}" for each in found.get(name, []))


def configured(rollouts: Rollouts, name: str, **data: str) -> None:
    body = {"metadata": {"name": name}, "data": {key.replace("_", "-"): text for key, text in data.items()}}
    rollouts.server.ask("POST", CONFIG_MAPS.path(rollouts.namespace), body)


async def test_what_stands_in_the_way_of_a_rollout_is_told_by_name(idle: Rollouts, tmp_path: Path) -> None:
    await idle.farm("first")
    await pushed(idle, 1, 2)
    await idle.until("the first revision", lambda: idle.rests(OLD, 2))
    await idle.play.push("half", least=1, labels={ENABLED: "yes"})
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/farmd-progressive"
    sound = await examined(idle, tmp_path)
    assert not {"ksvc/NS/web", "clusterrole/farmd-progressive", SETTINGS} & sound.keys()
    idle.server.ask("DELETE", role)
    configured(idle, "config-autoscaler", enable_scale_to_zero="false", initial_scale="3")
    idle.play.room = 2
    wrong = {"rollout.knative.dev/stage-rollout-timeout-minutes": "soon"}
    await pushed(idle, 2, 2, 50, **{"rollout.farmd.io/progress-deadline": "1", **wrong})
    await idle.told("1 s without progress")
    await idle.until("events", lambda: idle.events() >= {"RolloutBlocked", "RolloutSettings"})
    found = await examined(idle, tmp_path)
    assert shown(found, "ksvc/NS/web").startswith("blocked: ksvc/NS/web: 1 s without progress: web-00002")
    assert found["ksvc/NS/web"][0]["fix"] == f"farmctl rollout explain ksvc/{idle.namespace}/web"
    assert "found 'yes', expected true or false" in shown(found, "ksvc/NS/half")
    assert shown(found, "clusterrole/farmd-progressive").startswith("ksvc-parts-missing: found absent")
    keys = [each["explanation"].partition(":")[0] for each in found[SETTINGS]]
    assert keys == ["enable-scale-to-zero", "initial-scale"]


SETTINGS = "configmap/NS/config-autoscaler"


async def test_services_and_bounds_that_nobody_owns_are_told_by_name(idle: Rollouts, tmp_path: Path) -> None:
    await idle.farm("first")
    await pushed(idle, 1, 4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    await pushed(idle, 2, 4, 25)
    await idle.until("a stage", lambda: idle.traffic().get(NEW) == 25)
    await idle.stop("first")
    idle.settings["selector"] = "team=other"
    await idle.farm("other")
    found = await examined(idle, tmp_path)
    why = "its labels match the selector of no live farm; it is moving"
    assert shown(found, "ksvc/NS/web").startswith(f"ksvc-unowned: no farm works on it: {why}")
    free = {"metadata": {"finalizers": None}}
    idle.server.patch(ORCHESTRATORS.path(idle.namespace, "web"), free)
    idle.server.ask("DELETE", ORCHESTRATORS.path(idle.namespace, "web"))
    idle.enable("false")
    found = await examined(idle, tmp_path)
    stale = "web-00002 has the bounds 1/4 of a stage, and no record has its own bounds"
    assert f"ksvc-bounds-of-nobody: {stale}" in shown(found, "ksvc/NS/web")


async def test_a_record_that_lost_its_service_is_told_as_such(idle: Rollouts, tmp_path: Path) -> None:
    kind = {"apiVersion": ORCHESTRATORS.api_version, "kind": ORCHESTRATORS.kind}
    idle.server.ask("POST", ORCHESTRATORS.path(idle.namespace), kind | {"metadata": {"name": "lost"}})
    await idle.farm("first")
    found = await examined(idle, tmp_path)
    why = "found no owner, expected the service lost: it was left as an orphan, or created by hand"
    assert shown(found, "ro/NS/lost") == f"ksvc-record-orphan: {why}"
    assert found["ro/NS/lost"][0]["fix"] == f"kubectl delete ro -n {idle.namespace} lost"
    assert "ksvc/NS/lost" not in found


async def test_people_read_the_settings_that_farms_go_by(idle: Rollouts, tmp_path: Path) -> None:
    idle.configure(**{"over-consumption-ratio": "50"})
    await idle.farm("first")
    await idle.play.push("web", least=4)
    await idle.until("the first revision", lambda: idle.rests(OLD, 4))
    found = await ran(idle, tmp_path, "rollout", "status", f"ksvc/{idle.namespace}/web", "-o", "json")
    assert found.json["strategy"] == "availability, ratio 50"


async def test_a_service_that_farms_of_another_cluster_own_is_left_to_them(idle: Rollouts) -> None:
    await idle.farm("first")
    await pushed(idle, 1, 2)
    await idle.until("the first revision", lambda: idle.rests(OLD, 2))
    await idle.stop("first")
    status = {"status": {"annotations": {CLAIM: "other/5"}}}
    idle.server.patch(ORCHESTRATORS.path(idle.namespace, "web") + "/status", status)
    await pushed(idle, 2, 2, 50)
    before = idle.record(), idle.autoscalers()
    await idle.farm("second")
    await idle.told("farms of another cluster (other) own it")
    assert (idle.record(), idle.autoscalers()) == before
