"""Services at rest cost nothing: a fleet with many of them sends no request more than one with few."""

from __future__ import annotations

from collections import Counter

import pytest

from store.ports import Request, Response
from tests.people import KEYS
from tests.stateful.deploying import Deploying, spec
from tests.stateful.scene import Scene

REST_SECONDS = 600.0


def test_services_at_rest_are_never_asked_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    deploying, asked, handle = Deploying(scene, farms=("ash",)), Counter[str](), scene.server.handle

    async def counted(request: Request) -> Response:
        asked[f"{request.method} {request.path}"] += 1
        return await handle(request)

    monkeypatch.setattr(scene.server, "handle", counted)

    def at_rest(*names: str) -> Counter[str]:
        deploying.ended(deploying.deploy(*(spec(name, replicas=1) for name in names)))
        scene.advance(60.0)
        asked.clear()
        scene.advance(REST_SECONDS)
        return asked.copy()

    few, many = at_rest("web"), at_rest(*(f"s{number}" for number in range(15)))
    assert many["PUT /v1/txn"] == few["PUT /v1/txn"]
    tree = f"GET /v1/kv/{KEYS.tree('services')}"  # one query of the farm, however many there are
    assert {path for path in many if "services" in path} <= {tree}, many
    assert many[tree] == few[tree]
    assert many.total() <= few.total() * 1.05, many - few
