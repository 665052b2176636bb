"""Short forms of compose files, written out: one form a key, before types are checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from farmd.compose.merge import normal
from store.errors import InputInvalid
from store.mistakes import shown

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
        raise _refused(where, entry, "a range that ends above its beginning, up to 65535")
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
            raise _refused(where, entry, "an option such as ro, rw or nocopy behind the target")
    return result


def _device(entry: Any, where: str) -> dict[str, Any]:
    del where
    source, *rest = str(entry).split(":")
    return {"source": source, **dict(zip(("target", "permissions"), rest, strict=False))}


def _file(entry: Any, where: str) -> dict[str, Any]:
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
    "configs": _file,
    "secrets": _file,
    "env_file": _env_file,
}
_WHOLE: dict[str, _Short] = {
    "gpus": _gpus,
    "ulimits": _ulimits,
    "x-machines": _machines,
    "x-pre_deploy": _pre_deploy,
    "deploy": _deploy,
}
