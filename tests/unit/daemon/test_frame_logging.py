"""A log line is one JSON object, carries no secret, and the level can change at any time."""

from __future__ import annotations

import io
import json
import logging
import re

import pytest
import structlog

from farmd.observe import logging as logs
from tests import logs as logs_of_tests


@pytest.fixture
def out():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    yield stream
    logs_of_tests.configure()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_one_object_with_time_level_and_event(out):
    structlog.get_logger().info("session.lost", session="abc", count=2)
    (line,) = lines(out)
    assert line["event"] == "session.lost"
    assert line["level"] == "info"
    assert line["session"] == "abc"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "hunter2"},
        {"consul_token": "hunter2"},
        {"headers": {"X-Consul-Token": "hunter2"}},
        {"items": [{"password": "hunter2"}]},
        {"error": "GET /v1/kv?token=hunter2&x=1 failed"},
        {"error": "sent Authorization: hunter2"},
        {"error": "sent Bearer hunter2"},
        {"body": b"hunter2"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_no_secret_reaches_a_line(out, fields):
    structlog.get_logger().warning("probe", **fields)
    assert "hunter2" not in out.getvalue()


def test_the_path_of_a_secret_is_shown(out):
    structlog.get_logger().info("config.loaded", token_file="/etc/farmd/token")
    assert lines(out)[0]["token_file"] == "/etc/farmd/token"


def test_long_text_is_cut(out):
    structlog.get_logger().info("probe", text="x" * 10_000)
    assert len(lines(out)[0]["text"]) < 300


def test_the_level_changes_for_loggers_bound_before(out):
    bound = structlog.get_logger().bind(kind="rc")
    bound.debug("hidden")
    logs.set_level("debug")
    bound.debug("shown")
    logs.set_level("error")
    bound.warning("hidden")
    assert [line["event"] for line in lines(out)] == ["shown"]


def test_an_exception_is_one_line_with_its_trace(out):
    try:
        raise ValueError("boom")
    except ValueError:
        structlog.get_logger().exception("worker.crashed")
    (line,) = lines(out)
    assert line["level"] == "error"
    assert "ValueError: boom" in line["exception"]


def test_lines_of_libraries_take_the_same_form(out):
    logging.getLogger("asyncio").warning("slow callback %s", 3)
    logging.getLogger("aiohttp.access").info("GET /")
    (line,) = lines(out)
    assert line["event"] == "library.message"
    assert line["message"] == "slow callback 3"
    assert line["logger"] == "asyncio"


def test_in_the_journal_a_line_starts_with_its_priority(tmp_path, monkeypatch):
    with (tmp_path / "journal").open("w+") as stream:
        import os

        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        logs.configure("info", "json", stream)
        try:
            structlog.get_logger().error("session.lost")
        finally:
            logs_of_tests.configure()
            logging.getLogger().handlers.clear()
        assert (tmp_path / "journal").read_text().startswith('<3>{"ts":')


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_a_traceback_shows_no_values_of_variables(out, form):
    logs.configure("info", form, stream := io.StringIO())
    value = "".join(("hunt", "er2"))
    try:
        raise RuntimeError(f"{len(value)} characters")
    except RuntimeError:
        structlog.get_logger().exception("probe")
    assert "7 characters" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
