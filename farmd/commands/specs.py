"""Reads the files of all kinds; a file is checked as a whole before anything is written.

Each refusal is one line that names the file, the field, what was found and what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from farmd import kinds
from farmd.commands import heads
from store import codec, quantities, selectors, variables
from store.canonical import builtins
from store.errors import InputInvalid, refuse
from store.families import reserved_labels
from store.features import FOLLOW, needed_of_farm
from store.keys import valid_name, valid_segment
from store.manifests import Manifest
from store.mistakes import shown
from store.named import Named
from store.policies import Policy, check_gates, staged

MAX_REPLICAS = 100_000
MAX_SECONDS = 31 * 86_400.0


class Document(Protocol):
    @property
    def name(self) -> str:
        """The record's name."""


S = TypeVar("S", bound=Document)
T = TypeVar("T", bound=Named)


def _unchecked(_spec: object, _source: str) -> None:
    """No check besides the types."""


def unlike(parsed: Iterable[tuple[str, S]]) -> list[S]:
    """Documents, each with its source, if no two have one name.

    Raises:
        InputInvalid: two do.
    """
    found: dict[str, tuple[str, S]] = {}
    for where, spec in parsed:
        if spec.name in found:
            raise InputInvalid(
                f"{where}: name: found {spec.name!r} again, expected each name once;"
                f" {found[spec.name][0]} has it, too",
                field="name",
            )
        found[spec.name] = (where, spec)
    return [spec for _, spec in found.values()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile(Generic[S, T]):
    """The mapping between the documents of a file and the records of one kind.

    A field of the document is the field of that name in the record, ``pod`` its ``manifest`` and ``pod_id``.

    Attributes:
        spec: one document, in people's words.
        record: what is stored.
        check: checks what types cannot say of the kind's own fields; raises ``InputInvalid``.
        names: the record's names of fields that the document calls otherwise.
        kept: fields that are None where the file leaves them out; they stay as they are in a record that
            exists, and a new one has the record's default. Where that has none: what is expected.
        shares: fields that are a number or a share such as ``25%``, with the record's field for the share.
            Earlier versions read only the number, which is 1 beside a share.
    """

    spec: type[S]
    record: type[T]
    check: Callable[[S, str], None] = _unchecked
    names: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, str] = field(default_factory=lambda: {"disabled": ""})
    shares: Mapping[str, str] = field(default_factory=dict)

    def parse_all(
        self, *files: tuple[str, str], resolve: Callable[[Any, str], Any] = lambda data, _: data
    ) -> list[S]:
        """All documents of some files, (text, source), in order; ``resolve`` replaces references in each.

        Raises:
            InputInvalid: anything that does not fit, in any document; also one name twice.
        """
        from farmd.commands import documents  # farms need nouns too, but read no files and no YAML

        parsed = [each for text, source in files for each in documents.parse(text, source)]
        return unlike([(where, self.parse(resolve(data, where), where)) for where, data in parsed])

    def parse(self, data: Any, source: str) -> S:
        """One parsed document.

        Raises:
            InputInvalid: naming the file, the field, what was found and what was expected.
        """
        spec = codec.parse_input(self.spec, heads.without(self.record, data, source), source)
        _check_common(_fields(spec), source)
        self.check(spec, source)
        return spec

    def build(self, spec: S, record_id: str, sha: str = "", existing: T | None = None) -> T:
        """The record of a spec, under an id; ``sha`` is the digest of its pod's manifest.

        Fields that the spec leaves open, or that no file contains, are taken from ``existing``.

        Raises:
            InputInvalid: a new record without a field that it cannot do without.
        """
        values = _fields(spec)
        for name, expected in self.kept.items():
            if values.get(name) is None:
                values.pop(name, None)
                if expected and existing is None:
                    raise InputInvalid(f"{spec.name}: {name}: missing, expected {expected}", field=name)
        for name, share in self.shares.items():
            values[share] = quantities.percent(values[name])
            values[name] = 1 if values[share] else values[name]
        if "node_selector" in values:
            where = f"{spec.name}: node_selector"
            values["node_selector"] = canonical_selector(values["node_selector"], where)
        own = set[str]()
        if existing is not None and "needs" in values:
            own |= {need for need in _fields(existing)["needs"] if need in kinds.features()}
        pod = values.pop("pod", None)
        if pod is not None and "needs" in values:
            own |= {*needed_of_farm(pod), *([FOLLOW] if values.get("follow") else [])}
        if own:
            # In the order of a later update, so that an equal file changes nothing.
            values["needs"] = list(dict.fromkeys([*values["needs"], *sorted(own)]))
        if pod is not None:
            values |= {"manifest": sha, "pod_id": pod.id}
        values = {self.names.get(name, name): value for name, value in values.items()} | {"id": record_id}
        return self.record(**values) if existing is None else changed(existing, **values)

    def kept_digests(self, record: T, digests: Mapping[str, str]) -> T:  # noqa: ARG002
        """A built record that refers to manifests by these ``digests`` in place of its own."""
        return record  # ``build`` was told the digest of the only one

    def stated(self, existing: T, wanted: T, fields: Collection[str]) -> T:
        """A wanted record, which has of a file only these fields; the others are as they exist."""
        kept: dict[str, Any] = {}
        for own in self._type(self.spec).__struct_fields__:  # structs.fields() evaluates all annotations anew
            if own not in fields:
                names = (self.names.get(own, own), self.shares.get(own, ""))
                names = ("manifest", "pod_id") if own == "pod" else names
                kept |= {name: getattr(existing, name) for name in names if name}
        return changed(wanted, **kept)

    def document(self, record: T, bodies: Mapping[str, Manifest]) -> dict[str, Any]:
        """As ``as_file``; ``bodies`` are the manifests of its pods by digest."""
        return self.as_file(record, bodies.get(getattr(record, "manifest", "")))

    def as_file(self, record: T, manifest: Manifest | None = None) -> dict[str, Any]:
        """A record as the document that a person would write; parsing it gives the same record."""
        defaults = _defaults(self.record)
        values = {}
        for own in self._type(self.spec).__struct_fields__:
            name = self.names.get(own, own)
            value = manifest if own == "pod" else getattr(record, name)
            if (share := getattr(record, self.shares.get(name, ""), 0)) and value == 1:
                value = f"{share}%"
            values[own] = None if own in self.kept and value == defaults[name] else value
        document: dict[str, Any] = builtins(self.spec(**values))
        if "pod" in document:
            document["pod"] = document.pop("pod")
        return document

    @staticmethod
    def _type(kind: type[Any]) -> type[msgspec.Struct]:
        assert issubclass(kind, msgspec.Struct)
        return kind


@cache
def _defaults(kind: type[Any]) -> dict[str, Any]:
    """The defaults of a type's fields, cached: msgspec evaluates all annotations at each call."""
    return {each.name: each.default for each in msgspec.structs.fields(kind)}


def changed(record: T, **values: Any) -> T:
    """A record with other values; values of fields that it does not have are ignored."""
    known = {name: value for name, value in values.items() if name in _fields(record)}
    assert isinstance(record, msgspec.Struct)
    return msgspec.structs.replace(record, **known)


def _fields(record: object) -> dict[str, Any]:
    assert isinstance(record, msgspec.Struct)
    return msgspec.structs.asdict(record)


def _check_common(fields: Mapping[str, Any], source: str) -> None:
    """Check the fields that several kinds have, as far as types cannot."""
    valid_name(fields["name"], f"{source}: name")
    if fields.get("pod") is not None:
        check_pod(fields["pod"], source)
    selectors.valid_labels(fields.get("labels", {}), f"{source}: labels")
    check_pod_labels(fields.get("pod_labels", {}), source)
    for feature in fields.get("needs", ()):
        valid_segment(feature, f"{source}: needs")
    canonical_selector(fields.get("node_selector", ""), f"{source}: node_selector")
    check_seconds(fields.get("min_healthy_time", 0.0), f"{source}: min_healthy_time")


def check_pod(pod: Manifest, source: str, field: str = "pod", also: Collection[str] = ()) -> None:
    """Check a manifest of a document, which stands in ``field``, as far as types cannot; ``also`` are farmd's
    variables that it gets besides those of its node and its ports.

    Raises:
        InputInvalid: it cannot work; names the field.
    """
    from store import manifest_check

    manifest_check.check(pod, source, f"{field}.")
    variables.check(pod, f"{source}: {field}.", also)
    if any(file.template for file in pod.files):
        _check_templates(pod, source, field)
    quantities.check_bytes(pod.resources, f"{source}: {field}.resources")
    check_placement_of(pod, source, field)


def _check_templates(pod: Manifest, source: str, field: str) -> None:
    from store import templates  # Jinja2 is imported where there is a template

    for number, file in enumerate(pod.files):
        if file.template and (why := templates.mistake(file.template)):
            where = f"{field}.files[{number}].template"
            raise InputInvalid(f"{source}: {where}: {why}", field=where)


def check_pod_labels(labels: Mapping[str, str], source: str, field: str = "pod_labels") -> None:
    """Check labels that pods shall have.

    Raises:
        InputInvalid: one cannot be, or is farmd's own; names the field.
    """
    selectors.valid_labels(labels, f"{source}: {field}")
    if taken := reserved_labels() & labels.keys():
        raise InputInvalid(
            f"{source}: {field}: found {min(taken)!r}, expected labels other than farmd's own", field=field
        )


def check_placement_of(pod: Manifest, source: str, field: str = "pod") -> None:
    """Check the pod's placement block as the scheduler will read it.

    Raises:
        InputInvalid: it cannot work; names the field.
    """
    from scheduler.constraints import check_placement
    from scheduler.errors import PlacementInvalid

    try:
        check_placement(pod.placement, f"{source}: {field}.placement")
    except PlacementInvalid as error:
        raise InputInvalid(error.message, **error.fields) from error


def check_count(value: int, field: str, lowest: int = 0) -> int:
    """Return a count that makes sense.

    Raises:
        InputInvalid: below ``lowest`` or absurdly high.
    """
    if not lowest <= value <= MAX_REPLICAS:
        raise InputInvalid(
            f"{field}: found {shown(value)}, expected a whole number from {lowest} to {MAX_REPLICAS}",
            field=field,
        )
    return value


def check_follow(spec: Any, source: str) -> None:
    """Refuse to follow nothing.

    Raises:
        InputInvalid: the owner follows, and its manifest refers to no config key.
    """
    newest = any(not each.pinned for each in spec.pod.sealed.values())
    if spec.follow and not (spec.pod.sources or newest):
        refuse(f"{source}: follow", "true", "false: its pod refers to no config key, and to no newest secret")


def check_share(value: int | str, field: str) -> None:
    """Check a count that may be a share, such as ``25%``.

    Raises:
        InputInvalid: naming the field.
    """
    try:
        share = quantities.percent(value)
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error
    if not share:
        check_count(int(value), field, lowest=1)


def check_seconds(value: float, field: str, lowest: float = 0.0) -> float:
    """Return a time that makes sense.

    Raises:
        InputInvalid: below ``lowest``, or longer than a month.
    """
    if not lowest <= value <= MAX_SECONDS:
        raise InputInvalid(
            f"{field}: found {shown(value)}, expected {shown(lowest)} to {shown(MAX_SECONDS)} seconds",
            field=field,
        )
    return value


def canonical_selector(text: str, field: str) -> str:
    """A selector in its canonical form, so that equal ones are equal text.

    Raises:
        InputInvalid: naming the field and what the parser met.
    """
    try:
        return str(selectors.parse(text))
    except InputInvalid as error:
        raise InputInvalid(f"{field}: {error.message}", field=field) from error


# What a rollout's policy must say whatever the number of pods: each refusal is one line.
#
# It is checked where a person writes it, in the file of a controller, and once more where a rollout begins.

MOST_STAGES = 20
_TIMES = ("progress_deadline", "deadline", "keep_old")


def check_policy(policy: Policy, path: str) -> None:
    """Refuse a policy that no rollout could go by; ``path`` is the field that has it.

    Raises:
        InputInvalid: naming the field, what was found and what was expected.
    """
    for name in _TIMES:
        check_seconds(getattr(policy, name), f"{path}.{name}")
    if policy.min_healthy_time is not None:
        check_seconds(policy.min_healthy_time, f"{path}.min_healthy_time")
    if policy.health_deadline is not None and policy.health_deadline > policy.progress_deadline:
        expected = f"at most progress_deadline, which is {policy.progress_deadline:g} s"
        refuse(f"{path}.health_deadline", f"{policy.health_deadline:g} s", expected)
    if policy.ratio is not None and policy.stages:
        refuse(f"{path}.ratio", f"{policy.ratio} beside stages", "one of both")
    _check_stages(policy, path)
    check_gates(policy, path)


def _check_stages(policy: Policy, path: str) -> None:
    stages = [staged(stage) for stage in policy.stages]
    if len(stages) > MOST_STAGES:
        refuse(f"{path}.stages", f"{len(stages)}", f"at most {MOST_STAGES}")
    for number, stage in enumerate(stages):
        check_seconds(stage.bake, f"{path}.stages[{number}].bake")
    for number, (before, after) in enumerate(pairwise(stage.to for stage in stages), 1):
        if type(before) is type(after) and _size(after) < _size(before):
            refuse(f"{path}.stages[{number}].to", f"{after} after {before}", "a rising number of replicas")
    if stages and isinstance(stages[-1].to, str) and stages[-1].to != "100%":
        refuse(f"{path}.stages[{len(stages) - 1}].to", stages[-1].to, "100%, which is all")
    rests = sum(stage.bake for stage in stages) + policy.keep_old * (policy.strategy == "blue-green")
    if 0 < policy.deadline < rests:
        found = f"{policy.deadline:g} s, and {rests:g} s of rests"
        refuse(f"{path}.deadline", found, "more than all rests together")


def _size(part: int | str) -> int:
    return part if isinstance(part, int) else int(part.removesuffix("%"))
