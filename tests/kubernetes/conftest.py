"""One API server for the whole tier: its tests are one group of xdist, each has a namespace of its own."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from farmd.kubernetes.access import access
from farmd.kubernetes.install import install
from farmd.kubernetes.transport import KubernetesTransport
from farmd.runtime.clock import SystemClock
from tests.fleet import cluster_on
from tests.kubernetes.farmjobs import Jobs
from tests.kubernetes.job_people import Run, person
from tests.kubernetes_server import ApiServer, Etcd
from tests.recorders import CountingRecorder

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """The etcd of ``api``."""
    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def api(etcd: Etcd) -> Iterator[ApiServer]:
    """An API server that no test stops; it serves gangs of Kubernetes' own scheduler."""
    gangs = "--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"
    with ApiServer(etcd, *gangs) as server:
        yield server


@pytest.fixture
def namespace(api: ApiServer) -> str:
    """A namespace of the test's own."""
    return api.namespace(f"test-{os.getpid()}-{next(_numbers)}")


@pytest.fixture
def connect(tmp_path: Path) -> Callable[..., object]:
    """Opens a transport to a server as a user."""

    @asynccontextmanager
    async def opened(server: ApiServer, user: str = "admin") -> AsyncIterator[KubernetesTransport]:
        path = tmp_path / f"{user}-{server.port}.json"
        path.write_text(server.kubeconfig(user))
        clock, rng = SystemClock(), random.Random(1)
        where = access({}, clock, kubeconfig=str(path))
        async with KubernetesTransport(where, clock=clock, rng=rng, metrics=CountingRecorder()) as transport:
            yield transport

    return opened


@pytest.fixture
async def unclaimed(api, namespace, connect, consul_dev) -> AsyncIterator[Jobs]:
    """Jobs in a namespace of the test's own, without a farm."""
    async with connect(api) as admin:
        await install(admin, ("farmjobs",), SystemClock())
    async with cluster_on(consul_dev) as cluster:
        found = Jobs(api, namespace, cluster, consul_dev, connect)
        try:
            yield found
        finally:
            await found.close()


@pytest.fixture
async def jobs(unclaimed: Jobs) -> Jobs:
    """The same with one farm."""
    await unclaimed.farm("first")
    return unclaimed


@pytest.fixture
def farmctl(jobs: Jobs, tmp_path: Path) -> Run:
    """farmctl of a person whose kubeconfig names the test's namespace."""
    return person(jobs, tmp_path)
