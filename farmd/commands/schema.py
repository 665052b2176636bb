"""What documents may say, from the types that read them: fields with their types, defaults and limits."""

from __future__ import annotations

import inspect as python
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from farmd import kinds
from farmd.commands.field_words import WORDS
from store.apps import API_VERSION
from store.canonical import builtins
from store.errors import InputInvalid
from store.mistakes import nearest


class Line(NamedTuple):
    """One field: type, default, limits and a sentence; ``need`` is shown where it has no default."""

    name: str
    type: str
    default: str
    limits: str
    words: str
    need: str = "required"


class FieldPage(NamedTuple):
    """A mapping of a document: its path, the description of its type, and its fields."""

    path: str
    about: str
    lines: list[Line]


def spec_of(noun: str) -> type[Any]:
    """The type of the documents of a noun.

    Raises:
        InputInvalid: no document has that kind.
    """
    known = kinds.exported()
    if noun not in known:
        hint = nearest(noun, nouns()) or f", expected one of {', '.join(nouns())}"
        raise InputInvalid(f"kind: found {noun!r}{hint}", field="kind")
    return known[noun]().spec


def instead_of(noun: str) -> type[Any] | None:
    """The type of the other form of a noun's documents; None: they have one form."""
    found: type[Any] | None = getattr(kinds.exported()[noun](), "instead", None)
    return found


def nouns() -> list[str]:
    """The kinds of documents."""
    return list(kinds.exported())


def page(path: str) -> FieldPage:
    """The fields of a document or of a mapping in it: ``rc``, ``rc.pod.health``.

    Raises:
        InputInvalid: there is no such kind or field.
    """
    noun, *names = path.split(".")
    forms = [inspect.type_info(each) for each in (spec_of(noun), instead_of(noun)) if each is not None]
    held, line = forms, None
    for at, name in enumerate(names):
        found = {field: (each, of) for of in held[::-1] for field, each in _fields(of).items()}
        if name not in found:
            where = ".".join([noun, *names[:at]])
            hint = nearest(name, list(found)) if found else ": it has no fields"
            raise InputInvalid(f"{where}: found no field {name!r}{hint}", field=name)
        field, of = found[name]
        held, line = [field.type], _line(of, field)
    struct = _struct(held[0])
    if struct is None:
        assert line is not None
        limits = f", {line.limits}" if line.limits else ""
        return FieldPage(path, f"{line.type}{limits}. {line.words}".rstrip(), [])
    about = (python.getdoc(struct.cls) or "").partition("\n\n")[0]
    return FieldPage(path, " ".join(about.split()).replace("``", ""), _all_lines(held))


def _all_lines(forms: Sequence[inspect.Type]) -> list[Line]:
    """The fields of a mapping; of two forms, each needs its own required fields in the other's absence."""
    if len(forms) == 1:
        return [_line(forms[0], each) for each in _fields(forms[0]).values()]
    lines: dict[str, Line] = {}
    for form, other in (forms, forms[::-1]):
        own, theirs = _required(form, other), _required(other, form)
        for name, each in _fields(form).items():
            line = _line(form, each)
            lines.setdefault(
                name, line._replace(need=f"required without {theirs[0]}") if name in own else line
            )
    return list(lines.values())


def _required(form: inspect.Type, other: inspect.Type) -> list[str]:
    """The fields that one form of a document must have, and the other form does not know."""
    return [name for name, each in _fields(form).items() if each.required and name not in _fields(other)]


def json_schema(path: str) -> dict[str, Any]:
    """The JSON Schema of a kind's documents, for editors.

    Raises:
        InputInvalid: there is no such kind, or the path names a field.
    """
    noun, dot, _ = path.partition(".")
    if dot:
        raise InputInvalid(f"-o json: found {path!r}, expected a kind alone: {noun}", field="kind")
    made = msgspec.json.schema(spec_of(noun))
    own = made["$defs"][made.pop("$ref").rpartition("/")[2]]
    properties = {"apiVersion": {"const": API_VERSION}, "kind": {"const": noun}, **own["properties"]}
    if (instead := instead_of(noun)) is not None:
        other = msgspec.json.schema(instead)
        made["$defs"] = {**other["$defs"], **made["$defs"]}
        form = made["$defs"][other["$ref"].rpartition("/")[2]]
        properties = {**form["properties"], **properties}
        own["anyOf"] = [{"required": own.pop("required", [])}, {"required": form["required"]}]
    own["properties"] = properties
    for each in made["$defs"].values():
        if each.get("type") == "object" and "properties" in each:
            each["additionalProperties"] = False
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": noun}
    return {**head, **own, "$defs": made["$defs"]}


def _line(info: inspect.Type, field: inspect.Field) -> Line:
    """A field of a mapping."""
    struct = _struct(info)
    mapping = struct.cls.__name__ if struct is not None else ""
    name = field.encode_name
    words = WORDS.get(f"{mapping}.{name}") or WORDS.get(name, "")
    return Line(name, _type(field.type), _default(field), _limits(field.type).removeprefix(", "), words)


def _default(field: inspect.Field) -> str:
    if field.required:
        return ""
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    text = msgspec.json.encode(builtins(value)).decode()
    return "none" if text == "null" else text


def _struct(info: inspect.Type) -> inspect.StructType | None:
    """The mapping with fields that a type is, or holds."""
    if isinstance(info, inspect.StructType):
        return info
    return next((found for each in _inner(info) if (found := _struct(each)) is not None), None)


def _fields(info: inspect.Type) -> dict[str, inspect.Field]:
    """The fields of the mapping that a type is, or holds; none: it has no fields."""
    struct = _struct(info)
    return {each.encode_name: each for each in struct.fields} if struct is not None else {}


def _inner(info: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(info, inspect.Metadata):
        yield info.type
    elif isinstance(info, inspect.UnionType):
        yield from info.types
    elif isinstance(info, inspect.ListType):
        yield info.item_type
    elif isinstance(info, inspect.DictType):
        yield info.value_type


_NAMES: Mapping[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.IntType: "number",
    inspect.FloatType: "decimal",
    inspect.BoolType: "true|false",
    inspect.NoneType: "none",
    inspect.AnyType: "anything",
}
_PARSED = {"seconds": "time", "amount": "amount", "whole": "amount"}


def _type(info: inspect.Type) -> str:
    """A type in one word: ``text``, ``time``, ``list of text``, ``mapping``."""
    if isinstance(info, inspect.Metadata):
        parse = getattr((info.extra or {}).get("parse"), "__name__", "")
        return _PARSED.get(parse) or _type(info.type)
    if isinstance(info, inspect.UnionType):
        return "|".join(
            dict.fromkeys(_type(each) for each in info.types if not isinstance(each, inspect.NoneType))
        )
    if isinstance(info, inspect.ListType):
        return f"list of {_type(info.item_type)}"
    if isinstance(info, inspect.DictType):
        return f"mapping of {_type(info.value_type)}"
    if isinstance(info, inspect.LiteralType):
        return "|".join(str(each) or '""' for each in info.values)
    return "mapping" if isinstance(info, inspect.StructType) else _NAMES.get(type(info), "value")


def _limits(info: inspect.Type) -> str:
    """The bounds of a number or a text: ``, at least 0``."""
    if isinstance(info, inspect.Metadata):
        return _limits(info.type)
    if isinstance(info, inspect.UnionType):
        return "".join(map(_limits, info.types))
    found = []
    if (least := getattr(info, "ge", None)) is not None:
        found.append(f"at least {least}")
    if (most := getattr(info, "le", None)) is not None:
        found.append(f"at most {most}")
    return f", {', '.join(found)}" if found else ""
