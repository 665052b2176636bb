"""What an operator changes on the page: the plan is shown first, then carried out.

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
from farmd.declaration import KindOfWork
from farmd.kinds import KINDS, asked
from farmd.tables.model import clean, differences
from farmd.web import actions, html
from farmd.web.lists import ItemList
from farmd.web.visit import Visit, list_of
from store import quantities
from store.errors import Conflict, InputInvalid, refuse
from store.words import listed


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


def _stage(text: str) -> int | None:
    """The stage that was seen by the one who approves it; None: whatever it is now."""
    if text and (not text.isdecimal() or len(text) > 9):
        refuse("stage", repr(text), "a number")
    return int(text) if text else None


ARGUMENTS = {
    "scale": Argument("replicas", "Pods", "", _count),
    "drain": Argument("deadline", "Deadline", "1h", quantities.seconds),
    "approve": Argument("stage", "Stage", "", _stage),
}


class Act(NamedTuple):
    """A change that an operator may make of an item."""

    word: str
    argument: Argument | None


def acts(found: ItemList) -> list[Act]:
    """What operators may do to each item of a list."""
    kind = KINDS.get(found.family)
    words = list(kind.acts()) if kind is not None and kind.acts else []
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


async def by_program(visit: Visit) -> web.StreamResponse:
    """``POST /v1/LIST/NAME/WORD``: with ``?plan=1`` the plan and its token, else carry out that plan."""
    person, said = await actions.sent(visit)
    reason = actions.reason_of(actions.text_of(said, "reason"))
    field = _field(visit)
    argument = said.get(field, "") if field else ""
    mutation = await _prepared(visit, person.name, str(argument), reason)
    _refuse_others(said, field)
    asked = visit.request.query.get("plan", "")
    if asked not in ("", "1"):
        refuse("plan", repr(asked), "1, or no such parameter")
    if asked:
        plan = {"apiVersion": "farmd/v1", "kind": "Plan", **_told(mutation)}
        return html.as_json(plan | {"lines": await _lines(visit, person.name, mutation)})
    token = actions.text_of(said, "token")
    if not token and visit.request.match_info["word"] not in KINDS[list_of(visit).family].acts_unseen:
        refuse("token", "none", f"that of POST {visit.request.path}?plan=1")
    if token and token != seen(mutation):
        hint = f"POST {visit.request.path}?plan=1 tells what it would do now"
        raise Conflict("the plan has changed since it was shown", hint=hint)
    await commit(visit.site.call(person.name, reason), mutation)
    return html.as_json(actions.change_of(mutation))


def _told(mutation: Mutation) -> dict[str, Any]:
    """A plan for programs: the change, whether it takes something away, and the token that confirms it."""
    change = actions.change_of(mutation)
    of = {name: change[name] for name in ("name", "action", "before", "after", "changed")}
    return {**of, "destructive": mutation.change.destructive, "token": seen(mutation)}


def _refuse_others(said: dict[str, Any], field: str) -> None:
    """Refuse fields that mean nothing here: a misspelled one would change something else than was meant."""
    known = {"token", "reason", field} - {""}
    if other := next((name for name in said if name not in known), ""):
        refuse(other, "a field that is unknown here", listed(sorted(known)))


async def _page(visit: Visit, argument: str, *, status: int = 200, notice: str = "") -> web.Response:
    person, found = actions.operator(visit), list_of(visit)
    mutation = await _prepared(visit, person.name, argument, "")
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
        lines=await _lines(visit, person.name, mutation),
        grave=mutation.change.destructive,
        needed=mutation.needed,
        seen=seen(mutation),
        notice=notice,
    )


async def _lines(visit: Visit, person: str, mutation: Mutation) -> list[str]:
    """The plan with what becomes of the pods."""
    outlook: list[str] = []
    if mutation.needed and mutation.outlook is not None:
        call = visit.site.call(person)
        outlook = (await mutation.outlook(await read(call.client, call.keys))).lines()
    return [clean(line) for line in (*lines(mutation), *outlook)]


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
    own = kind.acts() if kind.acts else {}
    made: Callable[..., Awaitable[Mutation]] = own[word] if word in own else getattr(asked(kind.family), word)
    return made


def _field(visit: Visit) -> str:
    argument = ARGUMENTS.get(visit.request.match_info["word"])
    return argument.name if argument is not None else ""
