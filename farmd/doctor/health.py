"""Finds what does not work although nothing is blocked.

These are pods that are down, realities that differ from intents, items that no farm may claim, deletions that
wait, and farms that work without presence.
"""

from __future__ import annotations

from collections.abc import Iterator

from farmd import kinds
from farmd.doctor.model import Finding
from farmd.doctor.survey import Survey
from farmd.overview.owners import NOT_READY, NOT_YET, why_unowned
from farmd.pods.ailing import complaint
from store.farms import Member
from store.locks import Holder
from store.pods import Place, Pod
from store.reality import Intent, Reality, fails, glance
from store.status import Status
from store.words import count_of, share

# A pod with so many ends in so many seconds does not stay up, even if it runs at this moment.
CRASHES, CRASHES_WITHIN = 3, 300.0
# A deletion that takes longer than this is reported.
DELETION_SECONDS = 60.0


def check(survey: Survey) -> list[Finding]:
    """The findings of one survey."""
    return [*_unowned(survey), *_deletions(survey)]


def passing(survey: Survey) -> list[Finding]:
    """Findings that may be over in a moment; they count only if a later survey has them, too."""
    return [*_down(survey), *_differing(survey), *_without_presence(survey)]


def _unowned(survey: Survey) -> Iterator[Finding]:
    members = [member for _, member in survey.decoded("farms", Member)]
    for family, entry, record in survey.owners():
        kind, noun = family.name, kinds.KINDS[family.name].noun
        claimed = any(kind in member.kinds for member in members)
        if not claimed or survey.keys.lock(kind, record.id) in survey.trees["locks"]:
            continue  # a kind that no farm claims is another finding
        if (why := why_unowned(kind, record, members)) not in (NOT_YET, NOT_READY):
            yield Finding(
                "unowned",
                survey.short(entry.key),
                f"{noun}/{record.name}: no farm works on it: {why}",
                "start a farm that may claim it, or change the record",
            )


def _deletions(survey: Survey) -> Iterator[Finding]:
    statuses = {each.key: status for each, status in survey.decoded("status", Status)}
    for family, entry, record in survey.owners():
        kind, noun = family.name, kinds.KINDS[family.name].noun
        status = statuses.get(survey.keys.status(kind, record.id))
        owned = survey.keys.lock(kind, record.id) in survey.trees["locks"]
        late = status is not None and survey.now - status.since > DELETION_SECONDS
        if record.deleting and (late or not owned):
            why = (status.reason if status is not None else "") or "its pods are not gone yet"
            yield Finding(
                "deletion-waits",
                survey.short(entry.key),
                f"{noun}/{record.name} is being deleted: {why if owned else 'no farm works on it'}",
                f"farmctl {noun} describe {record.name} shows its pods; farmctl node forget NAME where one is"
                " gone for good",
            )


def _pods(survey: Survey) -> dict[str, dict[Place, Reality | None]]:
    """The realities of each owner's pods on nodes whose agents are present, without pods that are over."""
    keys, agents = survey.keys, survey.ids("agents")
    said = {keys.reality_parts(entry.key): reality for entry, reality in survey.decoded("reality", Reality)}
    found: dict[str, dict[Place, Reality | None]] = {}
    for entry, pod in survey.decoded("pods", Pod):
        if pod.done:
            continue
        owner, node, instance = keys.pod_parts(entry.key)
        reality = said.get((node, instance))
        known = reality is not None and reality.owner in ("", owner) and node in agents
        found.setdefault(owner, {})[node, instance] = reality if known else None
    return found


def _down(survey: Survey) -> Iterator[Finding]:
    found = _pods(survey)
    for family, entry, record in survey.owners():
        noun = kinds.KINDS[family.name].noun
        pods = found.get(record.id, {})
        ails = {place: text for place, said in pods.items() if (text := _ails(said, survey.now))}
        if ails and not (record.disabled or record.deleting):
            (node, instance), text = min(ails.items())
            name, count = f"{noun}/{record.name}", share(len(ails), len(pods), "pod")
            yield Finding(
                "pods-down",
                survey.short(entry.key),
                f"{name}: {count} not working; {node}/{instance}: {text}",
                f"farmctl {noun} describe {record.name}; farmctl pod logs {node}/{instance}",
            )


def _ails(reality: Reality | None, now: float) -> str:
    if reality is None:
        return ""
    if fails(glance(reality)) or reality.phase == "exited":
        return complaint(reality)
    # Older exits belong to other manifests and were asked for.
    exits = reality.exits[::-1][: reality.restarts]
    ends = sum(0 <= now - end.at < CRASHES_WITHIN for end in exits)
    return f"it ended {ends} times in {CRASHES_WITHIN:.0f} s" if ends >= CRASHES else ""


def _differing(survey: Survey) -> Iterator[Finding]:
    keys, agents = survey.keys, survey.ids("agents")
    intents = {
        keys.intent_parts(entry.key): (entry, said) for entry, said in survey.decoded("intent", Intent)
    }
    for entry, reality in survey.decoded("reality", Reality):
        place = keys.reality_parts(entry.key)
        wanted, intent = intents.get(place, (None, None))
        if wanted is None or intent is None or place[0] not in agents:
            continue
        acted = reality.intent >= wanted.modify_index
        if reality.manifest != intent.manifest:
            differs = f"runs {reality.manifest[:12]}, its intent says {intent.manifest[:12]}"
            done = "it acted on the intent"
        elif reality.restart < intent.restart:
            differs = f"acted on restart {reality.restart}, its intent asks for restart {intent.restart}"
            done = "its agent is older and ignores restarts"
        else:
            continue
        why = reality.reason or (done if acted else "it has not acted on the intent")
        yield Finding(
            "reality-differs",
            survey.short(entry.key),
            f"{'/'.join(place)} {differs}: {why}",
            f"farmctl node describe {place[0]}; the log of its agent shows more",
        )


def _without_presence(survey: Survey) -> Iterator[Finding]:
    held: dict[str, int] = {}
    for entry in survey.records("locks"):
        kind, _, mutation = survey.keys.lock_parts(entry.key)
        holder = Holder.parse(entry.value)
        if kind and not mutation and entry.session and holder.kind == "farm":
            held[holder.id] = held.get(holder.id, 0) + 1
    for farm in sorted(held.keys() - survey.ids("farms")):
        yield Finding(
            "farm-without-presence",
            f"farms/{farm}",
            f"it holds {count_of(held[farm], 'item')}, but its presence record is missing",
            "it announces itself again within a minute; restart it if it is an older version, which does not",
        )
