"""What `farmctl rc explain` shows: every node, every reason, the parts of the score, the nearest miss."""

from __future__ import annotations

import json

from scheduler.decide import explanation
from scheduler.explain import document, rows, text
from scheduler.model import PodView
from store.manifests import Affinity
from tests.fleets import OWNER, fleet, node, request

VIEW = fleet(
    node("good", {"az": "a", "disk": "ssd"}),
    node("better", {"az": "a", "disk": "nvme"}),
    node("ours", {"az": "a"}, pods={"web": PodView(OWNER)}),
    node("wrong", {"az": "b"}, cordoned=True, lost=True),
    node("close", {"az": "b"}),
)
ASKED = request("az=a", affinity=[Affinity("disk", values=["nvme"], weight=10)])


def test_rows_show_the_ranked_then_the_placed_then_the_refused() -> None:
    shown = rows(explanation(ASKED, VIEW))
    assert [(row.node, row.state, row.rank) for row in shown] == [
        ("better", "eligible", 1),
        ("good", "eligible", 2),
        ("ours", "placed", 0),
        ("close", "refused", 0),
        ("wrong", "refused", 0),
    ]
    assert shown[0].parts == {"load": 20.0, "affinity:disk = nvme": 10.0}
    assert shown[0].score == 30.0
    assert [reason.split(":")[0] for reason in shown[4].reasons] == ["selector", "cordoned", "agent_lost"]
    assert [row.stays for row in shown] == [True, True, True, False, False]


def test_two_rules_with_one_name_add_up_in_the_table() -> None:
    asked = request(affinity=[Affinity("disk", values=["nvme"], weight=10)] * 2)
    row = rows(explanation(asked, VIEW))[0]
    assert sum(row.parts.values()) == row.score


def test_the_document_is_plain_json_and_names_the_nearest_miss() -> None:
    shown = json.loads(json.dumps(document(explanation(ASKED, VIEW))))
    assert shown["eligible"] == 2
    assert shown["nearest_miss"]["node"] == "close"
    assert len(shown["nodes"]) == 5


def test_the_text_tells_every_reason_of_every_node() -> None:
    lines = text(explanation(request("az=c"), VIEW))
    assert lines[0] == "0 of 5 nodes can take one more pod"
    assert sum("needs az=c" in line for line in lines[:-1]) == 5
    assert any("cordoned: closed to new pods" in line for line in lines)
    assert lines[-1] == "nearest miss: better: needs az=c, but az is 'a'"
