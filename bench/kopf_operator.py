"""An operator on kopf that creates what a farm creates for a new job; J2 compares its CPU time.

``python -m bench.kopf_operator NAMESPACE CLIENT``, with a kubeconfig in KUBECONFIG. kopf brings the watch and
the handling of events. CLIENT is ``official``, Kubernetes' own client for Python in kopf's threads, as kopf's
documentation shows it; or ``lean``, one aiohttp session with as many requests in flight as a farm has, which
is the least that Python needs for these requests.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import aiohttp
import kopf
import kubernetes

from bench.kubernetes import JOBS, Call, written
from bench.processes import tell
from farmd.kubernetes.access import access
from farmd.kubernetes.pace import MOST_IN_FLIGHT
from farmd.runtime.clock import SystemClock

CREATED = {"type": "Created", "status": "True", "reason": "JobCreated", "message": ""}


class Lean:
    """Requests over one aiohttp session."""

    async def begin(self) -> None:
        """Open the session."""
        where = access(os.environ, SystemClock())
        login = await where.credentials.login()
        connector = aiohttp.TCPConnector(ssl=login.tls, limit=0)
        self._session = aiohttp.ClientSession(where.url, connector=connector, headers=login.headers)
        self._gate = asyncio.Semaphore(MOST_IN_FLIGHT)

    async def create(self, calls: list[Call]) -> None:
        """Create all objects."""
        await asyncio.gather(*map(self._one, calls))

    async def _one(self, call: Call) -> None:
        async with self._gate, self._session.post(call.path, json=call.body) as answer:
            answer.raise_for_status()
            await answer.read()


class Official:
    """Requests by Kubernetes' own client, in threads."""

    async def begin(self) -> None:
        """Read the kubeconfig."""
        kubernetes.config.load_kube_config()
        self._core = kubernetes.client.CoreV1Api()

    async def create(self, calls: list[Call]) -> None:
        """Create all objects."""
        await asyncio.to_thread(self._all, calls)

    def _all(self, calls: list[Call]) -> None:
        for call in calls:
            pod = call.body["kind"] == "Pod"
            create = self._core.create_namespaced_pod if pod else self._core.create_namespaced_service
            create(call.body["metadata"]["namespace"], call.body)


client = Official() if sys.argv[2] == "official" else Lean()


@kopf.on.startup()
async def begin(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Log in; kopf sends no events of its own, as a farm does not either."""
    settings.posting.enabled = False
    await client.begin()
    tell("ready")


@kopf.on.create(JOBS.group, JOBS.version, JOBS.plural)
async def created(body: kopf.Body, patch: kopf.Patch, **_: Any) -> None:
    """Create the service and the pods of a job; its first status is kopf's patch."""
    await client.create(written(_plain(body), {})[1:])
    patch.status["conditions"] = [CREATED]


def _plain(data: Any) -> Any:
    """A copy of kopf's views as plain data."""
    if hasattr(data, "items"):
        return {name: _plain(each) for name, each in data.items()}
    return [_plain(each) for each in data] if isinstance(data, list) else data


if __name__ == "__main__":
    kopf.run(namespaces=[sys.argv[1]], standalone=True)
