"""Policies and webhooks of one namespace of a real API server that refuse what a rule names.

The server takes them up some time after it recorded them. So each refuses a probe, too, and is in force
once the probe is refused.
"""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.kubernetes_server import ApiServer
from tests.processes import eventually

REGISTRATION = "/apis/admissionregistration.k8s.io/v1"
PROBE = "probe"


def rule(resource: str, group: str = "", *operations: str) -> dict[str, Any]:
    """Creations of a resource, or other operations."""
    asked = list(operations) or ["CREATE"]
    return {"apiGroups": [group], "apiVersions": ["*"], "operations": asked, "resources": [resource]}


def _there(namespace: str) -> dict[str, Any]:
    return {"matchLabels": {"kubernetes.io/metadata.name": namespace}}


def _in_force(server: ApiServer, namespace: str, words: str) -> None:
    """Wait until the probe is refused with these words."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts?dryRun=All"

    def refused() -> bool:
        try:
            server.ask("POST", path, {"metadata": {"name": PROBE}})
        except urllib.error.HTTPError as error:
            return words in error.read().decode()
        return False

    eventually(f"a probe that is refused with {words!r}", refused)


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
    condition = {"name": PROBE, "expression": f"object.metadata.name == '{PROBE}'"}
    probed = hook | {
        "name": "probe.farmd.test",
        "rules": [rule("serviceaccounts")],
        "matchConditions": [condition],
    }
    server.ask("POST", path, {"metadata": {"name": namespace}, "webhooks": [hook, probed]})
    _in_force(server, namespace, "probe.farmd.test")
    yield 'failed calling webhook "away.farmd.test"'
    server.ask("DELETE", f"{path}/{namespace}")


@contextmanager
def policy(server: ApiServer, namespace: str, refused: dict[str, Any]) -> Iterator[str]:
    """A policy that says no, and the words of it."""
    probed = rule("serviceaccounts") | {"resourceNames": [PROBE]}
    rules = {"matchConstraints": {"namespaceSelector": _there(namespace), "resourceRules": [refused, probed]}}
    spec = rules | {"validations": [{"expression": "false", "message": "not on a Friday"}]}
    binding = {"policyName": namespace, "validationActions": ["Deny"]}
    kinds = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
    for kind, body in zip(kinds, (spec, binding), strict=True):
        server.ask("POST", f"{REGISTRATION}/{kind}", {"metadata": {"name": namespace}, "spec": body})
    words = "denied request: not on a Friday"
    _in_force(server, namespace, words)
    yield words
    for kind in kinds:
        server.ask("DELETE", f"{REGISTRATION}/{kind}/{namespace}")
