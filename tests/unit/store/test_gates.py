"""What a gate may say: one line names the field, what was found and what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from store.credentials import refusal
from store.errors import InputInvalid
from store.policies import Gate, Policy, Stage, check_gates


def http(**fields: Any) -> Gate:
    return Gate(**({"name": "smoke", "http": "http://web.example/ok"} | fields))


def query(**fields: Any) -> Gate:
    return Gate(**({"name": "errors", "prometheus": "sum(rate(errs[1m]))", "max": 0.5} | fields))


def refused(gates: list[Gate], **fields: Any) -> str:
    with pytest.raises(InputInvalid) as found:
        check_gates(Policy(gates=gates, **fields), "rollout")
    return found.value.message


@pytest.mark.parametrize(
    "gates",
    [
        [http(), query()],
        [http(expect=204), query(max=None, min=0.99)],
        [query(min=0.0, max=0.0)],
        [http(http="https://web.example:8443/ok?deep=1#x"), query(name="a1")],
        [http(http="http://[::1]:80/"), query(name="a" * 63)],
    ],
)
def test_gates_that_can_pass_are_accepted(gates: list[Gate]) -> None:
    check_gates(Policy(gates=gates, stages=[1, Stage(to="100%", gates=[gates[0].name])]), "rollout")


@pytest.mark.parametrize(
    ("gate", "told"),
    [
        (Gate(name="x"), "rollout.gates[0]: found neither http nor prometheus, expected one of them"),
        (http(prometheus="up"), "rollout.gates[0]: found both http and prometheus, expected one of them"),
        (http(max=1.0), "rollout.gates[0].max: found max beside http, expected no max"),
        (http(min=0.0), "rollout.gates[0].min: found min beside http, expected no min"),
        (query(expect=200), "rollout.gates[0].expect: found expect beside prometheus, expected no expect"),
        (query(max=None), "rollout.gates[0]: found neither max nor min, expected one of them, or both"),
        (query(max=1, min=2), "rollout.gates[0].max: found 1, expected at least min, which is 2"),
        (query(max=float("inf")), "rollout.gates[0].max: found .inf, expected a finite number"),
        (query(min=float("nan")), "rollout.gates[0].min: found .nan, expected a finite number"),
        (query(prometheus=" "), "rollout.gates[0].prometheus: found 1 characters"),
        (query(prometheus="x" * 2001), "rollout.gates[0].prometheus: found 2001 characters"),
        (http(name="Smoke"), "rollout.gates[0].name: found 'Smoke', expected up to 63 lower-case"),
        (http(name=""), "rollout.gates[0].name: found '', expected up to 63 lower-case"),
        (http(http="ftp://web/"), "rollout.gates[0].http: found 'ftp://web/', expected http:// or https://"),
        (http(http="web.example/ok"), "rollout.gates[0].http: found 'web.example/ok', expected http://"),
        (http(http="http://web /ok"), "rollout.gates[0].http: found 'http://web /ok'"),
        (http(http="http://web:99999/"), "rollout.gates[0].http: found 'http://web:99999/'"),
        (http(http="http://[::1/"), "rollout.gates[0].http: found 'http://[::1/'"),
        (http(http="http://me:secret@web/"), "rollout.gates[0].http: found an address with a user or"),
        (http(http="http://169.254.169.254/latest"), "169.254.169.254 is a link-local address"),
        (http(http="http://[::ffff:169.254.169.254]/"), "::ffff:169.254.169.254 is a link-local address"),
        (http(timeout=11.0), "rollout.gates[0].timeout: found 11 s, expected at most every, which is 10 s"),
        (
            http(passes=61),
            "rollout.gates[0].passes: found 61, one every 10 s, which take 600 s, "
            "expected less than progress_deadline, which is 600 s",
        ),
    ],
)
def test_a_gate_that_could_not_pass_is_refused(gate: Gate, told: str) -> None:
    message = refused([gate])
    assert told in message
    assert "secret" not in message


def test_names_of_gates_are_unique_and_known() -> None:
    assert refused([http(), http()]) == (
        "rollout.gates[1].name: found 'smoke' again, expected a name for each gate"
    )
    stages = [1, Stage(to="100%", gates=["smok"])]
    told = "rollout.stages[1].gates: found 'smok'"
    assert refused([http()], stages=stages) == f"{told}, did you mean 'smoke'?"
    assert refused([], stages=stages) == f"{told}, expected none: the policy has no gates"


def test_a_policy_has_ten_gates_at_most() -> None:
    gates = [http(name=f"g{number}") for number in range(11)]
    assert refused(gates) == "rollout.gates: found 11, expected at most 10"
    check_gates(Policy(gates=gates[:10]), "rollout")


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "2002:a9fe:a9fe::",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "::ffff:100.100.100.200",
        "224.0.0.1",
        "ff02::1",
    ],
)
def test_addresses_of_metadata_are_refused(address: str) -> None:
    assert refusal(address).startswith(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "fd00::1", "2001:db8::1", "web", ""])
def test_other_addresses_are_not(address: str) -> None:
    assert refusal(address) == ""
