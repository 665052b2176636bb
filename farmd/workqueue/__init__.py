"""The queue of jobs in Kubernetes: one worker a key, rate-limited retries (client-go's ``workqueue``)."""

from farmd.workqueue.queue import WorkQueue

__all__ = ["WorkQueue"]
