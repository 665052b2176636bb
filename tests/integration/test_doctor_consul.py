"""What the doctor finds of Consul itself, on real servers: elections, its disk, and certificates."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest

from farmd.doctor.consul import check_disk as check
from farmd.doctor.consul import judge
from store.certificates import ends_of
from store.errors import StoreError
from store.times import rfc3339
from tests.farmctl import Farmctl, Result
from tests.fleet import client_of, cluster_on, eventually, start_farm
from tests.kubernetes_certificates import certificates
from tests.ports import free_ports
from tests.servers import ConsulServer
from tests.small_disk import SmallDisk

GIB = 1 << 30


async def diagnosed(address: str, prefix: str, *words: str, **variables: str) -> Result:
    """The doctor's report, beside a farm in this loop."""
    farmctl = Farmctl(address, prefix, variables=variables)
    return await asyncio.to_thread(farmctl, "doctor", "-o", "json", *words)


def codes(found: Result) -> dict[str, str]:
    return {item["code"]: item["explanation"] for item in found.json["items"]}


async def test_a_session_that_ends_before_an_election_does_is_a_finding() -> None:
    with ConsulServer(dev=False, config={"performance": {"raft_multiplier": 3}}) as server:
        async with cluster_on(server.address) as cluster:
            farm = await start_farm(cluster.client, "one", keys=cluster.keys)
            try:
                found = await diagnosed(server.address, cluster.keys.prefix)
            finally:
                await farm.close()
    assert "leader of Consul may take 6 s (heartbeat 3s)" in codes(found)["ttl-short"]


async def test_servers_without_a_leader_are_the_finding_where_nothing_can_be_read() -> None:
    with closing(ConsulServer(dev=False, peers=("127.0.0.1:1", "127.0.0.1:2"))) as server:
        server.launch()
        client = client_of(server.address)

        async def answers() -> bool:
            with suppress(StoreError):
                return await client.leader() == ""
            return False

        await eventually(answers, what="an answer")
        await client.close()
        found = await diagnosed(server.address, "alone/", "--kubeconfig", "unread.yaml")
    assert found.code == 1, found
    assert "nothing can be written" in codes(found)["no-leader"]
    assert found.json["facts"]["consul leader"] == "none"


async def test_the_disk_of_a_consul_on_this_machine_is_looked_at(tmp_path: Path) -> None:
    with SmallDisk(tmp_path, megabytes=300) as disk:
        server = ConsulServer(dev=False)
        (server.folder / "data").symlink_to(disk.path)
        with server:
            async with cluster_on(server.address) as cluster:
                found = await diagnosed(server.address, cluster.keys.prefix)
            told = found.json["facts"]["consul disk"]
            assert told.startswith(f"{server.folder}/data: raft.db ")
            assert "expected at least 1 GiB" in codes(found)["consul-disk"]
            (disk.path / "node-id").write_text("another")
            async with cluster_on(server.address) as cluster:
                found = await diagnosed(server.address, cluster.keys.prefix)
            assert "belongs to another Consul" in found.json["facts"]["consul disk"]
            assert "consul-disk" not in codes(found)


@pytest.mark.parametrize(
    ("log", "free", "found"),
    [
        (GIB // 8, 9 * GIB, []),
        (GIB // 8, GIB // 2, ["consul-disk"]),
        (2 * GIB, 9 * GIB, ["consul-log"]),
        (2 * GIB, 3 * GIB, ["consul-disk", "consul-log"]),
    ],
)
def test_room_for_a_snapshot_and_a_log_of_a_gibibyte_are_the_limits(
    log: int, free: int, found: list[str]
) -> None:
    assert [finding.code for finding in judge("/opt/consul", log, free)] == found


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_folder_of_another_program_under_the_name_of_consuls_is_told_and_ends_no_examination(
    tmp_path: Path, content: bytes | None
) -> None:
    (tmp_path / "node-id").mkdir() if content is None else (tmp_path / "node-id").write_bytes(content)
    report = check(str(tmp_path), "id")
    assert report.facts["consul disk"].startswith(f"unknown: {tmp_path} of this machine")
    assert report.findings == ()


async def test_certificates_that_end_within_a_month_are_findings() -> None:
    folder, (port,) = certificates(), free_ports(1)
    keys = {"ca_file": "ca.crt", "cert_file": "server.crt", "key_file": "server.key"}
    config = {"ports": {"https": port}} | {name: str(folder / file) for name, file in keys.items()}
    with ConsulServer(config=config) as server:
        async with cluster_on(server.address) as cluster:
            found = await diagnosed(
                f"https://127.0.0.1:{port}",
                cluster.keys.prefix,
                CONSUL_CACERT=str(folder / "ca.crt"),
                CONSUL_CLIENT_CERT=str(folder / "admin.crt"),
                CONSUL_CLIENT_KEY=str(folder / "admin.key"),
            )
    ending = {item["object"] for item in found.json["items"] if item["code"] == "certificate-ends"}
    assert ending == {f"https://127.0.0.1:{port}", str(folder / "admin.crt")}
    words = ["openssl", "x509", "-noout", "-enddate", "-in", str(folder / "admin.crt")]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    (end,) = ends_of((folder / "admin.crt").read_text())
    assert end == ssl.cert_time_to_seconds(said.removeprefix("notAfter="))
    assert found.json["facts"][f"certificate of {folder / 'admin.crt'}"] == f"until {rfc3339(end)}"
