"""An address is told to people without what may be a secret in it, however wrong it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farmd.agent.runtimes.engine import Engine
from farmd.config.fields import shown
from farmd.kubernetes.access import access
from store.consul.environment import Address
from store.credentials import told
from store.errors import InputInvalid
from tests.kubeconfigs import kubeconfig
from tests.still_clock import StillClock


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://h:1/x", "http://h:1/x"),
        ("http://ada:s3cret@h/x?token=s3cret", "http://[hidden]@h/x?[hidden]"),
        ("http://ada:s3@cret@h/x", "http://[hidden]@h/x"),
        ("http://ada:s3/cret@h", "http://[hidden]@h"),
        ("http://ada:s3?cret@h", "http://[hidden]"),
        ("http://h/x?mail=a@s3cret", "http://[hidden]"),
        ("ada:s3cret@h:8500", "[hidden]@h:8500"),
        ("h:8500", "h:8500"),
        ("unix:///run/a@b.sock", "unix:///run/a@b.sock"),
    ],
)
def test_user_password_and_query_are_hidden(address: str, expected: str) -> None:
    assert told(address) == expected


@given(st.text(), st.text(), st.sampled_from(["", "http://", "https://", "tcp://"]))
def test_no_character_of_a_password_shows_the_rest_of_it(before: str, after: str, scheme: str) -> None:
    assert "s3cret" not in told(f"{scheme}ada:{before}s3cret{after}@host/path")


def test_all_that_tell_an_address_hide_it_by_this_rule(tmp_path: Path) -> None:
    bad = "http://ada:s3@cret/s3cret@h:port"
    found = [shown(bad), Engine(bad).told]
    for refused in (
        lambda: Address.from_environment({"CONSUL_HTTP_ADDR": bad}),
        lambda: asking(tmp_path, bad),
        lambda: asking(tmp_path, "https://ada:s3cret@h"),
    ):
        with pytest.raises(InputInvalid) as error:
            refused()
        found.append(error.value.message)
    assert all("[hidden]@h" in each and "cret" not in each for each in found), found


def asking(folder: Path, server: str) -> None:
    """Take a kubeconfig whose one context leads to that server."""
    path = folder / "kubeconfig"
    path.write_text(kubeconfig({"server": server}, {"token": "t"}))
    access({"KUBECONFIG": str(path)}, StillClock())
