"""R25: hours go only behind a checkpoint, and replay from it gives the pods tree at any moment."""

from __future__ import annotations

import json

import pytest

from farmd.farm.errors import ClaimLost
from store import checkpoint, codec
from store.audit import AuditReader, Filter, utc_hour
from store.checkpoint import Checkpoint, replayed
from store.errors import NotRegistered, OutcomeUnknown, RecordInvalid, StoreError
from store.keys import is_sentinel
from store.ports import Request, Response
from tests.house import HOUR, House, house

OWNER, OTHER = "ab01", "cd02"
KEEP = {"audit_retention": 2 * HOUR}


async def history(home: House) -> None:
    """Pods come and go over five hours."""
    await home.change_pods(OWNER, placed=["n1/hello", "n2/hello"])
    await home.clock.advance(HOUR)
    await home.change_pods(OTHER, placed=["n1/other"])
    await home.change_pods(OWNER, placed=["n3/hello"], removed=["n1/hello"])
    await home.clock.advance(4 * HOUR)
    await home.change_pods(OWNER, placed=["n4/hello"], removed=["n2/hello"])


async def replay_is_true(home: House) -> checkpoint.Replay:
    found = await replayed(home.client, home.keys)
    assert found.pods == await home.pods()
    return found


async def test_w22_r25_old_hours_go_and_replay_starts_from_the_checkpoint() -> None:
    async with house(**KEEP) as home:
        await history(home)
        assert (await replay_is_true(home)).checkpoint is None
        await home.pruning().round()
        now = utc_hour(home.clock.now())
        assert {key.split("/")[0] for key in await home.audit_keys()} == {"checkpoint", now}
        found = await replay_is_true(home)
        assert found.checkpoint is not None
        assert (found.checkpoint.pods, found.checkpoint.hour) == (3, now)
        await home.change_pods(OWNER, placed=["n1/hello"], removed=["n4/hello"])
        await replay_is_true(home)


async def test_r25_whole_hours_within_the_retention_stay() -> None:
    async with house(audit_retention=5 * HOUR) as home:
        await history(home)
        await home.pruning().round()
        assert len(await AuditReader(home.client, home.keys).hours()) == 3
        await home.clock.advance(HOUR)
        await home.pruning().round()
        assert len(await AuditReader(home.client, home.keys).hours()) == 3  # one went, the checkpoint's came


async def test_nothing_old_means_nothing_written() -> None:
    async with house(**KEEP) as home:
        await home.change_pods(OWNER, placed=["n1/hello"])
        before = await home.audit_keys()
        await home.pruning().round()
        assert await home.audit_keys() == before


async def test_an_idle_fleet_writes_one_checkpoint_and_then_nothing() -> None:
    async with house(**KEEP) as home:
        await history(home)
        for _ in range(4):
            await home.clock.advance(10 * HOUR)
            await home.pruning().round()
            await replay_is_true(home)
        last = await home.audit_keys()
        await home.clock.advance(100 * HOUR)
        await home.pruning().round()
        assert await home.audit_keys() == last
        assert home.recorder.counts["farmd_housekeeping_total", "checkpoint"] == 1


async def test_an_older_checkpoint_goes_with_the_switch_to_the_new_one() -> None:
    async with house(**KEEP) as home:
        for _ in range(6):
            await home.change_pods(OWNER, placed=[f"n{home.clock.now():.0f}/hello"])
            await home.pruning().round()
            await replay_is_true(home)
            begun = [key for key in await home.audit_keys() if key.endswith("/begin")]
            assert len(begun) <= 1
            await home.clock.advance(HOUR)


async def test_the_log_shows_records_and_never_parts_of_checkpoints() -> None:
    async with house(**KEEP) as home:
        await history(home)
        await home.pruning().round()
        reader = AuditReader(home.client, home.keys)
        (record,) = await reader.read(Filter(), 10)
        assert record.placed == ["n4/hello"]
        assert reader.broken == []


async def test_parts_are_small_and_all_pods_are_in_them() -> None:
    async with house(**KEEP) as home:
        places = [f"node-with-a-long-name-{number:04}/hello" for number in range(60)]
        for start in range(40):
            await home.change_pods(f"{start:016x}", placed=places)
        await home.clock.advance(5 * HOUR)
        assert home.faulty is not None
        home.faulty.sent.clear()
        await home.pruning().round()
        found = await replay_is_true(home)
        assert found.checkpoint is not None
        assert found.checkpoint.pods == 2400
        assert found.checkpoint.chunks > 1
        assert max(len(request.body) for request in home.faulty.sent) < 64 * 1024


async def test_r25_replay_is_by_index_whatever_the_clocks_say() -> None:
    async with house(**KEEP) as home:
        now = home.clock.now()
        await home.change_pods(OWNER, placed=["n1/hello"], at=now + 40 * HOUR)
        await home.change_pods(OWNER, removed=["n1/hello"], at=now - 40 * HOUR)
        await home.change_pods(OWNER, placed=["n2/hello"], at=now)
        assert (await replay_is_true(home)).checkpoint is None
        await home.pruning().round()
        assert (await replay_is_true(home)).checkpoint is not None


async def test_r25_an_hour_with_records_newer_than_the_checkpoint_stays() -> None:
    async with house(**KEEP) as home:
        await history(home)
        late = home.clock.now() - 5 * HOUR
        assert home.faulty is not None

        async def a_slow_clock_writes(request: Request) -> None:
            if request.path == "/v1/txn" and b"/audit/checkpoint" in _plain(request):
                home.faulty.before = None  # type: ignore[union-attr]
                await home.change_pods(OWNER, placed=["n9/hello"], at=late)

        home.faulty.before = a_slow_clock_writes
        await home.pruning().round()
        assert utc_hour(late) in await AuditReader(home.client, home.keys).hours()
        await replay_is_true(home)
        await home.pruning().round()
        assert utc_hour(late) not in await AuditReader(home.client, home.keys).hours()
        await replay_is_true(home)


def _plain(request: Request) -> bytes:
    return b" ".join(f"/{item['KV']['Key']}".encode() for item in json.loads(request.body))


async def requests_of_a_round() -> int:
    async with house(**KEEP) as home:
        await history(home)
        assert home.faulty is not None
        home.faulty.sent.clear()
        await home.pruning().round()
        return len(home.faulty.sent)


async def test_r25_changes_at_any_moment_of_a_round_are_replayed_once() -> None:
    steps = await requests_of_a_round()
    assert steps > 20
    for step in range(steps):
        async with house(**KEEP) as home:
            await history(home)
            await _at(home, step, change=True)
            await home.pruning().round()
            found = await replay_is_true(home)
            assert {pod.node for pod in found.pods if pod.owner == OWNER} == {"n3", "n5"}
            assert found.checkpoint is not None


async def _at(home: House, step: int, *, change: bool = False, lost: Exception | None = None) -> None:
    assert home.faulty is not None
    left = step + 1

    async def before(_: Request) -> None:
        nonlocal left
        left -= 1
        if left == 0 and change:
            await home.change_pods(OWNER, placed=["n5/hello"], removed=["n4/hello"])

    async def after(request: Request, _: Response) -> None:
        if left == 0 and lost is not None and request.method == "PUT":
            raise lost

    home.faulty.before, home.faulty.after = before, after


async def test_r25_after_a_lost_answer_at_any_moment_replay_is_true_and_the_next_round_ends_the_work() -> (
    None
):
    for step in range(await requests_of_a_round()):
        async with house(**KEEP) as home:
            await history(home)
            await _at(home, step, lost=OutcomeUnknown("cut"))
            try:
                await home.pruning().round()
            except StoreError:
                await replay_is_true(home)
            assert home.faulty is not None
            home.faulty.before = home.faulty.after = None
            await home.pruning().round()
            await replay_is_true(home)
            assert len(await AuditReader(home.client, home.keys).hours()) == 1
            assert sum(key.endswith("/begin") for key in await home.audit_keys()) == 1


async def test_r25_death_at_any_moment_leaves_a_true_replay() -> None:
    class Killed(BaseException):
        """As SIGKILL: nothing runs after it."""

    for step in range(await requests_of_a_round()):
        async with house(**KEEP) as home:
            await history(home)
            await home.change_pods(OWNER, placed=["n5/hello"])
            assert home.faulty is not None
            left = step

            async def before(_: Request) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Killed

            home.faulty.before = before
            with pytest.raises(Killed):
                await home.pruning().round()
            await replay_is_true(home)


@pytest.mark.parametrize("shard", ["pods/0", "pods/f"])
async def test_r20_without_a_sentinel_there_is_no_checkpoint_and_no_pruning(shard: str) -> None:
    async with house(**KEEP) as home:
        await history(home)
        before = await home.audit_keys()
        await home.client.delete(home.keys.sentinel(home.keys.prefix + shard))
        with pytest.raises(NotRegistered):
            await home.pruning().round()
        assert await home.audit_keys() == before


async def test_r12_a_lost_claim_prunes_nothing() -> None:
    async with house(**KEEP) as home:
        await history(home)
        before = await home.audit_keys()
        await home.client.delete(home.claim.key)
        with pytest.raises(ClaimLost):
            await home.pruning().round()
        assert await home.audit_keys() == before


async def test_keys_that_are_no_hours_are_left_alone() -> None:
    async with house(**KEEP) as home:
        await history(home)
        await home.client.put(home.keys.audit("0000-notes", "mine"), b"{}")
        await home.pruning().round()
        assert "0000-notes/mine" in await home.audit_keys()


async def test_a_checkpoint_with_a_part_missing_is_told_and_never_taken_for_less_pods() -> None:
    async with house(**KEEP) as home:
        await history(home)
        await home.pruning().round()
        entry = await home.client.read(home.keys.checkpoint)
        assert entry is not None
        made = codec.decode(Checkpoint, entry.value, entry.key)
        await home.client.delete(home.keys.checkpoint_chunk(made.hour, made.id, 0))
        with pytest.raises(RecordInvalid, match="missing, expected 1 parts"):
            await replayed(home.client, home.keys)


def test_a_checkpoint_lies_under_audit_and_is_no_sentinel() -> None:
    assert not is_sentinel("farmd/audit/checkpoint")
