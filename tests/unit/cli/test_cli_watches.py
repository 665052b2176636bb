"""What is watched goes on while Consul, or an API server, is away for a moment."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from farmd.cli import rollout_knative
from farmd.cli.cluster import Place
from farmd.cli.invocation import Invocation
from farmd.cli.rollout_show import changes
from farmd.cli.settings import Settings
from farmd.kubernetes import errors
from store.errors import NotFound, StoreUnavailable
from tests.people import person


def next_of(answers: Iterator[Any]) -> Any:
    answer = next(answers)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_a_status_that_is_watched_goes_on_while_the_store_is_away(
    capsys: pytest.CaptureFixture[str],
) -> None:
    away = [StoreUnavailable("no leader"), StoreUnavailable("no leader")]
    answers = iter([["1 s", "moving"], *away, ["9 s", "moving"], ["10 s", "baking"], NotFound("over")])

    async def told() -> list[str]:
        found: list[str] = next_of(answers)
        return found

    async with person() as call:
        with pytest.raises(NotFound):
            await changes(Invocation(Settings(), call), told)
    said = capsys.readouterr()
    assert said.out == "1 s\nmoving\n10 s\nbaking\n"
    assert said.err == "farmctl: no leader; trying again\n"


async def test_a_service_that_is_watched_goes_on_while_its_api_server_is_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([["", "moving"], errors.Unavailable("no answer"), ["", "done"], NotFound("gone")])

    class There:
        async def seen(self, *_: object) -> Any:
            return next_of(answers)

    @asynccontextmanager
    async def there(*_: object) -> AsyncIterator[There]:
        yield There()

    monkeypatch.setattr(rollout_knative, "_there", there)
    monkeypatch.setattr(rollout_knative.view, "lines", lambda seen, _: seen)
    async with person() as call:
        with pytest.raises(NotFound):
            await rollout_knative.status(Invocation(Settings(watch=True), call), Place(), "ksvc/shop/web")
    said = capsys.readouterr()
    assert said.out == "\nmoving\n\ndone\n"
    assert said.err == "farmctl: no answer; trying again\n"
