"""Checks of a valid configuration against this machine, the same for every command that reads it.

``refused`` is what keeps a process from starting. A process itself meets ``troubles`` later: it waits until a
credential is good, and ends where it has no folder or address, so only ``farmd check-config`` asks for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from farmd.config.sections import Config, WebSection
from farmd.config.sources import Loaded
from farmd.web import tls
from store import credentials
from store.consul.environment import DATACENTER, Address, token_source
from store.errors import CredentialInvalid, InputInvalid, refuse

Check = Callable[[], object]


def consul_environment(config: Config, env: Mapping[str, str]) -> dict[str, str]:
    """The ``CONSUL_*`` variables, with the address and the token file of the configuration."""
    ours = {"CONSUL_HTTP_ADDR": config.store.address, "CONSUL_HTTP_TOKEN_FILE": config.store.token_file}
    return {**env, **{name: value for name, value in ours.items() if value}}


def refused(loaded: Loaded, env: Mapping[str, str]) -> list[str]:
    """What keeps a process from starting: one line each."""
    consul = consul_environment(loaded.config, env)
    own: list[Check] = [partial(tls.complete, loaded.config.web), partial(_one_credential, loaded.config)]
    own += [partial(_own_datacenter, env), partial(_identities_apart, loaded.config)]
    return list(_failing([partial(Address.from_environment, consul), partial(token_source, consul), *own]))


def _identities_apart(config: Config) -> None:
    """Refuse an identity among the files that any pod of the node may have as a secret.

    Raises:
        InputInvalid: one lies in ``agent.secrets_dir``, or leads to a file there.
    """
    folder = os.path.realpath(config.agent.secrets_dir)
    for path in config.agent.secret_identities:
        if any(
            Path(each).is_relative_to(folder) for each in (os.path.normpath(path), os.path.realpath(path))
        ):
            why = (
                f"a file outside agent.secrets_dir ({config.agent.secrets_dir}), which any pod here may read"
            )
            refuse("agent.secret_identities", repr(path), why)


def _own_datacenter(env: Mapping[str, str]) -> None:
    """Refuse to work in a datacenter by way of another one: what cuts them off would end the session.

    Raises:
        InputInvalid: the environment names a datacenter.
    """
    if found := env.get(DATACENTER):
        refuse(DATACENTER, repr(found), "nothing: farms and agents work in the datacenter of their Consul")


def troubles(loaded: Loaded, env: Mapping[str, str]) -> list[str]:
    """What a process would wait for or end at: one line each. ``refused`` has found nothing."""
    config = loaded.config
    address = Address.from_environment(consul_environment(config, env))
    checks: list[Check] = [address.tls.context] if address.scheme == "https" else []
    checks += [partial(credentials.token, key, path) for key, path in _token_files(config) if path]
    checks += [
        partial(credentials.content, f"alerts.sinks[{place}].secret_file", sink.secret_file)
        for place, sink in enumerate(config.alerts.sinks)
        if sink.secret_file
    ]
    checks += [
        partial(credentials.variable, f"alerts.sinks[{place}].secret_env", sink.secret_env, env)
        for place, sink in enumerate(config.alerts.sinks)
        if sink.secret_env
    ]
    if config.web.tokens:
        checks.append(partial(_tokens, config.web.tokens))
    checks.append(partial(_can_listen, config.web.bind))
    if config.web.port_file:
        checks.append(partial(_folder, "web.port_file", Path(config.web.port_file).parent))
    if config.agent.signatures != "none":
        checks.append(partial(_trusted, config.agent.trust))
    if loaded.origin("agent.state_dir") != "default":  # a machine without an agent need not have it
        checks.append(partial(_can_keep_state, Path(config.agent.state_dir), config.agent.node))
    return [*_failing(checks), *_doubts(config.web)]


def open_to_all(web: WebSection) -> Iterator[str]:
    """What anybody in the network may read: one line for each choice that keeps no process from starting."""
    from farmd.web.hosts import loopback  # aiohttp, which a health check does without

    if web.read == "open" and not loopback(web.bind) and not web.client_ca:
        without = "" if web.tls_cert else ", and without TLS"
        expected = "token, or web.client_ca: everybody in the network can read the page, pods and their logs"
        yield f"web.read: found open on {web.bind}{without}, expected {expected}"


def _token_files(config: Config) -> Iterator[tuple[str, str]]:
    """The paths in all keys that name a file with a token, by key."""
    for name in config.__struct_fields__:
        section = getattr(config, name)
        for key in section.__struct_fields__:
            if key.endswith("token_file"):
                yield f"{name}.{key}", getattr(section, key)


def _one_credential(config: Config) -> None:
    """A request cannot have both the credentials of its address and a token."""
    for key, path in _token_files(config):
        section, _, name = key.partition(".")
        address = getattr(getattr(config, section), name.replace("token_file", "url"), "")
        if path and "@" in urlsplit(address).netloc:
            refuse(key, "a file beside credentials in the address", "one of them")


def _failing(checks: Iterable[Check]) -> Iterator[str]:
    for check in checks:
        try:
            check()
        except (InputInvalid, CredentialInvalid) as error:
            yield error.message


def _tokens(path: str) -> None:
    from farmd.web import tokens  # which few processes need

    if not Path(path).exists():  # for the farm nobody has a token then
        raise credentials.invalid(tokens.FIELD, f"{path!r}, which does not exist", "a file of tokens")
    tokens.read(path)


def _doubts(web: WebSection) -> Iterator[str]:
    try:
        yield from tls.doubts(web)
    except CredentialInvalid as error:
        yield error.message


def _trusted(path: str) -> None:
    from farmd.signing import keys, trust  # which most agents do without

    if text := keys.missing():
        raise InputInvalid(f"agent.signatures: {text}", field="agent.signatures")
    trust.read(path)


def _can_listen(bind: str) -> None:
    from farmd.web.server import CannotListen, listening  # aiohttp, which a health check does without

    try:
        with listening(bind, 0):
            pass
    except CannotListen as error:
        raise InputInvalid(str(error), field="web.bind") from error


def _folder(key: str, path: Path) -> None:
    if not path.is_dir():
        raise InputInvalid(f"{key}: found {str(path)!r}, expected a folder that exists", field=key)


def _can_keep_state(path: Path, node: str) -> None:
    from farmd.agent.errors import StateInvalid
    from farmd.agent.state import StateDirectory

    try:
        StateDirectory(path).tried(node)
    except StateInvalid as error:
        raise InputInvalid(f"agent.{error.message}", field="agent.state_dir") from error
