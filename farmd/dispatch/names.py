"""The names of trackers as KubeVela builds and reads them, for eyes and for tools that know them.

No decision reads a name: ``a-b`` in ``c`` and ``a`` in ``b-c`` have the same one.
"""

from __future__ import annotations


def construct_resource_tracker_name(revision: str, namespace: str) -> str:
    """The name of the tracker of a revision such as ``shop-v3``."""
    return f"{revision}-{namespace}"


def extract_app_revision_name(tracker: str, namespace: str) -> str:
    """The revision's name in a tracker's name; the whole name where it does not end in the namespace."""
    return tracker.removesuffix(f"-{namespace}")


def extract_app_name(tracker: str, namespace: str) -> str:
    """The app's name in a tracker's name; empty where that has no revision."""
    return extract_app_revision_name(tracker, namespace).rpartition("-")[0]


def revision_name(app: str, revision: int) -> str:
    """The name of a revision: ``shop-v3``."""
    return f"{app}-v{revision}"
