"""Names of trackers: KubeVela's own cases, and those that its functions get wrong in silence."""

from __future__ import annotations

import pytest

from farmd.apps.facts import (
    construct_resource_tracker_name,
    extract_app_name,
    extract_app_revision_name,
    revision_name,
)

BUILT = [
    ("app-v1", "default", "app-v1-default", "app-v1", "app"),
    ("app-test-v2", "test-ns", "app-test-v2-test-ns", "app-test-v2", "app-test"),
    ("app-default-v3", "default", "app-default-v3-default", "app-default-v3", "app-default"),
    ("a-v1", "v2", "a-v1-v2", "a-v1", "a"),
    ("app-v1", "", "app-v1-", "app-v1", "app"),
]


@pytest.mark.parametrize(("revision", "namespace", "tracker", "revision_of", "app"), BUILT)
def test_a_tracker_is_named_by_its_revision_and_namespace(
    revision: str, namespace: str, tracker: str, revision_of: str, app: str
) -> None:
    assert construct_resource_tracker_name(revision, namespace) == tracker
    assert extract_app_revision_name(tracker, namespace) == revision_of
    assert extract_app_name(tracker, namespace) == app


@pytest.mark.parametrize(
    ("tracker", "namespace", "revision", "app"),
    [
        ("foo", "default", "foo", ""),
        ("", "default", "", ""),
        ("", "", "", ""),
        ("app-v1-other", "default", "app-v1-other", "app-v1"),
    ],
)
def test_a_name_of_another_form_is_read_without_an_error(
    tracker: str, namespace: str, revision: str, app: str
) -> None:
    assert extract_app_revision_name(tracker, namespace) == revision
    assert extract_app_name(tracker, namespace) == app


def test_two_apps_in_two_namespaces_may_share_a_trackers_name_so_nothing_is_decided_by_it() -> None:
    one = construct_resource_tracker_name("x-v1", "y-v2-z")
    assert one == construct_resource_tracker_name("x-v1-y-v2", "z")


def test_a_revision_is_named_by_its_number() -> None:
    assert revision_name("shop", 3) == "shop-v3"
