"""Items as the command line, the page and its API show them: a row, a file, a description, an explanation.

``Records`` has those of a noun, and a subclass those that are objects of a Kubernetes cluster. Nodes and apps
have no noun; their ``Items`` are in ``nodes.py`` and ``apps.py``. The page follows its rows in the farm's
copies, and describes and explains an item by the same functions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from farmd import commands
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun, explain
from farmd.overview import Row
from farmd.tables import manifests, nouns
from farmd.tables.model import Column, Described, Details, Explained, Table
from farmd.tables.pods import pod_table, same_owner
from scheduler import explain as words
from scheduler.model import Explanation
from store.times import plain


class Items(ABC):
    """The items that people name by one word."""

    def __init__(self, call: Call) -> None:
        self.call = call

    @abstractmethod
    async def described(self, name: str) -> Described:
        """One item.

        Raises:
            NotFound: there is no such item.
        """


class Records(Items):
    """The records of a noun in Consul."""

    def __init__(self, call: Call, noun: Noun[Any, Any]) -> None:
        super().__init__(call)
        self.noun = noun

    async def row(self, name: str) -> Row[Any]:
        return await self.noun.row(self.call, name)

    async def as_file(self, name: str) -> dict[str, Any]:
        found = await self.noun.as_file(self.call, (await self.row(name)).record)
        return commands.heads.headed(self.noun.words.noun, commands.resolving.referring(found))

    async def described(self, name: str) -> Described:
        return await described(self.call, self.noun, await self.row(name))

    async def explained(self, name: str) -> Explained:
        row = await self.row(name)
        found = await explain(self.call, self.noun, row.record)
        return explained(row.record, found, f"{row.state}: {row.reason}" if row.reason else row.state)

    async def pods(self, name: str) -> Table:
        return await _pods(self.call, self.noun, (await self.row(name)).record)


async def described(call: Call, noun: Noun[Any, Any], row: Row[Any]) -> Described:
    """A record with its status, its pods, what they run, and what its kind adds."""
    record = row.record
    pods = await _pods(call, noun, record) if noun.words.owns_pods else None
    manifest, runs = await manifests.read(call, "" if noun.pods is None else record.manifest)
    details = await noun.words.besides()(call, record) if noun.words.besides else Details()
    document = {**nouns.plain_row(row), **details.document}
    document |= {} if noun.pods is None else {"runs": plain(manifest)}
    document |= {} if pods is None else {"pods": plain(pods.rows)}
    return Described(
        id=record.id,
        name=record.name,
        state=row.state,
        reason=row.reason,
        facts=[*nouns.facts(noun, row, call.clock.now(), runs), *details.facts],
        tables=details.tables,
        row=row,
        audited=noun.kind,
        pods=pods,
        document=document,
        broken=[*details.broken, *(() if pods is None else pods.broken)],
    )


async def _pods(call: Call, noun: Noun[Any, Any], record: Any) -> Table:
    found = await commands.versions.pods(call, noun, record)
    return pod_table(found.rows, found.broken, call.clock.now(), same=same_owner(found.rows))


def explained(record: Any, found: Sequence[tuple[str, Explanation]], state: str = "") -> Explained:
    """The verdicts on all nodes for one more pod of each type; a record that is blocked says so first."""
    lines, names = list[str](), list[str]()
    document: dict[str, Any] = {"name": record.name, "id": record.id}
    if types := {name: words.document(each) for name, each in found if name}:
        document |= {"state": state, "types": types}
    if types or state.startswith("blocked"):
        lines.append(f"{record.name} is {state}")
    for name, each in found:
        document |= {} if name else words.document(each)
        lines += [*([f"{record.name}/{name}:"] if name else []), *words.text(each)]
        names += [f"node/{node}" for node in each.ranking]
    return Explained(lines, document, names)


def judged(found: Explanation) -> Table:
    """The verdicts on all nodes as a table."""
    return Table(
        kind="Explanation",
        rows=words.rows(found),
        columns=(
            Column("NODE", lambda row: row.node),
            Column("STATE", lambda row: row.state),
            Column("RANK", lambda row: str(row.rank or "-")),
            Column("SCORE", lambda row: f"{row.score:.2f}" if row.rank else "-"),
            Column("REASON", lambda row: "; ".join(row.reasons) or _parts(row)),
        ),
        name=lambda row: f"node/{row.node}",
        plain=plain,
        empty="no nodes",
    )


def _parts(row: words.Row) -> str:
    return ", ".join(f"{name} {points:+.2f}" for name, points in row.parts.items())
