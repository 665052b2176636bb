"""One object that does not decode is named and left out; the others of its list are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from farmd.kubernetes.client import Objects
from farmd.kubernetes.errors import Misfit
from farmd.kubernetes.jobs.view import Jobs
from farmd.kubernetes.objects import PODS, KubePod
from tests.unit.kubernetes.test_requests import asking

MISFIT = {"metadata": {"name": "bad", "namespace": "ml", "uid": "1", "labels": ["no", "map"]}}
NAMED = "ml/bad: Expected `object"


def fitting(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": "7"}}


async def answer(request: web.Request) -> web.Response:
    if request.path.endswith("/bad"):
        return web.json_response(MISFIT)
    items = [fitting("a"), MISFIT, fitting("b")] if "tfjobs" not in request.path else []
    return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})


async def test_a_misfit_of_a_list_is_named_and_left_out(tmp_path: Path) -> None:
    async with asking(tmp_path, answer) as transport:
        pods = Objects(transport, PODS, KubePod, "pods", lambda: 10.0)
        assert [each.metadata.name for each in await pods.list("ml")] == ["a", "b"]
        (line,) = pods.misfits
        assert line.startswith(f"pods {NAMED}")


async def test_a_misfit_alone_is_one_clear_error(tmp_path: Path) -> None:
    async with asking(tmp_path, answer) as transport:
        pods = Objects(transport, PODS, KubePod, "pods", lambda: 10.0)
        with pytest.raises(Misfit, match=f"pods {NAMED}"):
            await pods.get("ml", "bad")


async def test_people_see_the_other_jobs_and_a_line_for_the_misfit(tmp_path: Path) -> None:
    async with asking(tmp_path, answer) as transport:
        found = await Jobs(transport).list("ml")
    assert [each.name for each in found.jobs] == ["ml/a", "ml/a", "ml/b", "ml/b"]
    assert [line.partition(" ")[0] for line in found.refused] == [
        "farmjobs.farmd.io",
        "pytorchjobs.kubeflow.org",
    ]
