"""Shows the configuration to people: each value with its origin, one key explained, the manual's tables.

Secrets are never printed. The output of ``--print`` is TOML that parses to the same values.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.fields import FieldInfo

from farmd.config.fields import form, this_host
from farmd.config.sections import fields, sections, shown
from farmd.config.sources import ConfigInvalid, Loaded
from store.mistakes import nearest


def printed(loaded: Loaded) -> Iterator[str]:
    """All sections as TOML, with each value's origin after it."""
    for section, model in sections().items():
        yield f"[{section}]"
        found = getattr(loaded.config, section)
        for key in model.model_fields:
            yield f"{key} = {shown(getattr(found, key))}  # {loaded.origin(f'{section}.{key}')}"
        yield ""


def explained(loaded: Loaded, dotted: str) -> Iterator[str]:
    """One key: meaning, type with its range, value, origin, default, how to set it.

    Raises:
        ConfigInvalid: there is no such key.
    """
    known = {f"{section}.{key}": field for section, _, key, field in fields()}
    if dotted not in known:
        raise ConfigInvalid([f"{dotted}: unknown key{nearest(dotted, list(known))}"])
    section, _, key = dotted.partition(".")
    field = known[dotted]
    yield f"{dotted}: {field.description}"
    yield f"  type     {form(field)}"
    yield f"  value    {shown(getattr(getattr(loaded.config, section), key))}"
    yield f"  origin   {loaded.origin(dotted)}"
    yield f"  default  {_default(field)}"
    yield f"  file     [{section}] {key} = …"
    yield f"  variable FARMD_{section.upper()}__{key.upper()}"
    yield f"  reload   {_reload(field)}"


def markdown() -> str:
    """The tables of ``docs/configuration.md``."""
    lines: list[str] = []
    for section, model in sections().items():
        lines += [f"### `[{section}]`", "", (model.__doc__ or "").strip(), ""]
        lines += ["| key | type | default | meaning | reload |", "|---|---|---|---|---|"]
        for name, _, key, field in fields():
            if name == section:
                cells = (f"`{key}`", form(field), f"`{_default(field)}`", field.description, _reload(field))
                lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
    return "\n".join(lines)


def _default(field: FieldInfo) -> str:
    if field.default_factory is this_host:
        return "this host's name"
    return shown(field.get_default(call_default_factory=True))


def _reload(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return "yes" if isinstance(extra, dict) and extra.get("reloadable") else "restart"
