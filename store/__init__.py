"""Typed access to Consul: the only package that knows a key path.

Read ``keys.py`` for the layout, ``operations.py`` and ``transaction.py`` for how things are
written, ``watch.py`` and ``cache.py`` for how they are read. One module a family of records
(``rcs``, ``pods``, ``intent``, ``reality``, …) holds its record type and its repository.
This package imports nothing else of the project.
"""
