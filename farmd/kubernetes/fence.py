"""The claim on an object outside of Consul: later owners refuse what an earlier one still sends (R16)."""

from __future__ import annotations

from farmd.farm.errors import ClaimLost
from farmd.kubernetes.errors import Claimed
from farmd.work.context import Context
from store.locks import Claim


def text(context: Context, claim: Claim) -> str:
    """A claim as objects bear it: ``<cluster id>/<ModifyIndex of the lock>``."""
    return f"{context.cluster}/{claim.index}"


async def check(context: Context, claim: Claim, found: str, *, fenced: bool) -> None:
    """Check the claim that an object bears; ``fenced``: this claim has written there already.

    Raises:
        Claimed: farms of another cluster own the object.
        ClaimLost: a later claim wrote to it, and our lock is not ours any more.
    """
    cluster, _, index = found.rpartition("/")
    if not cluster or found == text(context, claim):
        return
    if cluster != context.cluster:
        raise Claimed(f"farms of another cluster ({cluster}) own it", status=409)
    if index.isdecimal() and int(index) > claim.index and not fenced:
        # A restored Consul gives lower indexes: only our lock itself tells.
        lock = await context.client.read(claim.key, mode="consistent")
        if lock is None or lock.session != claim.session or lock.modify_index != claim.index:
            raise ClaimLost(f"{claim.item}: a later claim wrote to the object")
