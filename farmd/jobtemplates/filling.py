"""The job of a start: the template's document with the starter's values in it. Pure.

What must never break: a value replaces ``${param.NAME}`` in environments and in files of pods alone, after
the document was read. So no value can become a field, a command, a reference to a secret, or a shell's word.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from store.errors import InputInvalid, refuse
from store.jobtemplates import MAX_VALUE, JobStart, JobTemplate, Parameter, text
from store.mistakes import shown

INPUT = "${input}"
_USE = re.compile(r"\$\{param\.([a-z0-9_-]{1,40})\}")
_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,3})?")
_FARMDS = "${FARMD_"
_PLACES = re.compile(r"types\[[0-9]+\]\.pod\.(env\..*|files\[[0-9]+\]\.content)", re.DOTALL)


def checked(name: str, parameter: Parameter, value: str) -> str:
    """A value of a parameter.

    Raises:
        InputInvalid: it has another type, is too long, or is none of the choices.
    """
    field, expected = f"params.{name}", ""
    if len(value.encode()) > MAX_VALUE:
        refuse(field, f"{len(value.encode())} bytes", f"at most {MAX_VALUE}", field=field)
    if "\0" in value or _FARMDS in value:
        refuse(field, shown(value), f"a text without NUL characters and without '{_FARMDS}'", field=field)
    if parameter.type == "integer" and not _INTEGER.fullmatch(value):
        expected = "a whole number"
    elif parameter.type == "number" and not (_NUMBER.fullmatch(value) and math.isfinite(float(value))):
        expected = "a number"
    elif parameter.type == "boolean" and value not in ("true", "false"):
        expected = "true or false"
    elif parameter.choices and value not in (known := [text(each) for each in parameter.choices]):
        expected = f"one of {', '.join(known)}"
    if expected:
        refuse(field, shown(value), expected, field=field)
    return value


def check_declared(name: str, parameter: Parameter, source: str) -> None:
    """Check how a template declares a parameter.

    Raises:
        InputInvalid: naming the field.
    """
    where = f"{source}: parameters.{name}"
    if not _NAME.fullmatch(name):
        refuse(f"{source}: parameters", shown(name), "1 to 40 of a-z, 0-9, '_' and '-'", field="parameters")
    if parameter.required and parameter.default is not None:
        refuse(f"{where}.default", shown(parameter.default), "none beside required: true", field=where)
    if parameter.type == "boolean" and parameter.choices:
        refuse(f"{where}.choices", "choices of a boolean", "none: true and false are known", field=where)
    for field, each in (
        *((f"choices[{at}]", each) for at, each in enumerate(parameter.choices)),
        *([] if parameter.default is None else [("default", parameter.default)]),
    ):
        try:
            checked(name, parameter, text(each))
        except InputInvalid as error:
            found = error.message.partition(": ")[2]
            raise InputInvalid(f"{where}.{field}: {found}", field=f"parameters.{name}.{field}") from error


def values(template: JobTemplate, given: Mapping[str, str]) -> dict[str, str]:
    """The value of each of a template's parameters.

    Raises:
        InputInvalid: an unknown parameter, one that is missing, or a value that does not fit.
    """
    for name in given:
        if name not in template.parameters:
            known = ", ".join(sorted(template.parameters)) or "none"
            refuse("params", f"unknown parameter {shown(name)}", f"one of the template's: {known}")
    found = {}
    for name, parameter in template.parameters.items():
        if name in given:
            found[name] = checked(name, parameter, given[name])
        elif parameter.required:
            refuse(f"params.{name}", "no value", f"one: --param {name}=VALUE", field=f"params.{name}")
        else:
            found[name] = "" if parameter.default is None else text(parameter.default)
    return found


def parsed(parse: Callable[[Any, str], Any], name: str, template: JobTemplate, source: str) -> Any:
    """The template's document as a job of that name, with the uses of its parameters as they are.

    Raises:
        InputInvalid: no job can be so.
    """
    for field in ("name", "parameters"):
        if field in template.job:
            refuse(f"{source}.{field}", "a value", f"none: the template has it, outside of job.{field}")
    uses = {each: f"${{param.{each}}}" for each in template.parameters}
    return parse({**template.job, "name": name, "parameters": uses}, source)


def filled(spec: Any, template: JobTemplate, start: JobStart) -> Any:
    """The job's document with a starter's values and input in place of their uses.

    Raises:
        InputInvalid: the values or the input do not fit the template.
    """
    found = values(template, start.params)
    body = _input(template, start)

    def fill(use: str) -> str:
        whole = _USE.sub(lambda match: found.get(match[1], match[0]), use)
        if whole.count(_FARMDS) > _USE.sub("\0", use).count(_FARMDS):
            refuse("params", shown(whole), f"values that do not make '{_FARMDS}' together", field="params")
        return whole

    def variable(use: str) -> str:
        if use != INPUT:
            return fill(use)
        try:
            content = body.decode()
        except UnicodeDecodeError:
            content = "\0"
        if "\0" in content or _FARMDS in content:
            refuse("input", "other bytes", f"UTF-8 text without NUL characters and '{_FARMDS}'")
        return content

    def file(each: Any) -> Any:
        if each.content == INPUT:
            return msgspec.structs.replace(each, content=base64.b64encode(body).decode(), encoding="base64")
        return each if each.encoding else msgspec.structs.replace(each, content=fill(each.content))

    def pod(manifest: Any) -> Any:
        env = {name: variable(use) for name, use in manifest.env.items()}
        return msgspec.structs.replace(manifest, env=env, files=[file(each) for each in manifest.files])

    types = [msgspec.structs.replace(each, pod=pod(each.pod)) for each in spec.types]
    return msgspec.structs.replace(spec, types=types)


def _input(template: JobTemplate, start: JobStart) -> bytes:
    """The bytes that a starter sends.

    Raises:
        InputInvalid: the template takes none, needs some, or takes fewer.
    """
    try:
        body = base64.b64decode(start.input, validate=True) if start.encoding else start.input.encode()
    except ValueError:
        refuse("input", "another encoding", "base64, as the start says")
    asked = template.input
    if asked is None and body:
        refuse("input", f"{len(body)} bytes", "none: the template takes no input")
    if asked is not None and asked.required and not body:
        refuse("input", "nothing", "some: --input FILE")
    if asked is not None and len(body) > asked.max_bytes:
        refuse("input", f"{len(body)} bytes", f"at most {asked.max_bytes}")
    return body


def check_uses(template: JobTemplate, source: str) -> None:
    """Refuse a use of a parameter, or of the input, where a starter's value must not stand.

    Raises:
        InputInvalid: naming the field; or what is declared is used nowhere.
    """
    used = set[str]()
    for path, word in _texts(template.job, ""):
        names = _USE.findall(word)
        if not names and INPUT not in word:
            continue
        if not _PLACES.fullmatch(path):
            expected = "it in env and in files[].content of pods alone"
            refuse(f"{source}: job.{path}", shown(word), expected, field=f"job.{path}")
        if INPUT in word and word != INPUT:
            refuse(f"{source}: job.{path}", shown(word), f"{INPUT} and nothing else", field=f"job.{path}")
        used |= {*names, *([INPUT] if word == INPUT else ())}
    if (template.input is not None) != (INPUT in used):
        found = "nothing" if template.input is None else "an input that the job does not use"
        refuse(f"{source}: input", found, f"input: {{}} beside a use of {INPUT} in the job", field="input")
    for name in template.parameters:
        if name not in used:
            raise InputInvalid(
                f"{source}: parameters.{name}: found no use, expected ${{param.{name}}} in env or a file",
                field=f"parameters.{name}",
            )


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """All texts of a document by their paths; keys of mappings, too, which no value may be."""
    if isinstance(value, dict):
        for name, each in value.items():
            below = f"{path}.{name}".lstrip(".")
            if "${" in str(name):
                yield f"{path} (a name in it)", str(name)
            yield from _texts(each, below)
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from _texts(each, f"{path}[{at}]")
    elif isinstance(value, str):
        yield path, value
