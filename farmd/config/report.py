"""Shows the configuration to people: each value with its origin, one key explained, the manual's tables.

Secrets are never printed. The output of ``--print`` is TOML that parses to the same values.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from farmd.config.fields import Key, form, keys, shown, this_host
from farmd.config.sections import every_key, sections
from farmd.config.sources import ConfigInvalid, Loaded, Values
from store.mistakes import nearest


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
        "# farmd on this host: its farm, its agent, or both. What a comment shows is the default.",
        "# `farmd check-config --print` shows what counts and where each value comes from,",
        "# `farmd check-config --explain SECTION.KEY` says more about one key.",
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
    yield f"  default  {_default(key)}"
    yield f"  file     [{section}] {name} = …"
    yield f"  variable FARMD_{section.upper()}__{name.upper()}"
    yield f"  reload   {_reload(key)}"


def markdown() -> str:
    """The tables of ``docs/configuration.md``."""
    lines: list[str] = []
    for section, model in sections().items():
        lines += [f"### `[{section}]`", "", (model.__doc__ or "").strip(), ""]
        lines += ["| key | type | default | meaning | reload |", "|---|---|---|---|---|"]
        for name, key in keys(model).items():
            cells = (f"`{name}`", form(key), f"`{_default(key)}`", key.description, _reload(key))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _default(key: Key) -> str:
    return "this host's name" if key.field.default_factory is this_host else shown(key.default)


def _reload(key: Key) -> str:
    return "yes" if key.extra["reloadable"] else "restart"
