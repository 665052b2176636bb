"""The agent's error tree: stable codes, one clear line each.

``StartFailed`` concerns one pod: it becomes the pod's reason, and the start is retried with backoff.
``StateLocked``, ``StateInvalid`` and ``NodeTaken`` end the agent, but no workload (R27).
"""

from __future__ import annotations

from typing import Any, ClassVar

from store.errors import Retry


class AgentError(Exception):
    """Root of all errors of the agent; ``fields`` hold the details for logs and JSON output."""

    code: ClassVar[str] = "agent_error"
    retry: ClassVar[Retry] = Retry.NEVER

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields


class StateLocked(AgentError):
    """Another agent uses this state directory (R26)."""

    code = "state_locked"


class StateInvalid(AgentError):
    """The state directory belongs to another node, or cannot be used."""

    code = "state_invalid"


class NodeTaken(AgentError):
    """A live agent elsewhere holds the presence of this node."""

    code = "node_taken"


class ForeignCluster(AgentError):
    """The store holds another cluster than the one that this node's workloads belong to (R20)."""

    code = "foreign_cluster"
    retry = Retry.BACKOFF


class ManifestUnusable(AgentError):
    """A manifest is missing, does not match its digest, does not decode or cannot run on this node."""

    code = "manifest_unusable"
    retry = Retry.BACKOFF


class StartFailed(AgentError):
    """A workload could not be started; the message becomes the pod's reason."""

    code = "start_failed"
    retry = Retry.BACKOFF


class NotRemoved(AgentError):
    """What a workload left cannot be removed."""

    code = "not_removed"
    retry = Retry.BACKOFF


class StateUnsaved(StartFailed):
    """The state directory cannot be written, so a started process could not be found again (R26)."""

    code = "state_unsaved"
