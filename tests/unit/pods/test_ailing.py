"""What people are told of pods that do not work: the worst one, and its exit."""

from __future__ import annotations

import msgspec
import pytest

from farmd.pods.ailing import ailing_since, told, worst
from farmd.pods.state import PodState
from store import codec
from store.keys import Keys
from store.pods import Place
from store.reality import Exit, Reality
from tests.rc_worlds import NEWER, NOW, SHA, pod
from tests.virtual import VirtualClock, embedded_client

KEYS = Keys()
OTHER = msgspec.structs.replace(pod(), reality=pod(manifest=NEWER).reality)


def world(**pods: PodState) -> dict[Place, PodState]:
    return {(node, "web"): state for node, state in pods.items()}


def crashed(since: float) -> PodState:
    """Its first end in a row came at ``since``."""
    return pod(healthy=False, phase="backoff", state="unknown", since=since, started=0.0)


@pytest.mark.parametrize(
    ("pods", "node"),
    [
        (world(n1=pod(), n2=pod()), None),
        (world(n1=pod(), n2=pod(healthy=False, state="unknown")), "n2"),
        (world(n1=pod(reality=False), n2=crashed(NOW)), "n2"),
        (world(n1=pod(absent=True), n2=pod(healthy=False)), "n2"),
        (world(n1=crashed(NOW), n2=pod(healthy=False, phase="failed")), "n2"),
        (world(n1=pod(lost=1.0, absent=True), n2=pod()), None),
    ],
)
def test_the_worst_pod_is_the_one_that_fails_most_surely(
    pods: dict[Place, PodState], node: str | None
) -> None:
    assert worst(pods) == (None if node is None else (node, "web"))


@pytest.mark.parametrize(
    ("state", "reality", "text"),
    [
        (crashed(NOW), Reality(manifest=SHA, phase="backoff", exits=[Exit(1.0, 3)]), "exited with code 3"),
        (
            crashed(NOW),
            Reality(manifest=SHA, phase="backoff", exits=[Exit(1.0, -15, unhealthy=True)]),
            "unhealthy, and restarted for that",
        ),
        (crashed(NOW), Reality(manifest=SHA, phase="backoff", exits=[Exit(1.0, -11)]), "ended by SIGSEGV"),
        (pod(healthy=False), Reality(manifest=SHA, reason="cannot act on it"), "cannot act on it"),
        (OTHER, Reality(manifest=NEWER), f"it runs {NEWER[:12]}, expected {SHA[:12]}"),
        (OTHER, Reality(manifest=NEWER, reason="cannot act on intent 5: x"), "cannot act on intent 5: x"),
        (pod(absent=True), None, "its node's agent is absent"),
        (pod(reality=False), None, "it is still starting"),
    ],
)
async def test_its_exit_is_read_from_what_its_node_said(
    state: PodState, reality: Reality | None, text: str
) -> None:
    client = embedded_client(VirtualClock())
    if reality is not None:
        await client.put(KEYS.reality("n1", "web"), codec.encode(reality))
    pods = world(n1=state, n2=pod())
    said = await told(client, KEYS, ("n1", "web"), pods)
    assert said == f"1 of 2 pods is not healthy; n1/web: {text}"


def test_pods_that_fail_their_check_are_those_that_run_and_are_known_to_fail_it() -> None:
    ill = pod(healthy=False, since=NOW - 400.0)
    pods = world(
        n1=ill,
        n2=pod(),
        n3=pod(healthy=False, state="unknown"),
        n4=crashed(NOW - 400.0),
        n5=msgspec.structs.replace(ill, absent=True),
        n6=pod(healthy=False, since=NOW - 400.0, acted=4),  # its agent has yet to act on its intent
        n7=pod(healthy=False, since=NOW - 400.0, at=NOW - 10.0),  # it was ill before it was placed
    )
    assert ailing_since(pods) == {("n1", "web"): NOW - 400.0, ("n7", "web"): NOW - 10.0}
