"""A farm's contact with its cluster: its identity, its rights, and what becomes of its items without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from farmd.kubernetes import contact
from farmd.kubernetes.install import documents
from farmd.kubernetes.objects import NAMESPACES
from farmd.kubernetes.transport import KubernetesTransport
from store import codec
from store.farms import Member, PinnedCluster
from tests.fleet import eventually
from tests.kubernetes.farmjobs import Jobs

pytestmark = pytest.mark.xdist_group("kubernetes")
OTHER = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(contact, "LASTING_SECONDS", 0.5)


def uid_of(jobs: Jobs) -> str:
    uid: str = jobs.server.ask("GET", NAMESPACES.path(name="kube-system"))["metadata"]["uid"]
    return uid


async def pinned(jobs: Jobs) -> PinnedCluster:
    entry = await jobs.client.read(jobs.keys.other_cluster(jobs.namespace))
    return PinnedCluster() if entry is None else codec.decode(PinnedCluster, entry.value, entry.key)


async def pin(jobs: Jobs, uid: str) -> None:
    record = msgspec.structs.replace(await pinned(jobs), uid=uid)
    await jobs.client.put(jobs.keys.other_cluster(jobs.namespace), codec.encode(record))


async def reported(jobs: Jobs, farm: str) -> dict[str, str]:
    entry = await jobs.client.read(jobs.keys.farm(farm))
    assert entry is not None
    report = codec.decode(Member, entry.value, entry.key).clusters.get(jobs.namespace)
    return {} if report is None else report.troubles


async def reports(jobs: Jobs, farm: str, trouble: str, text: str) -> None:
    """Wait until a farm's record says that of a trouble; it is written beside the alert."""

    async def said() -> bool:
        return text in (await reported(jobs, farm)).get(trouble, "")

    await eventually(said, what=f"a record that says {text!r} of {trouble}")


async def test_the_first_contact_pins_the_cluster(jobs: Jobs) -> None:
    async def done() -> bool:
        return (await pinned(jobs)).uid == uid_of(jobs)

    await eventually(done, what="the uid of kube-system")
    assert (await pinned(jobs)).by == "farm/first"


async def test_another_cluster_under_the_name_freezes_and_gets_no_work_until_it_is_accepted(
    unclaimed: Jobs,
) -> None:
    await pin(unclaimed, OTHER)
    await unclaimed.farm("first")
    await unclaimed.until_frozen("first")
    unclaimed.create("foreign", {"Worker": {"replicas": 1}})
    alerts = unclaimed.alerts("first")
    key = f"kubernetes_identity_{unclaimed.namespace}"

    async def alerted() -> bool:
        return key in alerts.firing

    await eventually(alerted, what="an alert")
    assert alerts.firing[key].urgency == "high"
    assert OTHER in alerts.firing[key].summary
    assert f"farmctl kubernetes accept --name {unclaimed.namespace}" in alerts.firing[key].summary
    await reports(unclaimed, "first", "identity", "another cluster")
    assert not unclaimed.pods()
    assert (await pinned(unclaimed)).alerts == [key]
    await pin(unclaimed, uid_of(unclaimed))
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)

    async def over() -> bool:
        return key in alerts.resolved and not (await pinned(unclaimed)).alerts

    await eventually(over, what="the end of the alert")


class Way:
    """A farm's way to the API server, which a test cuts and mends."""

    def __init__(self, transport: KubernetesTransport) -> None:
        self._transport, self._open = transport, transport.access

    def cut(self) -> None:
        self._transport.access = replace(self._open, url="https://127.0.0.1:1")

    def mend(self) -> None:
        self._transport.access = self._open


async def until(what: str, so: Callable[[], bool]) -> None:
    async def checked() -> bool:
        return so()

    await eventually(checked, what=what)


async def test_the_jobs_of_a_farm_that_reaches_the_cluster_no_more_go_to_one_that_does(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contact, "UNREACHED_SECONDS", 1.0)
    way = await unclaimed.falling("first", Way)
    await unclaimed.farm("second")
    uids = {unclaimed.create(f"j{n}", {"Worker": {"replicas": 1}})["metadata"]["uid"] for n in range(6)}
    await unclaimed.until("six pods", lambda: len(unclaimed.pods()) == 6)
    await until("both work", lambda: bool(unclaimed.owned("first")) and bool(unclaimed.owned("second")))
    way.cut()
    await until("the second farm has all", lambda: unclaimed.owned("second") == uids)
    key, alerts = f"kubernetes_unreachable_{unclaimed.namespace}", unclaimed.alerts("first")
    await until("an alert", lambda: key in alerts.firing)
    assert "cannot connect" in alerts.firing[key].summary
    await reports(unclaimed, "first", "unreachable", "cannot connect")
    assert not unclaimed.owned("first")
    way.mend()
    await until("the end of the alert", lambda: key in alerts.resolved)
    await until("both work again", lambda: bool(unclaimed.owned("first")))
    assert key not in unclaimed.alerts("second").firing


async def test_an_alert_of_a_farm_that_is_gone_is_ended_by_one_without_its_trouble(unclaimed: Jobs) -> None:
    way = await unclaimed.falling("first", Way)
    way.cut()
    key = f"kubernetes_unreachable_{unclaimed.namespace}"
    await until("an alert", lambda: key in unclaimed.alerts("first").firing)
    await unclaimed.stop("first")
    await unclaimed.farm("second")
    alerts = unclaimed.alerts("second")
    await until("the end of the alert", lambda: key in alerts.resolved)
    assert not alerts.fired


async def test_a_right_that_is_missing_is_told_with_verb_resource_and_namespace(
    unclaimed: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("farmd.kubernetes.errors.REMEMBERED_SECONDS", 5.0)
    (role,) = (one for one in documents(("farmjobs",)) if one["kind"] == "ClusterRole")
    less = [
        rule
        | {
            "verbs": [
                verb for verb in rule["verbs"] if "services" not in rule["resources"] or verb != "create"
            ]
        }
        for rule in role["rules"]
    ]
    unclaimed.server.grant("farm", *less)
    await unclaimed.farm("first", "farm")
    unclaimed.create("denied", {"Worker": {"replicas": 1}})
    key, alerts = f"kubernetes_denied_{unclaimed.namespace}", unclaimed.alerts("first")
    await until("an alert", lambda: key in alerts.firing)
    assert f"may not create services in the namespace {unclaimed.namespace}" in alerts.firing[key].summary
    unclaimed.server.grant("farm", *role["rules"])
    await unclaimed.until("a pod", lambda: len(unclaimed.pods()) == 1)
    await until("the end of the alert", lambda: key in alerts.resolved)


async def test_a_scrape_tells_what_is_known_and_how_old_it_is(jobs: Jobs) -> None:
    jobs.create("one", {"Worker": {"replicas": 2}})
    jobs.create("two", {"Worker": {"replicas": 1}})
    await jobs.until("three pods", lambda: len(jobs.pods()) == 3)
    farm = jobs.running("first")

    def value(name: str, **labels: str) -> float | None:
        farm.farm.publish()
        return farm.registry.get_sample_value(name, labels)

    await until("three pods are known", lambda: value("farmd_informer_objects", resource="pods") == 3)
    assert value("farmd_informer_objects", resource="jobs") == 2
    age = value("farmd_watch_staleness_seconds", watch="kubernetes_pods")
    assert age is not None
    assert 0 <= age < 90
