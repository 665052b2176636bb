"""No text of a manifest holds what no call of the system takes, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from store.containers import Container, File, Mount
from store.errors import InputInvalid
from store.manifest_check import check
from store.manifests import HealthCheck, Manifest, Port, Stop

FULL = Manifest(
    id="web",
    runtime="container",
    command=["serve"],
    args=["now"],
    env={"A": "b"},
    user="app",
    working_directory="/srv",
    ports={"http": Port(port=80)},
    health=HealthCheck(type="http", port="http", path="/up"),
    stop=Stop(command=["drain"]),
    container=Container(image="web:1", hosts={"db": "10.0.0.1"}, labels={"team": "a"}),
    mounts=[Mount(type="volume", source="data", target="/data")],
    files=[File(path="/etc/web.conf", content="x")],
)


def texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(each, (*path, name))


BUILT = msgspec.to_builtins(FULL)
FREE = [path for path in texts(BUILT) if path[-1] not in ("type", "runtime")]  # these have a few values


@pytest.mark.parametrize("path", FREE, ids=lambda path: ".".join(map(str, path)))
def test_a_nul_is_refused_in_every_text(path: tuple[str | int, ...]) -> None:
    made = msgspec.json.decode(msgspec.json.encode(BUILT))
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] += "\0"
    with pytest.raises(InputInvalid, match=r"no NUL character|expected (1 to|a name|the|an |'http)"):
        check(msgspec.convert(made, Manifest), "web.yaml")


def test_the_manifest_without_one_is_taken() -> None:
    check(FULL, "web.yaml")
