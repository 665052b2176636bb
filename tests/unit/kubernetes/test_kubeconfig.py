"""Each mistake in a kubeconfig is one line: file, field, found, expected, and no secret."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from farmd.kubernetes.access import LOOK_SECONDS, access
from farmd.kubernetes.kubeconfig import choose
from store.errors import CredentialInvalid, InputInvalid
from tests.kubernetes_certificates import certificates
from tests.still_clock import StillClock

SERVER = "https://api.example:6443"
V1 = "client.authentication.k8s.io/v1"
NO_TOKEN = f'{{"kind": "ExecCredential", "apiVersion": "{V1}"}}'


def program(command: str, *arguments: str, **more: Any) -> dict[str, Any]:
    """A user whose credential a program prints."""
    return {"exec": {"apiVersion": V1, "command": command, "args": list(arguments), **more}}


def config(**changed: Any) -> dict[str, Any]:
    """A good file with changed parts: ``cluster``, ``user``, ``context`` or a top-level field."""
    parts = {name: changed.pop(name, {}) for name in ("cluster", "user", "context")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "prod",
        "clusters": [{"name": "c", "cluster": {"server": SERVER} | parts["cluster"]}],
        "users": [{"name": "u", "user": parts["user"]}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"} | parts["context"]}],
        **changed,
    }


def written(folder: Path, content: Any, name: str = "config") -> str:
    """The path of a file with that content."""
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return str(path)


MISTAKES = {
    "empty": ("", "found no document, expected at least one"),
    "not yaml": ("clusters: [", "not YAML: "),
    "tab": ("clusters:\n\t- name: c", "not YAML: found a tab, expected spaces"),
    "a list": ("- a", "found a list, expected a mapping"),
    "a secret": (config(kind="Secret"), "kind: found 'Secret', expected Config"),
    "clusters as mapping": (config(clusters={"c": {}}), "clusters: found a mapping, expected a list"),
    "cluster without name": (
        config(clusters=[{"cluster": {"server": SERVER}}]),
        "clusters[0].name: missing, expected text",
    ),
    "no current context": (
        config(**{"current-context": ""}),
        "current-context: found nothing, expected one of prod",
    ),
    "unknown context": (
        config(**{"current-context": "prd"}),
        "current-context: found 'prd', did you mean 'prod'?",
    ),
    "no contexts": (
        config(contexts=None),
        "current-context: found 'prod', expected one of the contexts, but the file has none",
    ),
    "unknown cluster": (
        config(context={"cluster": "x"}),
        "contexts[0].context.cluster: found 'x', expected one of c",
    ),
    "unknown user": (config(context={"user": "x"}), "contexts[0].context.user: found 'x', expected one of u"),
    "no server": (
        config(clusters=[{"name": "c", "cluster": {}}]),
        "clusters[0].cluster.server: missing, expected text",
    ),
    "server without scheme": (
        config(cluster={"server": "api.example:6443"}),
        "clusters[0].cluster.server: found 'api.example:6443', expected https://",
    ),
    "server with password": (
        config(cluster={"server": "ftp://bob:s3cret@api"}),
        "clusters[0].cluster.server: found 'ftp://[hidden]@api', expected https://",
    ),
    "bad port": (
        config(cluster={"server": "https://api:port"}),
        "clusters[0].cluster.server: found 'https://api:port', expected https://",
    ),
    "socks proxy": (
        config(cluster={"proxy-url": "socks5://p:1"}),
        "clusters[0].cluster.proxy-url: found 'socks5://p:1', expected http:// or https://",
    ),
    "insecure with authority": (
        config(cluster={"insecure-skip-tls-verify": True, "certificate-authority": "ca"}),
        "insecure-skip-tls-verify: found true beside a certificate-authority",
    ),
    "insecure as text": (
        config(cluster={"insecure-skip-tls-verify": "yes"}),
        "clusters[0].cluster.insecure-skip-tls-verify: found 'yes', expected true or false",
    ),
    "certificate without key": (
        config(user={"client-certificate": "a"}),
        "users[0].user.client-key: found nothing, expected a file or client-key-data",
    ),
    "key without certificate": (
        config(user={"client-key": "a"}),
        "users[0].user.client-certificate: found nothing",
    ),
    "token as number": (
        config(user={"token": 1234567}),
        "users[0].user.token: found no text, expected text in quotes",
    ),
    "two ways": (
        config(user={"token": "s3cret", "username": "a", "password": "b"}),
        "users[0].user: found token and username, expected one of them",
    ),
    "auth-provider": (
        config(user={"auth-provider": {"name": "gcp"}}),
        "users[0].user.auth-provider: found 'gcp', expected exec",
    ),
    "exec without command": (
        config(user={"exec": {"apiVersion": V1}}),
        "users[0].user.exec.command: missing, expected text",
    ),
    "exec of an old version": (
        config(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
        "v1alpha1', expected client.authentication.k8s.io/v1 or",
    ),
    "exec with a terminal": (
        config(user={"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Always"}}),
        "users[0].user.exec.interactiveMode: found 'Always', expected Never or IfAvailable",
    ),
    "arguments as text": (
        config(user={"exec": {"apiVersion": V1, "command": "x", "args": "a b"}}),
        "users[0].user.exec.args: found 'a b', expected a list",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_is_one_line_that_names_file_field_found_and_expected(tmp_path, name):
    content, expected = MISTAKES[name]
    path = written(tmp_path, content)
    with pytest.raises(InputInvalid) as refused:
        access({"KUBECONFIG": path}, StillClock())
    assert refused.value.message.startswith(f"{path}: ")
    assert expected in refused.value.message
    assert "\n" not in refused.value.message
    assert "s3cret" not in refused.value.message
    assert "1234567" not in refused.value.message


LATER = {
    "authority that is no file": (
        {"certificate-authority": "gone.crt"},
        {},
        "clusters[0].cluster.certificate-authority: found",
    ),
    "authority without base64": (
        {"certificate-authority-data": "not base64!"},
        {},
        "clusters[0].cluster.certificate-authority-data: found text that is not valid base64",
    ),
    "authority without PEM": (
        {"certificate-authority-data": base64.b64encode(b"s3cret").decode()},
        {},
        "clusters[0].cluster.certificate-authority: found what is not usable",
    ),
    "pair without PEM": (
        {},
        {"client-certificate-data": "YQ==", "client-key-data": "YQ=="},
        "users[0].user.client-certificate: found what is not usable",
    ),
    "token file that is no file": ({}, {"tokenFile": "gone"}, "users[0].user.tokenFile: found"),
    "token of two lines": (
        {},
        {"token": "s3cret\nb"},
        "users[0].user.token: found characters that a token cannot contain",
    ),
    "a program that is not there": (
        {},
        program("no-such-program", installHint="install it"),
        "found 'no-such-program': No such file or directory (install it)",
    ),
    "a program that fails": (
        {},
        program("sh", "-c", "echo expired login >&2; exit 3"),
        "users[0].user.exec.command: found 'sh' ended with 3: expired login",
    ),
    "a program that prints no JSON": (
        {},
        program("echo", "s3cret"),
        "users[0].user.exec: found output that is not an ExecCredential in JSON",
    ),
    "a program of another version": (
        {},
        program("echo", NO_TOKEN.replace("/v1", "/v1beta1")),
        "v1beta1, expected ExecCredential client.authentication.k8s.io/v1",
    ),
    "a program without a credential": (
        {},
        program("echo", NO_TOKEN),
        "users[0].user.exec: found no status.token, expected a token",
    ),
}


@pytest.mark.parametrize("name", LATER)
async def test_a_credential_that_cannot_be_used_is_named_when_it_is_needed(tmp_path, name):
    cluster, user, expected = LATER[name]
    found = access({"KUBECONFIG": written(tmp_path, config(cluster=cluster, user=user))}, StillClock())
    with pytest.raises(CredentialInvalid) as refused:
        await found.credentials.login()
    assert expected in refused.value.message
    assert "s3cret" not in refused.value.message
    assert "\n" not in refused.value.message


async def test_no_configuration_is_told_with_the_ways_to_give_one():
    with pytest.raises(
        InputInvalid, match=r"kubernetes.kubeconfig: found nothing, expected a path, or KUBECONFIG"
    ):
        access({}, StillClock())


async def test_the_login_of_a_user_s_home_is_never_used(tmp_path, monkeypatch):
    (tmp_path / ".kube").mkdir()
    written(tmp_path / ".kube", config())
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputInvalid):
        access({"HOME": str(tmp_path)}, StillClock())


@pytest.mark.parametrize("how", ["missing", "folder", "unreadable", "binary"])
async def test_a_file_that_cannot_be_read_is_named(tmp_path, how):
    path = tmp_path / "config"
    if how == "folder":
        path.mkdir()
    elif how == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif how == "unreadable":
        path.symlink_to(path)
    with pytest.raises(InputInvalid) as refused:
        access({"KUBECONFIG": str(path)}, StillClock())
    assert str(path) in refused.value.message
    assert "\n" not in refused.value.message


async def test_of_a_list_the_first_file_that_names_a_thing_wins_and_absent_files_are_passed_over(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first = config(contexts=None, cluster={"certificate-authority": "ca.crt"})
    del first["current-context"]
    second = config(
        cluster={"server": "https://other"}, user={"token": "of-two"}, context={"namespace": "ml"}
    )
    second["users"].append({"name": "v", "user": {"tokenFile": "tokens/v"}})
    second["contexts"].append({"name": "test", "context": {"cluster": "c", "user": "v"}})
    listed = [str(tmp_path / "gone"), written(one, first), written(two, second)]
    chosen = choose(listed)
    assert (chosen.context, chosen.namespace) == ("prod", "ml")
    assert chosen.cluster.server == SERVER
    assert chosen.cluster.certificate_authority == str(one / "ca.crt")
    assert choose(listed, "test").user.token_file == str(two / "tokens/v")


async def test_a_token_file_is_read_again_when_it_changes(tmp_path):
    token = tmp_path / "token"
    token.write_text("first\n")
    clock = StillClock()
    found = access({"KUBECONFIG": written(tmp_path, config(user={"tokenFile": "token"}))}, clock)

    async def now() -> str:
        return (await found.credentials.login()).headers["Authorization"]

    def write(text: str) -> None:
        beside = tmp_path / "beside"
        beside.write_text(text)
        beside.replace(token)

    assert await now() == "Bearer first"
    write("second\n")
    clock.seconds += LOOK_SECONDS
    assert await now() == "Bearer second"
    write("third\n")
    assert await now() == "Bearer second"
    found.credentials.refused()
    assert await now() == "Bearer third"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_program_runs_again_when_its_credential_expires_or_is_refused(tmp_path, version):
    program = tmp_path / "login"
    program.write_text(
        "#!/bin/sh\n"
        f"echo x >> {tmp_path}/runs\n"
        f'echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info\n'
        f'echo \'{{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/{version}",\' \\\n'
        f'  "\\"status\\": {{\\"token\\": \\"t-$ROLE-$(wc -l < {tmp_path}/runs | tr -d " ")\\",'
        '\\"expirationTimestamp\\": \\"1970-01-01T00:20:00Z\\"}}"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    user = {
        "exec": {
            "apiVersion": f"client.authentication.k8s.io/{version}",
            "command": "./login",
            "env": [{"name": "ROLE", "value": "farm"}],
            "interactiveMode": "IfAvailable",
            "provideClusterInfo": True,
        }
    }
    clock = StillClock()
    clock.seconds = 1000.0
    environ = {"KUBECONFIG": written(tmp_path, config(user=user)), "PATH": os.environ["PATH"]}
    credentials = access(environ, clock).credentials

    async def token() -> str:
        return (await credentials.login()).headers["Authorization"]

    assert await token() == "Bearer t-farm-1"
    assert await token() == "Bearer t-farm-1"
    credentials.refused()
    assert await token() == "Bearer t-farm-2"
    clock.seconds = 1195.0
    assert await token() == "Bearer t-farm-3"
    assert SERVER in (tmp_path / "info").read_text()


async def test_in_a_pod_the_service_account_is_used_with_a_token_that_rotates(tmp_path):
    (tmp_path / "token").write_text("first")
    (tmp_path / "namespace").write_text("ml")
    (tmp_path / "ca.crt").write_bytes((certificates() / "ca.crt").read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    clock = StillClock()
    found = access(environ, clock, service_account=tmp_path)
    assert (found.url, found.namespace) == ("https://[fd00::1]:6443", "ml")
    assert (await found.credentials.login()).headers["Authorization"] == "Bearer first"
    (tmp_path / "new").write_text("second")
    (tmp_path / "new").replace(tmp_path / "token")
    clock.seconds += LOOK_SECONDS
    assert (await found.credentials.login()).headers["Authorization"] == "Bearer second"


async def test_a_pod_without_a_token_is_told(tmp_path):
    with pytest.raises(InputInvalid, match=r"token: found no such file, expected a service account's token"):
        access({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, StillClock(), service_account=tmp_path)


PROXIES = [
    ("https://api.example:6443", "", "http://proxy:3128"),
    ("https://api.example:6443", ".example", None),
    ("https://api.example:6443", "other,API.example", None),
    ("https://api.example:6443", "ample", "http://proxy:3128"),
    ("https://10.1.2.3:6443", "10.0.0.0/8", None),
    ("https://10.1.2.3:6443", "10.9.0.0/16,not/a/network", "http://proxy:3128"),
    ("https://10.1.2.3:6443", "*", None),
    ("https://127.0.0.1:6443", "", None),
    ("https://[::1]:6443", "", None),
    ("https://localhost:6443", "", None),
    ("http://api.example", "", None),
]


@pytest.mark.parametrize(("server", "none", "expected"), PROXIES)
async def test_the_environment_s_proxy_is_used_but_for_what_no_proxy_covers(tmp_path, server, none, expected):
    path = written(tmp_path, config(cluster={"server": server}))
    environ = {"KUBECONFIG": path, "HTTPS_PROXY": "http://proxy:3128", "no_proxy": none}
    assert access(environ, StillClock()).proxy == expected
