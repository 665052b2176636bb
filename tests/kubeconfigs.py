"""Kubeconfigs of tests, which have one context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def kubeconfig(cluster: Mapping[str, Any], user: Mapping[str, Any] = MappingProxyType({})) -> str:
    """A kubeconfig (JSON is YAML) of a cluster and a user with these fields."""
    return json.dumps(
        {
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": dict(cluster)}],
            "users": [{"name": "test", "user": dict(user)}],
        }
    )
