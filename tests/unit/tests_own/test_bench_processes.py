"""The pipes between a row of the bench and its children. Run as a program, this file is such a child."""

from __future__ import annotations

import sys
import threading
from collections import Counter

import pytest

from bench.processes import Child, tell

THREADS, EACH = 4, 50
LONG = "x" * 20_000
"""Longer than what a pipe takes in one piece."""


def chatter() -> None:
    """Tell long events from several threads while a log on stdout writes its lines in pieces."""

    def speak() -> None:
        for _ in range(EACH):
            tell("spoke", text=LONG)

    threads = [threading.Thread(target=speak) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in range(EACH):
        print('{"event": "log", "at": 1}', flush=True)
    for thread in threads:
        thread.join()
    tell("done")
    sys.stdin.read()


async def test_what_threads_tell_beside_a_log_arrives_whole() -> None:
    child = Child(__name__, ["chatter"])
    try:
        await child.heard("bench.done", 30)
        await child.until(
            lambda: Counter(each["event"] for each in child.events)["log"] == EACH, 30, "the log"
        )
        assert [each["text"] == LONG for each in child.events if each["event"] == "bench.spoke"] == [True] * (
            THREADS * EACH
        )
    finally:
        await child.end(kill=True)


async def test_a_line_that_is_no_json_is_the_error_at_once() -> None:
    child = Child(__name__, ["broken"])
    with pytest.raises(ValueError, match="Expecting value"):
        await child.heard("bench.never", 30)
    with pytest.raises(ValueError, match="Expecting value"):
        await child.end(kill=True)


if __name__ == "__main__":
    if sys.argv[1] == "chatter":
        chatter()
    else:
        print("no JSON", flush=True)
        sys.stdin.read()
