"""What PyTorchJob and TFJob say of training itself: elastic workers, processes on a node, dynamic workers.

Each field is obeyed as Kubeflow's training operator obeys it, or refused by its name: a job that trains
otherwise than its file says is worse than one that does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from store.errors import InputInvalid, refuse
from store.jobs import Success
from store.mistakes import shown

Number = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]
WORKER = "Worker"
_WORDS = ("auto", "cpu", "gpu")


class _Camel(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Conf(_Camel, frozen=True):
    """One setting of the rendezvous."""

    key: str
    value: str = ""


class ElasticPolicy(_Camel, frozen=True):
    """Workers that come and go while the others train; ``torchrun`` brings them together."""

    min_replicas: Number | None = None
    max_replicas: Number | None = None
    rdzv_backend: Literal["c10d", "etcd", "etcd-v2"] = "c10d"
    rdzv_port: Number | None = None
    rdzv_host: str = ""
    rdzv_id: str = ""
    rdzv_conf: list[Conf] = []
    standalone: bool = False
    n_proc_per_node: Number | None = None
    max_restarts: Count | None = None
    metrics: list[Any] = []


class Training(_Camel, frozen=True):
    """The fields of all kinds; which of them a kind has is said in its file."""

    elastic_policy: ElasticPolicy | None = None
    nproc_per_node: str | int | None = None
    enable_dynamic_worker: bool = False

    @property
    def processes(self) -> str:
        """How many processes a node runs, as ``torchrun`` is told."""
        own = None if self.elastic_policy is None else self.elastic_policy.n_proc_per_node
        return str(self.nproc_per_node or own or "auto")

    @property
    def factor(self) -> int:
        """How many ranks a node counts for; a word for the number is known on the node alone."""
        text = str(self.nproc_per_node)
        return int(text) if text.isdecimal() else 1


ORDINARY = Training()
FIELDS = {"elasticPolicy", "nprocPerNode", "enableDynamicWorker"}


def check(found: Training, spec: Mapping[str, Any], known: tuple[str, ...], title: str, workers: int) -> None:
    """Refuse what the kind has not, and what cannot be obeyed; ``workers``: how many slots Worker has.

    Raises:
        InputInvalid: one line that names the field.
    """
    for name in sorted(FIELDS & spec.keys() - set(known)):
        refuse(f"spec.{name}", shown(spec[name]), f"none: a {title} has no such field", field=f"spec.{name}")
    given = found.nproc_per_node
    if given is not None and given not in _WORDS and not (str(given).isdecimal() and int(given) > 0):
        refuse("spec.nprocPerNode", shown(given), "auto, cpu, gpu or a number above 0")
    if (elastic := found.elastic_policy) is not None:
        _check(elastic, given, workers)


def _check(elastic: ElasticPolicy, given: str | int | None, workers: int) -> None:
    where = "spec.elasticPolicy"
    if not workers:
        refuse(where, "no Worker with a replica", "some: only workers can be scaled")
    if given is not None and elastic.n_proc_per_node is not None:
        refuse(f"{where}.nProcPerNode", shown(elastic.n_proc_per_node), "none beside spec.nprocPerNode")
    least, most = bounds(elastic, workers)
    if least > most:
        refuse(f"{where}.minReplicas", shown(least), f"at most maxReplicas, {most}")
    if elastic.metrics:
        told = "none: your own HorizontalPodAutoscaler may target the job, which has a scale subresource"
        raise InputInvalid(f"{where}.metrics: found {len(elastic.metrics)}, expected {told}", field=where)


def bounds(elastic: ElasticPolicy, workers: int) -> tuple[int, int]:
    """The least and the most workers; one that is not given is the other, or what the job has."""
    least = elastic.min_replicas or elastic.max_replicas or workers
    return least, elastic.max_replicas or elastic.min_replicas or workers


def any_worker(found: Training, names: list[str]) -> Success | None:
    """The success policy of elastic workers without a master: the first that ends well; None: another one."""
    if found.elastic_policy is None or names != [WORKER]:
        return None
    return Success(operator="any", types=[WORKER])


def rendezvous(elastic: ElasticPolicy, host: str, port: int, workers: int) -> dict[str, str]:
    """How ``torchrun`` finds the others; ``host`` and ``port``: worker 0, where the job names no place."""
    least, most = bounds(elastic, workers)
    place = f"{elastic.rdzv_host or host}:{elastic.rdzv_port or port}"
    env = {
        "PET_RDZV_ENDPOINT": place,
        "PET_RDZV_BACKEND": elastic.rdzv_backend,
        "PET_NNODES": f"{least}:{most}",
    }
    if elastic.max_restarts is not None:
        env["PET_MAX_RESTARTS"] = str(elastic.max_restarts)
    if elastic.rdzv_id:
        env["PET_RDZV_ID"] = elastic.rdzv_id
    if elastic.rdzv_conf:
        env["PET_RDZV_CONF"] = ",".join(f"{each.key}={each.value}" for each in elastic.rdzv_conf)
    if elastic.standalone:
        env["PET_STANDALONE"] = ""
    return env
