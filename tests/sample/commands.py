"""What people may ask of notes."""

from __future__ import annotations

import msgspec

from farmd.commands.noun import Noun
from farmd.commands.specs import SpecFile
from tests.sample.record import Note


class NoteSpec(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """One document of a file of notes."""

    name: str
    text: str = ""
    labels: dict[str, str] = {}
    disabled: bool | None = None


NOTE: Noun[NoteSpec, Note] = Noun(
    file=SpecFile(spec=NoteSpec, record=Note),
    told=lambda note: {"text": note.text},
    facts=lambda note, _: [("Text", note.text or "(none)")],
)
