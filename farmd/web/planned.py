"""What an operator changes on the page beside rollouts: the plan is shown first, then carried out.

The functions are those of ``farmctl``, and so is the audit. What must never break: nothing is written whose
plan the operator has not seen, and no other site can send the form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec
from aiohttp import web

from farmd.commands.fleet import read
from farmd.commands.mutation import Mutation, commit
from farmd.kinds import KINDS, KindOfWork, load
from farmd.tables.model import clean, differences
from farmd.web import actions, html
from farmd.web.lists import ItemList
from farmd.web.visit import Visit, list_of
from store import quantities
from store.errors import InputInvalid, refuse


class Argument(NamedTuple):
    """What a change needs to know beside the item: its field's name, its label and how it begins."""

    name: str
    label: str
    begins: str
    parse: Callable[[str], Any]


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        refuse("replicas", repr(text), "a whole number, 0 or more")
    return int(text)


ARGUMENTS = {
    "scale": Argument("replicas", "Pods", "", _count),
    "drain": Argument("deadline", "Deadline", "1h", quantities.seconds),
}


class Act(NamedTuple):
    """A change that an operator may make of an item."""

    word: str
    argument: Argument | None


def acts(found: ItemList) -> list[Act]:
    """What operators may do to each item of a list."""
    kind = KINDS.get(found.family)
    words = [word for word, _ in kind.acts] if kind is not None else []
    if kind is not None and kind.owns_pods and not kind.ended and kind.asked:
        words = ["restart", *words]
    return [Act(word, ARGUMENTS.get(word)) for word in words]


async def shown(visit: Visit) -> web.StreamResponse:
    """``GET /LIST/NAME/act/WORD``: what it would change, and the form that does it."""
    actions.operator(visit)
    return await _page(visit, visit.request.query.get(_field(visit), ""))


async def by_form(visit: Visit) -> web.StreamResponse:
    """``POST /LIST/NAME/act/WORD``: carry out the plan that was shown, and go back to the item."""
    said = await visit.form()
    visit.site.access.of_form(visit.request, said.get("key", ""))
    person = actions.operator(visit)
    argument, reason = said.get(_field(visit), ""), actions.reason_of(said.get("reason", ""))
    mutation = await _prepared(visit, person.name, argument, reason)
    if said.get("seen", "") != seen(mutation):
        return await _page(visit, argument, status=409, notice="The plan has changed since it was shown.")
    await commit(visit.site.call(person.name, reason), mutation)
    location = f"/{list_of(visit).path}/{quote(visit.request.match_info['name'])}"
    return web.Response(status=303, headers={**html.HEADERS, "Location": location})


async def _page(visit: Visit, argument: str, *, status: int = 200, notice: str = "") -> web.Response:
    person, found = actions.operator(visit), list_of(visit)
    mutation = await _prepared(visit, person.name, argument, "")
    outlook: list[str] = []
    if mutation.needed and mutation.outlook is not None:
        call = visit.site.call(person.name)
        outlook = (await mutation.outlook(await read(call.client, call.keys))).lines()
    name, word = visit.request.match_info["name"], visit.request.match_info["word"]
    return visit.page(
        "planned.html",
        status=status,
        title=f"{word.capitalize()} {name}",
        path=found.path,
        list=found,
        name=name,
        word=word,
        field=_field(visit),
        argument=argument,
        lines=[clean(line) for line in (*lines(mutation), *outlook)],
        grave=mutation.change.destructive,
        needed=mutation.needed,
        seen=seen(mutation),
        notice=notice,
    )


def lines(mutation: Mutation) -> list[str]:
    """The plan: the fields that change, and a line for each detail."""
    if not mutation.needed:
        return ["nothing to change"]
    return [*differences(mutation.change.before, mutation.change.after), *mutation.change.details]


def seen(mutation: Mutation) -> str:
    """A digest of the plan, without what passes with time: deadlines, and the reason that is given later."""
    passing = {"deadline", "cordon_reason"}
    before, after = (
        {name: value for name, value in fields.items() if name not in passing}
        for fields in (mutation.change.before, mutation.change.after)
    )
    told = msgspec.json.encode([mutation.change.action, before, after, mutation.change.details])
    return hashlib.sha256(told).hexdigest()


async def _prepared(visit: Visit, person: str, argument: str, reason: str) -> Mutation:
    """The change, not written yet.

    Raises:
        HTTPNotFound: there is no such change of such an item. InputInvalid: the argument does not fit.
    """
    found, word = list_of(visit), visit.request.match_info["word"]
    act = next((each for each in acts(found) if each.word == word), None)
    if act is None:
        raise web.HTTPNotFound(text=f"{visit.request.path} does not exist")
    make = _function(KINDS[found.family], word)
    values = [] if act.argument is None else [_parsed(act.argument, argument)]
    return await make(visit.site.call(person, reason), visit.request.match_info["name"], *values)


def _parsed(argument: Argument, text: str) -> Any:
    try:
        return argument.parse(text.strip())
    except InputInvalid as error:
        message = error.message
        if argument.name not in message:
            message = f"{argument.name}: {message}"
        raise InputInvalid(message, field=argument.name) from error


def _function(kind: KindOfWork, word: str) -> Callable[..., Awaitable[Mutation]]:
    paths = dict(kind.acts)
    made: Callable[..., Awaitable[Mutation]] = (
        load(paths[word]) if word in paths else getattr(load(kind.asked), word)
    )
    return made


def _field(visit: Visit) -> str:
    argument = ARGUMENTS.get(visit.request.match_info["word"])
    return argument.name if argument is not None else ""
