"""Where Consul is, and the token for it, from the ``CONSUL_*`` variables of its own tools."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from store.credentials import CredentialFiles, content, invalid, is_token, token, told
from store.errors import refuse

# The address of Consul, from the ``CONSUL_*`` variables of its own tools (Go client ``api/api.go``).
#
# The library's code for these variables is never used: it fails on ``unix://``, IPv6 and port-less
# addresses, and overrides the values that it is given. A bad value is an error of one line.

DEFAULT_ADDRESS = "127.0.0.1:8500"
DATACENTER = "CONSUL_HTTP_DC"
FORMS = "host:port, [ipv6]:port, http://…, https://… or unix:///path"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_TRUE = {"1", "t", "true", "T", "TRUE", "True"}
_DATACENTER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FALSE = {"0", "f", "false", "F", "FALSE", "False", ""}


@dataclass(frozen=True, slots=True)
class Tls:
    """Which certificates are used. Paths of PEM files; empty means: not given. ``variables`` begins the
    names of the variables that they come from.
    """

    verify: bool = True
    ca_file: str = ""
    ca_path: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""
    variables: str = "CONSUL"

    @classmethod
    def from_environment(cls, env: Mapping[str, str], variables: str = "CONSUL") -> Tls:
        """Read ``CONSUL_CACERT`` and the like; their names may begin with another word.

        Raises:
            InputInvalid: a certificate without its key, or no truth where one is expected.
        """
        certificate, key = env.get(f"{variables}_CLIENT_CERT", ""), env.get(f"{variables}_CLIENT_KEY", "")
        whole_pair((f"{variables}_CLIENT_CERT", certificate), (f"{variables}_CLIENT_KEY", key))
        return cls(
            verify=_boolean(env, f"{variables}_HTTP_SSL_VERIFY", default=True),
            ca_file=env.get(f"{variables}_CACERT", ""),
            ca_path=env.get(f"{variables}_CAPATH", ""),
            certificate=certificate,
            key=key,
            server_name=env.get(f"{variables}_TLS_SERVER_NAME", ""),
            variables=variables,
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of all files and folders that ``context`` reads."""
        return (self.ca_file, self.ca_path, self.certificate, self.key)

    def context(self) -> ssl.SSLContext:
        """Load all files from disk.

        Raises:
            CredentialInvalid: a file cannot be read, or is no certificate or key; names the variable.
        """
        context = ssl.create_default_context()
        authority, folder, certificate, key = (
            f"{self.variables}_{name}" for name in ("CACERT", "CAPATH", "CLIENT_CERT", "CLIENT_KEY")
        )
        if self.ca_file or self.ca_path:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if self.ca_file:
                load_authorities(context, authority, self.ca_file)
            if self.ca_path:
                _load(folder, self.ca_path, lambda: list(Path(self.ca_path).iterdir()))
                context.load_verify_locations(capath=self.ca_path)
        if self.certificate:
            load_pair(context, (certificate, self.certificate), (key, self.key))
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """One Consul HTTP API: over TCP, or over the socket ``unix_path``. ``auth`` is a secret.

    ``datacenter``: the one that answers each request, by way of this Consul; empty: this Consul's own.
    """

    scheme: str = "http"
    host: str = "127.0.0.1"
    port: int = 8500
    path: str = ""
    unix_path: str = ""
    tls: Tls = Tls()
    auth: tuple[str, str] | None = field(default=None, repr=False)
    namespace: str = ""
    partition: str = ""
    datacenter: str = ""

    @property
    def url(self) -> str:
        """Base URL without a slash at its end; with a unix socket the host is not used to connect."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"

    def __str__(self) -> str:
        """The value of ``CONSUL_HTTP_ADDR`` for this address, for people."""
        return f"unix://{self.unix_path}" if self.unix_path else self.url

    @classmethod
    def from_environment(cls, env: Mapping[str, str], override: str | None = None) -> Address:
        """Read all variables; ``override`` (a flag) overrides ``CONSUL_HTTP_ADDR``.

        Raises:
            InputInvalid: naming the variable, what was found and what was expected.
        """
        variable = "CONSUL_HTTP_ADDR" if override is None else "address"
        text = override if override is not None else env.get("CONSUL_HTTP_ADDR", "")
        wants_tls = _boolean(env, "CONSUL_HTTP_SSL", default=False)
        parts = _parse(text.strip() or DEFAULT_ADDRESS, variable, wants_tls)
        return cls(
            scheme=parts["scheme"],
            host=parts["host"],
            port=int(parts["port"]),
            path=parts["path"],
            unix_path=parts["unix_path"],
            tls=Tls.from_environment(env),
            auth=_auth(env.get("CONSUL_HTTP_AUTH", "")),
            namespace=_header(env, "CONSUL_NAMESPACE"),
            partition=_header(env, "CONSUL_PARTITION"),
            datacenter=datacenter(env.get(DATACENTER, "")),
        )


def datacenter(name: str, field: str = DATACENTER) -> str:
    """The name of a datacenter as Consul writes it; empty: none is named.

    Raises:
        InputInvalid: no datacenter can have this name.
    """
    if name and not _DATACENTER.fullmatch(name):
        refuse(field, repr(name), "a datacenter: letters, digits, '-' and '_'")
    return name.lower()


def _parse(text: str, variable: str, wants_tls: bool) -> dict[str, str]:
    shown = told(text)  # a password in an address is refused, and must not be in the error
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "http", text
    if scheme not in ("http", "https", "unix"):
        refuse(variable, repr(shown), FORMS)
    if scheme == "unix":
        if not rest.startswith("/"):
            refuse(variable, repr(shown), "unix:// and an absolute path")
        if wants_tls:  # without an error the data would be sent unencrypted
            refuse("CONSUL_HTTP_SSL", "'true'", "false with a unix socket")
        return {"scheme": "http", "host": "localhost", "port": "80", "path": "", "unix_path": rest}
    scheme = "https" if wants_tls else scheme
    if rest.count(":") > 1 and not rest.startswith("[") and "@" not in rest:  # a bare IPv6 address
        host, slash, path = rest.partition("/")
        rest = f"[{host}]{slash}{path}"
    try:
        url = urlsplit(f"{scheme}://{rest}")
        host, port = url.hostname or "", url.port or _DEFAULT_PORTS[scheme]
        host.encode("idna")  # or it fails where the host is looked up
    except ValueError:
        refuse(variable, repr(shown), FORMS)
    if not host or any(c.isspace() for c in rest) or url.username is not None or url.query or url.fragment:
        refuse(variable, repr(shown), FORMS)
    return {"scheme": scheme, "host": host, "port": str(port), "path": url.path.rstrip("/"), "unix_path": ""}


def _auth(text: str) -> tuple[str, str] | None:
    user, _, password = text.partition(":")
    return (user, password) if text else None


def _header(env: Mapping[str, str], name: str) -> str:
    found = env.get(name, "")
    if not (found.isascii() and found.isprintable()):
        refuse(name, repr(found), "printable ASCII")
    return found


def _boolean(env: Mapping[str, str], name: str, *, default: bool) -> bool:
    found = env.get(name)
    if found is None or found == "":
        return default
    if found not in _TRUE | _FALSE:
        refuse(name, repr(found), "true or false")
    return found in _TRUE


def whole_pair(certificate: tuple[str, str], key: tuple[str, str]) -> None:
    """Check that there are both or neither, each given by what names its path, and the path.

    Raises:
        InputInvalid: one without the other.
    """
    if bool(certificate[1]) != bool(key[1]):
        missing, _ = key if certificate[1] else certificate
        refuse(missing, "nothing", "a path, because a certificate needs its key")


def load_pair(context: ssl.SSLContext, certificate: tuple[str, str], key: tuple[str, str]) -> None:
    """Load a certificate and its key, each given by what names its path, and the path.

    Raises:
        CredentialInvalid: a file cannot be read, is no certificate or key, or the two do not fit.
    """
    content(*certificate)
    content(*key)
    _load(*certificate, lambda: context.load_cert_chain(certificate[1], key[1], _encrypted))


def load_authorities(context: ssl.SSLContext, variable: str, path: str) -> None:
    """Trust the authorities of a file.

    Raises:
        CredentialInvalid: it cannot be read, or has no certificate.
    """
    content(variable, path)
    _load(variable, path, lambda: context.load_verify_locations(path))


def _load(variable: str, path: str, load: Callable[[], object]) -> None:
    """Call ``load``; its error becomes one that names the variable and the path."""
    try:
        load()
    except (OSError, ValueError) as error:
        reason = (
            getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
            and "its key belongs to another certificate"
        )
        reason = reason or getattr(error, "strerror", None) or str(error)
        raise invalid(variable, f"{path!r} ({reason})", "readable PEM") from error


def _encrypted() -> str:
    """Refuse an encrypted key; without this OpenSSL would ask for a password on the terminal."""
    raise ValueError("its key is encrypted")


# The ACL token for the header of each request; it must never be in a message, log or repr.


def token_source(env: Mapping[str, str]) -> Callable[[], str] | None:
    """The token of ``CONSUL_HTTP_TOKEN_FILE``, which is preferred as in Consul's own tools, or of
    ``CONSUL_HTTP_TOKEN``.

    Raises:
        InputInvalid: ``CONSUL_HTTP_TOKEN`` is no token.
    """
    path, given = env.get("CONSUL_HTTP_TOKEN_FILE", ""), env.get("CONSUL_HTTP_TOKEN", "").strip()
    if path:
        return CredentialFiles([path], lambda: token("CONSUL_HTTP_TOKEN_FILE", path))
    if given and not is_token(given.encode(errors="surrogateescape")):
        refuse("CONSUL_HTTP_TOKEN", "characters that a token cannot contain", "one token on one line")
    return (lambda: given) if given else None
