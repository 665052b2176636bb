"""R29: which variables an intent may set, and of which ones a file may speak."""

from __future__ import annotations

import pytest

from store import variables
from store.errors import InputInvalid
from store.manifests import Manifest, Port, Restart


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (dict.fromkeys(variables.MEMBER | variables.GANG, "1"), ""),
        (
            {"FARMD_CONFIG": "/x"},
            "vars: found 'FARMD_CONFIG', expected the name of a job's variable such as FARMD_RANK",
        ),
        (
            {"FARMD_RANK": "0", "LD_PRELOAD": "/evil.so"},
            "vars: found 'LD_PRELOAD', expected the name of a job's variable such as FARMD_RANK",
        ),
        ({"FARMD_": "1"}, "vars: found 'FARMD_', expected the name of a job's variable such as FARMD_RANK"),
        (
            {"FARMD_X=Y": "1"},
            "vars: found 'FARMD_X=Y', expected the name of a job's variable such as FARMD_RANK",
        ),
        ({"FARMD_NODE": "n2"}, "vars: found 'FARMD_NODE', which only the agent sets"),
        ({"FARMD_PORT_HTTP": "1"}, "vars: found 'FARMD_PORT_HTTP', which only the agent sets"),
        ({"FARMD_RESULT": "/etc/passwd"}, "vars: found 'FARMD_RESULT', which only the agent sets"),
        ({"FARMD_RANK": "a\0b"}, "vars.FARMD_RANK: found a NUL character, expected none"),
    ],
)
def test_an_intent_sets_farmds_variables_and_no_others(given: dict[str, str], why: str) -> None:
    assert variables.refused(given) == why


def pod(env: dict[str, str], policy: str = "always") -> Manifest:
    ports = {"http-admin": Port()}
    return Manifest(id="x", command=["x"], env=env, ports=ports, restart=Restart(policy=policy))  # type: ignore[arg-type]


def test_a_file_may_speak_of_what_its_pods_will_have() -> None:
    variables.check(pod({"A": "${FARMD_NODE}:${FARMD_PORT_HTTP_ADMIN} ${HOME} $FARMD_RANK"}), "f: ")
    variables.check(pod({"A": "${FARMD_RESULT}"}, "never"), "f: ")
    variables.check(pod({"A": "${FARMD_RANK}"}), "f: ", variables.MEMBER)


@pytest.mark.parametrize(
    ("env", "line"),
    [
        (
            {"A": "${FARMD_RANK}"},
            "f: pod.env.A: found ${FARMD_RANK}, expected one of FARMD_INSTANCE, FARMD_NODE, FARMD_PORT_HTTP",
        ),
        ({"A": "${FARMD_RESULT}"}, "f: pod.env.A: found ${FARMD_RESULT}, expected one of"),
        (
            {"FARMD_RANK": "1"},
            "f: pod.env: found 'FARMD_RANK', expected a name that does not begin with 'FARMD_'",
        ),
    ],
)
def test_a_file_that_speaks_of_other_variables_is_refused(env: dict[str, str], line: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        variables.check(pod(env), "f: pod.")
    assert caught.value.message.startswith(line)
