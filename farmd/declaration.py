"""What a kind of work declares of itself: one ``DECLARATION`` per kind, in the ``__init__`` of its package.

A part of a declaration is a function that returns it, mostly a ``lambda`` over its full name, which mypy
checks and editors follow. A module in such a name is imported at the call (``farmd.submodules``). So nothing
of a kind is imported before it is used: ``farmctl`` starts fast, and every layer may ask the registry
(``farmd.kinds``). What the records of a kind are is in ``store.families``, under the same name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager

    import click

    from farmd.commands.bundled import Bundled, Exported
    from farmd.commands.mutation import Call, Change, Mutation
    from farmd.commands.noun import Noun
    from farmd.commands.signing import Start
    from farmd.commands.waiting import Report
    from farmd.farm.farm import Farm
    from farmd.observe.metrics import Metric
    from farmd.overview.incidents import Examined
    from farmd.tables.model import Details, Table
    from farmd.web.lists import ItemList
    from farmd.work.kind import Kind
    from scheduler.model import PlacementRequest
    from store.keys import Keys
    from store.operations import Operation

    Act = Callable[..., Awaitable[Mutation]]
    Author = Callable[[Call, str], Awaitable[str]]
    Besides = Callable[[Call, Any], Awaitable[Details]]
    Explains = Callable[[Call, Any], Awaitable[list[tuple[str, Table]]]]
    Requests = Callable[[Call, Any], Awaitable[list[tuple[str, PlacementRequest]]]]
    Ended = Callable[[Call, Change, float, Report], Awaitable[None]]
    Examine = Callable[[Call, Any], Awaitable[Examined]]
    Listed = Callable[[Farm, "KindOfWork"], ItemList]
    Opened = Callable[[Any], AbstractAsyncContextManager[Any]]
    Starts = Callable[[Keys, Mutation], Iterable[Start]]
    Makes = Callable[[Call, str, str, Mapping[str, str]], Awaitable[tuple[Any, Operation]]]


@dataclass(frozen=True, eq=False, kw_only=True)
class NamedFamily:
    """A family of records with names; a part that is None does not exist.

    Attributes:
        family: the family of its records.
        one, many: the words for one item and for several.
        label: the word for one item in tables; empty: ``one``.
        noun: the word that people type before a name, as in ``rc/hello``; empty: no command names its items.
        aliases: other words for the noun.
        title: the line about its commands in the help of ``farmctl``.
        first: the command that creates the first item, for the page.
        under: the noun in whose group its commands are, if it has no group at the top. Its own noun begins
            with that one, as ``job-template`` does.
        unbundled: the hint for an item in a bundle, if bundles cannot hold such items.
        instead: what people can do if they want another item under the name of an existing one, and no
            ``update`` exists; ``other_ways``: commands beside ``update`` that change an item, as the end of a
            hint.
        way: the commands that change an item whose parts people must leave alone; ``{name}`` is its name.
        group: its group of commands, if it has more than those of every noun.
        bundle_order: its place among the nouns of one wave of a bundle, if bundles hold its items by its
            ``Noun``.
        bundled: how bundles hold its items, if not by its ``Noun``; ``exported``: how its items are written
            to files, if no bundle holds them.
    """

    family: str
    one: str
    many: str
    label: str = ""
    noun: str = ""
    aliases: tuple[str, ...] = ()
    under: str = ""
    title: str = ""
    first: str = ""
    way: str = ""
    instead: str = ""
    other_ways: str = ""
    unbundled: str = ""
    bundle_order: int = 0
    group: Callable[[], click.Group] | None = None
    bundled: Callable[[], Bundled] | None = None
    exported: Callable[[], Exported] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class KindOfWork(NamedFamily):
    """One kind of work; its family is the name under which farms claim its items.

    Attributes:
        runs: the class that runs the kind in a farm.
        shown: the command that describes an item without a noun; the item's name follows it.
        owns_pods: whether its items own pods, and ``per_node`` whether one on each eligible node. The store's
            family says the first, too: help texts need it, and do not load the types of all records.
        main: whether it is the default kind. Its items are listed without a noun, and ``farmctl top`` counts
            them even if there are none.
        selectable: whether farms may choose among its items by labels; other items belong to all farms.
        guarded: whether doubt freezes it (R18), and ``health_matters`` whether mass ill health is such doubt.
        gradual: the family of the kind that brings a new manifest to its items step by step; empty: the
            worker replaces pods in place.
        runbooks: the runbook of its alerts, by the beginning of an alert's name; the first that fits.
        features: the features of this kind in each farm of this version; records may require them (R11).
        names: the trees whose keys end in the names of its items, for completion; empty: ``names/<family>``
            if its records have ids besides, else the tree of its family.
        wiped: the key of the incident that its tree lost its sentinel, if it has a key of its own (p2).
        unclaimed: the doctor's text if no farm claims the kind; empty: a text that fits every kind.
        outside: the section of the configuration that turns it on, if its items lie outside of Consul.
        among: the family whose records include its items, if it has no records of its own.
        asked: its ``Noun``, which holds the commands on its records.
        acts: the actions on an item on the page, by name, besides those of its ``Noun``. For those in
            ``acts_unseen`` programs may leave out the plan and its token, as in earlier versions.
        listed: its list on the page, if it has no ``asked``.
        besides: adds to the description of an item.
        requests: returns the requests to the scheduler for one more pod, by the types of its pods.
        explains: returns the tables that explain the pods of an item, if it does not explain nodes.
        ended: waits for the end of an item, if items end by themselves.
        begins: begins an item of a kind that others name as ``gradual``; ``supersedes`` replaces the version
            that such an item is bringing.
        starts: lists the manifests that a change of an item lets start, if it writes no owner of pods.
        author: returns the last author of the parts of an item (``farmd.commands.parts``).
        waits: returns whether a record of the family ``among`` is an item.
        makes: makes a document of another kind from a named item, under a name and with values, and the check
            that the item stays as it was read.
        examined: finds faults of items outside of Consul.
        opens: a context manager over the section of the configuration that has the family's name; a farm
            keeps it open for as long as it runs, and the kind gets its value.
        metrics: its own rows of the table of metrics.
    """

    shown: str = ""
    owns_pods: bool = False
    per_node: bool = False
    main: bool = False
    selectable: bool = False
    guarded: bool = False
    health_matters: bool = True
    gradual: str = ""
    runbooks: tuple[tuple[str, str], ...] = ()
    features: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    wiped: str = ""
    unclaimed: str = ""
    outside: str = ""
    among: str = ""
    acts_unseen: tuple[str, ...] = ()

    runs: Callable[[], type[Kind]]
    asked: Callable[[], Noun[Any, Any]] | None = None
    acts: Callable[[], Mapping[str, Act]] | None = None
    listed: Callable[[], Listed] | None = None
    besides: Callable[[], Besides] | None = None
    requests: Callable[[], Requests] | None = None
    explains: Callable[[], Explains] | None = None
    ended: Callable[[], Ended] | None = None
    begins: Callable[[], Act] | None = None
    supersedes: Callable[[], Act] | None = None
    starts: Callable[[], Starts] | None = None
    author: Callable[[], Author] | None = None
    waits: Callable[[], Callable[[Any], bool]] | None = None
    makes: Callable[[], Makes] | None = None
    examined: Callable[[], Examine] | None = None
    opens: Callable[[], Opened] | None = None
    metrics: Callable[[], tuple[Metric, ...]] | None = None
