"""Job templates: a job's document with typed parameters, and the starts that ask for a job of one.

A starter writes ``starts/<template>/<key>`` and nothing else. A farm makes the job and answers in
``started/<template>/<key>``, which starters only read, in the transaction that removes the start. So an
answer is a farm's, and a key gets one answer for as long as that is kept.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal, NamedTuple

import msgspec

from store.errors import InputInvalid, RecordInvalid, refuse
from store.keys import Keys, valid_name
from store.mistakes import shown
from store.times import Time

KIND, STARTS, STARTED = "jobtemplates", "starts", "started"
MAX_NAME = 29
"""A job's name has at most 40 characters, of which its start's digest takes 11."""
MAX_PARAMETERS, MAX_VALUE, MAX_INPUT, MAX_START = 64, 4 * 1024, 64 * 1024, 400 * 1024
_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

Scalar = str | int | float | bool


def text(value: Scalar) -> str:
    """A value of YAML as a parameter's text."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One value that a starter may choose; without a default and not ``required`` it is an empty text."""

    type: Literal["string", "integer", "number", "boolean"] = "string"
    default: Scalar | None = None
    required: bool = False
    choices: list[Scalar] = []
    description: str = ""


class Input(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a starter may send besides parameters."""

    required: bool = False
    max_bytes: int = MAX_INPUT


class JobTemplate(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Make jobs of the document ``job`` for starters, who choose its ``parameters`` and its ``input``."""

    id: str
    name: str
    description: str = ""
    parameters: dict[str, Parameter] = {}
    input: Input | None = None
    job: dict[str, Any] = {}
    labels: dict[str, str] = {}
    needs: list[str] = []
    disabled: bool = False
    deleting: bool = False
    created: Time = 0.0
    part_of: str = ""
    open: list[str] = []


class JobStart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a starter asks for. ``by`` is what the starter calls itself: nobody checks it."""

    LARGEST = MAX_START

    params: dict[str, str] = {}
    input: str = ""
    encoding: Literal["", "base64"] = ""
    by: str = ""
    at: Time = 0.0

    @property
    def digest(self) -> str:
        """Tells what is asked for from anything else."""
        asked = msgspec.json.encode([sorted(self.params.items()), self.input, self.encoding])
        return hashlib.sha256(asked).hexdigest()


class Started(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A farm's answer to a start: the job's id and name, or why it is ``refused``.

    ``digest`` is that of the start, ``template`` the id of the template that the job was made from.
    """

    job: str = ""
    name: str = ""
    refused: str = ""
    template: str = ""
    digest: str = ""
    by: str = ""
    at: Time = 0.0


class StartKey(NamedTuple):
    """Which start it is: the template's name, and the starter's key."""

    template: str
    key: str

    def start(self, keys: Keys) -> str:
        """The key of the start."""
        return keys.record(STARTS, f"{self.template}/{self.key}")

    def started(self, keys: Keys) -> str:
        """The key of its answer."""
        return keys.record(STARTED, f"{self.template}/{self.key}")

    @property
    def job(self) -> str:
        """The name of its job. No starter can choose it, so none takes another template's name."""
        return f"{self.template}-{hashlib.sha256('/'.join(self).encode()).hexdigest()[:10]}"

    def checked(self) -> StartKey:
        """The place, if a person may name it.

        Raises:
            InputInvalid: no template has the name, or no start the key.
        """
        valid_name(self.template, "template")
        if len(self.template) > MAX_NAME:
            refuse("template", f"{len(self.template)} characters", f"at most {MAX_NAME}")
        if not _KEY.fullmatch(self.key) or self.key.endswith(".present"):
            expected = "1 to 63 of letters, digits, '.', '_' and '-', begun and ended by a letter or a digit"
            refuse("id", shown(self.key), expected)
        return self


def place(keys: Keys, key: str, family: str = STARTS) -> StartKey:
    """The place of a start, or of an answer, by its key.

    Raises:
        RecordInvalid: no start can lie there.
    """
    template, _, rest = key[len(keys.tree(family)) :].partition("/")
    try:
        return StartKey(template, rest).checked()
    except InputInvalid as error:
        raise RecordInvalid(f"{key}: {error.message}", key=key) from error
