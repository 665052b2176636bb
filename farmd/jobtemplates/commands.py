"""The noun of job templates, and what starters say: they write a start, and wait for a farm's answer."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from farmd import overview
from farmd.commands.edits import Readiness
from farmd.commands.mutation import Call
from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile, changed
from farmd.jobtemplates import filling
from farmd.kinds import asked
from farmd.overview.owners import why_unowned
from farmd.runtime.errors import WaitTimeout
from store import codec, operations
from store.entry import Stored
from store.errors import Conflict, InputInvalid, NotRegistered, refuse
from store.families import JOBS
from store.jobtemplates import (
    KIND,
    MAX_INPUT,
    MAX_NAME,
    MAX_PARAMETERS,
    STARTS,
    Input,
    JobStart,
    JobTemplate,
    Parameter,
    Started,
    StartKey,
)
from store.locks import Holder

PARKED_SECONDS = 30.0
AGAIN_SECONDS = 0.1


class JobTemplateSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a file of job templates."""

    name: str
    job: dict[str, Any]
    description: str = ""
    parameters: dict[str, Parameter] = {}
    input: Input | None = None
    labels: dict[str, str] = {}
    needs: list[str] = []
    disabled: bool | None = None


def job_of(template: JobTemplate, name: str, source: str, start: JobStart | None = None) -> Any:
    """The document of a template's job; without a start, with the uses of its parameters as they are.

    Raises:
        InputInvalid: no job can be so, or what the start asks for does not fit.
    """
    file = asked(JOBS.name).file
    spec = filling.parsed(file.parse, name, template, source)
    if start is None:
        return spec
    found = filling.filled(spec, template, start)
    file.check(found, source)  # with the values in it, it may be too large
    return found


async def template_of(call: Call, name: str) -> Stored[JobTemplate]:
    """The template of a name.

    Raises:
        InputInvalid: there is none, or it makes no jobs now.
    """
    stored, _ = await JOB_TEMPLATE.records(call.client, call.keys).named(name)
    if stored is None:
        raise InputInvalid(f"job template {name!r} does not exist")
    if stored.record.disabled:
        raise InputInvalid(f"job template {name!r} is disabled")
    return stored


async def made_of(
    call: Call, template: str, name: str, params: Mapping[str, str]
) -> tuple[Any, operations.Operation]:
    """The document of a job of a template, and the check that the template stays as it is.

    Raises:
        InputInvalid: there is no such template, or the values do not fit.
    """
    stored = await template_of(call, template)
    spec = job_of(stored.record, name, f"job template {template!r}", JobStart(params=dict(params)))
    return spec, operations.check_index(stored.key, stored.index)


def _check(spec: JobTemplateSpec, source: str) -> None:
    if len(spec.name) > MAX_NAME:
        refuse(f"{source}: name", f"{len(spec.name)} characters", f"at most {MAX_NAME}", field="name")
    if len(spec.parameters) > MAX_PARAMETERS:
        refuse(f"{source}: parameters", str(len(spec.parameters)), f"at most {MAX_PARAMETERS}")
    if spec.input is not None and not 1 <= spec.input.max_bytes <= MAX_INPUT:
        refuse(f"{source}: input.max_bytes", str(spec.input.max_bytes), f"1 to {MAX_INPUT}")
    for name, each in spec.parameters.items():
        filling.check_declared(name, each, source)
    template = SpecFile.build(FILE, spec, "0")
    job_of(template, f"{spec.name}-{'0' * 10}", f"{source}: job")
    filling.check_uses(template, source)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTemplateFile(SpecFile[JobTemplateSpec, JobTemplate]):
    """Files of job templates. A farm that makes a template's jobs knows the features that they need (R11)."""

    def build(
        self, spec: JobTemplateSpec, record_id: str, sha: str = "", existing: JobTemplate | None = None
    ) -> JobTemplate:
        """The record of a spec, under an id."""
        made = SpecFile.build(self, spec, record_id, sha, existing)
        job = asked(JOBS.name).file.build(job_of(made, spec.name, f"{spec.name}: job"), "0")
        return changed(made, needs=list(dict.fromkeys([*made.needs, *job.needs])))


FILE = JobTemplateFile(spec=JobTemplateSpec, record=JobTemplate, check=_check)


def _parameters(template: JobTemplate) -> str:
    return ", ".join(f"{name}*" if each.required else name for name, each in template.parameters.items())


def _facts(template: JobTemplate, _: Any) -> list[tuple[str, str]]:
    limit = "none" if template.input is None else f"at most {template.input.max_bytes} bytes"
    required = ", required" if template.input is not None and template.input.required else ""
    return [("Description", template.description or "-"), ("Input", f"{limit}{required}")]


async def _ready(_: Call, __: JobTemplate) -> Readiness:
    """A template is ready as soon as it is written."""
    return Readiness("ready")


JOB_TEMPLATE: Noun[JobTemplateSpec, JobTemplate] = Noun(
    file=FILE,
    told=lambda template: {"parameters": _parameters(template)},
    facts=_facts,
    columns=(
        ("PARAMETERS", lambda template, _: _parameters(template) or "-"),
        ("DESCRIPTION", lambda template, _: template.description or "-"),
    ),
    judge=_ready,
)


def start_of(call: Call, params: Mapping[str, str], body: bytes) -> JobStart:
    """What a starter asks for."""
    try:
        given: dict[str, Any] = {"input": body.decode()}
    except UnicodeDecodeError:
        given = {"input": base64.b64encode(body).decode(), "encoding": "base64"}
    return JobStart(params=dict(params), by=call.actor, at=call.clock.now(), **given)


async def begin(call: Call, place: StartKey, start: JobStart) -> tuple[Started | None, int]:
    """Write a start, or find its answer; None: the start waits for one that is newer than an index.

    A start that was refused made no job, so it may be repeated.

    Raises:
        Conflict: the key was used for other parameters or another input.
        InputInvalid: no template, or no start, can have the name. NotRegistered: there is no cluster.
    """
    key, value = place.checked().start(call.keys), codec.encode(start)
    if len(value) > start.LARGEST:
        refuse("input", f"{len(value)} bytes with the parameters", f"at most {start.LARGEST}")
    entry, refused = await call.client.read(place.started(call.keys), mode="consistent"), 0
    if entry is not None:
        found = codec.decode(Started, entry.value, entry.key)
        if not found.refused:
            _compared(place, found.digest, start)
            return found, entry.modify_index
        refused = entry.modify_index
    if await call.client.read(call.keys.sentinel(call.keys.tree("starts"))) is None:
        text = f"no farm under {call.keys.prefix!r} knows job templates"
        raise NotRegistered(text, hint="start a farm of this version first, or check --http-addr")
    if not await call.client.put(key, value, cas=0):
        entry = await call.client.read(key, mode="consistent")
        if entry is not None:  # else a farm has just answered it
            _compared(place, codec.decode(JobStart, entry.value, key).digest, start)
    return None, refused


def _compared(place: StartKey, digest: str, start: JobStart) -> None:
    if digest and digest != start.digest:
        text = f"start {place.key!r} of {place.template} exists with other parameters or another input"
        raise Conflict(text, id=place.key, hint="use another --id, or ask for the same")


async def answered(call: Call, place: StartKey, refused: int, limit: float) -> Started:
    """A farm's answer to a start, as soon as there is one that is newer than the index of a refusal.

    Raises:
        WaitTimeout: there is none after ``limit`` seconds; the start stays.
    """
    until, index, key = call.clock.mono() + limit, 0, place.started(call.keys)
    while True:
        left = min(PARKED_SECONDS, max(until - call.clock.mono(), 0.01))
        found, entry = await call.client.get(key, index=index, wait=left)
        if entry is not None and entry.modify_index > refused:
            return codec.decode(Started, entry.value, key)
        index = found if found >= index else 0
        if call.clock.mono() >= until:
            text = f"start {place.key!r} of {place.template} waits: no farm has answered for {limit:g} s"
            raise WaitTimeout(text, hint="repeat the command with the same --id, which starts nothing twice")
        await call.clock.sleep(AGAIN_SECONDS)  # the index of a key that does not exist moves with others


async def unanswered(call: Call) -> str:
    """Why starts wait."""
    holder = await call.client.read(call.keys.lock(KIND, STARTS))
    if holder is not None:
        return f"farm {Holder.parse(holder.value).id} answers them one after the other"
    members = await overview.farms(call.client, call.keys)
    return f"no farm answers them: {why_unowned(KIND, None, members)}"
