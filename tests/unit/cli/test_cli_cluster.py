"""The cluster that a person means, and commands whose items lie in Consul or in Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from farmd.cli import cluster as clusters
from farmd.cli import invocation
from farmd.cli.cluster import ConnectedCluster, Place, beside
from farmd.cli.names import targets
from farmd.cli.options import command
from farmd.kubernetes.commands import refusal
from farmd.kubernetes.errors import error_of
from store.errors import AccessDenied, Conflict, InputInvalid, OutcomeUnknown, StoreError, StoreUnavailable


async def test_without_any_kubeconfig_people_are_told_how_to_name_a_cluster(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputInvalid) as error:
        async with clusters.connected(Place()):
            pass
    assert error.value.message == "no Kubernetes cluster is configured"
    assert "--kubeconfig" in error.value.fields["hint"]


@pytest.fixture
def called(monkeypatch) -> list[tuple[Any, ...]]:
    """What a command with items in both worlds called, with the names that each got."""
    calls: list[tuple[Any, ...]] = []

    def run(_settings, function, params, **_) -> None:
        with pytest.raises(StopIteration):
            function(None, **params).send(None)

    monkeypatch.setattr(invocation, "run", run)
    return calls


def removing(calls: list[tuple[Any, ...]]) -> Any:
    """Such a command."""

    async def inside(_, names) -> None:
        calls.append(("consul", *names))

    async def outside(_, place: Place, names) -> None:
        calls.append((place.namespace or "kubernetes", *names))

    async def known(_: Place, __: str) -> list[str]:
        return []

    made = command("delete")(targets("job", lambda *_: [])(inside))
    return beside(made, lambda: outside, argument="names", names=lambda: known)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bert"], [("consul", "bert")]),
        (["job/bert", "job/ml/bert"], [("consul", "bert"), ("kubernetes", "ml/bert")]),
        (["-n", "ml", "bert", "job/x/y"], [("ml", "bert", "x/y")]),
        (["--context", "prod", "bert"], [("kubernetes", "bert")]),
    ],
)
def test_a_name_with_a_namespace_lies_in_kubernetes_and_with_an_option_each_does(called, words, expected):
    done = CliRunner().invoke(removing(called), words, catch_exceptions=False)
    assert done.exit_code == 0
    assert called == expected


def test_the_options_of_a_cluster_are_the_command_s_own(called):
    own, common = CliRunner().invoke(removing(called), ["--help"]).output.split("Shared options")
    assert "--namespace" in own
    assert "--namespace" not in common


def test_a_name_without_a_namespace_has_that_of_the_context():
    cluster = ConnectedCluster(None, "ml")  # type: ignore[arg-type]
    assert cluster.split("bert") == ("ml", "bert")
    assert cluster.split("x/bert") == ("x", "bert")


@pytest.mark.parametrize(
    ("given", "environ", "home", "expected"),
    [
        ({}, {}, False, False),
        ({}, {}, True, True),
        ({"context": "prod"}, {}, False, True),
        ({"namespace": "ml"}, {}, False, True),
        ({}, {"KUBECONFIG": "/etc/kube"}, False, True),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, True),
    ],
)
def test_a_person_s_own_kubeconfig_counts(monkeypatch, tmp_path, given, environ, home, expected):
    monkeypatch.setenv("HOME", str(tmp_path))
    if home:
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").touch()
    assert Place(**given).configured(environ) is expected


@pytest.mark.parametrize("home", [None, "/" + "x" * 300], ids=["none", "not to be looked at"])
def test_a_home_that_is_not_there_or_not_a_persons_own_has_no_kubeconfig(monkeypatch, home):
    def nobody(_):
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    assert not Place().configured({})


REFUSALS = [
    (403, "Forbidden", False, AccessDenied, "who: no"),
    (409, "Conflict", True, Conflict, "who: no"),
    (422, "Invalid", True, InputInvalid, "who: no"),
    (404, "", False, StoreError, "who: GET /x: 404: no"),
    (500, "InternalError", True, OutcomeUnknown, "who: GET /x: 500: no"),
    (503, "", False, StoreUnavailable, "who: GET /x: 503: no"),
]


@pytest.mark.parametrize(("status", "reason", "write", "kind", "text"), REFUSALS)
def test_a_refusal_of_the_server_has_the_exit_code_of_its_meaning(status, reason, write, kind, text):
    body = f'{{"message": "no", "reason": "{reason}"}}'.encode()
    found = refusal(error_of(status, body, "GET /x", write=write), "who")
    assert isinstance(found, kind)
    assert found.message == text
