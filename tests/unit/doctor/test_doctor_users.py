"""The doctor names programs that an earlier version of the agent started as a user who starts none now."""

from __future__ import annotations

from farmd.doctor import security
from farmd.doctor.survey import survey
from store import codec
from store.reality import Reality
from tests.people import KEYS, person


async def test_a_pod_that_keeps_its_user_is_a_finding() -> None:
    async with person() as call:
        for instance, user in (("old", "root"), ("new", "")):
            told = Reality(manifest="a" * 64, old_user=user)
            await call.client.put(KEYS.reality("n1", instance), codec.encode(told))
        (found,) = security.check_users(await survey(call.client, KEYS, call.clock))
    assert (found.code, found.object) == ("old-user", KEYS.reality("n1", "old").removeprefix(KEYS.prefix))
    assert found.explanation.startswith("old on n1 runs as root: ")
