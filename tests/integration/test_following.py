"""Owners that follow config keys (R41) on a real Consul: rollouts by farms, and why none begins."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
import yaml

from farmd.commands import config_keys, resolving
from farmd.commands.mutation import commit
from farmd.daemonset.commands import DAEMON_SET
from farmd.jobs.commands import JOB
from farmd.replication.commands import RC
from farmd.rollout import commands
from farmd.work import following
from store import codec, config, manifests, secrets
from store.errors import InputInvalid
from store.features import FOLLOW
from store.manifests import Manifest, Reference
from store.rollouts import Ended, History
from store.secrets import Sealed, SecretVersion
from store.status import Status
from tests.age import identity, sealed
from tests.fleet import RunningFarm, eventually, farm_on, start_farm
from tests.mortal import bury, mortal_farm
from tests.obedient import Obedient
from tests.rolling import IMPATIENT, KINDS, PORTS, QUICK, Rolling


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK", 0.2), ("QUIET", 0.1), ("PAUSE", 0.0), ("RETRY", 0.5)):
        monkeypatch.setattr(following, f"{name}_SECONDS", seconds)


@pytest.fixture
async def farm(rolling: Rolling) -> AsyncIterator[RunningFarm]:
    running = await start_farm(rolling.cluster.client, "farm-1", keys=rolling.cluster.keys, kinds=KINDS)
    yield running
    await running.close()


class AllBut(set[str]):
    """All digests but those in it."""

    def __contains__(self, digest: object) -> bool:
        return not super().__contains__(digest)


async def put(rolling: Rolling, value: str, path: str = "shop/level") -> None:
    await commit(rolling.call, await config_keys.set_value(rolling.call, path, value))


async def following_rc(
    rolling: Rolling,
    policy: Any = QUICK,
    replicas: int = 2,
    *,
    source: Reference | None = None,
    pod: Mapping[str, Any] = MappingProxyType({}),
    features: Sequence[str] = (),
    **fields: Any,
) -> None:
    """A controller with its pods that follows one config key, whose value is ``info``."""
    await put(rolling, "info")
    entry = await rolling.call.client.read(config.key_of(rolling.call.keys, "shop/level"))
    assert entry is not None
    manifest = Manifest(
        id="web",
        command=["serve"],
        ports=PORTS,
        env={"LEVEL": "info"},
        sources=[source or Reference(field="env.LEVEL", kv="shop/level", version=entry.modify_index)],
        **pod,
    )
    await rolling.cluster.add_nodes({f"n{number}": {} for number in range(replicas + 1)}, *features)
    rolling.rc = await rolling.cluster.create_rc(
        "web",
        replicas,
        manifest=manifest,
        min_healthy_time=0.0,
        follow=True,
        needs=[FOLLOW],
        rollout=policy,
        **fields,
    )
    await rolling.placed(replicas)


async def past(rolling: Rolling, count: int) -> list[Ended]:
    """The rollouts that are over, the newest first, once there are so many."""

    async def enough() -> list[Ended] | None:
        listing = await History(rolling.call.client, rolling.call.keys).read("web")
        found = [each.record for each in listing.items]
        return found if len(found) >= count else None

    return await eventually(enough, what=f"{count} rollouts that are over")  # type: ignore[no-any-return]


async def runs(rolling: Rolling) -> Mapping[str, str]:
    """The variables of the controller's version."""
    rc = (await rolling.controllers())["web"]
    return (await manifests.read(rolling.call.client, rolling.call.keys, rc.manifest)).env


async def told(rolling: Rolling, text: str) -> Status:
    """The controller's status, once its reason has this text."""

    async def says() -> Status | None:
        rc = (await rolling.controllers())["web"]
        entry = await rolling.call.client.read(rolling.call.keys.status("rcs", rc.id))
        found = None if entry is None else codec.decode(Status, entry.value, entry.key)
        return found if found is not None and text in found.reason else None

    return await eventually(says, what=f"a status of {text!r}")  # type: ignore[no-any-return]


async def test_r41_a_changed_key_is_rolled_out_by_the_farm_and_a_revert_is_not_undone(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    await following_rc(rolling)
    await put(rolling, "debug")
    (ended,) = await past(rolling, 1)
    assert (ended.outcome, ended.by) == ("done", "farm/farm-1")
    assert await runs(rolling) == {"LEVEL": "debug"}
    begun = [each for each in await rolling.cluster.audits() if each.action == "rollout.create"]
    assert [(each.actor, each.reason) for each in begun] == [
        ("farm/farm-1", "followed values changed: config/shop/level")
    ]
    assert (await rolling.controllers())["web"].follow

    await rolling.say(await commands.revert(rolling.call, "web"))
    await past(rolling, 2)
    status = await told(rolling, "not tried again until a value changes")
    assert (status.state, await runs(rolling)) == ("converged", {"LEVEL": "info"})
    await put(rolling, "warning")
    await past(rolling, 3)
    assert await runs(rolling) == {"LEVEL": "warning"}
    await put(rolling, "debug")
    await past(rolling, 4)
    assert await runs(rolling) == {"LEVEL": "debug"}, "the value changed, so the version is new again"


async def test_r41_a_value_that_fails_goes_back_and_is_not_tried_again_until_another_one_comes(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    await following_rc(rolling, IMPATIENT)
    agents.broken = AllBut({(await rolling.controllers())["web"].manifest})
    await put(rolling, "bad")
    (ended,) = await past(rolling, 1)
    assert ended.outcome == "reverted"
    agents.broken = set()
    await told(rolling, "reverted: version")
    await put(rolling, "bad")  # the same value under a newer index
    await put(rolling, "good")
    done, *_ = await past(rolling, 2)
    assert (done.outcome, await runs(rolling)) == ("done", {"LEVEL": "good"})
    assert len(await past(rolling, 2)) == 2


async def test_r41_a_key_that_is_gone_or_too_large_blocks_with_its_name_and_changes_nothing(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    await following_rc(rolling)
    before = await rolling.controllers()
    key = config.key_of(rolling.call.keys, "shop/level")
    await rolling.call.client.delete(key)
    status = await told(rolling, "config/shop/level does not exist")
    assert status.state == "blocked"
    await rolling.call.client.put(key, b"x" * (config.MAX_BYTES + 1))
    await told(rolling, f"config/shop/level: found {config.MAX_BYTES + 1} bytes")
    await rolling.call.client.put(key, b"\xff")
    await told(rolling, "not valid UTF-8")
    assert await rolling.controllers() == before
    await put(rolling, "back")
    await past(rolling, 1)
    assert await runs(rolling) == {"LEVEL": "back"}


async def test_r41_a_persons_rollout_comes_first(
    rolling: Rolling, agents: Obedient, farm: RunningFarm
) -> None:
    await following_rc(rolling)
    rc = (await rolling.controllers())["web"]
    mine = await manifests.read(rolling.call.client, rolling.call.keys, rc.manifest)
    await rolling.update(msgspec.structs.replace(mine, command=["mine"]))
    await rolling.say(await commands.pause(rolling.call, "web"))
    await put(rolling, "debug")
    await rolling.say(await commands.resume(rolling.call, "web"))
    followed, persons = await past(rolling, 2)
    assert (persons.by, followed.by) == ("user/ada@test", "farm/farm-1")
    assert await runs(rolling) == {"LEVEL": "debug"}


@pytest.mark.parametrize("answered", [True, False])
async def test_r41_a_farm_that_falls_as_it_begins_leaves_one_rollout_that_another_farm_ends(
    rolling: Rolling, agents: Obedient, answered: bool
) -> None:
    cluster = rolling.cluster
    async with mortal_farm(
        cluster, rolling.address, "rollout.create", answered=answered, kinds=KINDS
    ) as mortal:
        await following_rc(rolling)
        await put(rolling, "debug")
        await mortal.falls()
        await bury(cluster)
    async with farm_on(cluster.client, "heir", keys=cluster.keys, kinds=KINDS):
        (ended,) = await past(rolling, 1)
        assert (ended.outcome, ended.by, await runs(rolling)) == ("done", "farm/mortal", {"LEVEL": "debug"})
    assert len(await past(rolling, 1)) == 1


async def test_r41_a_daemon_set_follows_by_a_rollout_over_its_nodes(
    rolling: Rolling, agents: Obedient
) -> None:
    cluster = rolling.cluster
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, kinds=("daemonsets", "rollouts")):
        await cluster.add_nodes({"n0": {}, "n1": {}})
        await put(rolling, "info")
        file = {"name": "web", "follow": True, "min_healthy_time": 0, "pod": pod_file()}
        text = yaml.safe_dump(file)
        resolve = await resolving.resolver(rolling.call, [(text, "web.yaml")])
        (spec,) = DAEMON_SET.file.parse_all((text, "web.yaml"), resolve=resolve)
        await commit(rolling.call, await DAEMON_SET.create(rolling.call, spec))
        await put(rolling, "debug")

        async def done() -> bool:
            record = (await DAEMON_SET.find(rolling.call, "web")).record
            manifest = await manifests.read(rolling.call.client, rolling.call.keys, record.manifest)
            levels = {each.manifest for each in (await cluster.intents()).values()}
            return (
                manifest.env == {"LEVEL": "debug"} and levels == {record.manifest} and not record.managed_by
            )

        await eventually(done, what="the daemon set with the new value on both nodes")
        (ended,) = (await History(rolling.call.client, rolling.call.keys, "daemonsets").read("web")).items
        assert (ended.record.outcome, ended.record.by) == ("done", "farm/farm-1")


async def test_r41_what_refers_to_no_key_follows_nothing_and_jobs_do_not_follow() -> None:
    pod = {"id": "web", "command": ["serve"]}
    for noun, file in ((RC, {"replicas": 1, "pod": pod}), (DAEMON_SET, {"pod": pod})):
        with pytest.raises(
            InputInvalid, match="follow: found true, expected false: its pod refers to no config key"
        ):
            noun.file.parse_all((yaml.safe_dump({"name": "web", "follow": True, **file}), "web.yaml"))
    job = yaml.safe_dump({"name": "web", "follow": True, "types": [{"name": "w", "pod": pod}]})
    with pytest.raises(InputInvalid, match="follow"):
        JOB.file.parse_all((job, "web.yaml"))


def pod_file() -> dict[str, Any]:
    """A pod that refers to the key."""
    return {"id": "web", "command": ["serve"], "ports": {"http": {}}, "env": {"LEVEL": {"kv": "shop/level"}}}


async def test_r41_a_key_elsewhere_in_consul_is_read_only_where_farm_follow_lists_it(
    rolling: Rolling, agents: Obedient
) -> None:
    cluster, key = rolling.cluster, f"shared-{rolling.cluster.keys.prefix}level"
    await rolling.call.client.put(key, b"info")
    source = Reference(field="env.LEVEL", kv=f"/{key}", version=1)
    async with farm_on(cluster.client, "farm-1", keys=cluster.keys, kinds=KINDS):
        await following_rc(rolling, source=source)
        status = await told(rolling, f"farm farm-1 may not read {key}: expected farm.follow of all farms")
        assert status.state == "blocked"
    await rolling.call.client.put(key, b"debug")
    async with farm_on(cluster.client, "farm-2", keys=cluster.keys, kinds=KINDS, follow=("shared-",)):
        await past(rolling, 1)
        assert await runs(rolling) == {"LEVEL": "debug"}


async def test_r41_a_new_version_of_a_secret_is_rolled_out_and_a_reseal_is_not(
    rolling: Rolling, agents: Obedient, farm: RunningFarm, tmp_path: Path
) -> None:
    recipient = identity(tmp_path / "node.key")

    async def put_secret(version: int) -> Sealed:
        found = sealed(b"value", [recipient], version=version)
        record = SecretVersion(
            path="shop/db",
            version=version,
            at=1.0,
            by="ada",
            group=found.group,
            recipients=found.recipients,
            body=found.body,
        )
        await rolling.call.client.put(secrets.key_of(rolling.call.keys, "shop/db"), codec.encode(record))
        return found

    first = await put_secret(1)
    pod = {"sealed": {"shop/db@1": first}, "secret_env": {"PASSWORD": "shop/db@1"}}
    await following_rc(rolling, pod=pod, features=("secrets.1", f"identity.{recipient}", "process"))
    await put_secret(1)  # encrypted again
    second = await put_secret(2)
    await past(rolling, 1)
    rc = (await rolling.controllers())["web"]
    found = await manifests.read(rolling.call.client, rolling.call.keys, rc.manifest)
    assert (found.secret_env, found.sealed) == ({"PASSWORD": "shop/db@2"}, {"shop/db@2": second})
    assert len(await past(rolling, 1)) == 1
