"""House-keeping: collects manifests without references, and prunes the old audit log.

It is a small kind of work with one item for each chore, claimed like all others: one farm at a time does
each, and the claim engine supplies takeover, fences and crash isolation. ``plan.py`` decides.
"""
