"""Signed manifests: keys, what an agent trusts, and the decision whether a pod may start (R32).

Only processes that sign or check signatures import this, and with it the library ``cryptography``.
"""
