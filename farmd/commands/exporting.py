"""What people said of a fleet, as files that ``farmctl import`` and ``farmctl apply`` take.

Only what people write is said: neither what farms and agents make of it, nor what is a part of something
else, which comes again with that. What must never break: equal records give equal files, byte for byte, so
that files in version control differ where somebody changed something.
"""

from __future__ import annotations

import asyncio
from typing import Any

from farmd import kinds
from farmd.commands.bundled import Exported, Written
from farmd.commands.heads import headed
from farmd.commands.mutation import Call, registered
from store.registration import prove


async def written(call: Call) -> Written:
    """All records that people wrote, with the documents of each file in the order of their names."""
    nouns = kinds.exported()
    await registered(call)
    # Else the fleet of a wrong token or prefix would look empty.
    await prove(call.client, call.keys, {kinds.family_of(noun) for noun in nouns})
    parts: list[Exported] = [kinds.load(path) for path in nouns.values()]
    all_of = Written({}, [], [])
    for noun, found in zip(nouns, await asyncio.gather(*(part.written(call) for part in parts)), strict=True):
        for path, documents in found.files.items():
            if documents:
                all_of.files[path] = _headed(noun, documents) if path == noun else documents
        all_of.commands.extend(found.commands)
        all_of.left.extend(found.left)
    return all_of


def _headed(noun: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Documents that say what they are."""
    ordered = sorted(documents, key=lambda document: str(document["name"]))
    return [headed(noun, document) for document in ordered]
