"""The fields of documents with types, defaults and limits, from the types that read them; and examples."""

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


# A commented document of each kind, for ``farmctl example KIND``: a beginning that works unchanged.


EXAMPLES: Mapping[str, str] = {
    "rc": """\
# A controller keeps N copies of a pod running on matching nodes.
#   farmctl rc create -f FILE --wait      create it
#   farmctl rc update -f FILE --wait      change it; a new pod comes by a rollout
apiVersion: farmd/v1
kind: rc
name: web
replicas: 2
replicas_per_node: 1          # more lets several copies share a node
node_selector: ""             # empty: every node; such as role=web,disk!=hdd
min_healthy_time: 5s          # how long a pod must be healthy before it counts as available
pod_labels: {app: web}
pod:
  id: web                     # the instance's name on its node
  command: [python3, -m, http.server, "$(FARMD_PORT_HTTP)"]
  env: {GREETING: hello}
  # artifacts:                # fetched before a start: app/ is in the program's directory then
  #   - {source: "https://HOST/web.tar.gz", sha256: 64 HEX DIGITS, unpack: tar.gz, to: app}
  ports:
    http: {}                  # the agent picks a free port and passes it as FARMD_PORT_HTTP
  health:
    type: tcp                 # or http with a path, or command
    port: http
    interval: 2s
  resources: {cpu: 100m, memory: 64Mi}
  stop: {delay: 2s, grace: 10s}  # no longer an endpoint for 2 s, then SIGTERM, then SIGKILL
rollout:
  stages: [1, "100%"]         # one new pod first; a version that fails is reverted
""",
    "daemonset": """\
# A daemon set keeps one pod on every node that fits, as for log shippers.
#   farmctl daemonset create -f FILE --wait
apiVersion: farmd/v1
kind: daemonset
name: uptime
node_selector: ""             # empty: every node
min_healthy_time: 5s
rate: 30                      # nodes per minute that get a pod or a new version; 0: no limit
pod:
  id: uptime
  command: [sh, -c, "while :; do uptime; sleep 60; done"]
  system: true                # a drain removes it last
""",
    "job": """\
# A job runs slots until completion: here 12, four at a time.
#   farmctl job run -f FILE --wait
apiVersion: farmd/v1
kind: job
name: squares
types:
  - name: worker
    replicas: 12
    parallelism: 4
    restart: exit-code        # an exit code of 128 or more is tried again, a lower one fails the job
    pod:
      id: squares
      command: [sh, -c, 'echo "$FARMD_INDEX squared is $((FARMD_INDEX * FARMD_INDEX))"']
""",
    "job-template": """\
# A job template lets others start jobs, who choose its parameters and its input, and nothing else.
#   farmctl job template create -f FILE
#   farmctl job start greet --param name=Ada
apiVersion: farmd/v1
kind: job-template
name: greet
description: Greets somebody.
parameters:                   # types: string, integer, number, boolean
  name: {required: true, description: Whom to greet}
  word: {default: Hello, choices: [Hello, Hallo]}
# input: {max_bytes: 4096}    # what job start --input FILE sends; the job says ${input} where it stands
job:                          # the document of a job, without its name
  ttl: 1h
  types:
    - name: worker
      restart: never
      pod:
        id: greet
        env:                  # values stand in variables and in files of pods alone
          WHOM: "${param.name}"
          WORD: "${param.word}"
        command: [sh, -c, 'echo "$WORD, $WHOM"']
""",
    "schedule": """\
# A schedule creates a job at each of its times, exactly once.
#   farmctl schedule create -f FILE
apiVersion: farmd/v1
kind: schedule
name: nightly
cron: "30 2 * * *"            # or @daily; or every: 6h, with a start
zone: Europe/Berlin
overlap: forbid               # a time that comes while a job runs is skipped; or allow, or replace
catch_up: 10m                 # a time that was missed still counts for so long
keep: {done: 3, failed: 10}   # jobs that ended
job:                          # the document of a job, without its name
  types:
    - name: worker
      restart: never
      pod: {id: nightly, command: [date]}
""",
    "app": """\
# An app is a bundle of documents that are applied in waves, kept as they are written, and pruned together.
#   farmctl apply -f FILE
apiVersion: farmd/v1
kind: app
name: shop
on_failure: rollback          # go back to the last revision that was reached
deadline: 5m                  # how long a wave may take
---
apiVersion: farmd/v1
kind: rc
name: shop-store
replicas: 1
pod: {id: shop-store, command: [sleep, infinity]}
---
apiVersion: farmd/v1
kind: rc
name: shop-web
wave: 1                       # once everything of wave 0 is ready
ignore: [replicas]            # people scale it as they like
replicas: 2
pod: {id: shop-web, command: [sleep, infinity]}
""",
    "service": """\
# A service of containers, as a deployment brings it; compose files are taken by farmctl deploy, too.
#   farmctl apply -f FILE --app NAME
apiVersion: farmd/v1
kind: service
name: web
replicas: 2
container:
  image: nginx:1.27
  env: {TZ: UTC}
ports: [{container: 80}]
catalog: {tags: [edge]}       # Consul's catalogue and DNS find its pods as "web"
update:
  order: start-first          # the new container first, then the old one goes
---
# The other form of a service: a name for pods that have a file of their own.
apiVersion: farmd/v1
kind: service
name: shop
pods: [rc/shop-web]           # in place of container; a rollout of it keeps this up to date
port: http                    # the name of a port in their manifest
catalog: {}                   # Consul's catalogue and DNS find its pods as "shop"
""",
    "node": """\
# Settings of a node: labels, taints and capacity are added to those that its agent reports.
#   farmctl import FILE
apiVersion: farmd/v1
kind: node
name: web1
labels: {rack: r1, role: web}
taints:
  - {key: dedicated, value: db, effect: no-schedule}
capacity: {cpu: 4, memory: 8Gi}
""",
}
