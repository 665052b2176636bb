"""Typed access to Consul: the only package that knows a key path.

Read ``keys.py`` for the layout, ``operations.py`` and ``transaction.py`` for writing, ``watch.py``
and ``cache.py`` for reading, ``families.py`` for the families of records. Each family has a module
(``rcs``, ``pods``, ``intent``, ``reality``, …) with its record type and its repository.
This package imports nothing else of the project.
"""
