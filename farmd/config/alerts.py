"""``[[alerts.sinks]]``: the receivers of alerts, which alerts each one gets, and where its secret is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from msgspec import field

from farmd.config.fields import Secret, Section, extended_url, http_url, key, shown
from store.keys import valid_name
from store.selectors import parse as parse_selector

URGENCIES = ("high", "low")
# What each type needs: an address, and a secret.
ADDRESSED = frozenset({"webhook", "alertmanager"})
SECRET = {"pagerduty": "the routing key", "slack": "the webhook's address"}


def _urgencies(value: list[str]) -> None:
    if not value or set(value) - set(URGENCIES) or len(set(value)) < len(value):
        raise ValueError(f"expected some of {', '.join(URGENCIES)}, each once")


def _name(value: str) -> None:
    if value:
        valid_name(value)


class SinkSection(Section, frozen=True):
    """One receiver of alerts."""

    type: Annotated[Literal["log", "webhook", "pagerduty", "slack", "alertmanager"], key("")]
    name: Annotated[str, key("Its display name, unique; empty: its type.", check=_name)] = ""
    url: Annotated[str, key("Address of a webhook or an Alertmanager.")] = ""
    secret: Annotated[Secret, key("Key that signs a webhook's messages; routing key; address of Slack.")] = (
        Secret()
    )
    secret_file: Annotated[str, key("File with that secret.")] = ""
    secret_env: Annotated[str, key("Variable of the environment with that secret.")] = ""
    urgencies: Annotated[list[str], key("Urgencies of its alerts.", check=_urgencies)] = field(
        default_factory=lambda: list(URGENCIES)
    )
    selector: Annotated[
        str,
        key("Only alerts whose labels match (Kubernetes grammar).", check=parse_selector),
    ] = ""
    timeout: Annotated[float, key("Seconds for one delivery.", gt=0, le=120)] = 10.0


def complete(value: list[SinkSection]) -> None:
    """Check what no single key shows.

    Raises:
        ValueError: it names the sink, the key, what was found and what is expected.
    """
    for place, sink in enumerate(value):
        for name, found, expected in _mistakes(sink):
            raise ValueError(f"sinks[{place}].{name}: found {found}, expected {expected}")
    names = list(named(value))
    if len(names) < len(value):
        given = [sink.name for sink in value if sink.name]
        twice = next(name for name in given if given.count(name) > 1)
        raise ValueError(f"sinks: found the name {shown(twice)} twice, expected each once")


def named(sinks: Sequence[SinkSection]) -> dict[str, SinkSection]:
    """The sinks by their names; without one a sink is ``webhook``, the second of its type ``webhook-2``."""
    found: dict[str, SinkSection] = {}
    taken = {sink.name for sink in sinks}
    for sink in sinks:
        free = (sink.type if number == 1 else f"{sink.type}-{number}" for number in range(1, len(sinks) + 2))
        found[sink.name or next(name for name in free if name not in found.keys() | taken)] = sink
    return found


def _mistakes(sink: SinkSection) -> Iterator[tuple[str, str, str]]:
    """Key, what was found, what is expected."""
    if sink.type in ADDRESSED or (sink.type == "pagerduty" and sink.url):
        try:
            (http_url if sink.type == "webhook" else extended_url)(sink.url)
            if not sink.url:
                raise ValueError("expected http:// or https://, and a host")
        except ValueError as error:
            yield "url", shown(sink.url), str(error).removeprefix("expected ")
    elif sink.type == "slack" and sink.url:
        yield "url", "an address", "none: it is a secret, use secret_file"
    given = [name for name in ("secret", "secret_file", "secret_env") if _given(sink, name)]
    if len(given) > 1:
        yield given[1], f"a value beside {given[0]}", "one of secret, secret_file and secret_env"
    elif not given and sink.type in SECRET:
        yield "secret_file", "nothing", f"a file with {SECRET[sink.type]}, or secret_env, or secret"


def _given(sink: SinkSection, name: str) -> bool:
    value = getattr(sink, name)
    return bool(value.text if isinstance(value, Secret) else value)
