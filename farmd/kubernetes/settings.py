"""What a farm is told of the cluster that it works for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from farmd.config.kubernetes import INIT_IMAGE, KNATIVE_NAMESPACE, KubernetesSection
from farmd.kubernetes.access import access
from farmd.kubernetes.contact import Contact
from farmd.kubernetes.transport import KubernetesTransport
from store.farms import ClusterReport
from store.ports import Clock, Recorder, Rng


@dataclass(slots=True)
class KubernetesSettings:
    """``name`` stands for the cluster and the ``namespaces`` (none: all); farms that share it share both.
    ``jobs`` are the kinds of jobs that farms run there, by plural, and ``gang`` is the flavour of the
    scheduler that admits their members together; empty: none does. ``init_image`` is that of the containers
    that wait for a master; empty: there are none. ``knative_namespace`` is where Knative's
    controllers run. The caller closes ``transport`` after
    the farm has ended. ``contact`` is the farm's, for all its kinds of work there.
    """

    transport: KubernetesTransport
    name: str = "default"
    namespaces: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ("farmjobs",)
    gang: str = ""
    knative_namespace: str = KNATIVE_NAMESPACE
    init_image: str = INIT_IMAGE

    contact: Contact = field(init=False)

    def __post_init__(self) -> None:
        report = ClusterReport(namespaces=sorted(self.namespaces), knative_namespace=self.knative_namespace)
        self.contact = Contact(self.transport, self.name, report)


@asynccontextmanager
async def opened(
    section: KubernetesSection, env: Mapping[str, str], clock: Clock, rng: Rng, metrics: Recorder
) -> AsyncIterator[KubernetesSettings]:
    """The settings with an open transport.

    Raises:
        InputInvalid: a kubeconfig is not usable.
    """
    where = access(env, clock, kubeconfig=section.kubeconfig, context=section.context)
    async with KubernetesTransport(where, clock=clock, rng=rng, metrics=metrics) as transport:
        yield KubernetesSettings(
            transport,
            section.name,
            tuple(section.namespaces),
            tuple(section.jobs),
            section.gang,
            section.knative_namespace,
            section.init_image,
        )
