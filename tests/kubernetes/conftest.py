"""One API server for each of the tier's two groups of xdist, whose tests have each a namespace of its own.

Tests of progressive rollouts are one group, all others are the other: as one they would end last of all.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from farmd.kubernetes.access import access
from farmd.kubernetes.install import install
from farmd.kubernetes.transport import KubernetesTransport
from farmd.runtime.clock import SystemClock
from tests import forked
from tests.fault.farm_process import Nursery
from tests.fleet import cluster_on
from tests.kubernetes.apps import Apps
from tests.kubernetes.farmjobs import Jobs
from tests.kubernetes.job_people import Run, person
from tests.kubernetes.knative import define, playing
from tests.kubernetes.recording import recording
from tests.kubernetes.rollouts import Rollouts
from tests.kubernetes_external import ExternalApi, external
from tests.kubernetes_server import Api, ApiServer, Etcd
from tests.recorders import CountingRecorder

_numbers = itertools.count(1)

# Tests that need an API server of their own, by a part of their names, and why.
_OWN = {
    "test_watches.py": "it stops, restores and doubles the server's etcd",
    "test_a_throttled_farm": "it starts a second server with narrow limits",
    "test_a_bad_token": "its users have tokens, and are not impersonated",
    "every_step.py": "its proxy answers with the server's own certificate",
    "test_knative.py": "it plays Knative's controllers, which a cluster may have",
    "kubernetes/test_rollout": "it plays Knative's controllers, which a cluster may have",
    "test_ksvc_commands.py": "it plays Knative's controllers, which a cluster may have",
    "test_gangs.py": "it defines the objects of schedulers, which a cluster may have",
    "test_frameworks.py": "it defines the jobs of Kubeflow, which a cluster may have",
    "test_app_objects.py": "it changes objects of the whole cluster",
    "test_job_logs.py": "it plays a node",
    "test_a_rendered_bundle": "it plays the controllers of deployments and claims",
    "test_jobs_whose_definition_is_removed": "it deletes every FarmJob of the cluster",
    "test_a_definition_that_lacks_fields": "it changes the definition of FarmJobs",
    "test_a_job_made_anew": "a garbage collector would delete the old pods",
    "test_uninstall": "it would remove farmd from the cluster",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a cluster that is there already, leave out what would harm it, and say why."""
    for item in items if external() else ():
        why = next((why for part, why in _OWN.items() if part in item.nodeid), "")
        if why and "tests/kubernetes/" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason=f"needs an API server of its own: {why}"))


@pytest.fixture(scope="session")
def etcd() -> Iterator[Etcd]:
    """The etcd of ``api``."""
    with Etcd() as server:
        yield server


@pytest.fixture(scope="session")
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    """An API server that no test stops; it serves gangs of Kubernetes' own scheduler."""
    if external():
        with closing(ExternalApi()) as cluster:
            yield cluster
        return
    gangs = "--feature-gates=GenericWorkload=true", "--runtime-config=scheduling.k8s.io/v1alpha2=true"
    with ApiServer(request.getfixturevalue("etcd"), *gangs) as server:
        yield server


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """Forks farm processes, which end with it."""
    forked.ready()
    with Nursery(tmp_path_factory.mktemp("farms")) as made:
        yield made


@pytest.fixture
def namespace(api: Api) -> str:
    """A namespace of the test's own."""
    return api.namespace(f"test-{os.getpid()}-{next(_numbers)}")


@pytest.fixture
def connect(tmp_path: Path) -> Callable[..., object]:
    """Opens a transport to a server as a user."""

    @asynccontextmanager
    async def opened(server: Api, user: str = "admin") -> AsyncIterator[KubernetesTransport]:
        path = tmp_path / f"{user}-{server.port}.json"
        path.write_text(server.kubeconfig(user))
        clock, rng = SystemClock(), random.Random(1)
        where = access({}, clock, kubeconfig=str(path))
        async with KubernetesTransport(where, clock=clock, rng=rng, metrics=CountingRecorder()) as transport:
            yield transport

    return opened


@pytest.fixture
async def apps(api, namespace, connect, consul_dev) -> AsyncIterator[Apps]:
    """An app named shop may do everything in a namespace of the test's own; no farm runs."""
    async with cluster_on(consul_dev) as cluster:
        found = Apps(api, namespace, cluster, consul_dev, connect)
        found.allow("shop")
        try:
            yield found
        finally:
            await found.close()


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


@pytest.fixture
async def idle(api, namespace, connect, consul_dev) -> AsyncIterator[Rollouts]:
    """Knative in a namespace of the test's own, without a farm."""
    async with connect(api) as admin:
        await install(admin, (), SystemClock(), progressive=True)
        await define(admin, "1.21.0")
        async with (
            recording(admin, namespace) as recorded,
            playing(admin, namespace) as knative,
            cluster_on(consul_dev) as cluster,
        ):
            found = Rollouts(api, knative, recorded, cluster, consul_dev, connect)
            try:
                yield found
            finally:
                await found.close()


@pytest.fixture
async def rollouts(idle: Rollouts) -> Rollouts:
    """The same with one farm."""
    await idle.farm("first")
    return idle
