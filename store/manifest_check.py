"""Checks a manifest for values that cannot work although their types are right, before it is stored.

An error is one line that names the field. The agent checks a manifest again when it reads one, because
a writer may have skipped this check.
"""

from __future__ import annotations

import math
import resource
import signal
from collections.abc import Iterator, Mapping

import msgspec

from store import container_check
from store.container_check import Mistake
from store.errors import InputInvalid, refuse
from store.keys import valid_name, valid_segment
from store.manifests import MAX_MANIFEST_BYTES, HealthCheck, Manifest, canonical
from store.mistakes import shown
from store.reality import Reality

MAX_SECONDS = 1e9
MAX_PORTS_BYTES = Reality.LARGEST * 3 // 4
"""What the ports of a pod take in its reality; the rest is for all else that its agent tells of it (R22)."""
LONGEST_DELAY, LONGEST_COMMAND, LONGEST_USER = 300.0, 60.0, 256
LIMITS = frozenset(
    name.removeprefix("RLIMIT_").lower() for name in dir(resource) if name.startswith("RLIMIT_")
)
SIGNALS = frozenset(known.name.removeprefix("SIG") for known in signal.Signals)


def check(manifest: Manifest, source: str, within: str = "") -> None:
    """Check the values; ``within`` is a prefix for the field names in errors, such as ``pod.``.

    Raises:
        InputInvalid: naming the first field that cannot work, what was found and what was expected.
    """
    _check_size(manifest, f"{source}: {within.rstrip('.') or 'manifest'}")
    valid_segment(manifest.id, f"{source}: {within}id")
    _check_ports(manifest, f"{source}: {within}ports")
    for field, found, expected in _mistakes(manifest):
        refuse(f"{source}: {within}{field}", shown(found), expected, field=within + field)


def _check_size(manifest: Manifest, where: str) -> None:
    try:
        size = len(canonical(manifest))
    except (OverflowError, UnicodeEncodeError) as error:
        raise InputInvalid(
            f"{where}: found a value that JSON cannot hold ({error})", field="manifest"
        ) from error
    if size > MAX_MANIFEST_BYTES:
        refuse(where, f"{size} bytes", f"at most {MAX_MANIFEST_BYTES}", field="manifest")


def _check_ports(manifest: Manifest, where: str) -> None:
    for name in manifest.ports:
        valid_name(name, where)
    taken = sum(len(name) + len('"":65535,') for name in manifest.ports)
    if taken > MAX_PORTS_BYTES:
        found = f"{len(manifest.ports)}, which take {taken} bytes of what the agent tells of the pod"
        refuse(where, found, f"at most {MAX_PORTS_BYTES} bytes: fewer ports, or shorter names")


def _mistakes(manifest: Manifest) -> Iterator[Mistake]:
    yield from _of_texts(msgspec.to_builtins(manifest), "")
    yield from _of_the_process(manifest)
    yield from container_check.mistakes(manifest)
    yield from _of_amounts(manifest)
    yield from _of_times(manifest)
    if manifest.health is not None:
        yield from _of_health(manifest.health, manifest)


def _of_texts(value: object, at: str) -> Iterator[Mistake]:
    """Texts that no call of the system takes, wherever they stand."""
    if isinstance(value, str) and "\0" in value:
        yield at, value, "no NUL character"
    elif isinstance(value, Mapping):
        for name, each in value.items():
            where = f"{at}.{name}".lstrip(".")
            yield from _of_texts(name, where)
            yield from _of_texts(each, where)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _of_texts(each, f"{at}[{number}]")


def _of_the_process(manifest: Manifest) -> Iterator[Mistake]:
    if (not manifest.command and manifest.runtime != "container") or manifest.command[:1] == [""]:
        yield "command", manifest.command, "at least the program to run"
    for name in manifest.env:
        if not name or "=" in name:
            yield "env", name, "a variable name without '='"
    folder = manifest.working_directory
    if folder and (not folder.startswith("/") or ".." in folder.split("/")):
        yield "working_directory", folder, "an absolute path without '..'"
    if manifest.stop.signal.removeprefix("SIG") not in SIGNALS:
        yield "stop.signal", manifest.stop.signal, "the name of a signal, such as TERM or INT"
    if manifest.stop.command[:1] == [""]:
        yield "stop.command", manifest.stop.command, "a program and its arguments"
    if len(manifest.user) > LONGEST_USER:
        yield "user", manifest.user, f"at most {LONGEST_USER} characters"
    if not 0 <= manifest.stop.delay <= LONGEST_DELAY:
        yield "stop.delay", manifest.stop.delay, f"0 to {LONGEST_DELAY:g} seconds"
    if not 0 < manifest.stop.command_timeout <= LONGEST_COMMAND:
        found = manifest.stop.command_timeout
        yield "stop.command_timeout", found, f"more than 0 and at most {LONGEST_COMMAND:g} seconds"


def _of_amounts(manifest: Manifest) -> Iterator[Mistake]:
    for name, port in manifest.ports.items():
        if not 0 <= port.port <= 65535:
            yield f"ports.{name}.port", port.port, "0 (dynamic) to 65535"
    for name, amount in manifest.resources.items():
        if not 0 <= amount < math.inf:
            yield f"resources.{name}", amount, "zero or more, and finite"
    for name, limit in manifest.ulimits.items():
        if name not in LIMITS:
            yield "ulimits", name, f"one of {', '.join(sorted(LIMITS))}"
        if not -1 <= limit < 2**63:
            yield f"ulimits.{name}", limit, "-1 (unlimited) to 2^63 - 1"
    if not 1024 <= manifest.logs.max_bytes < 2**50:
        yield "logs.max_bytes", manifest.logs.max_bytes, "1024 to 2^50"
    if not 0 <= manifest.logs.keep <= 1000:
        yield "logs.keep", manifest.logs.keep, "0 to 1000"


def _of_times(manifest: Manifest) -> Iterator[Mistake]:
    times = {
        "restart.initial": manifest.restart.initial,
        "restart.maximum": manifest.restart.maximum,
        "restart.reset": manifest.restart.reset,
        "stop.grace": manifest.stop.grace,
        "stop_after": manifest.stop_after,
    }
    for name, seconds in times.items():
        if not 0 <= seconds <= MAX_SECONDS:
            yield name, seconds, f"0 to {shown(MAX_SECONDS)} seconds"


def _of_health(health: HealthCheck, manifest: Manifest) -> Iterator[Mistake]:
    if health.type == "command" and not health.command:
        yield "health.command", health.command, "the program to run"
    if health.type != "command" and health.port not in manifest.ports:
        known = ", ".join(manifest.ports) or "it has none"
        yield "health.port", health.port, f"one of the pod's ports ({known})"
    if health.type == "http" and (
        not health.path.startswith("/") or any(c in health.path for c in " \r\n\0")
    ):
        yield "health.path", health.path, "a path that starts with '/' and has no white space"
    for name, seconds in (("interval", health.interval), ("timeout", health.timeout)):
        if not 0 < seconds <= MAX_SECONDS:
            yield f"health.{name}", seconds, f"more than 0 and at most {shown(MAX_SECONDS)} seconds"
    if not 0 <= health.start_period <= MAX_SECONDS:
        yield "health.start_period", health.start_period, f"0 to {shown(MAX_SECONDS)} seconds"
    for name, times in (("passes", health.passes), ("failures", health.failures)):
        if times < 1:
            yield f"health.{name}", times, "1 or more"
