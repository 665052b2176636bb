"""The Kubernetes cluster that a person means: the options that name it, and a transport to it.

A person's own kubeconfig counts here, ``~/.kube/config`` included, unlike for daemons. Nothing of
``farmd.kubernetes`` is imported until a cluster is asked.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from farmd.cli.invocation import Invocation
from farmd.cli.names import PATIENCE_SECONDS
from farmd.cli.options import Command
from farmd.commands.heads import own
from farmd.runtime.clock import SystemClock, system_rng
from farmd.runtime.errors import FarmdError
from store.errors import InputInvalid, StoreError

if TYPE_CHECKING:
    from farmd.kubernetes.transport import KubernetesTransport

F = TypeVar("F", bound=Any)


@dataclass(frozen=True, slots=True)
class Place:
    """The options that name a cluster; empty: from the kubeconfig and its context."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = ""

    @property
    def named(self) -> bool:
        """Whether a person named a cluster or a namespace on the command line."""
        return bool(self.kubeconfig or self.context or self.namespace)

    def configured(self, environ: Mapping[str, str]) -> bool:
        """Whether there is a cluster to ask."""
        variables = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST")
        return self.named or any(environ.get(name) for name in variables) or bool(_home())


@dataclass(frozen=True, slots=True)
class ConnectedCluster:
    """A cluster that answers to a person; ``namespace`` is that of names which have none."""

    transport: KubernetesTransport
    namespace: str

    def split(self, name: str) -> tuple[str, str]:
        """Namespace and name of ``ml/bert`` or ``bert``."""
        namespace, _, last = name.rpartition("/")
        return namespace or self.namespace, last


_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def a_namespace(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuse a name that no namespace can have, or one of several such names."""
    for name in (value,) if isinstance(value, str) else value or ():
        if name and not _NAMESPACE.fullmatch(name):
            expected = "a namespace: 1 to 63 of a-z, 0-9 and '-', not at the ends"
            raise click.BadParameter(f"found {name!r}, expected {expected}", ctx, param)
    return value


def access_options(function: F) -> F:
    """The options that name a cluster."""
    for option in (
        click.option(
            "--kubeconfig", default="", help="A kubeconfig; default: KUBECONFIG, then ~/.kube/config."
        ),
        click.option("--context", default="", help="Context of the kubeconfig; default: the current one."),
    ):
        function = option(function)
    return function


def namespace_options(function: F) -> F:
    """The options that name a cluster and a namespace."""
    option = click.option(
        "-n",
        "--namespace",
        default="",
        callback=a_namespace,
        help="Kubernetes namespace; default: the context's.",
    )
    found: F = option(access_options(function))
    return found


def has_namespace(name: str) -> bool:
    """Whether a name is that of an object in Kubernetes: ``ml/bert``."""
    return "/" in name


def has_kind(data: Any) -> bool:
    """Whether a document of a file is an object of Kubernetes."""
    return isinstance(data, Mapping) and bool({"apiVersion", "kind"} & data.keys()) and not own(data)


Completes = Callable[[], Callable[[Place, str], Coroutine[Any, Any, list[str]]]]


def beside(
    made: click.Command,
    outside: Callable[[], Callable[..., Awaitable[None]]],
    *,
    lies: Callable[[str], bool] = has_namespace,
    argument: str = "name",
    names: Completes,
) -> click.Command:
    """A command for items in Consul, made one for those in Kubernetes, too.

    ``outside`` refers to the function that is called with ``(invocation, place, **params)`` for the
    items whose name ``lies`` in Kubernetes, and for all where an option names a cluster or a namespace.
    ``argument`` is the parameter with one name, or with several; ``names`` refers to the function that gives
    those for its completion, ``(place, incomplete)``.
    """
    assert isinstance(made, Command)
    inside = made.function

    async def run(
        invocation: Invocation, *, kubeconfig: str, context: str, namespace: str, **params: Any
    ) -> None:
        place, value = Place(kubeconfig, context, namespace), params[argument]
        several = isinstance(value, tuple)
        given = value if several else (value,)
        there = tuple(name for name in given if place.named or lies(name))
        here = tuple(name for name in given if name not in there)
        if here:
            await inside(invocation, **params | {argument: here if several else value})
        if there:
            await outside()(invocation, place, **params | {argument: there if several else value})

    namespace_options(run)
    made.add_own(list(reversed(run.__click_params__)))  # type: ignore[attr-defined]
    made.function = run
    complete_too(made, argument, names)
    return made


def complete_too(made: click.Command, argument: str, names: Completes) -> None:
    """Have an argument complete names of objects in Kubernetes, too: briefly, and silent where that fails."""
    param = next(each for each in made.params if each.name == argument)
    known = param.shell_complete

    async def asked(place: Place, incomplete: str) -> list[str]:
        return await asyncio.wait_for(names()(place, incomplete), PATIENCE_SECONDS)

    def complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        given = {name: str(ctx.params.get(name) or "") for name in ("kubeconfig", "context", "namespace")}
        place, found = Place(**given), list[str]()
        if place.configured(os.environ):
            with suppress(StoreError, FarmdError, TimeoutError, OSError):
                found = asyncio.run(asked(place, incomplete))
        own = [] if place.named else known(ctx, incomplete)
        return [*own, *(CompletionItem(name) for name in found if name.startswith(incomplete))]

    param.shell_complete = complete  # type: ignore[method-assign]


@asynccontextmanager
async def connected(place: Place) -> AsyncIterator[ConnectedCluster]:
    """The cluster that a person means; what it refuses becomes an error of the command line.

    Raises:
        InputInvalid: no kubeconfig, one that is not usable, or a refused object.
        StoreError: any other refusal, or no answer.
    """
    from farmd.kubernetes.access import access
    from farmd.kubernetes.commands import refusals
    from farmd.kubernetes.transport import KubernetesTransport

    kubeconfig = place.kubeconfig or os.environ.get("KUBECONFIG") or _home()
    if not (kubeconfig or os.environ.get("KUBERNETES_SERVICE_HOST")):
        hint = (
            "pass --kubeconfig FILE or set KUBECONFIG; otherwise ~/.kube/config is used, which cannot be read"
        )
        raise InputInvalid("no Kubernetes cluster is configured", hint=hint)
    clock = SystemClock()
    found = access(os.environ, clock, kubeconfig=kubeconfig, context=place.context)
    async with KubernetesTransport(found, clock=clock, rng=system_rng()) as transport:
        with refusals():
            yield ConnectedCluster(transport, place.namespace or found.namespace)


def _home() -> str:
    """The kubeconfig of a person's own; empty without one, without a home, or in a home of somebody else."""
    path = os.path.expanduser("~/.kube/config")  # noqa: PTH111 - pathlib raises where there is no home
    return path if os.access(path, os.R_OK) else ""
