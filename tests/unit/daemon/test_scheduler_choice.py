"""Who chooses nodes is a matter of configuration; a dead remote scheduler does what was chosen for that."""

import aiohttp
import pytest

from farmd.config.sections import SchedulerSection
from farmd.config.sources import ConfigInvalid, load
from farmd.process.farm_service import choose_scheduler
from farmd.runtime.clock import SystemClock
from scheduler.errors import SchedulerError
from tests.credentials import BAD, spoil
from tests.fleets import fleet, node, request
from tests.ports import free_ports


async def chosen(**section: object) -> list[str]:
    async with aiohttp.ClientSession() as http:
        scheduler = choose_scheduler(SchedulerSection(**section), SystemClock(), http)
        answer = await scheduler.allocate_nodes(request(), 1, fleet(node("n1")))
        return [place.node for place in answer.assignments]


def nobody() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


async def test_without_an_address_the_built_in_scheduler_chooses():
    assert await chosen() == ["n1"]


async def test_while_a_remote_one_is_dead_the_built_in_one_chooses():
    assert await chosen(url=nobody()) == ["n1"]


async def test_a_dead_remote_one_blocks_where_that_was_chosen():
    with pytest.raises(SchedulerError, match="remote scheduler: "):
        await chosen(url=nobody(), fallback="block")


@pytest.mark.parametrize("how", BAD)
async def test_a_token_file_that_is_not_good_counts_as_no_answer(tmp_path, how):
    spoil(tmp_path / "token", how)
    with pytest.raises(SchedulerError, match=r"scheduler\.token_file: found "):
        await chosen(url=nobody(), fallback="block", token_file=str(tmp_path / "token"))


@pytest.mark.parametrize("url", ["scheduler", "ftp://host", "http://", "http://host?query=1"])
def test_an_address_that_is_none_is_refused(url: str):
    with pytest.raises(ConfigInvalid, match="expected http"):
        load(None, {}, {"scheduler": {"url": url}})
