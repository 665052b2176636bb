"""Policies and webhooks of one namespace of a real API server that refuse what a rule names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes_server import ApiServer

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"


def rule(resource: str, group: str = "", *operations: str) -> dict[str, Any]:
    """Creations of a resource, or other operations."""
    asked = list(operations) or ["CREATE"]
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": asked, "resources": [resource]}


def _there(namespace: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


@contextmanager
def webhook(server: ApiServer, namespace: str, refused: dict[str, Any]) -> Iterator[str]:
    """A webhook that nobody answers for; the words of the refusal."""
    path = f"{REGISTRATION}/validatingwebhookconfigurations"
    hook = {
        "name": "away.farmd.test",
        "clientConfig": {"url": "https://127.0.0.1:9/away"},
        "rules": [refused],
        "namespaceSelector": _there(namespace),
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    server.ask("POST", path, {"metadata": {"name": namespace}, "webhooks": [hook]})
    yield 'failed calling webhook "away.farmd.test"'
    server.ask("DELETE", f"{path}/{namespace}")


@contextmanager
def policy(server: ApiServer, namespace: str, refused: dict[str, Any]) -> Iterator[str]:
    """A policy that says no, and the words of it."""
    rules = {"matchConstraints": {"namespaceSelector": _there(namespace), "resourceRules": [refused]}}
    spec = rules | {"validations": [{"expression": "false", "message": "not on a Friday"}]}
    binding = {"policyName": namespace, "validationActions": ["Deny"]}
    kinds = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
    for kind, body in zip(kinds, (spec, binding), strict=True):
        server.ask("POST", f"{REGISTRATION}/{kind}", {"metadata": {"name": namespace}, "spec": body})
    yield "denied request: not on a Friday"
    for kind in kinds:
        server.ask("DELETE", f"{REGISTRATION}/{kind}/{namespace}")
