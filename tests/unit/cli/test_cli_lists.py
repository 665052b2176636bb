"""Lists as people see them, whole: on a terminal of 80 columns, and with ``-o wide``."""

from __future__ import annotations

import msgspec

from farmd.cli import output
from farmd.daemonset.commands import DAEMON_SET
from farmd.jobs.commands import JOB
from farmd.overview import NodeRow, PodRow, Row
from farmd.replication.commands import RC
from farmd.rollout.noun import ROLLOUT
from farmd.tables import nodes as node_tables
from farmd.tables import nouns as noun_tables
from farmd.tables.pods import pod_table
from store.daemonsets import DaemonSet
from store.jobs import Job, JobStatus
from store.nodes import Agent, Taint
from store.rcs import ReplicationController
from store.rollouts import RolloutStatus, SideStatus
from store.status import Status
from tests.rollout_worlds import rollout

NOW = 1_800_000_000.0
SHA = "0123456789abcdef" * 4


def rc(name: str, count: int, farm: str, status: Status | None) -> Row[ReplicationController]:
    record = ReplicationController(
        id=f"id-{name}", name=name, manifest=SHA, pod_id=name, replicas_desired=count, node_selector="rack=a"
    )
    return Row(record=record, index=7, owner=farm, status=status)


UPDATING = rc(
    "hello",
    4,
    "farm-1",
    Status(state="progressing", desired=4, placed=4, healthy=1, outdated=3, serving=3, record=7),
)
OF_AN_OLDER_FARM = rc("old", 2, "farm-1", Status(state="converged", desired=2, placed=2, healthy=2))
BLOCKED = rc(
    "shop-frontend-eu",
    3,
    "farm-2",
    Status(
        state="blocked", desired=3, record=7, reason="1 of 3 pods found no place: of 5 nodes 4 are cordoned"
    ),
)
UNOWNED = Row(record=UPDATING.record, index=7, unowned="no farm is alive")


def test_a_list_of_owners_shows_what_serves_while_pods_are_replaced() -> None:
    shown = output.lines(noun_tables.table(RC, [UPDATING, OF_AN_OLDER_FARM], NOW), width=80)
    assert shown == [
        "NAME   DESIRED  PLACED  HEALTHY  OUTDATED  SERVING  STATE        REASON",
        "hello  4        4       1        3         3        progressing",
        "old    2        2       2        0         2        converged",
    ]


def test_a_list_tells_what_manages_an_owner_and_how_far_it_is() -> None:
    managed = msgspec.structs.replace(OF_AN_OLDER_FARM, managed="rollout/old: moving, stage 1 of 2")
    behind = msgspec.structs.replace(managed, index=8, status=UPDATING.status)
    shown = output.lines(noun_tables.table(RC, [managed, behind], NOW), width=100)
    assert shown == [
        "NAME  DESIRED  PLACED  HEALTHY  OUTDATED  SERVING  STATE      REASON",
        "old   2        2       2        0         2        converged  rollout/old: moving, stage 1 of 2",
        "old   2        4       1        3         3        pending    rollout/old: moving, stage 1 of 2",
    ]


def test_a_count_of_none_in_an_outdated_status_is_not_shown_as_known() -> None:
    """The status of a new version's controller may be of before its rollout brought the pods."""
    behind = rc("new", 2, "farm-1", Status(state="converged", desired=0, record=6))
    (_, shown) = output.lines(noun_tables.table(RC, [behind], NOW), width=160)
    assert shown.split()[:7] == ["new", "2", "-", "-", "-", "-", "pending"]


def test_a_list_of_what_ends_by_itself_tells_how_far_it_is() -> None:
    moving = RolloutStatus(
        state="progressing",
        record=7,
        phase="moving",
        stage=2,
        stages=3,
        reason="floor 9",
        old=SideStatus(7, 7, 7),
    )
    rows = [Row(record=rollout(10, 9), index=7, owner="farm-1", status=each) for each in (moving, None)]
    assert output.lines(noun_tables.table(ROLLOUT, rows, NOW), width=80) == [
        "NAME  STATE        PROGRESS                                REASON",
        "web   progressing  moving, stage 2 of 3, old 7/7, new 0/0  floor 9",
        "web   pending      -",
    ]


def test_a_list_of_jobs_tells_how_old_they_are_and_fits_80_columns() -> None:
    reason = "61 of 64 fit; worker/61 found no place: of 16 nodes 12 short of gpu; nearest n7: 2 free of 4"
    statuses = (
        JobStatus(state="running", record=7, desired=10_000, done=4120, placed=200, restarts=17),
        JobStatus(state="waiting", record=7, desired=64, reason=reason),
    )
    rows = [
        Row(record=Job(id="0a", name=name, created=NOW - age), index=7, owner="farm-1", status=status)
        for name, age, status in zip(("resize", "llama"), (550, 130), statuses, strict=True)
    ]
    assert output.lines(noun_tables.table(JOB, rows, NOW), width=80) == [
        "NAME    STATE    DONE        ACTIVE  RESTARTS  AGE  REASON",
        "resize  running  4120/10000  200     17        9m",
        "llama   waiting  0/64        0       0         2m   61 of 64 fit; worker/61",
        "                                                    found no place: of 16 nodes",
        "                                                    12 short of gpu; nearest n7:",
        "                                                    2 free of 4",
    ]


def test_a_watched_list_crops_everything_else_before_it_crops_a_state() -> None:
    listed = noun_tables.table(RC, [BLOCKED, UPDATING], NOW)
    assert [line[:60].rstrip() for line in output.lines(listed, cropped=60)] == [
        "NAME              DESIRED  PLACED  HEALTHY  STATE        REA",
        "shop-frontend-eu  3        0       0        blocked      1 o",
        "hello             4        4       1        progressing",
    ]
    assert [line[:24].rstrip() for line in output.lines(listed, cropped=24)] == [
        "NAME         STATE",
        "shop-front…  blocked",
        "hello        progressing",
    ]


def test_a_watched_list_of_pods_keeps_their_names_phases_and_healths() -> None:
    row = PodRow(
        node="node-12",
        instance="shop-frontend-eu~3",
        owner="0a",
        owner_name="shop-frontend-eu",
        manifest=SHA,
        phase="running",
    )
    assert [line[:40] for line in output.lines(pod_table([row], [], NOW), cropped=40)] == [
        "NODE     INSTANCE       PHASE    HEALTH ",
        "node-12  shop-fronten…  running  unknown",
    ]


def test_a_list_of_owners_fits_80_columns() -> None:
    shown = output.lines(noun_tables.table(RC, [BLOCKED, UNOWNED], NOW), width=80)
    assert shown == [
        "NAME              DESIRED  PLACED  HEALTHY  OUTDATED  SERVING  STATE    REASON",
        "shop-frontend-eu  3        0       0        0         0        blocked",
        "    1 of 3 pods found no place: of 5 nodes 4 are cordoned",
        "hello             4        -       -        -         -        unowned",
        "    no farm is alive",
    ]


def test_a_wide_list_of_owners_tells_ids_farms_and_what_they_ask_for() -> None:
    daemonset = DaemonSet(id="0a", name="logs", manifest=SHA, pod_id="logs", node_selector="r=a")
    status = Status(state="converged", desired=9, placed=9, healthy=9, serving=9, record=7)
    row = Row(record=daemonset, index=7, owner="farm-1", status=status)
    shown = output.lines(noun_tables.table(DAEMON_SET, [row], NOW), wide=True)
    assert shown == [
        "NAME  ID  DESIRED  PLACED  HEALTHY  OUTDATED  SERVING  STATE      OWNER   MANIFEST      SELECTOR  "
        "REASON",
        "logs  0a  9        9       9        0         9        converged  farm-1  0123456789ab  r=a",
    ]


FACTS = {"os": "linux", "arch": "x86_64", "kernel": "6.8.0-45-generic", "hostname": "web1.example.com"}
AGENT = Agent(node="web1", version="1.2.0", since=NOW - 7200, address="10.0.0.1:4711")
NODES = [
    NodeRow(
        name="web1",
        state="ready",
        labels=FACTS | {"rack": "a"},
        pods=12,
        agent=AGENT,
        taints=[Taint("dedicated", "db")],
    ),
    NodeRow(
        name="web2.example.com",
        state="absent,draining",
        labels={"rack": "a"},
        pods=3,
        absent_since=NOW - 12,
        left=3,
        waiting=["rc/shop-frontend: would fall below its health floor"],
        cordon_reason="new disk",
    ),
]


def test_a_list_of_nodes_fits_80_columns() -> None:
    assert output.lines(node_tables.table(NODES, [], NOW), width=80) == [
        "NAME              STATE                       PODS  UP  REASON",
        "web1              ready                       12    2h",
        "web2.example.com  absent 12s,draining 3 left  3         rc/shop-frontend: would",
        "                                                        fall below its health",
        "                                                        floor; new disk",
    ]


def test_a_wide_list_of_nodes_tells_their_facts() -> None:
    head, first, _ = output.lines(node_tables.table(NODES, [], NOW), wide=True)
    assert head.split() == ["NAME", "STATE", "PODS", "UP", "VERSION", "ADDRESS", "TAINTS", "LABELS", "REASON"]
    assert first.split() == [
        "web1", "ready", "12", "2h", "1.2.0", "10.0.0.1:4711", "dedicated=db:no-schedule",
        "arch=x86_64,hostname=web1.example.com,kernel=6.8.0-45-generic,os=linux,rack=a",
    ]  # fmt: skip


PODS = [
    PodRow(
        owner="0123456789abcdef",
        owner_name="hello",
        node="web1",
        instance="hello",
        manifest=SHA,
        phase="running",
        health="passing",
        healthy=True,
        placed_at=NOW - 90,
        started=NOW - 30,
        ports={"http": 20001},
    ),
    PodRow(
        owner="0123456789abcde0",
        owner_name="daemonset/logs",
        node="web1",
        instance="logs",
        manifest=SHA,
        phase="backoff",
        health="critical",
        restarts=7,
        placed_at=NOW - 90,
        reason="exited with code 1 after 2 s",
    ),
]


def test_a_list_of_pods_fits_80_columns_and_names_owners() -> None:
    assert output.lines(pod_table(PODS, [], NOW), width=80) == [
        "NODE  INSTANCE  OWNER           PHASE    HEALTH    RESTARTS  AGE  UP   REASON",
        "web1  hello     rc/hello        running  passing   0         90s  30s",
        "web1  logs      daemonset/logs  backoff  critical  7         90s",
        "    exited with code 1 after 2 s",
    ]


def test_the_pods_of_one_owner_have_their_ports_in_its_place() -> None:
    assert output.lines(pod_table(PODS[:1], [], NOW, same="OWNER"), width=80) == [
        "NODE  INSTANCE  PHASE    HEALTH   RESTARTS  AGE  UP   PORTS       REASON",
        "web1  hello     running  passing  0         90s  30s  http=20001",
    ]
    assert output.lines(pod_table(PODS[:1], [], NOW, same="NODE"), width=80)[1].split()[:2] == [
        "hello",
        "rc/hello",
    ]
