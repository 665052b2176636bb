"""Reads the configuration from its places, in order, and records each value's origin.

Order, later wins: defaults < ``/etc/farmd/farmd.toml`` < ``conf.d/*.toml`` beside it < systemd's
credential < ``CONSUL_*`` < ``FARMD_SECTION__KEY`` < flags. A value replaces the earlier one as a whole.
All mistakes are reported at once; a partly valid configuration is never returned.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from farmd.config.fields import Key, keys, shown
from farmd.config.sections import Config, every_key, sections
from farmd.config.values import Mistake, read, unknown
from store.mistakes import nearest
from store.variables import of_workloads

DEFAULT_PATH = Path("/etc/farmd/farmd.toml")
CREDENTIALS = ("farmd-token", "farmd-agent-token", "consul-token")
"""What the units of a farm and of an agent call their tokens; the last one is of installations of old."""
_FLAGS = {
    "log.level": "log-level",
    "store.address": "consul",
    "web.farm_port": "port",
    "web.agent_port": "port",
}
Values = dict[str, dict[str, Any]]


class ConfigInvalid(Exception):
    """The configuration cannot be used; ``lines`` name each mistake. The process exits 78."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


@dataclass(frozen=True, slots=True)
class Layer:
    """Values from one place; ``name_of`` gives a key in that place's form."""

    origin: str
    values: Values

    def name_of(self, section: str, key: str) -> str:
        """The key as it is written in that place, for people."""
        if self.origin == "environment":
            return f"environment FARMD_{section.upper()}__{key.upper()}"
        if self.origin == "flag":
            return f"flag --{_FLAGS.get(f'{section}.{key}', key.replace('_', '-'))}"
        return self.origin


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration; ``origins`` maps ``section.key`` to its place, without the defaults."""

    config: Config
    origins: dict[str, str]

    def origin(self, dotted: str) -> str:
        """The place that a value came from."""
        return self.origins.get(dotted, "default")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One value that a reload would change; both values in a form for people."""

    key: str
    before: str
    after: str
    reloadable: bool


def load(path: Path | None, env: Mapping[str, str], flags: Values | None = None) -> Loaded:
    """Read all places and validate.

    Args:
        path: the file that ``--config`` names; it must exist. None: ``FARMD_CONFIG`` (must exist too),
            else the default file, which may be missing.
        env: the environment.
        flags: values from the command line; None values are left out.

    Raises:
        ConfigInvalid: with one line for each mistake.
    """
    mistakes: list[str] = []
    layers = [*_file_layers(path, env, mistakes), *_environment_layers(env, mistakes)]
    given = {name: _present(values) for name, values in (flags or {}).items()}
    layers.append(Layer("flag", {name: values for name, values in given.items() if values}))
    return _valid(layers, mistakes)


def checked(origin: str, values: Values) -> Config:
    """The configuration of these values and the defaults alone; ``origin`` says whose they are.

    Raises:
        ConfigInvalid: with one line for each mistake.
    """
    return _valid([Layer(origin, values)], []).config


def _valid(layers: Sequence[Layer], mistakes: list[str]) -> Loaded:
    merged: Values = {}
    origins: dict[str, str] = {}
    for layer in layers:
        mistakes += _unknown(layer)
        for section, values in layer.values.items():
            for key, value in values.items():
                merged.setdefault(section, {})[key] = value
                origins[f"{section}.{key}"] = layer.name_of(section, key)
    made = dict[str, Any]()
    for name, model in sections().items():
        wrong = list[Mistake]()
        values = read(model, merged.get(name, {}), wrong)
        mistakes += [one.line(name, origins[f"{name}.{one.key}"]) for one in wrong]
        made[name] = model(**values) if not wrong else None
    if mistakes:
        raise ConfigInvalid(mistakes)
    return Loaded(Config(**made), origins)


def changes(before: Config, after: Config) -> list[KeyChange]:
    """The differences, key by key."""
    return [
        KeyChange(f"{section}.{key.name}", shown(old), shown(new), key.extra["reloadable"])
        for section, key in every_key()
        if (old := key.of(getattr(before, section))) != (new := key.of(getattr(after, section)))
    ]


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


# -- files -----------------------------------------------------------------------------------------
def _file_layers(path: Path | None, env: Mapping[str, str], mistakes: list[str]) -> Iterator[Layer]:
    named = path or (Path(env["FARMD_CONFIG"]) if env.get("FARMD_CONFIG") else None)
    main = named or DEFAULT_PATH
    if named is not None or _is_file(main, mistakes):
        yield from _file_layer(main, mistakes)
    for extra in sorted((main.parent / "conf.d").glob("*.toml")):
        yield from _file_layer(extra, mistakes)


def _file_layer(path: Path, mistakes: list[str]) -> Iterator[Layer]:
    known = len(mistakes)
    if not _is_file(path, mistakes):
        if len(mistakes) == known:
            what = "a folder" if path.is_dir() else "no regular file" if path.exists() else "no such file"
            mistakes.append(f"{path}: found {what}, expected a TOML file")
        return
    try:
        found = tomllib.loads(path.read_bytes().decode())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        mistakes.append(f"{path}: {reason}")
        return
    for section, values in list(found.items()):
        if not isinstance(values, dict):
            mistakes.append(f"{path}: {section}: found {shown(values)}, expected a table [{section}]")
            del found[section]
    yield Layer(str(path), found)


def _is_file(path: Path, mistakes: list[str]) -> bool:
    """Whether the file exists; a folder that may not be read is a mistake, not an absent file."""
    try:
        return path.is_file()
    except OSError as error:
        mistakes.append(f"{path}: {error.strerror or error}")
        return False


# -- the environment -------------------------------------------------------------------------------
def _environment_layers(env: Mapping[str, str], mistakes: list[str]) -> Iterator[Layer]:
    folder = Path(env.get("CREDENTIALS_DIRECTORY", "/nonexistent"))
    unusable = list[str]()
    for name in CREDENTIALS:
        if _is_file(folder / name, unusable):
            yield Layer(f"credential {name}", {"store": {"token_file": str(folder / name)}})
            break
    mistakes += unusable[:1]  # one folder, one mistake
    if env.get("CONSUL_HTTP_TOKEN_FILE"):
        file = {"token_file": env["CONSUL_HTTP_TOKEN_FILE"]}
        yield Layer("environment CONSUL_HTTP_TOKEN_FILE", {"store": file})
    if env.get("CONSUL_HTTP_ADDR"):
        yield Layer("environment CONSUL_HTTP_ADDR", {"store": {"address": env["CONSUL_HTTP_ADDR"]}})
    # What an agent tells its workloads is no mistake: a workload may be farmd itself.
    given = {name for name in env if name.startswith("FARMD_") and not of_workloads(name)}
    known = {f"FARMD_{section}__{key.name}".upper(): (section, key) for section, key in every_key()}
    names = sorted([*known, "FARMD_CONFIG"])
    mistakes += [
        f"environment {name}: unknown variable{nearest(name, names, 'FARMD_SECTION__KEY')}"
        for name in sorted(given.difference(names))
    ]
    found: Values = {}
    for name in given & known.keys():
        section, key = known[name]
        found.setdefault(section, {})[key.name] = _of_variable(env[name], key)
    yield Layer("environment", found)


def _of_variable(text: str, key: Key) -> Any:
    """A variable's text, for the key's own check; a list or a table may also be JSON."""
    if get_origin(key.kind) in (list, dict):
        try:
            return json.loads(text)
        except ValueError:
            pass  # it is in the short form
    return text


# -- mistakes --------------------------------------------------------------------------------------
def _unknown(layer: Layer) -> Iterator[str]:
    """One line for each unknown key, with the nearest known one."""
    known = sections()
    for section, values in layer.values.items():
        if section not in known:
            yield f"{layer.origin}: [{section}]: unknown section{nearest(section, list(known))}"
            continue
        for key in values:
            if key not in keys(known[section]):
                hint = unknown(known[section], key)
                yield f"{layer.name_of(section, key)}: {section}.{key}: {hint}"
