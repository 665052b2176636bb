"""Which of many objects do not exist, by one list of names in place of a read for each.

What must never break: an object is missing only by a whole list that the server answered now, and what is
made in its place is made as a new object, which the server refuses where somebody was faster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from farmd.kubernetes.apps.watching import Watching
from farmd.kubernetes.errors import KubernetesError
from farmd.kubernetes.resources import Resource
from store.apps import TypedReference

# So many objects of a kind in a namespace are worth a list, which has at most so many times their number:
# the API server lists 16 names in the time in which it answers one read.
MANY, CROWD = 16, 16


async def absent(
    refs: Iterable[TypedReference],
    resource_of: Callable[[TypedReference], Awaitable[Resource | None]],
    watching: Watching,
) -> set[str]:
    """Those of ``refs`` that a list proves not to exist, as text. The others are few, or of a kind or a
    namespace that cannot be listed now, or they may exist: each is to be read.
    """
    alike: dict[tuple[str, str, str], list[TypedReference]] = {}
    for ref in refs:
        alike.setdefault((ref.api_version, ref.kind, ref.namespace), []).append(ref)
    found: set[str] = set()
    for some in alike.values():
        if len(some) < MANY:
            continue
        try:
            if (resource := await resource_of(some[0])) is None:
                continue
            unseen = [ref for ref in some if not watching.version(resource, ref)]
            if len(unseen) < MANY:
                continue
            names = await watching.names(resource, some[0].namespace, CROWD * len(unseen))
            if names is not None:
                found |= {str(ref) for ref in unseen if ref.name not in names}
        except KubernetesError:
            continue  # the read of each tells what is wrong
    return found
