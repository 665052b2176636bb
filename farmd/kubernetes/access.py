"""Where the API server is and who asks it: from the configuration, KUBECONFIG or the pod that farmd runs in.

``~/.kube/config`` is not read: a daemon must not act on a cluster because its user once logged in there.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from farmd.kubernetes.credentials import Credentials
from farmd.kubernetes.kubeconfig import Chosen, KubeconfigCluster, User, choose
from store.credentials import told
from store.errors import refuse
from store.ports import Clock

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
