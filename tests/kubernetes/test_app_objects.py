"""Objects of apps on a real API server: applied, marked, judged, collected, within the apps' rights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from farmd.apps.bundle import AppSpec, parse
from farmd.apps.facts import Act, Live, Rehearsal, Verb
from farmd.kubernetes.apps.api import Api, Discovery
from farmd.kubernetes.apps.facts import LOOK_AGAIN_SECONDS
from farmd.kubernetes.apps.marks import APPLIED, LABEL, MANAGER
from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.apps.writes import Applicator
from farmd.kubernetes.errors import Gone, KubernetesError, Unavailable, UnexpectedAnswer, UnknownOutcome
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from farmd.runtime.clock import SystemClock, system_rng
from store.apps import Entry, TypedReference
from store.errors import OutcomeUnknown, StoreUnavailable
from tests.fleet import LIMIT, eventually
from tests.kubernetes_server import ApiServer

pytestmark = pytest.mark.xdist_group("kubernetes")
CLUSTER = "c0ffee00"
ALL = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


class World:
    """A namespace, and the applicators of apps that work there as the administrator."""

    def __init__(self, api: ApiServer, namespace: str, transport: KubernetesTransport) -> None:
        self.api, self.namespace, self.transport = api, namespace, transport

    def app(self, name: str = "shop", cluster: str = CLUSTER, *, impersonate: bool = False) -> Applicator:
        made = Api(self.transport, Discovery(self.transport), name, lambda: 10.0, impersonate=impersonate)
        return Applicator(made, name, cluster, SystemClock())

    def entries(self, *documents: dict[str, Any]) -> dict[str, Entry]:
        files = [(json.dumps(each), f"{number}.json") for number, each in enumerate(documents)]
        found = parse(files, AppSpec(name="shop", namespace=self.namespace)).entries
        return {str(entry.ref): entry for entry in found}

    async def look(self, app: Applicator, entry: Entry) -> Live | None:
        return (await app.read({str(entry.ref): entry}, False)).get(str(entry.ref))

    async def does(
        self, app: Applicator, verb: Verb, *entries: Entry, seq: int = 1, **said: Any
    ) -> dict[str, str]:
        return dict(await app.act([Act(verb, entry.ref, entry, **said) for entry in entries], seq))

    async def made(self, app: Applicator, *documents: dict[str, Any]) -> None:
        """Make these objects, whose kinds the server may serve in a moment."""
        for entry in self.entries(*documents).values():

            async def done(entry: Entry = entry) -> bool:
                return await self.does(app, "create", entry) == {}

            await eventually(done, what=str(entry.ref))

    def there(self, path: str) -> Any:
        return self.api.ask("GET", path)


@pytest.fixture
async def world(api, namespace, connect: Callable[..., Any]) -> AsyncIterator[World]:
    async with connect(api) as transport:
        yield World(api, namespace, transport)


def config(name: str = "settings", annotations: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def deployment(
    replicas: int | None = 2, annotations: dict[str, str] | None = None, **labels: str
) -> dict[str, Any]:
    labels = labels or {"app": "proxy"}
    container = {"name": "proxy", "image": "proxy:1", "resources": {"limits": {"cpu": "1000m"}}}
    spec: dict[str, Any] = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    spec |= {} if replicas is None else {"replicas": replicas}
    meta: dict[str, Any] = {"name": "proxy", **({"annotations": annotations} if annotations else {})}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def path(world: World, name: str = "settings") -> str:
    return f"/api/v1/namespaces/{world.namespace}/configmaps/{name}"


def of_deployment(world: World) -> str:
    return f"/apis/apps/v1/namespaces/{world.namespace}/deployments/proxy"


async def one(world: World, document: dict[str, Any]) -> Entry:
    (entry,) = world.entries(document).values()
    return entry


async def test_an_object_is_made_with_its_mark_in_one_write(world: World) -> None:
    app, entry = world.app(), await one(world, config(a="1"))
    assert await world.look(app, entry) is None
    assert await world.does(app, "create", entry, seq=7) == {}
    meta = world.there(path(world))["metadata"]
    assert meta["labels"] == {LABEL: "shop"}
    assert meta["annotations"] == {APPLIED: f"{CLUSTER}/shop/7"}
    live = await world.look(app, entry)
    assert live is not None
    assert (live.owner, live.differs, live.verdict, live.seq) == ("apps/shop", (), "ready", 7)


async def test_what_a_server_writes_by_defaults_or_in_another_form_is_no_difference(world: World) -> None:
    app, entry = world.app(), await one(world, deployment())
    await world.does(app, "create", entry)
    assert world.there(of_deployment(world))["spec"]["template"]["spec"]["containers"][0]["resources"]
    live = await world.look(app, entry)
    assert live is not None
    assert live.differs == ()
    assert live.verdict == "progressing"  # no controller runs here


async def test_a_stated_field_that_somebody_changed_differs_and_says_who_and_another_field_does_not(
    world: World,
) -> None:
    app, entry = world.app(), await one(world, config(a="1"))
    await world.does(app, "create", entry)
    world.api.patch(path(world), {"data": {"b": "2"}})
    live = await world.look(app, entry)
    assert live is not None
    assert live.differs == ()
    world.api.patch(path(world), {"data": {"a": "other"}})
    live = await world.look(app, entry)
    assert live is not None
    assert live.differs == ("data.a",)
    assert live.why
    assert await world.does(app, "repair", entry) == {}
    assert world.there(path(world))["data"] == {"a": "1", "b": "2"}


async def test_a_field_that_left_the_file_goes_and_what_others_set_stays(world: World) -> None:
    app = world.app()
    first = await one(world, config(a="1", b="2"))
    await world.does(app, "create", first)
    world.api.patch(path(world), {"data": {"c": "theirs"}})
    second = await one(world, config(a="9"))
    await world.look(app, second)
    assert await world.does(app, "update", second, seq=2) == {}
    assert world.there(path(world))["data"] == {"a": "9", "c": "theirs"}


async def test_an_ignored_field_keeps_the_live_value_through_every_apply(world: World) -> None:
    app = world.app()
    said = {"farmd.io/ignore": "spec.replicas"}
    first = await one(world, deployment(2, said))
    await world.does(app, "create", first)
    world.api.patch(of_deployment(world), {"spec": {"replicas": 7}})
    live = await world.look(app, first)
    assert live is not None
    assert live.differs == ()
    second = await one(
        world, deployment(2, said) | {"metadata": {"name": "proxy", "annotations": said | {"x": "1"}}}
    )
    await world.look(app, second)
    assert await world.does(app, "update", second, seq=2) == {}
    found = world.there(of_deployment(world))
    assert found["spec"]["replicas"] == 7
    assert found["metadata"]["annotations"]["x"] == "1"


@pytest.mark.parametrize("inherits", [True, False])
async def test_what_kubectl_applied_goes_with_a_persons_word_alone_and_the_preview_names_it(
    world: World, inherits: bool
) -> None:
    applied = config(a="1", b="2")
    applied["metadata"]["namespace"] = world.namespace
    query = "?fieldManager=kubectl-client-side-apply"
    world.api.ask("POST", path(world, "").rstrip("/") + query, applied)
    app, entry = world.app(), await one(world, config(a="1"))
    live = await world.look(app, entry)
    assert live is not None
    assert (live.owner, live.differs) == ("", ())
    told = (await app.rehearse(Act("adopt", entry.ref, entry, inherits=inherits))).note
    note = "removed, because the file does not set it: data.b"
    assert told.partition("; ")[2] == (note if inherits else "")
    await world.look(app, entry)
    assert await world.does(app, "adopt", entry, inherits=inherits) == {}
    found = world.there(path(world))
    assert found["data"] == ({"a": "1"} if inherits else {"a": "1", "b": "2"})
    managers = {each["manager"] for each in found["metadata"]["managedFields"]}
    assert managers == ({MANAGER} if inherits else {MANAGER, "kubectl-client-side-apply"})


async def test_an_adoption_takes_fields_of_other_managers_by_a_persons_word_alone(world: World) -> None:
    query = "?fieldManager=autoscaler"
    world.api.ask("POST", path(world, "").rstrip("/") + query, config(a="2"))
    app, entry = world.app(), await one(world, config(a="1"))
    live = await world.look(app, entry)
    assert live is not None
    assert live.differs == ("data.a",)
    why = 'Apply failed with 1 conflict: conflict with "autoscaler" using v1: .data.a'
    rehearsed = await app.rehearse(Act("adopt", entry.ref, entry))
    assert rehearsed.refused == f"{why}; --force-conflicts takes them over"
    assert (await world.does(app, "adopt", entry))[str(entry.ref)] == rehearsed.refused
    found = world.there(path(world))
    assert (found["data"], "annotations" in found["metadata"]) == ({"a": "2"}, False)
    assert await world.does(app, "adopt", entry, force=True) == {}
    assert world.there(path(world))["data"] == {"a": "1"}


async def test_what_kubectl_applied_is_no_conflict_for_whoever_adopts_it(world: World) -> None:
    query = "?fieldManager=kubectl-client-side-apply"
    world.api.ask("POST", path(world, "").rstrip("/") + query, config(a="2"))
    app, entry = world.app(), await one(world, config(a="1"))
    await world.look(app, entry)
    assert (await app.rehearse(Act("adopt", entry.ref, entry, inherits=True))).refused == ""
    await world.look(app, entry)
    assert await world.does(app, "adopt", entry, inherits=True) == {}
    assert world.there(path(world))["data"] == {"a": "1"}


async def test_what_kubectl_applied_to_lists_is_named_by_its_keys(world: World) -> None:
    applied = deployment(5)
    applied["metadata"]["namespace"] = world.namespace
    pod = applied["spec"]["template"]["spec"]
    pod["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    pod["containers"].append({"name": "beside", "image": "beside:1"})
    query = "?fieldManager=kubectl-client-side-apply"
    world.api.ask("POST", of_deployment(world).rpartition("/")[0] + query, applied)
    app, entry = world.app(), await one(world, deployment(None))
    await world.look(app, entry)
    told = (await app.rehearse(Act("adopt", entry.ref, entry, inherits=True))).note
    template = "spec.template.spec.containers"
    for gone in ("spec.replicas", f'{template}[{{"name":"beside"}}]', f'{template}[{{"name":"proxy"}}].env'):
        assert gone in told


def fixed(kind: str, value: str) -> dict[str, Any]:
    """An object with a field that may not change, which is one of two values."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": value}
    pod = {"containers": [{"name": "a", "image": "a:1", "command": [value]}]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
    stateful = {"serviceName": value, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    said: dict[str, tuple[str, str, dict[str, Any]]] = {
        "binding": ("rbac.authorization.k8s.io/v1", "RoleBinding", {"roleRef": role}),
        "class": ("scheduling.k8s.io/v1", "PriorityClass", {"value": len(value)}),
        "storage": ("storage.k8s.io/v1", "StorageClass", {"provisioner": "a.b", "parameters": {"c": value}}),
        "stateful": ("apps/v1", "StatefulSet", {"spec": stateful}),
        "service": (
            "v1",
            "Service",
            {"spec": {"ports": [{"port": 80}], "clusterIP": f"10.0.0.{70 + len(value)}"}},
        ),
        "headless": (
            "v1",
            "Service",
            {"spec": {"ports": [{"port": 80}], "clusterIP": "None" if value == "one" else "10.0.0.91"}},
        ),
        "pod": ("v1", "Pod", {"spec": pod}),
    }
    version, name, fields = said[kind]
    return {"apiVersion": version, "kind": name, **fields}


@pytest.mark.parametrize("kind", ["binding", "class", "storage", "stateful", "service", "headless", "pod"])
async def test_what_may_not_change_is_made_anew_by_a_persons_word(world: World, kind: str) -> None:
    meta = {"name": world.namespace, "annotations": {"farmd.io/replace": "true"}}
    app = world.app()
    await world.made(app, {**fixed(kind, "one"), "metadata": meta})
    changed = await one(world, {**fixed(kind, "second"), "metadata": meta})
    live = await world.look(app, changed)
    assert live is not None
    assert (live.fixed, live.busy) == (True, "")


async def test_what_the_server_would_not_take_as_a_new_object_either_is_not_made_anew(world: World) -> None:
    app = world.app()
    await world.made(app, deployment(1))
    wrong = await one(world, deployment(-1, {"farmd.io/replace": "true"}))
    live = await world.look(app, wrong)
    assert live is not None
    assert not live.fixed
    assert "spec.replicas: Invalid value: -1" in live.busy


async def test_a_new_object_is_tried_on_the_server_before_it_is_recorded(world: World) -> None:
    wrong = deployment(replicas=-1)
    elsewhere = {**config("b"), "metadata": {"name": "b", "namespace": "nowhere"}}
    unknown = {"apiVersion": "shop.example/v9", "kind": "Row", "metadata": {"name": "c"}}
    app, told = world.app(), {}
    for document in (config("a"), wrong, elsewhere, unknown):
        entry = await one(world, document)
        assert await world.look(app, entry) is None
        told[entry.ref.name] = await app.rehearse(Act("create", entry.ref, entry))
    assert told["a"] == Rehearsal(note="server dry run: ok")
    assert "spec.replicas: Invalid value: -1: must be greater than or equal to 0" in told["proxy"].refused
    assert told["b"] == Rehearsal(note='cannot be tried now: namespaces "nowhere" not found')
    assert told["c"].note == "cannot be tried now: the server has no kind Row of shop.example/v9"
    for name in ("a", "proxy"):
        assert await world.look(app, await one(world, config(name) if name == "a" else wrong)) is None


@pytest.mark.parametrize(
    ("labels", "annotations", "owner"),
    [
        ({}, {"meta.helm.sh/release-name": "shop"}, "Helm's release shop"),
        ({}, {"argocd.argoproj.io/tracking-id": "shop:x"}, "Argo CD (shop:x)"),
        ({"kustomize.toolkit.fluxcd.io/name": "k"}, {}, "Flux's kustomization k"),
        ({"kapp.k14s.io/app": "1"}, {}, "kapp (1)"),
        ({LABEL: "shop"}, {APPLIED: "decaf000/shop/3"}, "app shop of another cluster of farmd (decaf000)"),
        ({LABEL: "other"}, {APPLIED: f"{CLUSTER}/other/3"}, "apps/other"),
        ({LABEL: "shop"}, {APPLIED: "what"}, ""),
    ],
)
async def test_the_mark_of_another_owner_is_read_and_nothing_is_compared(
    world: World, labels: dict[str, str], annotations: dict[str, str], owner: str
) -> None:
    made = config(a="1")
    made["metadata"] |= {"labels": labels, "annotations": annotations}
    world.api.ask("POST", path(world, "").rstrip("/"), made)
    live = await world.look(world.app(), await one(world, config(a="1")))
    assert live is not None
    assert (live.owner, live.differs) == (owner, ())


async def test_an_immutable_field_needs_a_persons_word_to_be_made_anew(world: World) -> None:
    app, entry = world.app(), await one(world, deployment())
    await world.does(app, "create", entry)
    plain = await one(world, deployment(app="other"))
    live = await world.look(app, plain)
    assert live is not None
    assert 'farmd.io/replace: "true" replaces it' in live.busy
    allowed = await one(world, deployment(2, {"farmd.io/replace": "true"}, app="other"))
    live = await world.look(app, allowed)
    assert live is not None
    assert live.fixed
    uid = world.there(of_deployment(world))["metadata"]["uid"]
    assert await world.does(app, "replace", allowed) == {}
    assert await world.does(app, "create", allowed) == {}
    assert world.there(of_deployment(world))["metadata"]["uid"] != uid


async def test_r16_what_changed_since_it_was_read_is_neither_written_nor_deleted(world: World) -> None:
    app, entry = world.app(), await one(world, config(a="1"))
    await world.does(app, "create", entry)
    for verb in ("update", "remove"):
        await world.look(app, entry)
        world.api.patch(path(world), {"data": {"b": verb}})
        waiting = await world.does(app, verb, entry)
        assert "modified" in waiting[str(entry.ref)]
    assert world.there(path(world))["data"]["b"] == "remove"
    await world.look(app, entry)
    assert await world.does(app, "remove", entry) == {}
    assert await world.look(app, entry) is None


async def test_r31_of_two_apps_that_create_one_object_in_one_instant_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, entry = world.app("first"), world.app("second"), await one(world, config(a="1"))
    before = await world.look(second, entry)
    await world.does(first, "create", entry)

    async def too_early(_: Api, __: TypedReference) -> None:
        return before

    monkeypatch.setattr(Api, "get", too_early)
    told = await world.does(second, "create", entry)
    monkeypatch.undo()
    assert told[str(entry.ref)] == "as farmd:app:second: somebody else created it in the meantime"
    assert world.there(path(world))["metadata"]["labels"] == {LABEL: "first"}


async def test_a_hand_over_changes_the_mark_in_one_write_and_nothing_else(world: World) -> None:
    app, other, entry = world.app(), world.app("other"), await one(world, config(a="1"))
    await world.does(app, "create", entry, seq=41)
    await world.look(app, entry)
    assert await world.does(app, "hand", entry, to="other") == {}
    live = await world.look(other, entry)
    assert live is not None
    assert (live.owner, live.differs, live.seq) == ("apps/other", (), 0)
    assert await world.does(other, "release", entry) == {}
    meta = world.there(path(world))["metadata"]
    assert not meta.get("labels")
    assert not meta.get("annotations")


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "rows.shop.example", "annotations": {"farmd.io/on-remove": "delete"}},
    "spec": {
        "group": "shop.example",
        "scope": "Namespaced",
        "names": {"kind": "Row", "plural": "rows", "singular": "row", "listKind": "RowList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


async def test_a_definition_and_its_objects_in_one_step(world: World) -> None:
    row = {"apiVersion": "shop.example/v1", "kind": "Row", "metadata": {"name": "a"}, "spec": {"b": 1}}
    entries = world.entries(row, CRD)
    app = world.app()
    assert await app.read(entries, False) == {}
    assert await world.does(app, "create", *entries.values()) == {}
    live = await app.read(entries, False)
    assert {ref: each.verdict for ref, each in live.items()} == dict.fromkeys(entries, "ready")
    assert await world.does(app, "remove", *entries.values()) == {}
    assert {each.ref.kind for each in (await app.read(entries, False)).values()} <= {
        "CustomResourceDefinition"
    }


async def test_what_leaves_the_file_goes_back_to_its_default_and_without_one_is_gone(world: World) -> None:
    app = world.app()
    await world.made(app, definition("unset.example", "Row"))

    def row(**spec: Any) -> dict[str, Any]:
        return {"apiVersion": "unset.example/v1beta1", "kind": "Row", "metadata": {"name": "r"}, "spec": spec}

    def with_volumes(replicas: int | None, *names: str) -> dict[str, Any]:
        made = deployment(replicas)
        made["spec"]["template"]["spec"] |= {"volumes": volumes(*names)} if names else {}
        return made

    def volumes(*names: str) -> list[dict[str, Any]]:
        return [{"name": name, "emptyDir": {}} for name in names]

    of_row = f"/apis/unset.example/v1beta1/namespaces/{world.namespace}/rows/r"
    await world.made(app, with_volumes(3, "a"), row(replicas=3, volumes=volumes("a")))
    for replicas, names, found in ((5, ("a", "b"), (5, 2)), (None, (), (1, 0))):
        said = {"replicas": replicas, "volumes": volumes(*names)} if names else {}
        for document in (with_volumes(replicas, *names), row(**said)):
            assert await world.does(app, "update", await one(world, document)) == {}
        spec = world.there(of_deployment(world))["spec"]
        assert (spec["replicas"], len(spec["template"]["spec"].get("volumes", []))) == found
        custom = world.there(of_row)["spec"] or {}
        assert (custom.get("replicas"), len(custom.get("volumes", []))) == (found if names else (None, 0))


async def test_what_another_applier_sets_beside_the_file_survives_the_next_apply(world: World) -> None:
    app, entry = world.app(), await one(world, deployment(3))
    await world.does(app, "create", entry)
    volume = {"name": "theirs", "emptyDir": {}}
    side = {"name": "side", "image": "side:1"}
    theirs = {"minReadySeconds": 10, "progressDeadlineSeconds": 20}
    pods = {"template": {"spec": {"volumes": [volume], "containers": [side]}}}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {**theirs, **pods}}
    query = "?fieldManager=other"
    world.api.ask("PATCH", of_deployment(world) + query, body, "application/apply-patch+yaml")
    assert await world.does(app, "update", entry) == {}
    spec = world.there(of_deployment(world))["spec"]
    assert (spec["minReadySeconds"], spec["progressDeadlineSeconds"]) == (10, 20)
    assert spec["template"]["spec"]["volumes"] == [volume]
    assert {each["name"] for each in spec["template"]["spec"]["containers"]} == {"proxy", "side"}


def definition(group: str, kind: str) -> dict[str, Any]:
    """A definition of a kind whose objects have any fields."""
    plural = f"{kind.lower()}s"
    return {
        **CRD,
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            **CRD["spec"],
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{**CRD["spec"]["versions"][0], "name": "v1beta1"}],
        },
    }


async def test_an_object_is_listed_in_the_scopes_that_it_names_as_long_as_it_names_them(world: World) -> None:
    app, group = world.app(), "core.oam.dev/v1beta1"
    kinds = ("HealthScope", "ScopeDefinition")
    await world.made(app, *(definition("core.oam.dev", kind) for kind in kinds))
    health = {"apiVersion": group, "kind": "HealthScope", "metadata": {"name": "health"}}
    path_of = {"spec": {"workloadRefsPath": "spec.workloadRefs"}}
    meta = {"name": "healthscopes.core.oam.dev"}
    kind = {"apiVersion": group, "kind": "ScopeDefinition", "metadata": meta, **path_of}
    named = await one(world, config(annotations={"farmd.io/scopes": f"{group}/HealthScope/health"}, a="1"))

    def listed() -> Any:
        place = f"/apis/{group}/namespaces/{world.namespace}/healthscopes/health"
        return [each["name"] for each in world.there(place).get("spec", {}).get("workloadRefs", [])]

    await world.made(app, health, kind)
    assert await world.does(app, "create", named) == {}
    assert listed() == ["settings"]
    world.api.patch(f"/apis/{group}/namespaces/{world.namespace}/healthscopes/health", {"spec": None})
    live = await world.look(world.app(), named)
    assert live is not None
    assert live.differs == ("scopes",)
    for verb in ("update", "remove"):
        await world.does(app, "update", named)
        assert listed() == ["settings"]
        await world.does(app, verb, await one(world, config(a="1")))
        assert listed() == []
    assert await world.look(app, named) is None


async def test_an_object_whose_kind_is_defined_and_not_served_is_unknown_and_not_gone(world: World) -> None:
    crd = json.loads(json.dumps(CRD).replace("rows", "cols").replace("Row", "Col").replace("row", "col"))
    crd["spec"]["versions"].append(
        crd["spec"]["versions"][0] | {"name": "v2", "storage": False, "served": False}
    )
    base = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    world.api.ask("POST", base, crd)
    try:
        unserved = Entry(
            ref=(
                await one(world, {"apiVersion": "shop.example/v2", "kind": "Col", "metadata": {"name": "a"}})
            ).ref
        )
        with pytest.raises(
            Unavailable, match=r"Col\.shop\.example: it is defined, but shop\.example/v2 is not served"
        ):
            await Discovery(world.transport).find(unserved.ref.api_version, unserved.ref.kind)
    finally:
        world.api.ask("DELETE", f"{base}/cols.shop.example")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("data", {"a": 1}, "expected string"),
        ("dara", {"a": "1"}, "field not declared"),
        ("binaryData", {"a": "no base64"}, "illegal base64"),
    ],
)
async def test_a_field_that_the_kind_has_not_or_not_so_is_refused_and_not_unknown(
    world: World, field: str, value: Any, told: str
) -> None:
    app, entry = world.app(), await one(world, config() | {field: value})
    rehearsed = await app.rehearse(Act("create", entry.ref, entry))
    assert told in rehearsed.refused
    assert told in (await world.does(app, "create", entry))[str(entry.ref)]
    good = await one(world, config(a="1"))
    await world.does(app, "create", good)
    live = await world.look(app, entry)
    assert live is not None
    assert told in live.busy
    assert live.denied


async def test_an_object_that_goes_is_busy_and_keeps_the_verdict_that_it_had(world: World) -> None:
    app, document = world.app(), config(a="1")
    document["metadata"]["finalizers"] = ["shop.example/hold"]
    entry = await one(world, document)
    await world.does(app, "create", entry)
    world.api.ask("DELETE", path(world))
    live = await world.look(app, entry)
    assert live is not None
    assert (live.verdict, live.busy) == ("ready", "is being deleted, held by shop.example/hold")
    world.api.patch(path(world), {"metadata": {"finalizers": None}})


async def test_a_namespace_that_goes_takes_nothing_new_and_says_so(world: World) -> None:
    app = world.app()
    name = f"{world.namespace}-going"
    world.api.namespace(name)
    world.api.patch(f"/api/v1/namespaces/{name}", {"metadata": {"finalizers": ["shop.example/hold"]}})
    world.api.ask("DELETE", f"/api/v1/namespaces/{name}")
    inside = config(a="1")
    inside["metadata"]["namespace"] = name
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    entries = world.entries(space, inside)
    live = (await app.read(entries, False))[f"namespace.core/{name}"]
    assert "is being deleted, held by shop.example/hold" in live.busy
    waiting = await world.does(app, "create", entries[f"configmap.core/{name}/settings"])
    assert "because it is being terminated" in waiting[f"configmap.core/{name}/settings"]


async def test_the_apps_own_user_decides_what_a_bundle_may_touch(
    world: World, connect: Callable[..., Any]
) -> None:
    world.api.grant("farm", {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]})
    group = "/apis/rbac.authorization.k8s.io/v1"
    spaced = f"{group}/namespaces/{world.namespace}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}]
    world.api.ask("POST", f"{spaced}/roles", {"metadata": {"name": "shop"}, "rules": rules})
    reference = {"kind": "Role", "name": "shop", "apiGroup": "rbac.authorization.k8s.io"}
    subjects = [{"kind": "User", "name": "farmd:app:shop", "apiGroup": "rbac.authorization.k8s.io"}]
    binding = {"metadata": {"name": "shop"}, "subjects": subjects, "roleRef": reference}
    world.api.ask("POST", f"{spaced}/rolebindings", binding)
    async with connect(world.api, "farm") as transport:
        apps = World(world.api, world.namespace, transport)
        shop, other = apps.app(impersonate=True), apps.app("other", impersonate=True)
        entry = await one(world, config(a="1"))
        assert await world.does(shop, "create", entry) == {}
        secret = await one(world, deployment())
        live = await world.look(shop, secret)
        assert live is not None
        assert 'User "farmd:app:shop" cannot get resource "deployments"' in live.busy
        denied = await world.look(other, entry)
        assert denied is not None
        assert 'User "farmd:app:other" cannot get resource "configmaps"' in denied.busy
        await world.look(shop, entry)
        assert "cannot delete" in (await world.does(shop, "remove", entry))[str(entry.ref)]


async def test_as_many_objects_are_written_at_once_as_may_be_in_flight_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, send, flying, most = world.app(), world.transport.send, 0, 0
    entries = world.entries(*(config(f"c{number:02}", a="1") for number in range(MOST_IN_FLIGHT + 8)))
    await app.read(entries, False)

    async def counted(request: ApiRequest, timeout: float = 10.0) -> bytes:
        """Let no write go before so many are on their way."""
        nonlocal flying, most
        if not request.write:
            return await send(request, timeout)
        flying += 1
        most = max(most, flying)
        async with asyncio.timeout(LIMIT):
            while most < MOST_IN_FLIGHT:
                await asyncio.sleep(0.01)
        try:
            return await send(request, timeout)
        finally:
            flying -= 1

    monkeypatch.setattr(world.transport, "send", counted)
    assert await world.does(app, "create", *entries.values()) == {}
    assert most == MOST_IN_FLIGHT


async def test_an_object_that_nobody_can_be_asked_for_is_not_taken_for_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, entry = world.app(), await one(world, config(a="1"))
    await world.look(app, entry)

    async def down(*_: object, **__: object) -> bytes:
        raise Unavailable("no answer")

    monkeypatch.setattr(world.transport, "send", down)
    with pytest.raises(StoreUnavailable, match="no answer"):
        await world.look(app, entry)


async def test_r12_an_answer_that_is_lost_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, entry = world.app(), await one(world, config(a="1"))

    async def lost(*_: object, **__: object) -> bytes:
        raise UnknownOutcome("no answer")

    await world.look(app, entry)
    send = world.transport.send

    async def only_reads(request: Any, timeout: float = 10.0) -> bytes:
        return await (lost() if request.write else send(request, timeout))

    monkeypatch.setattr(world.transport, "send", only_reads)
    with pytest.raises(OutcomeUnknown):
        await world.does(app, "create", entry)


async def test_r16_no_write_of_a_plan_goes_on_after_one_whose_outcome_is_unknown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, send, flying, begun = world.app(), world.transport.send, set[str](), asyncio.Event()
    entries = world.entries(*(config(f"c{number}", a="1") for number in range(4)))
    await app.read(entries, False)

    async def lost(request: ApiRequest, timeout: float = 10.0) -> bytes:
        if not request.write:
            return await send(request, timeout)
        if request.path.endswith("c0"):
            await begun.wait()
            raise UnknownOutcome("no answer")
        flying.add(request.path)
        if len(flying) == len(entries) - 1:
            begun.set()
        try:
            return await asyncio.Event().wait()  # type: ignore[return-value]
        finally:
            flying.discard(request.path)

    monkeypatch.setattr(world.transport, "send", lost)
    with pytest.raises(OutcomeUnknown):
        await world.does(app, "create", *entries.values())
    assert flying == set()


@pytest.mark.parametrize("kind", [UnexpectedAnswer, Gone])
async def test_an_answer_that_nobody_expects_is_told_and_ends_no_worker(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: type[KubernetesError]
) -> None:
    app, entry, send = world.app(), await one(world, config(a="1")), world.transport.send
    await world.look(app, entry)

    async def odd(request: ApiRequest, timeout: float = 10.0) -> bytes:
        if request.write:
            raise kind("405: the server does not allow this method", status=405)
        return await send(request, timeout)

    monkeypatch.setattr(world.transport, "send", odd)
    told = await world.does(app, "create", entry)
    assert told == {str(entry.ref): "as farmd:app:shop: 405: the server does not allow this method"}


async def test_a_server_that_is_lost_right_after_it_made_a_namespace_ends_no_worker(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, send = f"{world.namespace}-lost", world.transport.send
    entry = await one(world, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    app = world.app()
    await world.look(app, entry)

    async def lost(request: ApiRequest, timeout: float = 10.0) -> bytes:
        if not request.write and request.path.endswith(name):
            raise Unavailable("no answer")
        return await send(request, timeout)

    monkeypatch.setattr(world.transport, "send", lost)
    assert await world.does(app, "create", entry) == {}


@pytest.mark.parametrize("verb", ["remove", "release", "update", "replace"])
async def test_a1_what_a_plan_did_not_read_is_left_alone_once_it_bears_another_mark(
    world: World, verb: Verb
) -> None:
    """A watch showed it as the app's own, made too late; another app has it since."""
    entry = await one(world, config(a="1"))
    await world.does(world.app("other"), "create", entry)
    before = world.there(path(world))
    told = await world.does(world.app(), verb, entry)
    assert told == {str(entry.ref): "as farmd:app:shop: it no longer belongs to the app"}
    assert world.there(path(world)) == before


async def test_scopes_that_somebody_wrote_wrongly_hold_up_no_change(world: World) -> None:
    app, entry = world.app(), await one(world, config(a="1"))
    await world.does(app, "create", entry)
    for verb in ("update", "remove"):
        world.api.patch(path(world), {"metadata": {"annotations": {"farmd.io/scopes": "what"}}})
        await world.look(app, entry)
        assert await world.does(app, verb, entry) == {}
    assert await world.look(app, entry) is None


async def test_what_no_watch_shows_is_looked_at_again_soon_and_what_one_shows_is_not(world: World) -> None:
    watching = Watching(world.transport, (world.namespace,), SystemClock(), system_rng())
    api = Api(world.transport, Discovery(world.transport), "shop", lambda: 10.0, impersonate=False)
    entry = await one(world, deployment())
    app = Applicator(api, "shop", CLUSTER, SystemClock(), watching)
    try:
        await world.does(app, "create", entry)

        async def shown() -> bool:
            live = await world.look(app, entry)
            return live is not None and (live.verdict, live.settles) == ("progressing", None)

        await eventually(shown, what="the watch shows the object")
    finally:
        await watching.close()
    live = await world.look(world.app(), entry)
    assert live is not None
    assert (live.verdict, live.settles) == ("progressing", LOOK_AGAIN_SECONDS)


async def test_what_was_read_and_is_not_there_is_gone_whatever_a_watch_in_doubt_still_shows(
    world: World,
) -> None:
    """A definition that goes may take its objects along before their watch has told of it."""
    watching = Watching(world.transport, (world.namespace,), SystemClock(), system_rng())
    api = Api(world.transport, Discovery(world.transport), "shop", lambda: 10.0, impersonate=False)
    entry = await one(world, config(a="1"))
    app = Applicator(api, "shop", CLUSTER, SystemClock(), watching)
    ref = str(entry.ref)
    try:
        await world.does(app, "create", entry)

        async def shown() -> bool:
            return ref in await app.read({}, False)

        await eventually(shown, what="the watch shows the object")
    finally:
        await watching.close()
    world.api.ask("DELETE", path(world))
    (informer,) = watching._watches.values()
    informer.doubt, informer.denied = "403: forbidden", True
    assert ref in await app.read({}, False)
    assert await app.read({ref: entry}, False) == {}
    informer.doubt, informer.denied = "404: page not found", False
    assert await app.read({}, False) == {}


async def test_an_object_is_never_older_than_the_moment_at_which_it_was_made(world: World) -> None:
    """The server tells the second alone; else what came late would look older than the target."""
    app, entry = world.app(), await one(world, config(a="1"))
    for _ in range(3):
        before = SystemClock().now()
        await world.does(app, "create", entry)
        live = await world.look(app, entry)
        assert live is not None
        assert before <= live.created <= before + 3.0
        await world.does(app, "remove", entry)


async def test_what_an_app_wrote_itself_is_read_again_only_when_somebody_else_changed_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    watching = Watching(world.transport, (world.namespace,), SystemClock(), system_rng())
    api = Api(world.transport, Discovery(world.transport), "shop", lambda: 10.0, impersonate=False)
    app = Applicator(api, "shop", CLUSTER, SystemClock(), watching)
    (entry,) = world.entries(config(mode="production")).values()
    path = f"/api/v1/namespaces/{world.namespace}/configmaps/settings"
    resource, read, send = await api.resource(entry.ref), list[str](), world.transport.send
    assert resource is not None

    async def counted(request: ApiRequest, *rest: Any, **more: Any) -> Any:
        read.extend([request.path] * (request.method == "GET" and request.path == path))
        return await send(request, *rest, **more)

    async def shown() -> bool:
        return watching.version(resource, entry.ref) == world.there(path)["metadata"]["resourceVersion"]

    try:
        assert await world.look(app, entry) is None
        assert await world.does(app, "create", entry) == {}
        await eventually(shown, what="the watch shows the object")
        monkeypatch.setattr(world.transport, "send", counted)
        looks = [await world.look(app, entry) for _ in range(2)]
        assert [(live and live.owner, live and live.differs) for live in looks] == [("apps/shop", ())] * 2
        assert read == []
        world.api.patch(path, {"data": {"mode": "other"}})
        await eventually(shown, what="the watch shows the change")
        changed = await world.look(app, entry)
        assert changed is not None
        assert (changed.differs, read) == (("data.mode",), [path])
    finally:
        await watching.close()
