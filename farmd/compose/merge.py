"""How one compose file is laid over another (https://docs.docker.com/reference/compose-file/merge/).

Mappings are merged, lists joined, and all else replaced. What is a mapping in two forms (``environment``) is
merged by its keys; an entry of a list that names the same thing (a mount's target) replaces the former one.
``!reset`` takes a value away, ``!override`` replaces it whole. Merging is associative.
"""

from __future__ import annotations

import re
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
    """``!override``: this value replaces everything from earlier files."""

    value: Any

    def map(self, change: Callable[[Any], Any]) -> Override:
        """The same tag on a changed value."""
        return Override(change(self.value))


_REPLACED = {"command", "entrypoint", "test"}
_KEYED = {
    "annotations", "args", "environment", "labels", "sysctls", "driver_opts", "options", "extra_hosts",
    "meta",
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
            f"{'.'.join(path)}: found {shown(over)}, expected the form of the earlier file: {shown(base)}",
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


# Short forms of compose files, written out: one form a key, before types are checked.

_RANGE = re.compile(r"\d+-\d+")
_MODES = {"ro": True, "rw": False}


def long(document: dict[str, Any]) -> dict[str, Any]:
    """The same document with all short forms written out.

    Raises:
        InputInvalid: naming the key whose short form cannot be read.
    """
    result = dict(document)
    for part in ("volumes", "networks", "configs", "secrets"):
        if isinstance(result.get(part), dict):
            result[part] = {name: _named(each or {}, (part, name)) for name, each in result[part].items()}
    if isinstance(result.get("services"), dict):
        result["services"] = {name: _service(each, name) for name, each in result["services"].items()}
    return result


def _service(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        raise InputInvalid(f"services.{name}: found {shown(value)}, expected a mapping with image")
    return {
        key: each if each is None else _key(key, each, ("services", name, key)) for key, each in value.items()
    }


def _key(key: str, value: Any, path: tuple[str, ...]) -> Any:
    where = ".".join(path)
    plain = normal(key, value, path)
    if key == "ports" and isinstance(plain, list):
        plain = [
            each
            for at, entry in enumerate(plain)
            for each in (_ports(entry, f"{where}[{at}]") if isinstance(entry, str | int | float) else [entry])
        ]
    if key in _ENTRIES and isinstance(plain, list):
        short = _ENTRIES[key]
        plain = [
            short(entry, f"{where}[{at}]") if isinstance(entry, str | int | float) else entry
            for at, entry in enumerate(plain)
        ]
    if key == "ports" and isinstance(plain, list):
        plain = [_everywhere(entry) for entry in plain]
    return _WHOLE[key](plain, where) if key in _WHOLE else plain


def _named(value: Any, path: tuple[str, ...]) -> Any:
    if not isinstance(value, dict):
        return value
    result = {key: normal(key, each, (*path, key)) for key, each in value.items()}
    external = result.get("external")
    if isinstance(external, dict):
        result |= {"external": True, **external}
    return result


def _ports(entry: Any, where: str) -> list[dict[str, Any]]:
    """A port, or those of a range: ``8000-8001:9000-9001`` are two."""
    text, slash, protocol = str(entry).partition("/")
    host, _, rest = text.rpartition("]:") if text.startswith("[") else ("", "", text)
    parts = rest.split(":")
    if host:
        parts.insert(0, host.lstrip("["))
    if len(parts) > 3 or not all(parts[-1:]) or (slash and not protocol):
        raise _refused(where, entry, "a port such as 8080, 80:8080 or 53:53/udp")
    host, published, target = ["", "", *parts][-3:]
    inside, outside = _numbers(target), _numbers(published)
    if not (inside and outside):
        raise _refused(where, entry, "a range that ends above its start, up to 65535")
    if len(outside) != len(inside):
        if published:
            raise _refused(where, entry, "as many published ports as ports of the container")
        outside = [""] * len(inside)
    found = [
        {"target": one, "published": other, "host_ip": host, "protocol": protocol}
        for one, other in zip(inside, outside, strict=True)
    ]
    return [{key: value for key, value in each.items() if value or key == "target"} for each in found]


def _numbers(part: str) -> list[str]:
    if not _RANGE.fullmatch(part):
        return [part]
    first, last = map(int, part.split("-"))
    return [str(number) for number in range(first, min(last, 65535) + 1)]


def _everywhere(port: Any) -> Any:
    """A port without the address that means all of a machine's."""
    everywhere = isinstance(port, dict) and port.get("host_ip") in ("0.0.0.0", "::")
    return {key: each for key, each in port.items() if key != "host_ip"} if everywhere else port


def _mount(entry: Any, where: str) -> dict[str, Any]:
    parts = str(entry).split(":")
    if len(parts) == 1:
        raise _refused(where, entry, "a source before the target: anonymous volumes are not supported")
    if len(parts) > 3:
        raise _refused(where, entry, "source:target or source:target:ro")
    source, target, *options = parts
    kind = "bind" if source.startswith(("/", ".", "~")) else "volume"
    result: dict[str, Any] = {"type": kind, "source": source, "target": target}
    for option in filter(None, (options or [""])[0].split(",")):
        if option in _MODES:
            result["read_only"] = _MODES[option]
        elif option == "nocopy" and kind == "volume":
            result["volume"] = {"nocopy": True}
        elif kind == "bind" and option in ("rprivate", "private", "rshared", "shared", "rslave", "slave"):
            result.setdefault("bind", {})["propagation"] = option
        elif option in ("z", "Z"):
            result.setdefault("bind", {})["selinux"] = option
        elif option in ("cached", "delegated", "consistent"):
            result["consistency"] = option
        else:
            raise _refused(where, entry, "an option such as ro, rw or nocopy after the target")
    return result


def _device(entry: Any, where: str) -> dict[str, Any]:
    del where
    source, *rest = str(entry).split(":")
    return {"source": source, **dict(zip(("target", "permissions"), rest, strict=False))}


def _file_form(entry: Any, where: str) -> dict[str, Any]:
    del where
    return {"source": str(entry)}


def _env_file(entry: Any, where: str) -> dict[str, Any]:
    del where
    return {"path": str(entry)}


def _gpus(value: Any, where: str) -> Any:
    if value == "all":
        return [{"count": -1}]
    if isinstance(value, list):
        return _all_counted(value)
    raise _refused(where, value, "all, or a list of devices")


def _all_counted(devices: Any) -> Any:
    """Devices with ``count: all`` as the number that means it."""
    if not isinstance(devices, list):
        return devices
    return [
        {**each, "count": -1} if isinstance(each, dict) and each.get("count") == "all" else each
        for each in devices
    ]


def _ulimits(value: Any, where: str) -> Any:
    del where
    if not isinstance(value, dict):
        return value
    return {
        name: each if isinstance(each, dict) else {"soft": each, "hard": each} for name, each in value.items()
    }


def _machines(value: Any, where: str) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    found = [part.strip() for entry in entries for part in str(entry).split(",")]
    if entries and not all(found):
        raise _refused(where, value, "names of machines, none empty")
    return found


def _pre_deploy(value: Any, where: str) -> Any:
    del where
    if not isinstance(value, dict):
        return {"command": value}
    return {key: normal(key, each, ("x-pre_deploy", "", key)) for key, each in value.items()}


def _consul(value: Any, where: str) -> Any:
    del where
    if not isinstance(value, dict):
        return value
    return {key: normal(key, each, ("x-consul", "", key)) for key, each in value.items()}


def _deploy(value: Any, where: str) -> Any:
    del where
    if not isinstance(value, dict):
        return value
    result = {key: normal(key, each, ("services", "", key)) for key, each in value.items()}
    resources = result.get("resources")
    reserved = resources.get("reservations") if isinstance(resources, dict) else None
    if isinstance(resources, dict) and isinstance(reserved, dict) and "devices" in reserved:
        reserved = {**reserved, "devices": _all_counted(reserved["devices"])}
        result["resources"] = {**resources, "reservations": reserved}
    return result


def _refused(where: str, found: Any, expected: str) -> InputInvalid:
    return InputInvalid(f"{where}: found {shown(found)}, expected {expected}", field=where)


_Short = Callable[[Any, str], Any]
_ENTRIES: dict[str, _Short] = {
    "volumes": _mount,
    "devices": _device,
    "configs": _file_form,
    "secrets": _file_form,
    "env_file": _env_file,
}
_WHOLE: dict[str, _Short] = {
    "gpus": _gpus,
    "ulimits": _ulimits,
    "x-machines": _machines,
    "x-pre_deploy": _pre_deploy,
    "x-consul": _consul,
    "deploy": _deploy,
}
