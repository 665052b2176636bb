"""How one compose file is laid over another (https://docs.docker.com/reference/compose-file/merge/).

Mappings are merged, lists joined, and all else replaced. What is a mapping in two forms (``environment``) is
merged by its keys; an entry of a list that names the same thing (a mount's target) replaces the former one.
``!reset`` takes a value away, ``!override`` replaces it whole. Merging is associative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from store.errors import InputInvalid
from store.mistakes import shown


@dataclass(frozen=True, slots=True)
class Reset:
    """``!reset``: the value that earlier files give is taken away."""

    def map(self, change: Callable[[Any], Any]) -> Reset:
        """The tag itself: it has no value to change."""
        del change
        return self


@dataclass(frozen=True, slots=True)
class Override:
    """``!override``: this value stands for all of what earlier files give."""

    value: Any

    def map(self, change: Callable[[Any], Any]) -> Override:
        """The same tag on a changed value."""
        return Override(change(self.value))


_REPLACED = {"command", "entrypoint", "test"}
_KEYED = {
    "annotations", "args", "environment", "labels", "sysctls", "driver_opts", "options", "extra_hosts",
}  # fmt: skip
_NAMED = {"depends_on", "networks"}
_LISTS = {"dns", "dns_opt", "dns_search", "env_file", "label_file", "tmpfs"}


def merged(base: Any, over: Any, path: tuple[str, ...] = ()) -> Any:
    """A document with another laid over it; tags that find nothing to act on stay for an earlier file.

    Raises:
        InputInvalid: one has a mapping or a list where the other has none.
    """
    if isinstance(over, Reset | Override):
        return over
    if isinstance(base, Reset):
        return Override(over)
    if isinstance(base, Override):
        return Override(merged(base.value, over, path))
    if over is None or base is None:
        return base if over is None else over
    key = path[-1] if len(path) >= 3 else ""  # above that, people's own names
    base, over = normal(key, base, path), normal(key, over, path)
    if key in _REPLACED:
        return over
    if key == "logging" and _other_driver(base, over):
        return over
    if isinstance(base, dict) and isinstance(over, dict):
        result = dict(base)
        for name, value in over.items():
            result[name] = merged(base[name], value, (*path, str(name))) if name in base else value
        return result
    if isinstance(base, list) and isinstance(over, list):
        return _joined(base, over, _INDEXES.get(key, _itself))
    if isinstance(base, dict | list) or isinstance(over, dict | list):
        raise InputInvalid(
            f"{'.'.join(path)}: found {shown(over)}, expected the form of the file before: {shown(base)}",
            field=".".join(path),
        )
    return over


def settled(value: Any) -> Any:
    """The document without tags: what was reset is gone."""
    if isinstance(value, Override):
        return settled(value.value)
    if isinstance(value, dict):
        return {key: settled(each) for key, each in value.items() if not isinstance(each, Reset)}
    if isinstance(value, list):
        return [settled(each) for each in value if not isinstance(each, Reset)]
    return value


def normal(key: str, value: Any, path: tuple[str, ...]) -> Any:
    """A value that has two forms, in the one that can be merged."""
    if key in _KEYED and isinstance(value, list):
        return dict(_pair(each, path) for each in value)
    if key in _NAMED and isinstance(value, list):
        empty: Any = {"condition": "service_started"} if key == "depends_on" else None
        return {_text(each, path): empty for each in value}
    if key in _LISTS and isinstance(value, str):
        return [value]
    return value


def _pair(entry: Any, path: tuple[str, ...]) -> tuple[str, Any]:
    """``NAME=value``; without a sign the value is the environment's. Hosts have ``name:address``, too."""
    text = _text(entry, path)
    sign = ":" if path[-1] == "extra_hosts" and "=" not in text else "="
    name, found, value = text.partition(sign)
    return name, value if found else None


def _text(entry: Any, path: tuple[str, ...]) -> str:
    if isinstance(entry, bool) or not isinstance(entry, str | int | float):
        raise InputInvalid(f"{'.'.join(path)}: found {shown(entry)}, expected text", field=".".join(path))
    return str(entry)


def _other_driver(base: Any, over: Any) -> bool:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return False
    return "driver" in base and "driver" in over and base["driver"] != over["driver"]


def _joined(base: list[Any], over: list[Any], index: Callable[[Any], object]) -> list[Any]:
    """Both lists as one; an entry of ``over`` replaces the entry of ``base`` with the same index."""
    result: list[Any] = []
    places: dict[object, int] = {}
    for entry in (*base, *over):
        key = repr(index(entry))
        if key in places:
            result[places[key]] = entry
        else:
            places[key] = len(result)
            result.append(entry)
    return result


def _itself(entry: Any) -> object:
    return entry


def _target(entry: Any) -> object:
    """Where a mount, or a device, is seen in the container."""
    if isinstance(entry, dict):
        return entry.get("target", entry.get("source"))
    parts = str(entry).split(":")
    return parts[1] if len(parts) > 1 else parts[0]


def _file(entry: Any) -> object:
    return entry.get("target") or entry.get("source") if isinstance(entry, dict) else entry


def _port(entry: Any) -> object:
    if isinstance(entry, dict):
        host = entry.get("host_ip") or ""
        return f"{host}:{entry.get('published') or ''}:{entry.get('target')}/{entry.get('protocol') or 'tcp'}"
    text, _, protocol = str(entry).partition("/")
    host, published, target = ["", "", *text.rsplit(":", 2)][-3:]
    return f"{host}:{published}:{target}/{protocol or 'tcp'}"


_INDEXES: dict[str, Callable[[Any], object]] = {
    "volumes": _target,
    "devices": _target,
    "configs": _file,
    "secrets": _file,
    "ports": _port,
    "env_file": lambda entry: entry.get("path") if isinstance(entry, dict) else entry,
}
