"""Checks that the cluster is registered, complete, and of a schema that this version knows (R20)."""

from __future__ import annotations

from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey, bare
from store import codec, families, registration
from store.errors import RecordInvalid
from store.keys import is_sentinel


def check(survey: Survey) -> list[Finding]:
    """Check registration, schema and all expected sentinels."""
    if survey.cluster is None:
        return [
            Finding(
                "not-registered",
                "meta/cluster",
                f"no cluster is registered under {survey.keys.prefix!r}",
                "start a farm, or restore Consul if there was one",
            )
        ]
    return [*_schema(survey), *_sentinels(survey)]


def _schema(survey: Survey) -> list[Finding]:
    found = "missing"
    if survey.schema is not None:
        try:
            schema = codec.decode(registration.Schema, survey.schema.value, survey.schema.key)
        except RecordInvalid as error:
            found = error.message
        else:
            if schema.oldest <= registration.SCHEMA_VERSION:
                return []
            found = f"needs {schema.oldest} or newer, this farmctl knows {registration.SCHEMA_VERSION}"
    return [
        Finding(
            "schema",
            "meta/schema",
            f"the schema record: {found}; no farm claims anything",
            "upgrade farmd, or restore the record",
        )
    ]


def _sentinels(survey: Survey) -> list[Finding]:
    keys = survey.keys
    nodes = {*survey.ids("nodes"), *survey.ids("agents")}
    nodes |= {keys.intent_parts(entry.key)[0] for entry in survey.well_formed("intent")}
    expected = [*families.sentinels(keys), *(keys.sentinel(keys.intents(node)) for node in sorted(nodes))]
    # A sentinel with another cluster's id is a finding even where none is expected.
    others = [key for tree in survey.trees.values() for key in tree if is_sentinel(key)]
    wrong = {key: survey.sentinel(key) for key in (*expected, *others)}
    return [_sentinel(survey, key, how) for key, how in wrong.items() if how]


def _sentinel(survey: Survey, key: str, how: str) -> Finding:
    name = survey.short(key)
    family = name.partition("/")[0]
    # A tree of a newer version than the one that registered the cluster never had a sentinel.
    lone = bare(family)
    young = how == "missing" and (lone or (families.named(family) and survey.untouched(family)))
    what = "is missing" if how == "missing" else "has a different id than the cluster"
    restore = "something deleted or copied parts of the store: restore Consul from a snapshot"
    stops = "a farm reads it again and again" if lone else "removals freeze"
    if family == "intent" and name.count("/") == 2:
        # Nobody but registration proves the intents of a node that was forgotten while its pods ran on.
        node, stops = name.split("/")[1], "its agent starts and stops nothing"
        restore = (
            f"if the node was forgotten: farmctl node register {node}; its agent then stops the pods that"
            f" have no record; otherwise {restore}"
        )
    return Finding(
        f"sentinel-{how}",
        name,
        f"the sentinel {what}: an empty answer under it proves nothing, so {stops}",
        f"if there never were any {family} here: farmctl doctor --fix {name}; otherwise {restore}"
        if young
        else restore,
        registers=key if young else "",
    )
