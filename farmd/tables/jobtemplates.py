"""What is told of a job template beside its record: its parameters, how to start it, and its last starts."""

from __future__ import annotations

import shlex

import msgspec

from farmd.commands.mutation import Call
from farmd.tables.model import Column, Details, Table, ago
from store import codec
from store.entry import Entry
from store.errors import RecordInvalid
from store.jobtemplates import STARTED, STARTS, JobTemplate, Started, StartKey, place, text
from store.times import Time, plain

LAST = 20


class StartRow(msgspec.Struct, frozen=True, kw_only=True):
    """One start: its key, the job or why it was refused, who asked, and when it was answered."""

    key: str
    state: str
    job: str = ""
    reason: str = ""
    by: str = ""
    at: Time = 0.0


def usage(template: JobTemplate) -> str:
    """The command that starts a job of a template."""
    words = ["farmctl", "job", "start", template.name]
    for name, each in template.parameters.items():
        shown = text(each.choices[0]) if each.choices else each.type.upper()
        given = f"--param {name}={shlex.quote(shown)}"
        words.append(given if each.required else f"[{given}]")
    if template.input is not None:
        words.append("--input FILE" if template.input.required else "[--input FILE]")
    return " ".join(words)


async def besides(call: Call, template: JobTemplate) -> Details:
    """How to start it, its parameters, and its last starts."""
    rows, broken = await starts(call, template.name)
    waiting = sum(row.state == "waiting" for row in rows)
    shown = rows[max(0, waiting - LAST // 2) :][:LAST]  # the answers, however many starts wait
    facts = [("Start", usage(template)), *([("Waiting", f"{waiting} starts")] if waiting else [])]
    tables = {"Parameters": parameters(template), "Starts (newest first)": starts_table(call, shown)}
    return Details(facts, tables, {"starts": plain(shown)}, broken)


def parameters(template: JobTemplate) -> Table:
    """The declared parameters."""
    return Table(
        kind="Parameter",
        rows=list(template.parameters.items()),
        columns=(
            Column("NAME", lambda row: row[0]),
            Column("TYPE", lambda row: row[1].type),
            Column("DEFAULT", lambda row: _default(row[1].required, row[1].default)),
            Column("CHOICES", lambda row: ", ".join(map(text, row[1].choices)) or "any"),
            Column("DESCRIPTION", lambda row: row[1].description),
        ),
        name=lambda row: row[0],
        plain=lambda row: {"name": row[0], **plain(row[1])},
        empty="none",
    )


def _default(required: bool, default: object) -> str:
    return "(required)" if required else '""' if default is None else text(default)  # type: ignore[arg-type]


async def starts(call: Call, template: str) -> tuple[list[StartRow], list[str]]:
    """The starts of a template: those that wait, then those that are answered, the newest first."""
    client, keys = call.client, call.keys
    waiting = await client.keys(StartKey(template, "").start(keys))
    page = await client.list(StartKey(template, "").started(keys))
    rows, broken = list[StartRow](), list[str]()
    for entry in map(Entry.of, page.items):
        try:
            answer, key = codec.decode(Started, entry.value, entry.key), place(keys, entry.key, STARTED).key
        except RecordInvalid as error:
            broken.append(error.message)
            continue
        state, by, at = "refused" if answer.refused else "accepted", answer.by, answer.at
        rows.append(StartRow(key=key, state=state, job=answer.name, reason=answer.refused, by=by, at=at))
    rows.sort(key=lambda row: -row.at)
    first = len(keys.tree(STARTS)) + len(template) + 1
    return [*(StartRow(key=key[first:], state="waiting") for key in waiting.items), *rows], broken


def starts_table(call: Call, rows: list[StartRow]) -> Table:
    """Starts as a table."""
    now = call.clock.now()
    return Table(
        kind="Start",
        rows=rows,
        columns=(
            Column("KEY", lambda row: row.key),
            Column("STATE", lambda row: row.state),
            Column("JOB", lambda row: row.job or "-"),
            Column("AGE", lambda row: ago(now, row.at) if row.at else "-", order=lambda row: -row.at),
            Column("ASKED BY", lambda row: row.by or "-"),
            Column("REASON", lambda row: row.reason),
        ),
        name=lambda row: f"job/{row.job}" if row.job else row.key,
        plain=plain,
        empty="none",
    )
