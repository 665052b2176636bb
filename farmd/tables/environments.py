"""What everybody who may read sees of a workload's inputs: names, since values may be secrets."""

from __future__ import annotations

from typing import Any

HIDDEN = "…"


def without_values(told: Any) -> Any:
    """Plain data without the values of variables and the content of files, at any depth.

    Such stand in hooks and manifests, and in the containers of Kubernetes.
    """
    if isinstance(told, dict):
        return {key: _OF.get(key, without_values)(item) for key, item in told.items()}
    return [without_values(item) for item in told] if isinstance(told, list | tuple) else told


def _variables(env: Any) -> Any:
    """A table of variables, or a list of them with ``name`` and ``value``; what is neither is none."""
    return dict.fromkeys(env, HIDDEN) if isinstance(env, dict) else _each(env, "value")


def _files(files: Any) -> Any:
    return _each(files, "content")


def _each(items: Any, field: str) -> Any:
    """A list whose objects have the field hidden."""
    if not isinstance(items, list | tuple):
        return without_values(items)
    return [
        each | {field: HIDDEN} if isinstance(each, dict) and field in each else without_values(each)
        for each in items
    ]


_OF = {"env": _variables, "files": _files}
