"""What ``describe`` tells of owners and pods, whole."""

from __future__ import annotations

import pytest

from farmd.cli import pod
from farmd.overview import PodRow, Row
from farmd.replication.commands import RC
from farmd.tables import manifests as manifest_facts
from farmd.tables import nouns as noun_tables
from farmd.tables import pods
from store.manifests import HealthCheck, Manifest, Port, Restart, Stop
from store.rcs import ReplicationController
from store.reality import Exit
from store.status import Status
from tests.people import KEYS, person

NOW = 1_800_000_000.0
SHA = "0123456789abcdef" * 4
SERVER = Manifest(
    id="hello",
    command=["python3", "-c", "print(1)"],
    args=["--port", "$PORT"],
    env={"TOKEN": "secret", "DEBUG": "1"},
    ports={"http": Port(), "admin": Port(9090)},
    health=HealthCheck(type="http", port="http", path="/ok", start_period=5),
    restart=Restart(initial=1, maximum=30, reset=60),
    stop=Stop(signal="INT", grace=2.5),
    resources={"cpu": 0.5, "memory": 64.0 * 2**20},
)
RUNS = [
    ("Command", "python3 -c 'print(1)' --port '$PORT'"),
    (
        "Health check",
        "http /ok on port http, every 2 s, timeout 1 s, healthy after 1 and unhealthy after 3 in a row,"
        " failures are ignored for 5 s",
    ),
    ("Restart", "after 1 s, doubled up to 30 s; starts over after a run of 60 s"),
    ("Stop", "INT, then KILL after 2.5 s"),
    ("Resources", "cpu=0.5,memory=64Mi"),
    ("Ports", "admin=9090,http=any"),
    ("Environment", "DEBUG, TOKEN"),
]


def test_what_a_pod_runs_is_told_without_its_secrets() -> None:
    assert manifest_facts.facts(SERVER) == RUNS


def test_what_a_plain_pod_leaves_out_is_told_as_such() -> None:
    told = dict(manifest_facts.facts(Manifest(id="a", command=["sleep", "9"])))
    assert told["Health check"] == "none: a pod that runs counts as healthy"
    assert told["Resources"] == "none"
    assert not {"Ports", "Environment"} & told.keys()
    check = HealthCheck(type="command", command=["test", "-f", "a b"])
    told = dict(manifest_facts.facts(Manifest(id="a", command=["x"], health=check)))
    assert told["Health check"].startswith("test -f 'a b', every 2 s")


async def test_a_manifest_that_is_gone_hides_nothing_else() -> None:
    async with person() as call:
        missing = [("Command", "unknown: manifest 0123456789ab does not exist")]
        assert await manifest_facts.read(call, SHA) == (None, missing)
        await call.client.put(KEYS.manifest(SHA), b"{}")
        manifest, ((title, text),) = await manifest_facts.read(call, SHA)
        assert (manifest, title) == (None, "Command")
        assert text.startswith(f"unknown: {KEYS.manifest(SHA)}: body: found digest ")


def test_a_controller_is_described_with_its_age_and_what_it_runs() -> None:
    record = ReplicationController(
        id="0a", name="hello", manifest=SHA, pod_id="hello", replicas_desired=4, created=NOW - 7200
    )
    counts = {"desired": 4, "placed": 4, "healthy": 1, "outdated": 3, "serving": 3}
    status = Status(state="progressing", record=7, reason="one by one", **counts)  # type: ignore[arg-type]
    row = Row(record=record, index=7, owner="farm-1", status=status)
    assert noun_tables.facts(RC, row, NOW, RUNS[:1]) == [
        ("Name", "hello"),
        ("Id", "0a"),
        ("State", "progressing: one by one"),
        ("Replicas", "4 desired, 4 placed, 1 healthy, 3 outdated, 3 serving"),
        ("Owner", "farm farm-1"),
        ("Age", "2h, created 2027-01-15T06:00:00Z"),
        ("Managed by", "nobody"),
        ("Manifest", SHA),
        ("Pod id", "hello"),
        ("Node selector", "(every node)"),
        ("Labels", ""),
        ("Pod labels", ""),
        ("Per node", "at most 1"),
        ("Unavailable", "at most 1"),
        ("Available", "a pod that is healthy for 10 s without a break"),
        ("Strategy", "static, on a lost node: replace"),
        RUNS[0],
    ]


def test_what_manages_a_controller_is_named_as_people_name_it() -> None:
    record = ReplicationController(
        id="0a", name="hello", manifest=SHA, replicas_desired=4, managed_by="rollouts/5e"
    )
    row = Row(record=record, index=7, owner="farm-1", status=None, managed="rollout/hello: baking")
    assert ("Managed by", "rollout/hello: baking") in noun_tables.facts(RC, row, NOW)


def test_a_record_of_an_earlier_version_has_no_age() -> None:
    record = ReplicationController(id="0a", name="hello", manifest=SHA, replicas_desired=0)
    assert "Age" not in dict(noun_tables.facts(RC, Row(record=record, index=7), NOW))


def test_a_pod_is_described_with_its_last_exits() -> None:
    row = PodRow(
        owner="0123456789abcdef",
        owner_name="hello",
        node="web1",
        instance="hello~2",
        manifest=SHA,
        labels={"app": "hello"},
        placed_at=NOW - 86400 * 3,
        phase="backoff",
        health="critical",
        health_since=NOW - 30,
        reason="exited with code 1 after 2 s",
        started=NOW - 32,
        restarts=7,
        ports={"http": 20001},
        exits=[Exit(NOW - 60, -9), Exit(NOW - 30, 1)],
    )
    assert pods.facts(row, RUNS[:1], NOW) == [
        ("Pod", "hello~2"),
        ("Node", "web1"),
        ("Owner", "rc/hello"),
        ("Phase", "backoff: exited with code 1 after 2 s"),
        ("Health", "critical for 30s"),
        ("Age", "3d"),
        ("Started", "2027-01-15T07:59:28Z, 32s ago"),
        ("Restarts", "7"),
        ("Exit", "2027-01-15T07:59:30Z, 30s ago, exited with code 1"),
        ("Exit", "2027-01-15T07:59:00Z, 60s ago, ended by SIGKILL"),
        ("Serves on", "http=20001"),
        ("Labels", "app=hello"),
        ("Manifest", SHA),
        RUNS[0],
    ]


@pytest.mark.parametrize(
    ("runtime", "pid", "told"),
    [
        ("container", 7, ["on web1: docker exec -it {0} /bin/sh, or podman exec -it {0} /bin/sh"]),
        ("container", 0, []),
        (
            "systemd",
            7,
            ["on web1: systemctl status {0}.service, and nsenter --target 7 --mount for its files"],
        ),
        ("process", 7, []),
    ],
)
def test_a_pod_in_a_container_or_unit_tells_how_to_look_inside(
    runtime: str, pid: int, told: list[str]
) -> None:
    row = PodRow(owner="01", owner_name="hello", node="web1", instance="hello~2", manifest=SHA, pid=pid)
    manifest = Manifest(id="hello", runtime=runtime)
    found = pod.inside(row, manifest, enterable=False)
    assert [text for _, text in found] == [each.format("farmd..web1..hello..2") for each in told]
    through = [("Look inside", "farmctl pod exec -it web1/hello~2 -- /bin/sh")]
    assert pod.inside(row, manifest, enterable=True) == (through if pid else [])


def test_an_end_is_told_with_its_cause_and_what_the_pod_said_in_one_line() -> None:
    ends = [
        Exit(NOW - 60, 0),
        Exit(NOW - 40, -9, "lost"),
        Exit(NOW - 20, -9, "oom", "at step 3\n\x1b[31mred"),
    ]
    row = PodRow(
        owner="0a", owner_name="job/bert", node="n1", instance="bert-worker-0~0", manifest=SHA, exits=ends
    )
    told = [text.rpartition(" ago, ")[2] for title, text in pods.facts(row, [], NOW) if title == "Exit"]
    assert told == [
        "out of memory, ended by SIGKILL: at step 3  [31mred",
        "cause unknown",
        "exited with code 0",
    ]
