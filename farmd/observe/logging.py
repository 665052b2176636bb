"""Logs: one JSON object a line on stdout, or coloured lines on a terminal.

Events are constant dotted names ("session.lost"); details are fields. A token must never reach a log,
whatever field contains it, and no body may (long text is cut). Lines of libraries (asyncio, aiohttp)
have the same form. The level can change while the process runs, for existing loggers, too.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Literal, TextIO

import structlog

from farmd.runtime.clock import SystemClock

Level = Literal["debug", "info", "warning", "error", "critical"]
Format = Literal["auto", "json", "pretty"]

LONGEST_TEXT = 256
REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"(?i)(token|secret|passw|credential|authorization|cookie|api_?key|private_?key|signature|routing_?key)"
)
_SECRET_TEXT = re.compile(r"(?i)(x-consul-token:\s*|authorization:\s*|bearer\s+|token=)[^\s&\"',]+")
# A file's path is no secret, and people need to see which file is meant.
_HARMLESS_KEY = re.compile(r"(?i)(_file|_path)$")
_PRIORITY = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}

_CLOCK = SystemClock()
_threshold = logging.INFO

EventDict = MutableMapping[str, Any]


def configure(level: Level = "info", form: Format = "auto", stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's logging to ``stream`` (stdout when None)."""
    out: Any = _Lossy(stream if stream is not None else sys.stdout)
    pretty = form == "pretty" or (form == "auto" and out.isatty())
    shared: list[Any] = [
        _below_threshold,
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _timestamp,
        structlog.processors.StackInfoRenderer(),
    ]
    if not pretty:
        shared.append(structlog.processors.format_exc_info)
    shared.append(redact)
    renderer = _pretty_renderer(out) if pretty else _json_renderer(_in_journal(out))
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(out)
    # The root logger checks the level of a library's line before the line comes here.
    foreign = [_foreign_logger, *shared[1:]]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=foreign,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


class _Lossy:
    """A stream that drops output that it cannot write, so that a full disk for logs ends no process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def set_level(level: Level) -> None:
    """Change the lowest level that is logged; at once, for every logger."""
    global _threshold
    _threshold = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    # Libraries log each request at info, so their lines are logged from warning up, except at debug.
    root.setLevel(_threshold if _threshold <= logging.DEBUG else max(_threshold, logging.WARNING))


def redact(_logger: Any, _method: str, event: EventDict) -> EventDict:
    """Replace values that look like secrets, at any depth, and cut long text."""
    return {key: _safe(key, value) for key, value in event.items()}


def _safe(key: str, value: Any) -> Any:
    if (
        _SECRET_KEY.search(key)
        and not _HARMLESS_KEY.search(key)
        and not isinstance(value, bool | int | float)
    ):
        return REDACTED if value else value
    if isinstance(value, Mapping):
        return {str(inner): _safe(str(inner), item) for inner, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_safe(key, item) for item in value]
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        text = _SECRET_TEXT.sub(lambda found: found.group(1) + REDACTED, value)
        longest = LONGEST_TEXT if key not in {"exception", "stack"} else 16 * LONGEST_TEXT
        return text if len(text) <= longest else f"{text[:longest]}… ({len(text)} characters)"
    return value


def _below_threshold(_logger: Any, method: str, event: EventDict) -> EventDict:
    level = logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
    if level < _threshold:
        raise structlog.DropEvent
    return event


def _timestamp(_logger: Any, _method: str, event: EventDict) -> EventDict:
    # The clock is not injected: no decision depends on a log line, and libraries log before wiring.
    now = datetime.datetime.fromtimestamp(_CLOCK.now(), tz=datetime.UTC)
    event["ts"] = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _foreign_logger(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
        event["message"] = event["event"]
        event["event"] = "library.message"
    return event


def _json_renderer(journal: bool) -> Any:
    def render(_logger: Any, _method: str, event: EventDict) -> str:
        first = {key: event.pop(key) for key in ("ts", "level", "event") if key in event}
        line = json.dumps({**first, **event}, default=str, ensure_ascii=False, separators=(",", ":"))
        return f"<{_PRIORITY.get(first.get('level', 'info'), 6)}>{line}" if journal else line

    return render


def _pretty_renderer(out: TextIO) -> Any:
    colours = out.isatty() and not os.environ.get("NO_COLOR")
    return structlog.dev.ConsoleRenderer(
        colors=colours,
        timestamp_key="ts",
        sort_keys=False,
        # The default one shows the variables of each frame, which may hold secrets.
        exception_formatter=structlog.dev.plain_traceback,
    )


def _in_journal(out: TextIO) -> bool:
    """Whether ``out`` is the journal: systemd passes the journal's device and inode."""
    named = os.environ.get("JOURNAL_STREAM", "")
    if not named:
        return False
    try:
        found = os.fstat(out.fileno())
    except (OSError, ValueError):
        return False
    return named == f"{found.st_dev}:{found.st_ino}"
