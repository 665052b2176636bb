"""House-keeping of the store: what nobody refers to any more, and what is too old to be kept.

A small kind of work with one item a chore, claimed like all others, so that one farm at a time does
each and takeover, fences and crash isolation come from the claim engine. ``plan.py`` decides.
"""
