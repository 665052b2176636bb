"""Jobs: the limits of a record."""

from __future__ import annotations

import msgspec
import pytest

from store import codec
from store.errors import InputInvalid
from store.jobs import Job, Rule, Run, SlotRun, Success, Type, check

WORKER = Type(name="worker", manifest="a" * 64, replicas=2)


def job(**fields: object) -> Job:
    return Job(**{"id": "0a", "name": "bert", "types": [WORKER], **fields})  # type: ignore[arg-type]


def worker(**fields: object) -> list[Type]:
    return [msgspec.structs.replace(WORKER, **fields)]


def test_a_run_survives_the_store() -> None:
    run = Run(attempt=1, slots={"worker": {"3": SlotRun(2, 5.0)}}, done={"worker": "0-1"}, outcome="failed")
    assert codec.decode(Run, codec.encode(run), "runs/0a") == run


@pytest.mark.parametrize(
    "good",
    [
        job(),
        job(types=worker(replicas=100_000, parallelism=200)),
        job(gang=True, peers=True),
        job(rules=[Rule(action="ignore", exit_codes=[42, -9], reasons=["lost"], types=["worker"])]),
        job(success=Success(operator="any", types=["worker"]), active_deadline=None, ttl=None),
    ],
)
def test_a_job_within_its_limits(good: Job) -> None:
    check(good, "bert.yaml")


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (job(name="b" * 41), "name: found 41 characters, expected at most 40"),
        (job(types=[]), "types: found 0, expected 1 to 16 types"),
        (job(types=[WORKER] * 17), "types: found 17, expected 1 to 16 types"),
        (
            job(types=[WORKER, *worker()]),
            "types[1].name: found 'worker' again, expected each name once",
        ),
        (
            job(types=worker(name="w" * 31)),
            "types[0].name: found 31 characters, expected at most 16 beside job 'bert'",
        ),
        (job(types=worker(replicas=-1)), "types[0].replicas: found -1, expected 0 to 5000"),
        (job(types=worker(replicas=5001)), "types[0].replicas: found 5001, expected 0 to 5000"),
        (
            job(types=worker(replicas=100_001, parallelism=9)),
            "types[0].replicas: found 100001, expected 0 to 100000",
        ),
        (job(types=worker(parallelism=-1)), "types[0].parallelism: found -1, expected 0 to 5000"),
        (
            job(gang=True, types=worker(parallelism=1)),
            "types[0].parallelism: found 1, expected 0: all members of a gang run together",
        ),
        (job(peers=True), "peers: found true without a gang, expected gang: true beside it"),
        (
            job(gang=True, peers=True, types=[*worker(replicas=5000), *worker(name="chief")]),
            "peers: found 5002 members, expected at most 5000",
        ),
        (job(backoff_limit=-1), "backoff_limit: found -1, expected 0 to 100000"),
        (job(active_deadline=-3.0), "active_deadline: found -3, expected 1 to 2678400 seconds"),
        (job(ttl=-1.0), "ttl: found -1, expected 0 to 2678400 seconds"),
        (job(gang_timeout=0.0), "gang_timeout: found 0, expected 1 to 2678400 seconds"),
        (
            job(success=Success(types=["chief"])),
            "success.types: found 'chief', expected one of the job's types: worker",
        ),
        (job(rules=[Rule(action="ignore")] * 9), "rules: found 9, expected 0 to 8 rules"),
        (
            job(rules=[Rule(action="ignore", types=["ps"])]),
            "rules[0].types: found 'ps', expected one of the job's types: worker",
        ),
        (
            job(rules=[Rule(action="ignore", exit_codes=[256])]),
            "rules[0].exit_codes: found 256, expected -64 to 255 as an exit code, or minus a signal",
        ),
        (
            job(rules=[Rule(action="ignore", reasons=["moon"])]),
            "rules[0].reasons: found 'moon', expected 'lost' or 'oom'",
        ),
    ],
)
def test_a_job_beyond_a_limit_is_one_line_that_names_the_field(bad: Job, line: str) -> None:
    with pytest.raises(InputInvalid) as caught:
        check(bad, "bert.yaml")
    assert str(caught.value).endswith(f"bert.yaml: {line}")
