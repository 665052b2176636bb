"""As whom a node runs programs, and whom it refuses."""

from __future__ import annotations

import os
import pwd

import pytest

from farmd.agent.errors import StartFailed
from farmd.agent.users import Users
from farmd.config.agent import AgentSection
from store.manifests import Manifest

ME = pwd.getpwuid(os.geteuid()).pw_name
AGENT_UID = 4242


def of(users: Users, user: str = "", *, kept: bool = False) -> str:
    return users.of(Manifest(id="web", user=user), kept=kept).name


def refusal(users: Users, user: str = "") -> str:
    with pytest.raises(StartFailed) as told:
        of(users, user)
    return told.value.message


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def as_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: AGENT_UID)


@pytest.mark.usefixtures("as_root")
def test_an_agent_that_is_root_runs_nothing_as_root_unless_its_node_says_so() -> None:
    users = Users(default="nobody")
    assert (of(users), of(users, "daemon")) == ("nobody", "daemon")
    assert refusal(users, "root") == "user: found 'root', but agent.allow of this node does not list 'root'"
    assert of(Users(default="nobody", allow=("root",)), "root") == "root"
    assert (of(Users(share=True)), of(users, kept=True)) == ("root", "root")


@pytest.mark.usefixtures("as_root")
def test_a_default_that_the_node_does_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farmd.agent.users.DEFAULT", "no-such-user")
    told = "agent.user: found 'no-such-user', expected a user that exists on this node"
    assert refusal(Users()) == told == Users().lacks_processes()


@pytest.mark.usefixtures("as_root")
def test_users_and_members_of_groups_that_are_denied() -> None:
    group = os.getgrouplist("daemon", pwd.getpwnam("daemon").pw_gid)
    assert group
    users = Users(default="nobody", deny=("bi*", "@daemon"))
    assert refusal(users, "bin") == "user: found 'bin', which agent.deny_users of this node denies (bi*)"
    assert refusal(users, "daemon").endswith("(@daemon)")
    assert of(users, "nobody") == "nobody"


@pytest.mark.usefixtures("as_root")
def test_nothing_runs_as_a_farm_of_the_same_node(monkeypatch: pytest.MonkeyPatch) -> None:
    farm = pwd.struct_passwd(("farmd", "x", 61234, 61234, "", "/", "/usr/sbin/nologin"))
    monkeypatch.setattr(pwd, "getpwnam", lambda _: farm)
    assert refusal(Users(deny=tuple(AgentSection().deny_users)), "farmd").endswith("denies (farmd)")


@pytest.mark.usefixtures("as_other")
def test_an_agent_that_is_not_root_runs_nothing_as_itself_unless_its_node_says_so() -> None:
    assert refusal(Users()).startswith("agent.share_user: this agent runs as uid 4242 and cannot start")
    assert (of(Users(share=True)), of(Users(), kept=True)) == (str(AGENT_UID), str(AGENT_UID))
    assert "only an agent that runs as root" in refusal(Users(share=True), "nobody")


def test_a_node_may_run_no_processes() -> None:
    assert Users(allow=("/srv",)).lacks_processes() == "agent.allow: this node does not allow processes"
    assert Users(share=True).lacks_processes() == ""


def test_an_unknown_user_is_named() -> None:
    told = "user: found 'nobody-here', expected a user that exists on this node"
    assert refusal(Users(share=True), "nobody-here") == told


def test_the_agents_own_user_needs_no_change() -> None:
    assert not Users(share=True).of(Manifest(id="web", user=ME)).other


@pytest.mark.parametrize("name", ["a\0b", "9" * 5000, "1" * 30, "nobody-of-that-name"])
def test_a_user_that_no_node_can_have_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(
        StartFailed, match=r"user: found .* expected a user that exists on this node"
    ) as refused:
        Users().of(Manifest(id="web", user=name))
    assert len(refused.value.message) < 200
