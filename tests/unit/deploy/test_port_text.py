"""Ports as text: uncloud's vectors (``pkg/api/port_test.go``), and the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.deploy import spec
from farmd.deploy.spec import PortSpec
from store.errors import InputInvalid

P = PortSpec
HOST = "app.example.com"

READ = {
    "8080": P(container=8080),
    "8000:8080": P(container=8080, published=8000),
    "0:8080": P(container=8080),
    "8080/tcp": P(container=8080),
    "8080/udp": P(container=8080, protocol="udp"),
    "8000:8080/udp": P(container=8080, published=8000, protocol="udp"),
    "app.example.com:8080": P(container=8080, protocol="https", hostname=HOST),
    "8080/http": P(container=8080, protocol="http"),
    "app.example.com:8080/http": P(container=8080, protocol="http", hostname=HOST),
    "app.example.com:6443:8080": P(container=8080, published=6443, protocol="https", hostname=HOST),
    "app.example.com:8000:8080/http": P(container=8080, published=8000, protocol="http", hostname=HOST),
    "80:8080/udp@host": P(container=8080, published=80, protocol="udp", mode="host"),
    "127.0.0.1:80:8080@host": P(container=8080, published=80, mode="host", host_ip="127.0.0.1"),
    "[2001:db8::1234:5678]:80:8080@host": P(
        container=8080, published=80, mode="host", host_ip="2001:db8::1234:5678"
    ),
    "127.0.0.1:80:8080/udp@host": P(
        container=8080, published=80, protocol="udp", mode="host", host_ip="127.0.0.1"
    ),
    "192.168.76.0/24:80:8080@host": P(
        container=8080, published=80, mode="host", host_prefix="192.168.76.0/24"
    ),
    "192.168.76.0/24:80:8080/udp@host": P(
        container=8080, published=80, protocol="udp", mode="host", host_prefix="192.168.76.0/24"
    ),
    "[2001:db8::]/64:80:8080/udp@host": P(
        container=8080, published=80, protocol="udp", mode="host", host_prefix="2001:db8::/64"
    ),
}


@pytest.mark.parametrize("text", READ)
def test_a_port_is_read(text: str) -> None:
    assert spec.parse(text) == READ[text]


REFUSED = {
    "container port": ["", "invalid", "100500", "/tcp", "@host", "0"],
    "protocol": [
        "/",
        "53/",
        "8080/invalid",
        "80:8080/http@host",
        "80:8080/https@host",
        "192.168.76.0/24:80:8080/http@host",
        "192.168.76.0/24:80:8080/invalid@host",
        "192.168.76.0/24:80:8080/@host",
    ],
    "mode": ["@", "53@", "8080@invalid", "8080@host@host"],
    "published port": [
        "app.example.com:invalid:8080",
        "app.example.com:invalid:8080@host",
        "8080@host",
        "8080/udp@host",
        "app.example.com:8080@host",
        "99999:80",
        "-1:80",
    ],
    "hostname": ["app:8080/http", "app.example.com:8080/tcp"],
    "host address": [
        "300.0.0.1:80:8080@host",
        "[:::1]:80:8080@host",
        "[::1:80:8080@host",
        "2001:db8::1234:5678:80:8080@host",
        "192.168.76.0/45:80:8080@host",
    ],
}


@pytest.mark.parametrize(
    ("what", "text"), [(what, text) for what, texts in REFUSED.items() for text in texts]
)
def test_what_is_no_port_is_refused_by_the_part_that_cannot_be(what: str, text: str) -> None:
    with pytest.raises(InputInvalid, match=rf"^{what}: found .*, expected "):
        spec.parse(text)


def test_a_second_protocol_is_refused() -> None:
    with pytest.raises(InputInvalid):
        spec.parse("8080/tcp/udp")


@pytest.mark.parametrize(
    "port",
    [
        P(container=0),
        P(container=8080, protocol="invalid"),
        P(container=8080, mode="invalid"),
        P(container=8080, hostname=HOST),
        P(container=8080, hostname="app", protocol="http"),
        P(container=8080, host_ip="127.0.0.1"),
        P(container=8080, host_prefix="127.0.0.0/8"),
        P(container=8080, mode="host"),
        P(container=8080, published=80, mode="host", hostname=HOST),
        P(container=8080, published=80, mode="host", protocol="http"),
        P(container=8080, published=80, mode="host", protocol="https"),
        P(container=8080, published=80, mode="host", host_ip="127.0.0.1", host_prefix="127.0.0.0/8"),
    ],
)
def test_a_port_that_cannot_be_is_refused(port: PortSpec) -> None:
    with pytest.raises(InputInvalid):
        spec.validate(port)


@pytest.mark.parametrize(
    ("standing", "wanted", "expected"),
    [
        ("", "8080:80/tcp@host", ""),
        ("8080:80/tcp@host", "8080:80/tcp@host", "8080:80/tcp@host"),
        ("8080:80/tcp@host", "8080:80/udp@host", ""),
        ("8080:80/tcp@host,8080:80/udp@host", "8080:80/udp@host", "8080:80/udp@host"),
        ("8080:80/tcp@host", "8081:80/tcp@host", ""),
        ("127.0.0.1:8080:80@host", "127.0.0.2:8080:80@host", ""),
        ("127.0.0.1:8080:80@host", "127.0.0.1:8080:80@host", "127.0.0.1:8080:80/tcp@host"),
        ("8080:80@host", "127.0.0.1:8080:80@host", "127.0.0.1:8080:80/tcp@host"),
        ("8080:80@host", "127.0.0.1:8080:80/udp@host", ""),
        ("8080:80/tcp", "8080:80@host", ""),
        ("10.0.0.0/8:8080:80@host", "127.0.0.1:8080:80@host", "127.0.0.1:8080:80/tcp@host"),
    ],
)
def test_ports_of_one_machine_exclude_one_another(standing: str, wanted: str, expected: str) -> None:
    old = [spec.parse(text) for text in standing.split(",") if text]
    found = spec.conflicting([spec.parse(wanted)], old)
    assert ",".join(map(spec.text, found)) == expected


ports = st.sampled_from(sorted(READ)).flatmap(
    lambda text: st.builds(
        lambda container, published: P(
            container=container,
            published=published if READ[text].published else 0,
            protocol=READ[text].protocol,
            mode=READ[text].mode,
            hostname=READ[text].hostname,
            host_ip=READ[text].host_ip,
            host_prefix=READ[text].host_prefix,
        ),
        st.integers(1, 65535),
        st.integers(1, 65535),
    )
)


@given(ports)
def test_the_canonical_text_is_read_as_the_same_port(port: PortSpec) -> None:
    assert spec.parse(spec.text(port)) == port


@given(st.text(alphabet="0123456789:/@[].ahostcpudh", max_size=40))
def test_any_text_is_a_port_or_refused(text: str) -> None:
    try:
        port = spec.parse(text)
    except InputInvalid:
        return
    assert spec.parse(spec.text(port)) == port


@given(st.lists(ports, max_size=4), st.randoms())
def test_ports_in_another_order_are_equal(found: list[PortSpec], rng: object) -> None:
    shuffled = list(found)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert spec.equal(found, shuffled)
