"""Objects that come to an app from others: from other apps, from other tools, and by another version."""

from __future__ import annotations

import pytest

from store.apps import ALL, MAX_WAITS, TypedReference
from tests.app_worlds import World, entry, world


def test_more_objects_than_one_state_lists_move_from_app_to_app_without_a_gap() -> None:
    moving = [entry(f"rc/m{number:02}") for number in range(2 * MAX_WAITS + 3)]
    found = world((*moving, entry("rc/stays")))
    found.apply("next", *moving, adopt=["*"])
    found.run("next")
    assert len(found.apps["next"].state.waits) == MAX_WAITS
    assert found.apps["next"].state.waits[-1] == ALL
    found.apply("shop", entry("rc/stays"), prune=True, mass=True)
    for _ in range(12):
        found.cycle("next")
        found.cycle("shop")
        found.tick()
    assert found.owned("next") == {str(each.ref) for each in moving}
    assert "remove" not in [verb for verb, _ in found.verbs()]


@pytest.mark.parametrize(("adopt", "owner"), [([], "Helm release shop"), (["rc/b"], "apps/shop")])
def test_an_object_of_another_tool_comes_by_a_persons_word_alone(adopt: list[str], owner: str) -> None:
    found = World()
    found.put("rc/b", owner="Helm release shop", fields={"value": 1})
    found.apply("shop", entry("rc/b", 1), adopt=adopt)
    found.run()
    assert found.things["rc/b"].owner == owner


def test_an_object_keeps_its_identity_through_versions_of_its_api() -> None:
    """KubeVela removed an object whose file named another version of the same group."""
    before, after = (
        TypedReference(api_version=f"shop.example/{version}", kind="Row", namespace="n", name="a")
        for version in ("v1beta1", "v1")
    )
    other = TypedReference(api_version="till.example/v1", kind="Row", namespace="n", name="a")
    assert str(before) == str(after) != str(other)
