"""The section of jobs in Kubernetes (see ``farmd.config.sections``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from farmd.config.fields import Section, Texts, as_value_error, formed
from store.keys import valid_name
from store.mistakes import nearest

JOBS = ("farmjobs", "pytorchjobs", "tfjobs")


def _known(value: list[str]) -> list[str]:
    for plural in value:
        if plural not in JOBS:
            raise ValueError(f"found {plural!r}{nearest(plural, list(JOBS))}")
    return value


class KubernetesSection(Section):
    """The cluster that farms run jobs in: that of `kubeconfig`, of KUBECONFIG, or of farmd's own pod."""

    kubeconfig: str = Field(
        "", description="Path of a kubeconfig, or several separated by `:`; empty: that of KUBECONFIG."
    )
    context: str = Field("", description="Its context; empty: the current one.")
    name: str = Field(
        "default",
        description="Stands for the cluster and the namespaces; farms that share it must share both.",
    )
    namespaces: Texts = Field([], description="Namespaces that farms work in; none: all.")
    jobs: Annotated[Texts, AfterValidator(_known)] = Field(
        ["farmjobs"],
        description="Kinds of jobs that farms run, where no other operator does.",
        json_schema_extra=formed("a list of some of farmjobs, tfjobs, pytorchjobs"),
    )

    gang: Literal["", "native", "pdb", "scheduler-plugins", "volcano"] = Field(
        "",
        description="The scheduler that admits a job's members together; empty: none does.",
        json_schema_extra=formed("native, pdb, scheduler-plugins, volcano or nothing"),
    )

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return as_value_error(valid_name, value)

    def configured(self, env: Mapping[str, str]) -> bool:
        """Whether anything says where an API server is. ``~/.kube/config`` does not: see ``access``."""
        return bool(self.kubeconfig or env.get("KUBECONFIG") or env.get("KUBERNETES_SERVICE_HOST"))
