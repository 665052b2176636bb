"""Reads the configuration from its places, in order, and records each value's origin.

Order, later wins: defaults < ``/etc/farmd/farmd.toml`` < ``conf.d/*.toml`` beside it < systemd's
credential < ``CONSUL_*`` < ``FARMD_SECTION__KEY`` < flags. A value replaces the earlier one as a whole.
All mistakes are reported at once; a partly valid configuration is never returned.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from farmd.config.fields import Key, Secret, Section, form, keys, shown, this_host
from farmd.config.sections import Config, every_key, sections
from store.errors import InputInvalid
from store.mistakes import nearest
from store.quantities import seconds
from store.variables import of_workloads

# Reads the values of a section, from TOML or from the text of a variable, and tells all mistakes.
#
# In a text a list is ``a, b``, a table ``zone=a,rack=7``, a list of tables JSON, and a time has a unit or
# is a number of seconds. A mistake is one line: the key, what was found, what was expected. A value that
# may hold a secret is never shown.

_TRUE, _FALSE = {"1", "on", "t", "true", "y", "yes"}, {"0", "f", "false", "n", "no", "off"}


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong with a key; ``place`` is where in its value: ``[0].type``."""

    key: str
    place: str
    what: str

    def line(self, section: str, origin: str) -> str:
        """One line for people."""
        if re.match(rf"{re.escape(self.key)}[.:[]", self.what):  # the check names the key itself
            return f"{origin}: {section}.{self.what}"
        return f"{origin}: {section}.{self.key}{self.place}: {self.what}"


class _Wrong(Exception):
    """A value that its key does not accept, or items of it, each with its place."""

    def __init__(self, *wrongs: tuple[str, str]) -> None:
        super().__init__()
        self.wrongs = wrongs


def read(model: type[Section], given: Mapping[str, Any], mistakes: list[Mistake]) -> dict[str, Any]:
    """The values of a section's keys; what is wrong with them is added to ``mistakes``."""
    values = {}
    for name, one in keys(model).items():
        try:
            if name in given:
                values[name] = _value(one, given[name])
            elif one.required:
                raise _Wrong(("", "found nothing, expected a value"))
        except _Wrong as error:
            mistakes += [Mistake(name, place, what) for place, what in error.wrongs]
    return values


def _value(one: Key, given: Any) -> Any:
    """The value of a key.

    Raises:
        _Wrong: the key does not accept it.
    """
    try:
        value = _typed(one, _parsed(one.kind, given) if isinstance(given, str) else given)
        if check := one.extra["check"]:
            check(value)
    except (InputInvalid, ValueError) as error:
        said = str(error)
        told = said if "found" in said else f"found {_found(one, given)}, {said}"
        raise _Wrong(("", told)) from error
    return value


def _parsed(kind: Any, text: str) -> Any:
    """The value of a text; the text itself if it is not a value.

    Raises:
        InputInvalid, ValueError: it is none, and the reason says more than the type.
    """
    if kind is float:
        return seconds(text)
    if kind is int:
        return _whole(text)
    if kind is bool:
        word = text.lower()
        return word in _TRUE if word in _TRUE | _FALSE else text
    if get_origin(kind) is dict:
        return _pairs(text)
    if get_origin(kind) is list and get_args(kind) == (str,):
        return [part.strip() for part in text.split(",") if part.strip()]
    return _tables(text) if get_origin(kind) is list else text


def _whole(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text  # its type and limits are named


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    if any(not separator for _, separator, _ in pairs):
        raise ValueError("expected name=value pairs, separated by commas")
    return {name.strip(): found.strip() for name, _, found in pairs}


def _tables(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected a JSON list of objects ({error})") from error


def _typed(one: Key, value: Any) -> Any:
    """The value in the key's type and within its limits."""
    container, wrong = get_origin(one.kind), f"found {_found(one, value)}, expected {form(one)}"
    if container in (list, dict):
        if not isinstance(value, container):
            raise _Wrong(("", wrong))
        if container is dict:
            return dict(
                zip(value, _items(str, {f".{name}": item for name, item in value.items()}), strict=True)
            )
        return _items(get_args(one.kind)[0], {f"[{place}]": item for place, item in enumerate(value)})
    try:
        kind = str if one.kind is Secret else one.annotated
        # Of other types a whole number may be 5.0, and a truth 1.
        found = msgspec.convert(value, kind, strict=isinstance(value, str))
    except msgspec.ValidationError as error:
        raise _Wrong(("", wrong)) from error
    if isinstance(found, float) and not math.isfinite(found):
        raise _Wrong(("", wrong))
    return Secret(found) if one.kind is Secret else found


def _items(kind: type, items: Mapping[str, Any]) -> list[Any]:
    """The items of a list or table, which are given by their places: texts, or sections."""
    values, wrongs = [], list[tuple[str, str]]()
    for place, item in items.items():
        try:
            values.append(_text(item) if kind is str else _section(kind, item))
        except _Wrong as error:
            wrongs += [(place + inner, what) for inner, what in error.wrongs]
    if wrongs:
        raise _Wrong(*wrongs)
    return values


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise _Wrong(("", f"found {_plain(item)}, expected text"))
    return item


def _section(model: type[Section], item: Any) -> Section:
    if not isinstance(item, dict):
        raise _Wrong(("", "found [hidden], expected a table"))
    mistakes = list[Mistake]()
    values = read(model, item, mistakes)
    mistakes += [Mistake(name, "", unknown(model, name)) for name in item if name not in keys(model)]
    if mistakes:
        raise _Wrong(*[(f".{each.key}{each.place}", each.what) for each in mistakes])
    return model(**values)


def unknown(model: type[Section], name: str) -> str:
    """What is said of a key that the section does not have."""
    return f"unknown key{nearest(name, list(keys(model)))}"


def _found(one: Key, value: Any) -> str:
    """The value that was found, unless it may contain a secret."""
    tables = get_origin(one.kind) is list and get_args(one.kind) != (str,)
    return "[hidden]" if one.kind is Secret or tables else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = shown(value if isinstance(value, str | int | float | None) else str(value))
    return text if len(text) <= 80 else text[:80] + "…"


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
        mistakes.append(f"{path}: {'not valid UTF-8' if isinstance(error, UnicodeDecodeError) else reason}")
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


# Shows the configuration to people: each value with its origin, one key explained, the manual's tables.
#
# Secrets are never printed. The output of ``--print`` is TOML that parses to the same values.


def printed(loaded: Loaded) -> Iterator[str]:
    """All sections as TOML, with each value's origin after it."""
    for section, model in sections().items():
        yield f"[{section}]"
        found = getattr(loaded.config, section)
        for name, key in keys(model).items():
            yield f"{name} = {shown(key.of(found))}  # {loaded.origin(f'{section}.{name}')}"
        yield ""


def template(values: Values) -> str:
    """A ``farmd.toml`` with every key: those of ``values`` set, all others as comments with defaults."""
    lines = [
        "# farmd on this host: its farm, its agent, or both. Comments show the defaults.",
        "# `farmd check-config --print` shows each value and where it comes from,",
        "# `farmd check-config --explain SECTION.KEY` explains one key.",
    ]
    for section, model in sections().items():
        given = values.get(section, {})
        lines += ["", *_comment((model.__doc__ or "").strip()), f"[{section}]"]
        for name, key in keys(model).items():
            lines += _comment(key.description)
            lines.append(
                f"{name} = {shown(given[name])}" if name in given else f"#{name} = {shown(key.default)}"
            )
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def explained(loaded: Loaded, dotted: str) -> Iterator[str]:
    """One key: meaning, type with its range, value, origin, default, how to set it.

    Raises:
        ConfigInvalid: there is no such key.
    """
    known = {f"{section}.{key.name}": key for section, key in every_key()}
    if dotted not in known:
        raise ConfigInvalid([f"{dotted}: unknown key{nearest(dotted, list(known))}"])
    section, _, name = dotted.partition(".")
    key = known[dotted]
    yield f"{dotted}: {key.description}"
    yield f"  type     {form(key)}"
    yield f"  value    {shown(key.of(getattr(loaded.config, section)))}"
    yield f"  origin   {loaded.origin(dotted)}"
    yield f"  default  {_default(key).strip('`')}"
    yield f"  file     [{section}] {name} = …"
    yield f"  variable FARMD_{section.upper()}__{name.upper()}"
    yield f"  reload   {_reload(key)}"


def markdown() -> str:
    """The keys of each section as ``docs/configuration.md`` lists them."""
    lines: list[str] = []
    for section, model in sections().items():
        lines += [f"### `[{section}]`", "", (model.__doc__ or "").strip(), ""]
        for name, key in keys(model).items():
            lines += _item(f"- **`{name}`**: {key.description}")
            reload = " Changes on reload." if key.extra["reloadable"] else ""
            lines += _item(f"Value: {form(key)}. Default: {_default(key)}.{reload}", "  ")
        lines.append("")
    return "\n".join(lines)


def _item(text: str, first: str = "") -> list[str]:
    indents = {"initial_indent": first, "subsequent_indent": "  "}
    return textwrap.wrap(text, 120, **indents, break_long_words=False, break_on_hyphens=False)  # type: ignore[arg-type]


def _default(key: Key) -> str:
    return "this host's name" if key.field.default_factory is this_host else f"`{shown(key.default)}`"


def _reload(key: Key) -> str:
    return "yes" if key.extra["reloadable"] else "restart"
