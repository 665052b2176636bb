"""Parts: what belongs to a service is changed with the service, and by itself only restarted (R14)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest

from farmd.commands.mutation import Call, commit
from farmd.commands.restarting import restart
from farmd.daemonset.commands import DAEMON_SET
from farmd.replication.commands import RC, set_replicas
from farmd.rollout import creation
from farmd.services import commands as services
from store import codec
from store.errors import Conflict
from store.rcs import ReplicationController, ReplicationControllerStore
from store.reality import Intent
from store.services import KIND, Service, ServiceStore
from tests.people import KEYS, created, hello, person, place

WEB = Service(id="5e" * 8, name="web", mode="replicated")
REFUSED = "rc/hello is part of service/web; change that: farmctl service scale"


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    """A controller with one pod that is a part of a service."""
    async with person() as made:
        rc_id = await created(made, pod_ports={"http": {}}, replicas=1)
        store = ServiceStore(made.client, KEYS)
        await made.client.transaction(list(store.create(WEB)))
        await write(made, part_of=f"{KIND}/{WEB.id}")
        await place(made, rc_id, "n1")
        intent = Intent((await record(made)).manifest, rc_id)
        await made.client.put(KEYS.intent("n1", "hello"), codec.encode(intent))
        yield made


async def record(call: Call) -> ReplicationController:
    return (await ReplicationControllerStore(call.client, KEYS).find("hello")).record


async def write(call: Call, **fields: Any) -> None:
    store = ReplicationControllerStore(call.client, KEYS)
    stored = await store.find("hello")
    changed = msgspec.structs.replace(stored.record, **fields)
    await call.client.transaction([store.replace(stored, changed)])


def file(**fields: Any) -> Any:
    return RC.file.parse(hello(**{"pod_ports": {"http": {}}, "replicas": 1} | fields), "x")


EDITS: dict[str, Callable[[Call], Awaitable[object]]] = {
    "create": lambda call: RC.create(call, file(replicas=2)),
    "labels": lambda call: RC.update(call, file(labels={"a": "b"}), now=True),
    "update --now": lambda call: RC.update(call, file(pod_args=["x"]), now=True),
    "update": lambda call: RC.update(call, file(pod_args=["x"]), now=False),
    "disable": lambda call: RC.disable(call, "hello"),
    "enable": lambda call: RC.enable(call, "hello"),
    "delete": lambda call: RC.delete(call, "hello", cascade=True),
    "scale": lambda call: set_replicas(call, "hello", 4),
    "rollout to it": lambda call: creation.toward(call, "other", "hello"),
    "rollout from it": lambda call: creation.toward(call, "hello", "other"),
    "a second service": lambda call: services.create(call, "hello", "http", ["rc/hello"]),
}


@pytest.mark.parametrize("edit", EDITS)
async def test_r14_a_part_refuses_every_edit_and_says_what_to_change_instead(call: Call, edit: str) -> None:
    await created(call, name="other", pod_ports={"http": {}})
    before = await record(call)
    with pytest.raises(Conflict, match=REFUSED) as refused:
        await EDITS[edit](call)
    assert "\n" not in refused.value.message
    assert await record(call) == before


async def test_r28_the_pods_of_a_part_are_restarted_as_anybodys(call: Call) -> None:
    await commit(call, await RC.restart(call, "hello"))
    assert (await record(call)).restart == 1
    await commit(call, (await restart(call, "n1", "hello")).mutation)


async def test_r14_while_it_is_taken_no_person_restarts_its_pods(call: Call) -> None:
    await write(call, managed_by="deployments/1", taken=True, hands=1)
    for ask in (RC.restart(call, "hello"), restart(call, "n1", "hello")):
        with pytest.raises(Conflict, match="deployments/1"):
            await ask


async def test_a_part_of_nothing_says_how_to_free_it(call: Call) -> None:
    await call.client.delete(KEYS.record(KIND, WEB.id))
    ident = (await record(call)).id
    with pytest.raises(Conflict, match=f"which does not exist; farmctl doctor --fix rcs/{ident} frees it"):
        await set_replicas(call, "hello", 4)


async def test_a_part_of_what_only_a_later_version_knows_is_left_alone(call: Call) -> None:
    await write(call, part_of="meshes/1")
    with pytest.raises(Conflict, match=r"rc/hello is part of meshes/1$"):
        await RC.restart(call, "hello")


async def test_r14_a_daemon_set_is_a_part_as_a_controller_is(call: Call) -> None:
    document = {"name": "logs", "pod": {"id": "logs", "command": ["sleep", "9"]}}
    made = await DAEMON_SET.create(call, DAEMON_SET.file.parse(document, "x"))
    await commit(call, made)
    key = KEYS.record("daemonsets", made.change.id)
    entry = await call.client.read(key)
    assert entry is not None
    part = msgspec.json.decode(entry.value) | {"part_of": f"{KIND}/{WEB.id}"}
    await call.client.put(key, msgspec.json.encode(part))
    with pytest.raises(Conflict, match="daemonset/logs is part of service/web; change that"):
        await DAEMON_SET.delete(call, "logs", cascade=True)
