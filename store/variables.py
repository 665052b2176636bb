"""farmd's own variables in the environments of pods: which process sets them, and where a manifest may name
them.

Their names begin with ``FARMD_``. An agent sets those of the node and of the start; an intent may set those
of a job's members and nothing else, so that who may write intents cannot change how a program is run (R29).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from store.errors import InputInvalid

if TYPE_CHECKING:
    from store.manifests import Manifest

PREFIX = "FARMD_"
NODE, INSTANCE = "FARMD_NODE", "FARMD_INSTANCE"
RESULT, PEERS_FILE, HOSTFILE = "FARMD_RESULT", "FARMD_PEERS_FILE", "FARMD_HOSTFILE"
ARTIFACTS, SECRETS, FILES = "FARMD_ARTIFACTS", "FARMD_SECRETS", "FARMD_FILES"
MASTER_ADDRESS, MASTER_PORT = "FARMD_MASTER_ADDRESS", "FARMD_MASTER_PORT"
MEMBER = frozenset(f"FARMD_{name}" for name in ("JOB", "TYPE", "INDEX", "RANK", "WORLD_SIZE", "ATTEMPT"))
"""What the intent of a job's member sets."""
GANG = frozenset({MASTER_ADDRESS, MASTER_PORT})
"""What it sets besides, if the members start together."""
PEERS = frozenset({PEERS_FILE, HOSTFILE})
"""What the agent sets besides, if the members know one another."""

_AGENTS = re.compile(
    f"{NODE}|{INSTANCE}|{RESULT}|{PEERS_FILE}|{HOSTFILE}|{ARTIFACTS}|{SECRETS}|{FILES}|FARMD_PORT_.*"
)
_SPOKEN_OF = re.compile(r"\$\{(FARMD_[A-Z0-9_]+)\}")


def port_variable(name: str) -> str:
    """``http-admin`` → ``FARMD_PORT_HTTP_ADMIN``."""
    return "FARMD_PORT_" + name.upper().replace("-", "_")


def of_workloads(name: str) -> bool:
    """Whether a workload may find this variable in its environment."""
    return name in MEMBER | GANG or _AGENTS.fullmatch(name) is not None


def refused(given: Mapping[str, str]) -> str:
    """Why an intent may not set these variables; empty if it may."""
    for name, value in sorted(given.items()):
        if _AGENTS.fullmatch(name):
            return f"vars: found {name!r}, which only the agent sets"
        if name not in MEMBER | GANG:
            return f"vars: found {name!r}, expected the name of a job's variable such as FARMD_RANK"
        if "\0" in value:
            return f"vars.{name}: found a NUL character, expected none"
    return ""


def expanded(env: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """An environment with farmd's variables in place of ``${FARMD_RANK}``; without a value that stays."""
    return {name: _filled(text, values) for name, text in env.items()}


def words(argv: Iterable[str], values: Mapping[str, str]) -> list[str]:
    """A command with farmd's variables in place of ``${FARMD_PORT_HTTP}``, as ``expanded`` does."""
    return [_filled(word, values) for word in argv]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _SPOKEN_OF.sub(lambda found: values.get(found[1], found[0]), text) if "${" in text else text


def check(manifest: Manifest, where: str, also: Collection[str] = ()) -> None:
    """Refuse what people may not say of farmd's variables. Agents run stored manifests that say it.

    ``where`` begins the message; ``also`` are variables that the pod gets besides its node's and its ports.

    Raises:
        InputInvalid: a variable of that kind is set, or one is spoken of that the pod will not have.
    """
    known = {NODE, INSTANCE, *also, *map(port_variable, manifest.ports)}
    known |= {RESULT} if manifest.restart.policy != "always" else set()
    known |= {ARTIFACTS} if any(not each.to.startswith("/") for each in manifest.artifacts) else set()
    known |= {SECRETS} if manifest.runtime == "process" and manifest.secrets else set()
    known |= {FILES} if manifest.runtime == "process" and manifest.files else set()
    for name, text in [*manifest.env.items(), *dict.fromkeys(manifest.secret_env, "").items()]:
        if name.startswith(PREFIX):
            raise InputInvalid(
                f"{where}env: found {name!r}, expected a name that does not begin with {PREFIX!r}:"
                " farmd sets those",
                field=f"{where}env.{name}",
            )
        for other in _SPOKEN_OF.findall(text):
            if other not in known:
                raise InputInvalid(
                    f"{where}env.{name}: found ${{{other}}}, expected one of {', '.join(sorted(known))}",
                    field=f"{where}env.{name}",
                )
