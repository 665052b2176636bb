"""What the list of apps tells of one that is not as its newest revision says."""

from __future__ import annotations

import dataclasses

from farmd.apps import report
from farmd.apps.commands import told
from farmd.apps.facts import Act
from farmd.apps.scene import AppState, owned, standing, standings
from farmd.tables.apps import table
from store.apps import MAX_ENTRIES, App, AppStatus, DispatchState, TypedReference
from store.consul.client import ConsulClient
from store.embedded.server import InProcessTransport
from store.entry import Stored
from store.errors import AccessDenied
from store.ports import Request
from tests.app_fleet import KEYS, app_fleet, rc
from tests.toys import Faulty


def cells(now: AppState) -> dict[str, str]:
    return {column.title: column.text(now) for column in table([now], []).columns}


def app(state: DispatchState, status: AppStatus, **fields: object) -> AppState:
    record = App(revision=2, **fields)  # type: ignore[arg-type]
    return AppState(name="shop", stored=Stored("apps/shop", record, 7, b""), state=state, status=status)


def test_objects_of_the_revision_that_is_back_are_counted_as_that_ones() -> None:
    state = DispatchState(seq=3, effective=1, reached=1, swept=2, refused=2)
    status = AppStatus(state="blocked", record=7, effective=1, reached=1, objects=1, ready=1)
    found = cells(app(state, status, on_failure="rollback"))
    assert (found["REVISION"], found["REACHED"], found["READY"]) == ("2", "1", "1/1 of revision 1")


def test_an_app_of_which_nothing_could_be_planned_is_blocked_and_counts_nothing() -> None:
    status = AppStatus(state="blocked", reason="rc/a: its record does not decode", record=7)
    now = app(DispatchState(), status)
    assert told(now) == "blocked: rc/a: its record does not decode"
    assert cells(now)["READY"] == "-"


def test_the_audit_of_a_step_fits_into_its_transaction_however_long_the_names_are() -> None:
    places = {"api_version": "v1", "kind": "ConfigMap", "namespace": "n" * 63}
    refs = [TypedReference(name=f"{at:0253}", **places) for at in range(MAX_ENTRIES)]
    found = report.acts([*(Act("create", ref) for ref in refs), Act("remove", refs[0])])
    create = str(found["create"])
    assert len(create) <= report.MOST_TOLD + 20
    shown = create.count(", ")
    assert create.endswith(f", and {MAX_ENTRIES - shown} more")
    assert found["remove"] == str(refs[0])


def test_what_a_farm_told_of_an_earlier_record_is_not_told_of_this_one() -> None:
    state = DispatchState(seq=1, effective=1, reached=1, swept=1)
    status = AppStatus(state="converged", record=5, effective=1, reached=1, objects=1, ready=1, left=1)
    found = cells(app(state, status))
    assert (found["STATE"], found["READY"], found["LEFT"]) == ("pending", "-", "-")


async def test_an_app_whose_wanted_revision_somebody_removed_is_blocked_and_its_way_out_is_told() -> None:
    async with app_fleet("n1") as fleet:
        for name in ("shop", "till"):
            await fleet.apply(rc(name, replicas=0), app=name)
            await fleet.reached(1, app=name)
        await fleet.told("converged", app="shop")
        await fleet.call.client.delete(KEYS.tracker("shop", 1))
        rows, _ = await standings(fleet.call)
        one = await owned(fleet.call, await standing(fleet.call, "shop"))
        listed = {row.name: (cells(row)["STATE"], cells(row)["REASON"]) for row in (*rows, one)}
        assert listed == {
            "till": ("converged", ""),
            "shop": (
                "blocked",
                "somebody removed revision 1: farmctl apply or farmctl app rollback shop --to N creates"
                " another one",
            ),
        }


async def test_who_may_not_read_revisions_is_told_of_no_lost_one() -> None:
    async with app_fleet("n1") as fleet:
        await fleet.apply(rc("shop", replicas=0))
        await fleet.reached(1)

        async def denied(request: Request) -> None:
            if "/trackers/" in request.path:
                raise AccessDenied("trackers/: permission denied")

        reader = Faulty(InProcessTransport(fleet.fleet.server))
        reader.before = denied
        call = dataclasses.replace(fleet.call, client=ConsulClient(reader, clock=fleet.clock))
        (row,), _ = await standings(call)
        assert row.lost == ""
