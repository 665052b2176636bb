"""Requests to a real API server: logins, refusals by their type, preconditions, throttling."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from farmd.kubernetes import errors
from farmd.kubernetes.objects import PODS
from farmd.kubernetes.transport import ApiRequest, KubernetesTransport
from tests.kubernetes_server import TOKENS, ApiServer, pod

pytestmark = pytest.mark.xdist_group("kubernetes")
READ = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}


async def created(transport: KubernetesTransport, namespace: str, name: str) -> dict[str, Any]:
    """A new pod."""
    body = json.dumps(pod(name)).encode()
    return json.loads(await transport.send(ApiRequest("POST", PODS.path(namespace), body=body)))


async def test_a_client_certificate_and_a_token_are_logins(api, namespace, connect):
    api.grant("reader", READ)
    async with connect(api) as admin, connect(api, "reader") as reader:
        await created(admin, namespace, "p")
        listed = json.loads(await reader.send(ApiRequest("GET", PODS.path(namespace))))
        assert [each["metadata"]["name"] for each in listed["items"]] == ["p"]
        with pytest.raises(errors.Forbidden, match='cannot create resource "pods"') as refused:
            await created(reader, namespace, "q")
        assert refused.value.reason == "Forbidden"


async def test_a_bad_token_is_unauthorized(api, connect, monkeypatch):
    monkeypatch.setitem(TOKENS, "nobody", "another-token")
    async with connect(api, "nobody") as nobody:
        with pytest.raises(errors.Unauthorized):
            await nobody.send(ApiRequest("GET", PODS.path("default")))


async def test_refusals_have_the_server_s_reason(api, namespace, connect):
    async with connect(api) as admin:
        await created(admin, namespace, "p")
        with pytest.raises(errors.AlreadyExists):
            await created(admin, namespace, "p")
        with pytest.raises(errors.Invalid, match=r"metadata\.name"):
            await created(admin, namespace, "No Name")
        with pytest.raises(errors.NotFound) as missing:
            await admin.send(ApiRequest("GET", PODS.path(namespace, "q")))
        assert missing.value.reason == "NotFound"
        with pytest.raises(errors.NotFound):
            await admin.send(ApiRequest("GET", "/apis/no.such.group/v1/things"))


async def test_a_deletion_with_another_uid_or_version_deletes_nothing(api, namespace, connect):
    async with connect(api) as admin:
        uid = (await created(admin, namespace, "p"))["metadata"]["uid"]
        for wrong in ({"uid": "other"}, {"uid": uid, "resourceVersion": "1"}):
            body = json.dumps({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": wrong})
            with pytest.raises(errors.Conflict):
                await admin.send(ApiRequest("DELETE", PODS.path(namespace, "p"), body=body.encode()))
        assert api.ask("GET", PODS.path(namespace, "p"))["metadata"]["uid"] == uid


async def test_the_server_s_time_is_known_from_its_answers(api, connect):
    async with connect(api) as admin:
        await admin.send(ApiRequest("GET", PODS.path("default")))
        assert admin._ahead is not None


async def test_a_throttled_farm_obeys_and_gets_everything_done(etcd, api, namespace, connect):
    limits = ("--max-requests-inflight=1", "--max-mutating-requests-inflight=1")
    api.grant("farm", READ | {"verbs": ["*"]})
    with ApiServer(etcd, "--enable-priority-and-fairness=false", *limits) as narrow:
        async with connect(narrow, "farm") as farm:
            refused: list[int] = []
            halve = farm.pace.congested
            farm.pace.congested = lambda *told: (refused.append(farm.pace.limit), halve(*told))
            body = [
                ApiRequest("POST", PODS.path(namespace), body=json.dumps(pod(f"p{i}")).encode())
                for i in range(60)
            ]
            await asyncio.gather(*(farm.send(each, 60) for each in body))
            assert refused, "the server never answered 429"
    assert len(api.ask("GET", PODS.path(namespace))["items"]) == 60
