"""The parts of a pod template that farmd reads.

The API server keeps templates of custom resources as they are: until a pod is created, one may have any form.
"""

from __future__ import annotations

import msgspec

Amount = str | int | float


class _Camel(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Variable(_Camel, frozen=True):
    """An entry of a container's environment."""

    name: str


class ContainerPort(_Camel, frozen=True):
    """A port of a container."""

    container_port: int
    name: str | None = None
    protocol: str | None = None


class Amounts(_Camel, frozen=True):
    """What a container asks for."""

    requests: dict[str, Amount] | None = None
    limits: dict[str, Amount] | None = None


class PodContainer(_Camel, frozen=True):
    """One container."""

    name: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None
    ports: list[ContainerPort] | None = None
    resources: Amounts | None = None


class PodSpec(_Camel, frozen=True):
    """What the pod runs."""

    containers: list[PodContainer] = []
    priority_class_name: str | None = None


class TemplateMeta(_Camel, frozen=True):
    """What its pods are called by."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None


class Template(_Camel, frozen=True):
    """A pod template."""

    metadata: TemplateMeta | None = None
    spec: PodSpec = PodSpec()
