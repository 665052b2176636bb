"""What the list of apps tells of one that is not as its newest revision says."""

from __future__ import annotations

from farmd.dispatch.standing import Standing
from farmd.tables.apps import table
from store.apps import App, AppStatus, DispatchState
from store.entry import Stored


def cells(now: Standing) -> dict[str, str]:
    return {column.title: column.text(now) for column in table([now], []).columns}


def app(state: DispatchState, status: AppStatus, **fields: object) -> Standing:
    record = App(revision=2, **fields)  # type: ignore[arg-type]
    return Standing(name="shop", stored=Stored("apps/shop", record, 7, b""), state=state, status=status)


def test_objects_of_the_revision_that_is_back_are_counted_as_that_ones() -> None:
    state = DispatchState(seq=3, effective=1, reached=1, swept=2, refused=2)
    status = AppStatus(state="blocked", record=7, effective=1, reached=1, objects=1, ready=1)
    found = cells(app(state, status, on_failure="rollback"))
    assert (found["REVISION"], found["REACHED"], found["READY"]) == ("2", "1", "1/1 of revision 1")


def test_what_a_farm_told_of_an_earlier_record_is_not_told_of_this_one() -> None:
    state = DispatchState(seq=1, effective=1, reached=1, swept=1)
    status = AppStatus(state="converged", record=5, effective=1, reached=1, objects=1, ready=1, left=1)
    found = cells(app(state, status))
    assert (found["STATE"], found["READY"], found["LEFT"]) == ("pending", "-", "-")
