"""farmctl against a farm at work: waiting, explaining, owners, pods, cascade; nodes whose agents obey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from aiohttp import web

from farmd.runtime.clock import SystemIds
from store import codec
from store.nodes import Agent
from store.pods import Pod
from store.reality import Intent, Reality, Usage
from store.registration import register_cluster
from store.times import plain
from tests.farmctl import Farmctl, Result, embedded
from tests.fleet import KEYS, Cluster, farm_on, patient_client
from tests.people import hello
from tests.scripted_consul import Scripted, Seen, text_answer

HELLO = yaml.safe_dump(hello(pod_labels={"app": "hello"}, node_selector="rack=a"))


class Person:
    """farmctl in processes, without stopping the farm that shares this loop."""

    def __init__(self, address: str, prefix: str = KEYS.prefix) -> None:
        self._farmctl = Farmctl(address, prefix)

    async def run(self, *arguments: str, stdin: str = "") -> Result:
        return await asyncio.to_thread(self._farmctl, *arguments, stdin=stdin)

    async def ok(self, *arguments: str, stdin: str = "") -> Result:
        return await asyncio.to_thread(lambda: self._farmctl.ok(*arguments, stdin=stdin))


@asynccontextmanager
async def fleet() -> AsyncIterator[tuple[Person, Cluster]]:
    """Four nodes that obey, three of them in rack a, and a farm."""
    with embedded() as address:
        client = patient_client(address)
        stop = asyncio.Event()
        try:
            await register_cluster(client, KEYS, SystemIds())
            cluster = Cluster(client)
            await cluster.add_nodes({**{f"web{n}": {"rack": "a"} for n in (1, 2, 3)}, "db1": {"rack": "b"}})
            agents = asyncio.create_task(cluster.obey(stop))
            async with farm_on(client, "farm-one"):
                yield Person(address), cluster
            stop.set()
            await agents
        finally:
            await client.close()


@pytest.mark.slow
async def test_the_whole_way_with_a_farm_at_work() -> None:
    async with fleet() as (person, cluster):
        made = await person.ok("rc", "create", "-f", "-", "--wait", "--timeout", "150s", stdin=HELLO)
        assert "rc/hello: 3 of 3 placed, 3 healthy; " in made.err
        (row,) = (await person.ok("rc", "list", "-o", "json")).json["items"]
        assert (row["owner"], row["status"]["placed"]) == ("farm-one", 3)
        assert await cluster.pods(row["id"]) == [(f"web{n}", "hello") for n in (1, 2, 3)]

        pods = (await person.ok("pod", "list", "-l", "app=hello,!canary", "-o", "json")).json["items"]
        assert [(pod["node"], pod["health"], pod["owner_name"]) for pod in pods] == [
            (f"web{n}", "passing", "hello") for n in (1, 2, 3)
        ]
        assert (await person.ok("pod", "list", "-l", "app=other", "-o", "json")).json["items"] == []
        assert (await person.ok("rc", "pods", "hello", "-o", "name")).out.splitlines() == [
            f"pod/web{n}/hello" for n in (1, 2, 3)
        ]
        explained = (await person.ok("rc", "explain", "hello")).out
        assert "db1  refused" in explained
        assert "selector" in explained
        described = (await person.ok("rc", "describe", "hello")).out
        assert "farm farm-one" in described
        assert "rc.create  user/" in described
        nodes = (await person.ok("node", "list", "-o", "json")).json["items"]
        assert [(node["name"], node["state"], node["pods"]) for node in nodes] == [
            ("db1", "ready", 0),
            ("web1", "ready", 1),
            ("web2", "ready", 1),
            ("web3", "ready", 1),
        ]
        assert "hello" in (await person.ok("node", "describe", "web1")).out
        assert (
            "farms 1  nodes 4/4  rcs 1\npods 3 desired, 3 placed, 3 healthy" in (await person.ok("top")).out
        )

        fewer = await person.ok("rc", "set-replicas", "hello", "1", "-y", "--wait", "--timeout", "150s")
        assert "1 of 1 placed" in fewer.err
        assert len(await cluster.pods(row["id"])) == 1

        changed = HELLO.replace("'9'", "'8'").replace("replicas: 3", "replicas: 2")
        updated = await person.ok(
            "rc", "update", "-f", "-", "--now", "-y", "--wait", "--timeout", "150s", stdin=changed
        )
        assert "2 of 2 placed, 2 healthy; " in updated.err
        shas = {intent.manifest for intent in (await cluster.intents()).values()}
        assert shas == {(await person.ok("rc", "get", "hello", "-o", "json")).json["manifest"]}

        gone = await person.ok("rc", "delete", "hello", "--cascade", "-y", "--timeout", "150s")
        assert "rc/hello deleted (" in gone.out
        assert await cluster.intents() == {}
        assert await cluster.entries(KEYS.tree("rcs")) == {}
        assert await cluster.entries(KEYS.tree("names")) == {}
        actions = [record.action for record in await cluster.audits()]
        assert actions[-1] == "rc.delete"
        assert "rc.mark-deleted" in actions


async def test_what_does_not_fit_times_out_with_the_owners_reason() -> None:
    async with fleet() as (person, _):
        wanted = HELLO.replace("replicas: 3", "replicas: 4")
        late = await person.run("rc", "create", "-f", "-", "--wait", "--timeout", "12s", stdin=wanted)
        assert late.code == 8
        assert "3 of 4 placed, 3 healthy" in late.err
        assert "1 of 1 pod found no place" in late.err
        assert "farm farm-one owns it" in late.err
        listed = (await person.ok("rc", "list")).out
        assert "blocked" in listed
        assert "found no place" in listed


async def test_what_pods_use_comes_from_the_agents_of_their_nodes() -> None:
    uses: Any = {"cores": 0.3, "memory": 96 << 20, "memory_peak": 100 << 20, "throttled_seconds": 1.5}
    used = plain(Usage(at=1.7e9, oom_kills=2, **uses))  # as an agent answers

    async def answer(seen: Seen) -> web.StreamResponse | None:
        if seen.target == "/v1/pods":
            return web.json_response({"node": "web1", "pods": {}, "usage": {"hello": used}})
        if seen.target == "/v1/pods/hello/usage":
            return web.json_response({"usage": used})
        return text_answer("no such pod\n", 404)

    file = hello(
        pod_resources={"cpu": 2, "memory": "1Gi"}, pod_limits={"memory": "128Mi"}, pod_ports={"http": {}}
    )
    with embedded() as address:
        client = patient_client(address)
        person = Person(address)
        async with Scripted(answer) as http:
            await register_cluster(client, KEYS, SystemIds())
            await person.ok("rc", "create", "-f", "-", stdin=yaml.safe_dump(file))
            row = (await person.ok("rc", "get", "hello", "-o", "json")).json
            for node, where in (("web1", http.address), ("web2", "127.0.0.1:1")):
                agent = Agent(node=node, version="1", address=where)
                await client.put(KEYS.agent(node), codec.encode(agent))
                pod, sha = Pod(manifest=row["manifest"]), row["manifest"]
                await client.put(KEYS.pod(row["id"], node, "hello"), codec.encode(pod))
                await client.put(
                    KEYS.intent(node, "hello"), codec.encode(Intent(manifest=sha, owner=row["id"]))
                )
                reality = Reality(manifest=sha, owner=row["id"], pid=7, started=5.0)
                await client.put(KEYS.reality(node, "hello"), codec.encode(reality))
            told = (await person.ok("pod", "describe", "web1/hello")).out
            assert "CPU:           0.30 cores, asks for 2, held back for 1.5 s\n" in told
            memory = "96 MiB, 100 MiB at most until now, asks for 1 GiB, limit 128 MiB, 2 killed for it"
            assert f"Memory:        {memory}\n" in told
            described = (await person.ok("pod", "describe", "web1/hello", "-o", "json")).json
            assert (described["usage"]["cores"], described["usage"]["memory"]) == (0.3, 96 << 20)
            told = (await person.ok("pod", "describe", "web2/hello")).out
            assert "Uses:          unknown: its agent does not answer: " in told
            listed = (await person.ok("pod", "list", "-o", "wide")).out.splitlines()
            assert listed[0].split()[-3:] == ["CPU", "MEMORY", "REASON"]
            assert listed[1].split()[-3:] == ["0.30", "96", "MiB"]
            top = (await person.ok("pod", "top", "--sort", "memory", "-o", "json")).json
            assert [(each["node"], each["owner"], each["cores"]) for each in top["items"]] == [
                ("web1", "rc/hello", 0.3)
            ]
            together = "0.30 cores of 2 asked for, 96 MiB of memory of 1 GiB asked for, by 1 of 2 pods"
            silent = "usage of node web2 is unknown: its agent does not answer: Connection refused"
            assert (
                f"Uses:          {together}\n               {silent}\n"
                in (await person.ok("rc", "describe", "hello")).out
            )
            alone = "0.30 cores of 2 asked for, 96 MiB of memory of 1 GiB asked for"
            assert f"Uses:       {alone}\n" in (await person.ok("node", "describe", "web1")).out
            await person.ok("service", "create", "shop", "rc/hello", "--port", "http")
            described = (await person.ok("service", "describe", "shop", "-o", "json")).json
            assert described["usage"]["cpu_used"] == 0.3
            assert top["unanswered"].keys() == {"web2"}
            shown = await person.ok("pod", "top", "--max-nodes", "1")
            assert "web1  hello     rc/hello  0.30" in shown.out
            how = "one more node was not asked; raise --max-nodes, or choose some by -l or --node"
            assert shown.err == f"farmctl: {how}\n"
            fleet = (await person.ok("top", "--once", "--usage")).out
            assert f"\nUSAGE {together}\nNODE " in fleet
            assert f"\n{silent}\n" in fleet
            fleet = (await person.ok("top", "--usage", "-o", "json")).json["usage"]
            assert (fleet["sum"]["cpu_used"], fleet["not_asked"]) == (0.3, 0)
        await client.close()


async def test_logs_come_from_the_agent_of_the_node() -> None:
    async def answer(seen: Seen) -> web.StreamResponse | None:
        if seen.target in (
            "/v1/pods/hello/logs?lines=2",
            "/v1/pods/hello/logs?lines=7&timestamps=1&since=300",
        ):
            return text_answer("one\ntwo\n", 200)
        if seen.target == "/v1/pods/removed/logs?lines=100":
            kept = text_answer("last words\n", 200)
            kept.headers["Farmd-Log-Gone"] = "2026-01-02T03:04:05Z"
            return kept
        return text_answer("no such pod\n", 404)

    with embedded() as address:
        client = patient_client(address)
        person = Person(address)
        async with Scripted(answer) as http:
            await register_cluster(client, KEYS, SystemIds())
            for node, where in (("web1", http.address), ("web2", "127.0.0.1:1"), ("web3", "")):
                agent = Agent(node=node, version="1", address=where)
                await client.put(KEYS.agent(node), codec.encode(agent))
                await client.put(KEYS.intent(node, f"hello{node[-1]}" if node != "web1" else "hello"), b"{}")
            assert (await person.ok("pod", "logs", "hello", "--lines", "2")).out == "one\ntwo\n"
            assert (await person.ok("pod", "logs", "web1/hello", "--tail", "2")).out == "one\ntwo\n"
            removed = await person.ok("pod", "logs", "web1/removed")
            assert (removed.out, removed.err) == (
                "last words\n",
                "farmctl: pod web1/removed was removed at 2026-01-02T03:04:05Z; this is its last output\n",
            )
            options = ["--tail", "7", "--since", "5m", "--timestamps"]
            older = await person.run("pod", "logs", "hello", *options)
            assert (older.code, older.out) == (7, "")
            assert "its agent is an earlier version, which does not record the times of output" in older.err
            gone = await person.run("pod", "logs", "hello", "--previous")
            assert (gone.code, gone.err) == (4, "farmctl: pod web1/hello has no output of a previous start\n")
            both = await person.run("pod", "logs", "hello", "--previous", "-f")
            assert (both.code, both.err.splitlines()[0]) == (
                2,
                "farmctl: --follow: found together with --previous, whose output has ended",
            )
            for pod, code, named in (
                ("web1/other", 4, "web1/other has no logs"),
                ("nope", 4, "'nope' does not exist"),
                ("web2/hello2", 7, "does not answer at 127.0.0.1:1"),
                ("web3/hello3", 7, "not connected"),
                ("../x", 2, "node: found"),
                ("web1/../../x", 2, "found"),
            ):
                refused = await person.run("pod", "logs", pod)
                assert refused.code == code, refused
                assert named in refused.err.splitlines()[0]
        await client.close()


async def test_logs_of_a_pod_that_never_started_say_so() -> None:
    async def answer(seen: Seen) -> web.StreamResponse | None:
        return text_answer("" if seen.target.startswith("/v1/pods/hello/") else "old\n", 200)

    with embedded() as address:
        client = patient_client(address)
        person = Person(address)
        async with Scripted(answer) as http:
            await register_cluster(client, KEYS, SystemIds())
            agent = Agent(node="web1", version="1", address=http.address)
            await client.put(KEYS.agent("web1"), codec.encode(agent))
            made = await person.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO)
            await client.put(
                KEYS.pod(made.json["items"][0]["id"], "web1", "hello"), codec.encode(Pod("0" * 64))
            )

            async def shown(*command: str) -> tuple[int, str, str]:
                result = await person.run(*command)
                return result.code, result.out, result.err

            async def say(**fields: object) -> None:
                value = codec.encode(Reality(manifest="0" * 64, **fields))
                await client.put(KEYS.reality("web1", "hello"), value)

            line = "farmctl: pod web1/hello has not started yet"
            assert await shown("pod", "logs", "web1/hello") == (4, "", f"{line}\n")
            await say(phase="failed", reason="command /x: No such file or directory")
            why = ": command /x: No such file or directory"
            assert await shown("pod", "logs", "web1/hello") == (4, "", f"{line}{why}\n")
            owner = await shown("rc", "logs", "hello")
            assert owner[0] == 4
            assert owner[2].splitlines()[-1] == "farmctl: the logs of 1 of 1 pod are not there"
            following = await shown("pod", "logs", "-f", "web1/hello")
            assert (
                following[2].splitlines()[0]
                == f"pod web1/hello has not started yet{why}; waiting for its output"
            )
            assert await shown("pod", "logs", "web1/other") == (0, "old\n", ""), "of an earlier start"
            await say(phase="exited", started=1.0)
            assert await shown("pod", "logs", "web1/hello") == (0, "", ""), "it wrote nothing"
            await client.put(KEYS.reality("web1", "hello"), b"{")
            assert await shown("pod", "logs", "web1/hello") == (0, "", ""), "what happened is unknown"
        await client.close()


async def test_logs_of_an_owner_are_those_of_its_pods_and_a_silent_agent_hides_no_other() -> None:
    async def answer(seen: Seen) -> web.StreamResponse | None:
        return text_answer("one\ntwo\nthree" if seen.target == "/v1/pods/hello/logs?lines=100" else "", 200)

    with embedded() as address:
        client = patient_client(address)
        person = Person(address)
        async with Scripted(answer) as http:
            await register_cluster(client, KEYS, SystemIds())
            made = await person.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO)
            await client.put(
                KEYS.reality("web2", "hello"), codec.encode(Reality(manifest="0" * 64, started=1.0))
            )
            rc_id = made.json["items"][0]["id"]
            for node, where in (("web1", http.address), ("web2", http.address), ("web3", "127.0.0.1:1")):
                agent = Agent(node=node, version="1", address=where)
                await client.put(KEYS.agent(node), codec.encode(agent))
            none = await person.ok("rc", "logs", "hello")
            assert (none.out, none.err) == ("", "rc/hello has no pods\n")
            await client.put(KEYS.pod(rc_id, "web1", "hello"), codec.encode(Pod("0" * 64)))
            assert (await person.ok("rc", "logs", "rc/hello")).out == "one\ntwo\nthree"
            for node in ("web2", "web3"):
                await client.put(KEYS.pod(rc_id, node, "hello"), codec.encode(Pod("0" * 64)))
            shown = await person.run("rc", "logs", "hello")
            assert shown.code == 7
            lines = [f"{node}/hello: {line}" for node in ("web1", "web2") for line in ("one", "two", "three")]
            assert shown.out.splitlines() == lines
            assert "web3/hello: node 'web3': its agent does not answer" in shown.err
            assert "the logs of 1 of 3 pods could not be read" in shown.err
        await client.close()


async def test_logs_of_several_pods_are_merged_by_time() -> None:
    written = {
        "web1": "2026-01-01T00:00:01Z one\n2026-01-01T00:00:04Z four\n",
        "web2": "- earlier\n2026-01-01T00:00:02Z two\n2026-01-01T00:00:03Z three\n",
    }

    def of(node: str) -> Scripted:
        async def answer(seen: Seen) -> web.StreamResponse | None:
            assert "timestamps=1" in seen.target
            made = text_answer(written[node], 200)
            made.headers["Farmd-Log-Times"] = "1"
            return made

        return Scripted(answer)

    with embedded() as address:
        client = patient_client(address)
        person = Person(address)
        async with of("web1") as first, of("web2") as second:
            await register_cluster(client, KEYS, SystemIds())
            made = await person.ok("rc", "create", "-f", "-", "-o", "json", stdin=HELLO)
            rc_id = made.json["items"][0]["id"]
            for node, http in (("web1", first), ("web2", second)):
                agent = Agent(node=node, version="1", address=http.address)
                await client.put(KEYS.agent(node), codec.encode(agent))
                await client.put(KEYS.pod(rc_id, node, "hello"), codec.encode(Pod("0" * 64)))
                began = Reality(manifest="0" * 64, started=1.0)
                await client.put(KEYS.reality(node, "hello"), codec.encode(began))
            shown = (await person.ok("rc", "logs", "hello")).out.splitlines()
            words = [line.split(": ")[1] for line in shown]
            assert words == ["earlier", "one", "two", "three", "four"]
            timed = (await person.ok("rc", "logs", "hello", "--timestamps")).out.splitlines()
            assert timed[-1] == "web1/hello: 2026-01-01T00:00:04Z four"
        await client.close()
