"""What an agent writes has a bound: it keeps to it itself, and whoever reads refuses more and names it."""

from __future__ import annotations

import msgspec
import pytest

from farmd.agent.reality import bounded
from store import codec
from store.errors import InputInvalid, RecordInvalid
from store.manifest_check import check
from store.manifests import Manifest, Port
from store.nodes import Agent
from store.reality import Exit, Health, Reality, SidecarStatus


def test_a_reality_that_a_workload_made_too_large_loses_its_texts_and_says_so() -> None:
    exits = [Exit(1.0, 1, message="\x01" * 3000) for _ in range(5)]
    made = Reality(manifest="a" * 64, exits=exits, health=Health("critical", 2.0, "sick"), ports={"http": 80})
    short = bounded("web", made)
    assert len(codec.encode(made)) > Reality.LARGEST > len(codec.encode(short))
    assert short.reason.startswith("reality: found 9")
    assert [(end.code, end.message) for end in short.exits] == [(1, "")] * 5
    assert (short.ports, short.health.state) == (made.ports, "critical")
    beside = {f"s{at}": SidecarStatus(False, 1.0, 3, "x" * 100_000) for at in range(8)}
    assert len(codec.encode(bounded("web", msgspec.structs.replace(made, sidecars=beside)))) < Reality.LARGEST
    small = Reality(manifest="a" * 64, reason="so")
    assert bounded("web", small) is small


def test_no_pod_has_more_ports_than_its_reality_can_tell() -> None:
    def ports(count: int) -> dict[str, Port]:
        return {f"{number:0>63}": Port() for number in range(count)}

    most = Manifest(id="web", command=["x"], ports=ports(682))
    check(most, "web.yaml")
    assert (
        len(codec.encode(Reality(manifest="a" * 64, ports=dict.fromkeys(most.ports, 65535))))
        < Reality.LARGEST
    )
    with pytest.raises(InputInvalid, match=r"^web.yaml: ports: found 683, which take 49176 bytes of"):
        check(Manifest(id="web", command=["x"], ports=ports(683)), "web.yaml")


@pytest.mark.parametrize("kind", [Reality, Agent])
def test_a_larger_record_is_refused_by_its_name(kind: type[Reality] | type[Agent]) -> None:
    value = b'{"manifest":"a","node":"n","version":"1","reason":"' + b"x" * kind.LARGEST + b'"}'
    with pytest.raises(RecordInvalid, match=rf"^the/key: found {len(value)} bytes, expected at most"):
        codec.decode(kind, value, "the/key")
    assert codec.decode(kind, value.replace(b"x" * kind.LARGEST, b""), "the/key")
