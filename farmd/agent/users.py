"""As whom a workload runs on this node, and whom the node refuses to run one as.

A program of the node (a process or a unit) can do what its user can do, so it must not be the user who holds
the agent's credentials and state unless the node's administrator says so.
"""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from farmd.agent.errors import StartFailed
from store.features import NEW_PRIVILEGES, PROCESSES, ROOT
from store.manifests import Manifest
from store.mistakes import shown

DEFAULT = "farmd-pods"


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this node; one that has no entry has its number for a name."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]

    @property
    def other(self) -> bool:
        """Whether it is another user than the agent's own."""
        return self.uid != os.geteuid()


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """The settings of the node: ``default`` is ``agent.user``, ``share`` is ``agent.share_user``."""

    default: str = ""
    share: bool = False
    allow: tuple[str, ...] = (PROCESSES,)
    deny: tuple[str, ...] = ()

    def of(self, manifest: Manifest, *, kept: bool = False) -> Account:
        """As whom a workload starts; one that is ``kept`` as before there were these settings.

        Raises:
            StartFailed: the node has no such user, does not run workloads as it, or its agent cannot.
        """
        if kept:
            found = _named(manifest.user) if manifest.user else _own()
        else:
            found = self._default() if not manifest.user else _named(manifest.user)
            self._require_permitted(found)
        if found.other and os.geteuid() != 0:
            raise _refused(
                f"found {found.name!r}, but only an agent that runs as root can start workloads as another"
                f" user (this one runs as uid {os.geteuid()})"
            )
        return found

    def running(self, name: str, manifest: Manifest) -> Account:
        """As whom a workload was started; without ``name`` an earlier version of the agent started it.

        Raises:
            StartFailed: the node has this user no more.
        """
        return self.of(manifest, kept=True) if not name else _named(name)

    def outdated(self, manifest: Manifest) -> str:
        """As whom a workload ran before there were these settings, if it would not run as that user now."""
        try:
            before = self.of(manifest, kept=True)
        except StartFailed:
            return ""  # the node has this user no more
        try:
            return before.name if self.of(manifest) != before else ""
        except StartFailed:
            return before.name

    @property
    def new_privileges(self) -> bool:
        """Whether a workload may gain privileges, as by programs with the set-user-ID bit."""
        return NEW_PRIVILEGES in self.allow

    def features(self) -> list[str]:
        """What the node's presence says of them (R11)."""
        return [f"allow.{ROOT}"] if ROOT in self.allow else []

    def require_processes(self) -> None:
        """Refuse processes on a node that runs none.

        Raises:
            StartFailed: this is such a node.
        """
        if PROCESSES not in self.allow:
            raise StartFailed(f"agent.allow: this node does not allow {PROCESSES}", field="agent.allow")

    def lacks_processes(self) -> str:
        """Why this node runs no processes whose manifests name no user; empty: it does."""
        try:
            self.require_processes()
            self.of(Manifest(id="any"))
        except StartFailed as error:
            return error.message
        return ""

    def _default(self) -> Account:
        if self.default:
            return _named(self.default, "agent.user")
        if self.share:
            return _own()
        if os.geteuid() == 0:
            return _named(DEFAULT, "agent.user")
        raise StartFailed(
            f"agent.share_user: this agent runs as uid {os.geteuid()} and cannot start workloads as another"
            " user: run the agent as root, or set agent.share_user = true where workloads may read its"
            " credentials",
            field="agent.share_user",
        )

    def _require_permitted(self, found: Account) -> None:
        if not found.other and self.share:
            return
        if found.uid == 0 and ROOT not in self.allow:
            raise _refused(f"found {found.name!r}, but agent.allow of this node does not list {ROOT!r}")
        if not found.other and found.uid != 0:
            raise _refused(
                f"found {found.name!r}, which is the agent's own user: agent.share_user of this node is false"
            )
        if found.uid != 0 and (entry := next(self._denied(found), "")):
            raise _refused(f"found {found.name!r}, which agent.deny_users of this node denies ({entry})")

    def _denied(self, found: Account) -> Iterator[str]:
        """The entries of ``agent.deny_users`` that match."""
        groups = {_group(gid) for gid in (found.gid, *found.groups)}
        for entry in self.deny:
            if entry[1:] in groups if entry.startswith("@") else fnmatchcase(found.name, entry):
                yield entry


def _refused(why: str) -> StartFailed:
    return StartFailed(f"user: {why}", field="user")


def _named(name: str, field: str = "user") -> Account:
    try:
        found = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    except (KeyError, ValueError, OverflowError) as error:  # ValueError: a NUL, or thousands of digits
        if name == str(os.geteuid()):
            return _own()
        raise StartFailed(
            f"{field}: found {shown(name)}, expected a user that exists on this node", field=field
        ) from error
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return Account(found.pw_name, found.pw_uid, found.pw_gid, groups)


def _own() -> Account:
    """The agent's own user, with the groups that the agent has."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        name = str(os.geteuid())
    return Account(name, os.geteuid(), os.getegid(), tuple(os.getgroups()))


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
