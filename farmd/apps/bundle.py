"""Bundle files: the documents of an app to the entries of its next tracker, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from farmd.apps import objects
from farmd.apps.objects import Treatment, check_order, checked
from farmd.commands import documents
from farmd.commands.bundled import Written
from farmd.commands.heads import refuse_compose
from farmd.commands.mutation import Call
from farmd.kinds import bundled, unbundled
from store import codec, selectors
from store.apps import API_VERSION, MAX_ENTRIES, App, AppStore, Entry, TypedReference
from store.errors import InputInvalid, NotFound, RecordInvalid, refuse
from store.keys import valid_name
from store.mistakes import nearest, shown
from store.quantities import Seconds

# The files of a bundle on this machine: single ones, folders, stdin.
#
# What must never break: a folder that another tool reads (kustomize, Helm) is refused, because its files by
# themselves mean something else than what that tool makes of them.

ENDINGS = (".yaml", ".yml", ".json")
_RENDERED = {
    "kustomization.yaml": "kustomize build {folder}",
    "kustomization.yml": "kustomize build {folder}",
    "Kustomization": "kustomize build {folder}",
    "Chart.yaml": "helm template --no-hooks {name} {folder}",
}


def texts(
    paths: Sequence[str], read: Callable[[str], str], *, recursive: bool = False
) -> list[tuple[str, str]]:
    """The (text, name) of each file, those of a folder in the order of their names; ``-`` is stdin.

    ``recursive``: also those of the folders below.

    Raises:
        InputInvalid: a path that is not there, or is given twice; or a folder that another tool renders.
    """
    found: dict[str, str] = {}
    for path in paths:
        for each in [path] if path == "-" else _files(path, recursive):
            name = "stdin" if each == "-" else each
            if name in found:
                raise InputInvalid(f"-f: found {name!r} twice, expected each file once", field="file")
            found[name] = read(each)
    return [(text, name) for name, text in found.items()]


def _files(path: str, recursive: bool) -> list[str]:
    folder = Path(path)
    if not folder.is_dir():
        return [path]
    _refuse_rendered(folder)
    files = []
    for each in sorted(folder.iterdir()):
        if each.is_dir() and recursive and not each.name.startswith("."):
            files += _files(str(each), recursive)
        elif each.is_file() and each.suffix in ENDINGS and not each.name.startswith("."):
            files.append(str(each))
    return files


def _refuse_rendered(folder: Path) -> None:
    for name, command in _RENDERED.items():
        if (folder / name).is_file():
            pipe = command.format(folder=folder, name=folder.resolve().name)
            raise InputInvalid(
                f"{folder / name}: found files that another tool renders, expected plain documents",
                field="file",
                hint=f"{pipe} | farmctl apply -f - --app APP",
            )


# Documents of farmd's own records in a bundle: ``apiVersion: farmd/v1``, ``kind: rc``, and the noun's file.
#
# Beside the fields of the noun's file a document may say how its app treats it: ``wave``, ``after``,
# ``on_remove``, ``apply``, ``ignore`` and ``replace``. The registry of kinds says which nouns there are.

_TREATMENT = Treatment.__struct_fields__


def parse_native(data: dict[str, Any], where: str) -> Entry:
    """The entry of one document.

    Raises:
        InputInvalid: naming the place, the field, what was found and what was expected.
    """
    api, kind = data["apiVersion"], data["kind"]
    if api != API_VERSION:
        refuse(f"{where}: apiVersion", shown(api), API_VERSION, field="apiVersion")
    nouns = bundled()
    if kind not in nouns:
        if expected := unbundled().get(kind.lower()):
            refuse(f"{where}: kind", shown(kind), expected, field="kind")
        near = nearest(kind, [*sorted(nouns), "app"])
        raise InputInvalid(f"{where}: kind: found {shown(kind)}{near}", field="kind")
    said = {name: data[name] for name in _TREATMENT if name in data}
    document = {
        name: value for name, value in data.items() if name not in {*_TREATMENT, "apiVersion", "kind"}
    }
    if not document.get("name"):
        raise InputInvalid(f"{where}: name: missing, expected the name of the {kind}", field="name")
    spec = nouns[kind]().parse(document, where)
    treatment = codec.parse_input(Treatment, said, where)
    _check_ignored(treatment, type(spec), where)
    ref = TypedReference(kind=kind, name=spec.name)
    return Entry(ref=ref, document=document, **checked(treatment, where, ""))


def render_native(entry: Entry) -> dict[str, Any]:
    """An entry as the document that a person would write."""
    said = {name: getattr(entry, name) for name in _TREATMENT}
    told = msgspec.to_builtins(Treatment(**said))
    return {"apiVersion": entry.ref.api_version, "kind": entry.ref.kind, **(entry.document or {}), **told}


def _check_ignored(treatment: Treatment, spec: type[Any], where: str) -> None:
    """Refuse to ignore a field that the noun's files do not have, or that tells one object from another."""
    fields = sorted(set(spec.__struct_fields__) - {"name"})
    for name in treatment.ignore:
        if name not in fields:
            text = f"{where}: ignore: found {shown(name)}{nearest(name, fields, 'a field of the file')}"
            raise InputInvalid(text, field="ignore")


# Bundle files: the documents of an app → its settings and the entries of its next tracker.
#
# A document is a record of farmd (``apiVersion: farmd/v1``; below it the file of ``farmctl rc create`` as
# it is), the app's own settings (``kind: app``), or a Kubernetes object as kubectl, kustomize and Helm
# print it. What must never break: a bundle is checked as a whole before anything is written, each refusal
# names the file, the line where the document begins and the field; and an entry that is printed and read
# again is the same entry.

_API_VERSION = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[a-z0-9]+")


class AppSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The settings of an app, from its document or the command line; None: not given."""

    name: str = ""
    namespace: str | None = None
    labels: dict[str, str] | None = None
    prune: bool | None = None
    atomic: bool | None = None
    repair: bool | None = None
    allow_secrets: bool | None = None
    on_failure: Literal["stop", "rollback"] | None = None
    deadline: Seconds | None = None
    history: int | None = None

    def over(self, other: AppSpec) -> AppSpec:
        """These settings, with defaults from other ones."""
        said = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, "")
        }
        return msgspec.structs.replace(other, **said)


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of some files: the app's settings, the entries in order, and the place of each.

    ``places`` are by the entries' references.
    """

    app: AppSpec
    entries: tuple[Entry, ...]
    places: Mapping[str, str]


@dataclass(slots=True)
class _Reading:
    """What was read of the files so far."""

    default: AppSpec
    cluster_scoped: Mapping[tuple[str, str], bool]
    app: AppSpec
    app_at: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)


def located(files: Sequence[tuple[str, str]]) -> list[tuple[str, Any]]:
    """All documents of some files, (text, source), each with its place.

    Raises:
        InputInvalid: a file that cannot be read.
    """
    return [pair for text, source in files for pair in documents.located(text, source)]


def parse(
    files: Sequence[tuple[str, str]],
    settings: AppSpec | None = None,
    scopes: Mapping[tuple[str, str], bool] | None = None,
    resolve: Callable[[Any, str], Any] = lambda data, _: data,
    found: Sequence[tuple[str, Any]] | None = None,
) -> Bundle:
    """The bundle of some files, (text, source). ``settings`` are those of the command line; they win.

    ``scopes`` says of (group, kind) whether objects have a namespace, as the API server knows it; ``resolve``
    replaces references in a document. ``found`` are the documents, if they were read already: YAML takes a
    sixth of the time of a plan.

    Raises:
        InputInvalid: naming the file, the line and the field.
    """
    found = located(files) if found is None else found
    found = [(at, resolve(each, at)) for where, data in found for at, each in _items(data, where)]
    settings = settings or AppSpec()
    known = {**(scopes or {}), **objects.defined(data for _, data in found)}
    reading = _Reading(settings, known, AppSpec())
    for where, data in found:
        if data.get("apiVersion") == API_VERSION and data.get("kind") == "app":
            _app(reading, data, where)
    app = settings.over(reading.app)
    reading.default = app
    for where, data in found:
        if not (data.get("apiVersion") == API_VERSION and data.get("kind") == "app"):
            _entry(reading, data, where)
    entries = tuple(reading.entries.values())
    if len(entries) > MAX_ENTRIES:
        raise InputInvalid(f"bundle: found {len(entries)} objects, expected at most {MAX_ENTRIES}")
    check_order(entries, reading.places)
    return Bundle(app, entries, reading.places)


def foreign_kinds(found: Sequence[tuple[str, Any]]) -> set[tuple[str, str]]:
    """The kinds of Kubernetes objects among some documents, as (apiVersion, kind).

    Raises:
        InputInvalid: a document that is none of a bundle.
    """
    objects_of = (data for where, each in found for _, data in _items(each, where))
    return {
        (data["apiVersion"], data["kind"])
        for data in objects_of
        if not data["apiVersion"].startswith("farmd/")
    }


def render(entry: Entry) -> dict[str, Any]:
    """An entry as the document that a person would write; parsing it gives the same entry."""
    return render_native(entry) if entry.ref.own else objects.render(entry)


def render_all(name: str, app: App, entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The documents of an app: its settings, and all that is in its files."""
    return [render_settings(name, app), *(render(entry) for entry in entries if not entry.left)]


def render_settings(name: str, app: App) -> dict[str, Any]:
    """The document of an app's settings, as a person would write it; parsing it gives the same settings."""
    usual = App(revision=1)
    fields = [field for field in AppSpec.__struct_fields__ if field != "name"]
    said = {field: getattr(app, field) for field in fields if getattr(app, field) != getattr(usual, field)}
    return {"apiVersion": API_VERSION, "kind": "app", "name": name, **said}


def _items(data: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """One document, or the items of a List as ``kubectl get -o yaml`` prints it, or of a ConfigMapList, whose
    items need not say what they are.
    """
    if not isinstance(data, dict):
        refuse(f"{where}: document", shown(data), "a mapping with apiVersion and kind")
    api, kind = data.get("apiVersion"), data.get("kind")
    if not isinstance(api, str) or ".." in api or not _API_VERSION.fullmatch(api):
        expected = f"{API_VERSION}, or that of a Kubernetes object"
        if api is None:
            refuse_compose(data, "documents with apiVersion", where)
            hint = "begin it with apiVersion and kind; farmctl example KIND prints such a document"
            text = f"{where}: apiVersion: missing, expected {expected}"
            raise InputInvalid(text, field="apiVersion", hint=hint)
        refuse(f"{where}: apiVersion", shown(api), expected, field="apiVersion")
    if not isinstance(kind, str) or not kind:
        refuse(f"{where}: kind", shown(kind), "the kind of the object", field="kind")
    if (api, kind) != ("v1", "List") and not (kind.endswith("List") and "items" in data):
        return [(where, data)]
    items, inner = data.get("items") or [], kind.removesuffix("List")
    if not isinstance(items, list):
        refuse(f"{where}: items", shown(items), "a list", field="items")
    if inner:
        usual = {"apiVersion": api, "kind": inner}
        items = [{**usual, **each} if isinstance(each, dict) else each for each in items]
    return [pair for at, each in enumerate(items) for pair in _items(each, f"{where}: items[{at}]")]


def _app(reading: _Reading, data: dict[str, Any], where: str) -> None:
    if reading.app_at:
        refuse(f"{where}: kind", "a second app", f"one app; {reading.app_at} has one, too", field="kind")
    spec = codec.parse_input(
        AppSpec, {k: v for k, v in data.items() if k not in ("apiVersion", "kind")}, where
    )
    if spec.name:
        valid_name(spec.name, f"{where}: name")
    given = reading.default.name
    if spec.name and given and spec.name != given:
        refuse(f"{where}: name", shown(spec.name), f"{given!r}, which --app says, or none", field="name")
    if spec.labels is not None:
        selectors.valid_labels(spec.labels, f"{where}: labels")
    reading.app, reading.app_at = spec, where


def _entry(reading: _Reading, data: dict[str, Any], where: str) -> None:
    if data["apiVersion"] == API_VERSION or data["apiVersion"].startswith("farmd/"):
        entry = parse_native(data, where)
    else:
        entry = objects.parse(
            data,
            where,
            namespace=reading.default.namespace or "",
            scopes=reading.cluster_scoped,
            secrets=bool(reading.default.allow_secrets),
        )
    named = str(entry.ref)
    if named in reading.entries:
        refuse(
            f"{where}: {'name' if entry.ref.own else 'metadata.name'}",
            f"{named} again",
            f"each object once; {reading.places[named]} has it, too",
            field="name",
        )
    reading.entries[named], reading.places[named] = entry, where


# Apps as bundle files: the documents of each app's wanted revision, and the command that applies them.


class ExportedApps:
    """See ``farmd.commands.bundled.Exported``."""

    spec = AppSpec

    async def written(self, call: Call) -> Written:
        """All apps; each is a bundle of its own."""
        store, found = AppStore(call.client, call.keys), Written({}, [], [])
        apps, broken = await store.list()
        found.left.extend(error.message for error in broken)
        for name, stored in sorted(apps.items()):
            if stored.record.deleting:
                found.left.append(f"app/{name}: is being deleted")
                continue
            try:
                entries = await store.entries(name, stored.record.revision)
            except (NotFound, RecordInvalid) as error:
                found.left.append(f"app/{name}: {error.message}")
                continue
            path = f"apps/{name}"
            found.files[path] = render_all(name, stored.record, entries)
            if stored.record.paused:
                found.left.append(f"app/{name}: is paused, so commands do not apply {path}")
            else:
                found.commands.append(["farmctl", "apply", "-f", path, "-y"])
            found.left.extend(f"app/{name}: {entry.ref} is in no file" for entry in entries if entry.left)
        return found


EXPORTED: ExportedApps = ExportedApps()
