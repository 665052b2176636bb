"""Bundles that kustomize and Helm render, through an app's whole life on a real API server.

What they render is checked in beside its source, so that these tests need no renderer; one test renders it
anew with the real ones.
"""

from __future__ import annotations

import asyncio
import subprocess
import urllib.error
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from farmd.apps import commands
from farmd.commands.mutation import commit
from farmd.kubernetes.apps.marks import APPLIED, LABEL
from tests.binaries import binary
from tests.fleet import eventually
from tests.kubernetes.apps import Apps

pytestmark = pytest.mark.xdist_group("kubernetes")
BUNDLES = Path(__file__).parents[1] / "bundles"
DEPLOYMENTS = "/apis/apps/v1"
RENDERERS = {
    "kustomize": ("build", str(BUNDLES / "kustomize/prod")),
    "helm": ("template", "--no-hooks", "-n", "bundles", "shop", str(BUNDLES / "chart")),
}


class Life(NamedTuple):
    """What becomes of a bundle: its file, its deployment, the edit that makes the next revision, what that
    leaves behind, and what stays when the app is gone.
    """

    file: str
    deployment: str
    edit: Callable[[str], str]
    gone: str
    stays: str


def _without_ledger(text: str) -> str:
    return "---".join(part for part in text.split("---") if "shop-ledger" not in part)


KUSTOMIZE = Life(
    "kustomize.yaml",
    "prod-proxy",
    lambda text: text.replace("level: warn", "level: info").replace("5dhcm78964", "hb2m5k9cgt"),
    "configmaps/prod-settings-5dhcm78964",
    "persistentvolumeclaims/prod-data",
)
CHART = Life("chart.yaml", "shop", _without_ledger, "", "configmaps/shop-ledger")


@pytest.mark.parametrize("renderer", RENDERERS)
def test_what_is_checked_in_is_what_the_real_tool_renders(renderer: str) -> None:
    made = subprocess.run(
        [binary(renderer), *RENDERERS[renderer]], check=True, capture_output=True, text=True
    ).stdout
    life = KUSTOMIZE if renderer == "kustomize" else CHART
    assert made == (BUNDLES / life.file).read_text()


@asynccontextmanager
async def controlled(apps: Apps, life: Life) -> AsyncIterator[None]:
    """Deployments and claims whose controllers, which do not run here, have done all that is asked; one that
    fell fails the test.
    """

    async def play() -> None:
        while True:
            if found := apps.there(f"deployments/{life.deployment}", DEPLOYMENTS):
                count = found["spec"]["replicas"]
                counts = dict.fromkeys(
                    ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), count
                )
                status = {"observedGeneration": found["metadata"]["generation"], **counts}
                told(f"deployments/{life.deployment}", DEPLOYMENTS, status)
            if "claim" in life.stays and apps.there(life.stays):
                told(life.stays, "/api/v1", {"phase": "Bound"})
            await asyncio.sleep(0.2)

    def told(path: str, group: str, status: dict[str, Any]) -> None:
        try:
            apps.api.patch(f"{group}/namespaces/{apps.namespace}/{path}/status", {"status": status})
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:  # it may be gone again
                raise

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("life", [KUSTOMIZE, CHART], ids=["kustomize", "helm"])
async def test_a_rendered_bundle_is_applied_changed_pruned_and_taken_down(apps: Apps, life: Life) -> None:
    await apps.farm("first")
    text = (BUNDLES / life.file).read_text().replace("namespace: bundles", f"namespace: {apps.namespace}")
    async with controlled(apps, life):
        await apps.apply_files("shop", (text, life.file))
        await apps.reached("shop", 1)
        assert apps.there(life.stays)["metadata"]["labels"][LABEL] == "shop"
        await apps.apply_files("shop", (life.edit(text), life.file), prune=True)
        await apps.reached("shop", 2)
        if life.gone:
            assert apps.there(life.gone) is None
        assert apps.there(f"deployments/{life.deployment}", DEPLOYMENTS)["spec"]["replicas"] == 2
        mutation, _ = await commands.delete(apps.call, "shop", keep=False)
        await commit(apps.call, mutation)
        await apps.until("shop", "gone", lambda now: now.stored is None)

        async def alone() -> bool:
            return apps.there(f"deployments/{life.deployment}", DEPLOYMENTS) is None

        await eventually(alone, what="the end of the deployment")
    kept = apps.there(life.stays)["metadata"]
    assert LABEL not in kept.get("labels", {})
    assert APPLIED not in kept.get("annotations", {})
