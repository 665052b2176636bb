"""``farmctl rollout`` for Knative Services, on a real API server with a rollout that stands in mid-stage."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from farmd.kubernetes.install import install
from farmd.kubernetes.knative.objects import (
    AUTOSCALERS,
    CAUSE,
    FINAL,
    FOLLOW,
    MANAGER,
    ORCHESTRATORS,
    PAUSED,
    PROMOTE,
    REFUSED,
    RETRY,
    REVERT,
    REVISIONS,
    ROUTES,
    SERVICES,
    STAGE_AUTOSCALERS,
)
from farmd.rollout.staging import SERVICE_LABEL
from farmd.runtime.clock import SystemClock
from store.rollouts import Rollout
from tests.farmctl import Farmctl, Result
from tests.fleet import cluster_on
from tests.kubernetes.knative import Knative, playing
from tests.kubernetes.knative_world import owned
from tests.kubernetes.test_knative import MIN, NEW, OLD, serves, until

pytestmark = pytest.mark.xdist_group("kubernetes rollouts")
Run = Callable[..., Awaitable[Result]]
RATIO = "rollout.knative.dev/over-consumption-ratio"


@pytest.fixture
async def knative(api, namespace, connect) -> AsyncIterator[Knative]:
    """A service of two pods whose second revision has one of them, in the first of two stages."""
    async with connect(api) as admin:
        await install(admin, (), SystemClock(), progressive=True)
        async with playing(admin, namespace) as found:
            await found.push("web", least=2, annotations={RATIO: "50"})
            await serves(found, OLD, 2)
            traffic = [{"revisionName": OLD, "percent": 100, "latestRevision": False}]
            await found.pin("web", *traffic, manager=MANAGER)
            await found.push("web", "web:2", least=2, annotations={RATIO: "50"})
            # Its second pod may be ready after the first: on its way up it has one ready pod, too.
            await until("the second revision", lambda: len(found.ready(NEW)) == 2)
            least = {"metadata": {"annotations": {MIN: "1"}}}
            await found.objects[REVISIONS].apply(namespace, NEW, least, manager=MANAGER, force=True)
            await until("one pod of it", lambda: len(found.pods(NEW)) == len(found.ready(NEW)) == 1)
            await recorded(found)
            yield found


async def recorded(knative: Knative) -> None:
    """Write the record of a rollout in its first stage."""
    both = {"minScale": 2}
    stage = [
        {"revisionName": OLD, "percent": 50, "targetReplicas": 1, "direction": "down", **both},
        {"revisionName": NEW, "percent": 50, "targetReplicas": 1, "direction": "up", **both},
    ]
    spec = {
        "initialRevisions": [{"revisionName": OLD, "percent": 100, **both}],
        "targetRevisions": [{"revisionName": NEW, "percent": 100, "latestRevision": True, **both}],
        "stageTargetRevisions": stage,
        "rolloutStrategy": "availability",
    }
    service = knative.stores[SERVICES].get(knative.namespace, "web")
    body = {"metadata": owned(SERVICES, service, "web", labels={SERVICE_LABEL: "web"}), "spec": spec}
    record = await knative.objects[ORCHESTRATORS].create(knative.namespace, body)
    kinds = ("LastStageReady", "Ready", "StageReady")
    conditions = [
        {"type": each, "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"} for each in kinds
    ]
    status = {"status": {"observedGeneration": 1, "conditions": conditions}}
    await knative.objects[ORCHESTRATORS].patch(knative.namespace, "web", status, subresource="status")
    more = {"labels": {SERVICE_LABEL: "web"}, "annotations": {FINAL: "2/"}}
    spa = {"metadata": owned(ORCHESTRATORS, record, NEW, **more), "spec": {"stageMinScale": 1}}
    await knative.objects[STAGE_AUTOSCALERS].create(knative.namespace, spa)


@pytest.fixture
async def person(api, knative, consul_dev, tmp_path: Path) -> AsyncIterator[Farmctl]:
    """farmctl with the cluster's kubeconfig, in a fleet with one rollout of a controller."""
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig())
    async with cluster_on(consul_dev) as cluster:
        counts = {"replicas": 3, "started_from": 3, "started_to": 0}
        begun = Rollout(id="r1", name="api", old="c1", new="c2", from_manifest="a", to_manifest="b", **counts)
        await cluster.put(cluster.keys.record("rollouts", begun.id), begun)
        yield Farmctl(consul_dev, cluster.keys.prefix, variables={"KUBECONFIG": str(path)}, inside=True)


@pytest.fixture
def farmctl(person: Farmctl) -> Run:
    """``farmctl rollout``."""

    async def ran(*words: str, stdin: Any = "") -> Result:
        text = stdin if isinstance(stdin, str) else yaml.safe_dump(stdin)
        return await asyncio.to_thread(person, "rollout", *words, stdin=text)

    return ran


def says(knative: Knative) -> dict[str, str]:
    """The annotations of the record."""
    return knative.stores[ORCHESTRATORS].get(knative.namespace, "web").metadata.annotations


async def test_the_status_tells_shares_pods_and_bounds_of_each_side(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    told = await farmctl("status", name)
    assert told.code == 0, told
    head, down, up = told.out.splitlines()[:3]
    assert head.startswith(f"{name}  moving  stage 1 of 2  availability, ratio 50  ")
    assert head.endswith("deadline over  no farm")
    assert down == f"  down  {OLD}  100 -> 50 %  2 pods, bounds 2/, shrinks when the Route shows 50 %"
    assert up == f"  up    {NEW}  0 -> 50 %  1 pod, bounds 1/ (final 2/)"
    found = (await farmctl("status", name, "-o", "json")).json
    assert (found["phase"], found["stage"], found["stages"]) == ("moving", 1, 2)
    assert {each["state"] for each in found["pods"]} == {"serves"}


async def test_the_status_and_the_explanation_name_the_pod_that_has_no_room(knative, farmctl):
    knative.room = 0
    await knative.evict(NEW)

    def unplaced() -> list[str]:
        return [each.name for each in knative.pods(NEW) if "Insufficient cpu" in str(each.status)]

    await until("a pod that is told to have no room", unplaced)
    (pending,) = unplaced()
    for word in ("status", "explain"):
        told = await farmctl(word, f"ksvc/{knative.namespace}/web")
        assert f"{pending}: Pending, Insufficient cpu" in told.out


async def test_what_a_terminal_cannot_draw_is_replaced_in_an_explanation(knative, farmctl):
    cause = {"metadata": {"annotations": {CAUSE: "1 s without progress: ██"}}}
    await knative.objects[ORCHESTRATORS].patch(knative.namespace, "web", cause)
    told = await farmctl("explain", f"ksvc/{knative.namespace}/web")
    assert "1 s without progress: ##" in told.out


async def test_the_list_has_the_services_of_a_namespace_beside_the_controllers(knative, farmctl):
    own, row = (await farmctl("list", "-n", knative.namespace, "-o", "json")).json["items"]
    assert (own["target"], own["name"], row["target"]) == ("rc", "api", "ksvc")
    assert (row["name"], row["phase"], row["shares"]) == (
        f"{knative.namespace}/web",
        "moving",
        f"{OLD} 100 %",
    )
    names = (await farmctl("list", "-A", "-o", "name")).out.splitlines()
    assert {"rollout/api", f"ksvc/{knative.namespace}/web"} <= set(names)
    titles, *_ = (await farmctl("list", "-A")).out.splitlines()
    assert titles.split() == ["TARGET", "NAME", "PHASE", "STAGE", "TRAFFIC", "OWNER", "REASON"]
    assert (await farmctl("list")).code == 0


async def test_a_word_is_an_annotation_after_an_audit_record(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    for word, key in (("pause", PAUSED), ("resume", PAUSED), ("promote", PROMOTE), ("revert", REVERT)):
        done = await farmctl(word, name, "--reason", "because", "-y")
        assert done.code == 0, done
        await until(
            f"{word} on record", lambda key=key, word=word: (key in says(knative)) == (word != "resume")
        )
    again = await farmctl("resume", name)
    assert again.out == f"{name} unchanged\n"


async def test_an_audit_record_that_cannot_be_written_leaves_the_word_unsaid(
    knative, farmctl, consul_dev, api
):
    elsewhere = Farmctl(consul_dev, "none/", variables={"KUBECONFIG": str(config(api, knative))}, inside=True)
    done = await asyncio.to_thread(elsewhere, "rollout", "pause", f"ksvc/{knative.namespace}/web")
    assert done.code == 4
    assert PAUSED not in api.ask("GET", ORCHESTRATORS.path(knative.namespace, "web"))["metadata"].get(
        "annotations", {}
    )


def config(api, knative) -> Path:
    path = Path(api.folder) / "kubeconfig-of-a-person"
    path.write_text(api.kubeconfig())
    return path


async def test_a_retry_names_what_was_reverted_and_nothing_else(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    refused = await farmctl("retry", name)
    assert refused.code == 5
    assert "no revision was reverted" in refused.err
    there = {"metadata": {"annotations": {REFUSED: NEW}}}
    await knative.objects[ORCHESTRATORS].patch(knative.namespace, "web", there)
    assert f"found {OLD}, expected one of {NEW}" in (await farmctl("retry", name, OLD)).err
    assert (await farmctl("retry", name)).code == 0
    await until("the word", lambda: says(knative).get(RETRY, "").startswith(f"{NEW} "))


async def test_a_wait_that_is_too_short_exits_with_8(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    late = await farmctl("promote", name, "--wait", "--timeout", "0")
    assert late.code == 8
    assert "is not over after 0 s" in late.err


async def over(knative, spec: dict[str, Any], notes: dict[str, str]) -> None:
    """Let the record say that its rollout is over, with that spec and those annotations."""
    orchestrators = knative.objects[ORCHESTRATORS]
    body = {"spec": spec, "metadata": {"annotations": notes}}
    there = await orchestrators.patch(knative.namespace, "web", body)
    kinds = ("LastStageReady", "Ready", "StageReady")
    conditions = [{"type": each, "status": "True"} for each in kinds]
    status = {"observedGeneration": there.metadata.generation, "conditions": conditions}
    await orchestrators.patch(knative.namespace, "web", {"status": status}, subresource="status")


async def test_a_wait_exits_with_0_where_the_rollout_came_to_its_end(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    await over(knative, {}, {FOLLOW: "latest"})
    ended = await farmctl("resume", name, "--wait", "--timeout", "150")
    assert ended.code == 0, ended


async def test_a_wait_exits_with_9_where_the_rollout_went_back(knative, farmctl):
    name = f"ksvc/{knative.namespace}/web"
    back = {"targetRevisions": [{"revisionName": OLD, "percent": 100, "minScale": 2}]}
    await over(knative, back, {REFUSED: NEW, FOLLOW: "latest", CAUSE: "NEW has a fault"})
    otherwise = await farmctl("resume", name, "--wait", "--timeout", "150")
    assert (otherwise.code, "went back: NEW has a fault" in otherwise.err) == (9, True), otherwise


async def test_what_is_not_there_is_not_found(knative, farmctl):
    missing = await farmctl("status", f"ksvc/{knative.namespace}/none")
    assert missing.code == 4
    assert f"ksvc '{knative.namespace}/none' does not exist" in missing.err
    await knative.push("plain", labels={})
    await until(
        "a service",
        lambda: "plain" in str(list(knative.stores[ORCHESTRATORS])) or knative.pods("plain-00001"),
    )
    off = await farmctl("pause", f"ksvc/{knative.namespace}/plain")
    assert off.code == 4
    assert "has no progressive rollout" in off.err
    assert "rollout.farmd.io/enabled=true" in off.err


PART, WHOLE = "a name without empty parts, '.' or '..'", "ksvc/NAMESPACE/NAME"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ksvc/", PART),
        ("ksvc/shop/", PART),
        ("ksvc//web", PART),
        ("ksvc/../web", PART),
        ("ksvc/a/b/c", WHOLE),
        ("ksvc/shop/WEB", WHOLE),
    ],
)
async def test_what_is_no_name_of_a_service_is_refused_before_the_server_is_asked(
    api, consul_dev, tmp_path, name, expected
):
    path = tmp_path / "kubeconfig"
    path.write_text(api.kubeconfig())
    run = Farmctl(consul_dev, "none/", variables={"KUBECONFIG": str(path)}, inside=True)
    refused = await asyncio.to_thread(run, "rollout", "status", name)
    first, _, more = refused.err.partition("\n")
    assert refused.code == 2
    assert first.endswith(f"found '{name}', expected {expected}")
    assert more in ("", "hint: farmctl rollout status --help\n")


COMPLETED = (
    ("status ksvc/{ns}/w", ["ksvc/{ns}/web"]),
    ("status ap", []),
    ("explain -n {ns} w", ["web"]),
    ("pause ksvc/{ns}/", ["ksvc/{ns}/web"]),
    ("resume ksvc/{ns}/", ["ksvc/{ns}/web"]),
    ("revert ksvc/{ns}/", ["ksvc/{ns}/web"]),
    ("promote ksvc/{ns}/", ["ksvc/{ns}/web"]),
    ("retry -n {ns} ", ["web"]),
    ("retry --kubeconfig /nonexistent ", []),
)


async def test_names_of_services_are_completed(knative, person):
    await knative.push("plain", labels={})
    for typed, expected in COMPLETED:
        words = f"farmctl rollout {typed}".format(ns=knative.namespace)
        assert await completed(person, words) == [each.format(ns=knative.namespace) for each in expected]


async def test_without_a_kubeconfig_completion_offers_no_service_and_says_nothing(person, tmp_path):
    nothing = {"KUBECONFIG": "", "HOME": str(tmp_path)}
    for verb in ("status", "promote"):
        assert await completed(person, f"farmctl rollout {verb} ksvc/", **nothing) == []


async def completed(person: Farmctl, words: str, **variables: str) -> list[str]:
    """What completion offers for the last of these words."""
    line = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_FARMCTL_COMPLETE": "bash_complete"}
    asked = replace(person, inside=False, variables={**person.variables, **line, **variables})
    done = await asyncio.to_thread(asked)
    assert not done.err
    shown = [each.removeprefix("plain,") for each in done.out.split() if each.startswith("plain,")]
    return [each for each in shown if not each.startswith("-")]


def document(name: str, image: str, least: int, ratio: int = 25, **labels: str) -> dict[str, Any]:
    """A file of a service as people have it."""
    annotations = {MIN: str(least), RATIO: str(ratio)}
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": [{"image": image}]}}
    meta = {"name": name, "labels": {"rollout.farmd.io/enabled": "true"} | labels}
    body = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": meta}
    return body | {"spec": {"template": template}}


async def test_a_plan_tells_the_stages_of_a_changed_file_and_writes_nothing(knative, farmctl, api):
    await knative.push("api", least=4, annotations={RATIO: "25"})

    def known() -> bool:
        """Whether what a plan reads tells of the pods, which are ready before."""
        scale = knative.stores[AUTOSCALERS].get(knative.namespace, "api-00001")
        route = knative.stores[ROUTES].get(knative.namespace, "api")
        return bool(scale and scale.status.get("actualScale") == 4 and route and route.status.get("traffic"))

    await until("its pods", known)
    args = ("plan", "-f", "-", "-n", knative.namespace)
    told = await farmctl(*args, stdin=document("api", "web:2", 4))
    assert told.code == 0, told
    assert told.out.splitlines() == [
        f"ksvc/{knative.namespace}/api: api-00002 rolls out in 4 stages, availability, ratio 25, "
        "at most 5 pods at once",
        "  stage 1  api-00001 75 %, 3 pods; api-00002 25 %, 1 pod",
        "  stage 2  api-00001 50 %, 2 pods; api-00002 50 %, 2 pods",
        "  stage 3  api-00001 25 %, 1 pod; api-00002 75 %, 3 pods",
        "  stage 4  api-00001 0 %, 0 pods; api-00002 100 %, 4 pods",
    ]
    same = await farmctl(*args, stdin=document("api", "web:1", 4))
    assert "its template is already there" in same.out
    new = await farmctl(*args, stdin=document("other", "web:1", 4))
    assert "the first revision gets all traffic at once" in new.out
    assert len(knative.stores[REVISIONS]) == 3


def said(key: str, text: str) -> dict[str, Any]:
    """A file whose template has an annotation."""
    body = document("web", "a", 1)
    body["spec"]["template"]["metadata"]["annotations"][key] = text
    return body


def named(**meta: str) -> dict[str, Any]:
    """A file of a service with this metadata."""
    return document("web", "a", 1) | {"metadata": {"name": "web"} | meta}


BAD = {
    "a name in capitals": (
        named(name="WEB"),
        "stdin: metadata.name: found 'WEB', expected lower-case letters",
    ),
    "a name with a slash": (named(name="a/b"), "metadata.name: found 'a/b', expected"),
    "a name as a path": (named(name="../web"), "metadata.name: found '../web', expected"),
    "a name that begins with a digit": (named(name="1web"), "metadata.name: found '1web', expected"),
    "a name of 64 letters": (named(name="w" * 64), "metadata.name: found"),
    "a namespace as a path": (named(namespace="../a"), "metadata.namespace: found '../a', expected"),
    "no kind": ({"a": 1}, "stdin: found no kind, expected apiVersion serving.knative.dev/v1, kind Service"),
    "text": ("hello", "stdin: found 'hello', expected apiVersion serving.knative.dev/v1, kind Service"),
    "another document": (
        {"apiVersion": "v1", "kind": "Pod"},
        "stdin: found apiVersion 'v1', kind 'Pod', expected apiVersion serving.knative.dev/v1",
    ),
    "a ratio of 0": (
        said(RATIO, "0"),
        f"stdin: spec.template.metadata.annotations.{RATIO}: found '0', expected 1 to 100\n",
    ),
    "a ratio of 101": (said(RATIO, "101"), "found '101', expected 1 to 100\n"),
    "a ratio with a unit": (said(RATIO, "18u"), "found '18u', expected 1 to 100\n"),
    "an unknown strategy": (
        said("rollout.knative.dev/progressive-rollout-strategy", "fast"),
        "found 'fast', expected availability or resourceutil\n",
    ),
    "an unknown end": (
        said("rollout.farmd.io/on-failure", "stop"),
        "found 'stop', expected revert or pause\n",
    ),
    "another kind": ({"apiVersion": "v1", "kind": "Service"}, "expected apiVersion serving.knative.dev/v1"),
    "no name": ({"apiVersion": "serving.knative.dev/v1", "kind": "Service"}, "metadata.name: missing"),
    "a number as a scale": (
        document("web", "a", 1) | {"spec": {"template": {"metadata": {"annotations": {MIN: 10}}}}},
        "Expected `str`, got `int`",
    ),
    "a list": ([1, 2], "expected apiVersion serving.knative.dev/v1"),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_plan_refuses_a_bad_file_in_one_line(api, consul_dev, tmp_path, name):
    body, expected = BAD[name]
    run = Farmctl(consul_dev, "none/", variables={"KUBECONFIG": str(tmp_path / "none")}, inside=True)
    refused = await asyncio.to_thread(run, "rollout", "plan", "-f", "-", stdin=json.dumps(body))
    assert refused.code == 2
    assert expected in refused.err
    assert len(refused.err.strip().splitlines()) == 1


async def test_the_example_is_a_file_that_can_be_planned(knative, farmctl):
    example = Path(__file__).parents[2] / "examples" / "knative" / "web.yaml"
    told = await farmctl("plan", "-f", str(example))
    assert (told.code, told.out) == (0, "ksvc/shop/web: the first revision gets all traffic at once\n")
