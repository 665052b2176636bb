"""The frame that every kind of work is made of.

``kind.py`` joins a kind to the claim engine, ``worker.py`` is the one loop, ``writer.py`` the one way to
write, ``status.py`` what people are told, ``context.py`` what all of them are built with.
``owner.py``, ``owned.py`` and ``reader.py`` are what kinds that own pods have in common besides.
"""
