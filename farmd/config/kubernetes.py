"""The section of jobs in Kubernetes (see ``farmd.config.sections``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import field

from farmd.config.fields import Section, key
from store.keys import valid_name
from store.mistakes import nearest

JOBS = ("farmjobs", "pytorchjobs", "tfjobs")


def _known(value: list[str]) -> None:
    for plural in value:
        if plural not in JOBS:
            raise ValueError(f"found {plural!r}{nearest(plural, list(JOBS))}")


KNATIVE_NAMESPACE = "knative-serving"
INIT_IMAGE = "alpine:3.10"
RESYNC_SECONDS = 600.0


class KubernetesSection(Section, frozen=True):
    """The cluster that farms run jobs in: that of `kubeconfig`, of KUBECONFIG, or of farmd's own pod."""

    kubeconfig: Annotated[
        str, key("Path of a kubeconfig, or several separated by `:`; empty: KUBECONFIG.")
    ] = ""
    context: Annotated[str, key("Its context; empty: the current one.")] = ""
    name: Annotated[
        str,
        key(
            "Name of this cluster with these namespaces; farms that share the name must share both.",
            check=valid_name,
        ),
    ] = "default"
    namespaces: Annotated[list[str], key("Namespaces that farms work in; none: all.")] = field(
        default_factory=list
    )
    jobs: Annotated[
        list[str],
        key(
            "Kinds of jobs that farms run, where no other operator does.",
            form="a list of some of farmjobs, tfjobs, pytorchjobs",
            check=_known,
        ),
    ] = field(default_factory=lambda: ["farmjobs"])
    gang: Annotated[
        Literal["", "native", "pdb", "scheduler-plugins", "volcano"],
        key(
            "The scheduler that admits a job's members together; empty: none does.",
            form="native, pdb, scheduler-plugins, volcano or nothing",
        ),
    ] = ""

    init_image: Annotated[
        str,
        key(
            "Image, with `sh` and `nslookup`, in which a PyTorchJob's workers wait for their master's name;"
            " empty: they do not wait."
        ),
    ] = INIT_IMAGE
    resync: Annotated[
        float,
        key("Seconds until a farm looks again at an object without events.", ge=15, le=86_400),
    ] = RESYNC_SECONDS
    knative_namespace: Annotated[
        str,
        key("Namespace of Knative's controllers, where the settings of rollouts lie.", check=valid_name),
    ] = KNATIVE_NAMESPACE

    def configured(self, env: Mapping[str, str]) -> bool:
        """Whether the address of an API server is configured. ``~/.kube/config`` does not: see
        ``access``.
        """
        return bool(self.kubeconfig or env.get("KUBECONFIG") or env.get("KUBERNETES_SERVICE_HOST"))
