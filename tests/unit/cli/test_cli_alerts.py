"""``farmctl alert``: the incidents that are open, wherever they stand, and sinks that are tried."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web

from farmd.overview import incidents
from store import codec
from store.failsafe import Acknowledgement, Failsafe
from store.farms import PinnedCluster
from store.jobs import JobStatus
from store.nodes import NodeStatus
from store.rcs import ReplicationController
from store.registration import register_cluster
from store.status import Status
from tests.farmctl import Farmctl, Result
from tests.node_farms import KEYS
from tests.unit.alerting.test_alert_sinks import Receiver, status
from tests.virtual import SeededIds, VirtualClock, embedded_client
from tests.web_servers import serving


async def test_incidents_of_items_freezes_and_clusters_are_listed_with_what_they_are_about() -> None:
    client = embedded_client(VirtualClock())
    await register_cluster(client, KEYS, SeededIds(1))
    evidence = "agents: more than half are absent"
    records = {
        KEYS.record("rcs", "00aa"): ReplicationController(
            id="00aa", name="web", manifest="0" * 64, replicas_desired=1
        ),
        KEYS.status("rcs", "00aa"): Status(
            state="blocked", reason="no node", farm="f1", since=5.0, alerts=("00aa", "rc_crashes_00aa")
        ),
        KEYS.status("nodes", "n1"): NodeStatus(state="lost", alerts=("node_lost_n1",)),
        KEYS.status("jobs", "00bb"): JobStatus(state="running"),
        KEYS.failsafe("rcs"): Failsafe(evidence=evidence, by="farm/f1", since=7.0),
        KEYS.failsafe("jobs"): Failsafe(
            evidence=evidence, by="farm/f1", acknowledgement=Acknowledgement(evidence, "user/ada", 9.0)
        ),
        f"{KEYS.tree('meta')}kubernetes/prod": PinnedCluster(alerts=["kubernetes_denied_prod"]),
    }
    for key, record in records.items():
        await client.put(key, codec.encode(record))
    await client.put(KEYS.status("rcs", "00cc"), b"[]")
    found = await incidents.incidents(client, KEYS)
    assert [(each.key, each.kind, each.name, each.state) for each in found] == [
        ("00aa", "rcs", "web", "blocked"),
        ("failsafe_more_than_half_are_absent", "failsafe", "jobs, rcs", "frozen"),
        ("kubernetes_denied_prod", "kubernetes", "prod", ""),
        ("node_lost_n1", "nodes", "n1", "lost"),
        ("rc_crashes_00aa", "rcs", "web", "blocked"),
    ]


async def run(folder: Path, config: str, *words: str, **variables: str) -> Result:
    (folder / "farmd.toml").write_text(config)
    farmctl = Farmctl("127.0.0.1:1", "none/", inside=True, variables=variables)
    return await asyncio.to_thread(farmctl, "alert", "test", *words, "--config", str(folder / "farmd.toml"))


async def test_a_sink_is_tried_with_an_incident_and_its_end(tmp_path: Path) -> None:
    receiver = Receiver(status(202))
    async with serving(receiver.handle) as url:
        config = f"[[alerts.sinks]]\ntype = 'pagerduty'\nurl = '{url}/v2'\nsecret = 'hunter2'\n"
        done = await run(tmp_path, config, "pagerduty")
        assert done.code == 0, done
        assert [each["event_action"] for each in receiver.bodies] == ["trigger", "resolve"]
        assert len({each["dedup_key"] for each in receiver.bodies}) == 1
        receiver.answers = [lambda _: web.Response(status=400, text="routing_key hunter2 is unknown")]
        refused = await run(tmp_path, config, "pagerduty")
    assert refused.code == 9
    assert "status 400, expected 2xx: routing_key [hidden] is unknown" in refused.err


@pytest.mark.parametrize(
    ("config", "words", "code", "told"),
    [
        ("", ["pager"], 4, "sink 'pager' is not configured"),
        ("", ["log"], 2, "sink: found a log sink, expected one that notifies somebody"),
        ("[[alerts.sinks]]\ntype = 'slack'\n", ["slack"], 2, "alerts.sinks[0].secret_file: found nothing"),
        (
            "[[alerts.sinks]]\ntype = 'slack'\nsecret_env = 'HOOK'\n",
            ["slack"],
            9,
            "alerts.sinks.secret_env: found nothing in the variable HOOK",
        ),
    ],
)
async def test_what_cannot_be_tried_is_one_clear_line(
    tmp_path: Path, config: str, words: list[str], code: int, told: str
) -> None:
    done = await run(tmp_path, config, *words)
    assert (done.code, done.out) == (code, "")
    assert told in done.err
