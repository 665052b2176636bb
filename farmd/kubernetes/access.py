"""How the API server is reached: its address, and the credentials of each request."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import ipaddress
import json
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from farmd.kubernetes.kubeconfig import Chosen, Exec, KubeconfigCluster, User, choose
from store.credentials import CredentialFiles, content, invalid, is_token, token, told
from store.errors import refuse
from store.ports import Clock

# What a request to the API server identifies itself with: certificates, tokens, programs that print them.
#
# Files are read again when they change, so tokens and certificates rotate without a restart; a program runs
# again when its credential is about to expire or was refused. No message holds a credential.

PROGRAM_SECONDS = 60.0
EXPIRES_EARLY_SECONDS = 10.0
# For so long a login is used without a look at its files: a farm sends hundreds of requests a second.
LOOK_SECONDS = 1.0
Pair = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What one request uses: headers, and a TLS context (True: none, because the address is http://)."""

    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool


class _Status(msgspec.Struct, rename="camel", frozen=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime.datetime | None = None


class _Printed(msgspec.Struct, rename="camel", frozen=True):
    api_version: str
    kind: str
    status: _Status = _Status()


class Credentials:
    """The credentials of one user at one cluster; ``cluster_field`` and ``user_field`` are for messages."""

    def __init__(
        self,
        cluster: KubeconfigCluster,
        user: User,
        *,
        cluster_field: str,
        user_field: str,
        environ: Mapping[str, str],
        clock: Clock,
    ) -> None:
        self._cluster, self._user = cluster, user
        self._cluster_field, self._user_field = cluster_field, user_field
        self._environ, self._clock = environ, clock
        self._printed: _Status | None = None
        self._program = asyncio.Lock()
        self._held: tuple[float, RequestIdentity] | None = None
        files = (cluster.certificate_authority, user.client_certificate, user.client_key)
        self._files = CredentialFiles(files, lambda: self._context(self._own_pair()))
        self._context_of_printed: tuple[_Status, ssl.SSLContext] | None = None
        self._token = CredentialFiles(
            [user.token_file], lambda: token(f"{user_field}.tokenFile", user.token_file)
        )

    async def login(self) -> RequestIdentity:
        """What the next request uses; a file that changes counts within ``LOOK_SECONDS``.

        Raises:
            CredentialInvalid: a file or what the program printed is not usable, and nothing was before.
        """
        now = self._clock.mono()
        if self._held is None or now >= self._held[0]:
            self._held = now + LOOK_SECONDS, await self._read()
        return self._held[1]

    async def _read(self) -> RequestIdentity:
        printed = await self._of_program(self._user.exec) if self._user.exec is not None else None
        headers = self._headers(printed)
        if not self._cluster.server.startswith("https:"):
            return RequestIdentity(headers, True)
        return RequestIdentity(headers, self._tls(printed))

    def certificate(self) -> bytes:
        """The user's own client certificate, PEM; empty if there is none, or if a program prints it.

        Raises:
            CredentialInvalid: its file is not usable.
        """
        pair = self._own_pair()
        return b"" if pair is None else pair[0]

    def refused(self) -> None:
        """The API server answered 401: files are looked at and the program runs before the next request."""
        self._printed = self._held = None

    def _headers(self, printed: _Status | None) -> dict[str, str]:
        user, headers = self._user, dict[str, str]()
        text = self._token() if user.token_file else user.token or (printed.token if printed else "")
        if text:
            if not is_token(text.encode()):
                raise invalid(
                    f"{self._user_field}.token", "characters that a token cannot contain", "a token"
                )
            headers["Authorization"] = f"Bearer {text}"
        elif user.username:
            pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            headers["Authorization"] = f"Basic {pair}"
        if user.impersonate:
            headers["Impersonate-User"] = user.impersonate
            headers |= (
                {"Impersonate-Group": ",".join(user.impersonate_groups)} if user.impersonate_groups else {}
            )
        return headers

    def _tls(self, printed: _Status | None) -> ssl.SSLContext:
        if printed is None or not printed.client_certificate_data:
            return self._files()
        if self._context_of_printed is None or self._context_of_printed[0] is not printed:
            pair = printed.client_certificate_data.encode(), printed.client_key_data.encode()
            self._context_of_printed = printed, self._context(pair)
        return self._context_of_printed[1]

    def _own_pair(self) -> Pair | None:
        user, field = self._user, self._user_field
        if not user.client_certificate and not user.client_certificate_data:
            return None
        certificate = _either(
            f"{field}.client-certificate", user.client_certificate, user.client_certificate_data
        )
        return certificate, _either(f"{field}.client-key", user.client_key, user.client_key_data)

    def _context(self, pair: Pair | None) -> ssl.SSLContext:
        cluster, field = self._cluster, f"{self._cluster_field}.certificate-authority"
        context = ssl.create_default_context()
        # Python 3.13 refuses the authorities that many clusters were made with; kubectl accepts them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if cluster.insecure_skip_tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif cluster.certificate_authority or cluster.certificate_authority_data:
            text = _either(field, cluster.certificate_authority, cluster.certificate_authority_data)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _usable(field, lambda: context.load_verify_locations(cadata=text.decode("ascii")))
        if pair is not None:
            _usable(f"{self._user_field}.client-certificate", lambda: _load_pair(context, pair))
        return context

    async def _of_program(self, program: Exec) -> _Status:
        """The credential that was printed last, or a new one."""
        async with self._program:
            held = self._printed
            if held is not None and held.expiration_timestamp is not None:
                left = held.expiration_timestamp.timestamp() - self._clock.now()
                held = held if left > EXPIRES_EARLY_SECONDS else None
            if held is None:
                held = self._printed = _credential(
                    await self._run(program), program, f"{self._user_field}.exec"
                )
            return held

    async def _run(self, program: Exec) -> bytes:
        field = f"{self._user_field}.exec.command"
        extra = {one.name: one.value for one in program.env or ()}
        environ = {**self._environ, **extra, "KUBERNETES_EXEC_INFO": self._about(program)}
        try:
            process = await asyncio.create_subprocess_exec(
                program.command,
                *(program.args or ()),
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            hint = f" ({' '.join(program.install_hint.split())})" if program.install_hint else ""
            raise invalid(field, f"{program.command!r}: {error.strerror}{hint}", "a program") from error
        try:
            async with asyncio.timeout(PROGRAM_SECONDS):
                printed, said = await process.communicate()
        except TimeoutError as error:
            raise invalid(
                field, f"no end of {program.command!r} after {PROGRAM_SECONDS:g} s", "an end"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            last = said.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            found = f"{program.command!r} ended with {process.returncode}: {last[0][:200]}"
            raise invalid(field, found, "a credential")
        return printed

    def _about(self, program: Exec) -> str:
        """What the program is told of its task."""
        spec: dict[str, Any] = {"interactive": False}
        if program.provide_cluster_info:
            cluster = self._cluster
            spec["cluster"] = {
                "server": cluster.server,
                "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
            }
            if cluster.tls_server_name:
                spec["cluster"]["tls-server-name"] = cluster.tls_server_name
            if cluster.certificate_authority or cluster.certificate_authority_data:
                text = _either(
                    f"{self._cluster_field}.certificate-authority",
                    cluster.certificate_authority,
                    cluster.certificate_authority_data,
                )
                spec["cluster"]["certificate-authority-data"] = base64.b64encode(text).decode()
        return json.dumps({"apiVersion": program.api_version, "kind": "ExecCredential", "spec": spec})


def _credential(printed: bytes, program: Exec, field: str) -> _Status:
    """The credential in a program's output, which no message shows."""
    try:
        found = msgspec.json.decode(printed, type=_Printed)
    except msgspec.DecodeError:
        raise invalid(field, "output that is not an ExecCredential in JSON", "an ExecCredential") from None
    if found.kind != "ExecCredential" or found.api_version != program.api_version:
        raise invalid(field, f"{found.kind} {found.api_version}", f"ExecCredential {program.api_version}")
    if bool(found.status.client_certificate_data) != bool(found.status.client_key_data):
        raise invalid(field, "a certificate or a key alone", "both")
    if not found.status.token and not found.status.client_certificate_data:
        raise invalid(field, "no status.token", "a token, or a certificate with its key")
    return found.status


def _either(field: str, path: str, data: str) -> bytes:
    """The data if there are any, as kubectl prefers, else the content of the file."""
    if not data:
        return content(field, path)
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except binascii.Error:
        raise invalid(f"{field}-data", "text that is not valid base64", "PEM in base64") from None


def _usable(field: str, load: Callable[[], None]) -> None:
    try:
        load()
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "no certificate in it"
        raise invalid(field, f"what is not usable ({reason})", "certificates in PEM") from None


def _load_pair(context: ssl.SSLContext, pair: Pair) -> None:
    """OpenSSL reads a pair only from files; an encrypted key would make it ask on the terminal."""
    with tempfile.NamedTemporaryFile(prefix="farmd-") as file:
        file.write(b"\n".join(pair))
        file.flush()
        context.load_cert_chain(file.name, password=_encrypted)


def _encrypted() -> str:
    raise ValueError("the key is encrypted")


# Where the API server is and who asks it: from the configuration, KUBECONFIG or the pod that farmd runs in.
#
# ``~/.kube/config`` is not read: a daemon must not act on a cluster because its user once logged in there.

_LOOPBACK = ("127.0.0.0/8", "::1/128")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """One API server; ``origin`` says for people where this was read, ``proxy`` is None for none."""

    url: str
    namespace: str
    origin: str
    credentials: Credentials
    server_name: str | None
    proxy: str | None


def access(
    environ: Mapping[str, str],
    clock: Clock,
    *,
    kubeconfig: str = "",
    context: str = "",
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The API server of ``kubeconfig``, else of KUBECONFIG, else of this pod.

    Raises:
        InputInvalid: there is none of them, or it is not usable; one line.
    """
    listed = [path for path in (kubeconfig or environ.get("KUBECONFIG", "")).split(os.pathsep) if path]
    chosen = choose(listed, context) if listed else _in_cluster(environ, service_account)
    cluster, field = chosen.cluster, chosen.cluster_field
    url = _checked(cluster, field)
    credentials = Credentials(
        cluster,
        chosen.user,
        cluster_field=field,
        user_field=chosen.user_field,
        environ=environ,
        clock=clock,
    )
    return Access(
        url=url,
        namespace=chosen.namespace or "default",
        origin=chosen.origin,
        credentials=credentials,
        server_name=cluster.tls_server_name or None,
        proxy=cluster.proxy_url or proxy_for(url, environ),
    )


def _in_cluster(environ: Mapping[str, str], folder: Path) -> Chosen:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        refuse("kubernetes.kubeconfig", "nothing", "a path, or KUBECONFIG, or to run in a pod of the cluster")
    if not (folder / "token").exists():
        refuse(
            str(folder / "token"), "no such file", "a service account's token (automountServiceAccountToken)"
        )
    namespace = folder / "namespace"
    return Chosen(
        context="",
        namespace=namespace.read_text().strip() if namespace.exists() else "",
        cluster=KubeconfigCluster(
            server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            certificate_authority=str(folder / "ca.crt"),
        ),
        user=User(token_file=str(folder / "token")),
        cluster_field="service account",
        user_field="service account",
        origin="the pod's service account",
    )


def _checked(cluster: KubeconfigCluster, field: str) -> str:
    """The address without a slash at its end."""
    form = "https://, a host, and perhaps a port and a path"
    for name, url, forms in (
        ("server", cluster.server, form),
        ("proxy-url", cluster.proxy_url or "http://none", "http:// or https://, a host and perhaps a port"),
    ):
        try:
            parts = urlsplit(url)
            whole = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
            good = whole and not parts.query and (name == "proxy-url" or parts.username is None)
        except ValueError:
            good = False
        if not good or any(char.isspace() for char in url):
            refuse(f"{field}.{name}", repr(told(url)), forms)
    if cluster.insecure_skip_tls_verify and (
        cluster.certificate_authority or cluster.certificate_authority_data
    ):
        refuse(f"{field}.insecure-skip-tls-verify", "true beside a certificate-authority", "one of them")
    return cluster.server.rstrip("/")


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment names for an address; NO_PROXY may hold networks, as for kubectl."""
    parts = urlsplit(url)
    host = parts.hostname or ""

    def named(name: str) -> str:
        return environ.get(f"{name}_proxy") or environ.get(f"{name.upper()}_PROXY", "")

    found = named(parts.scheme)
    if not found or any(_covers(one, host) for one in ("localhost", *_LOOPBACK, *named("no").split(","))):
        return None
    return found


def _covers(entry: str, host: str) -> bool:
    """Whether an entry of NO_PROXY names a host: ``*``, a name with all below it, an address, a network."""
    entry = entry.strip().lower()
    if entry == "*":
        return True
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        name = entry.removeprefix("*").removeprefix(".")
        return bool(name) and (host == name or host.endswith(f".{name}"))
