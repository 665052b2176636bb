"""The frame that every kind of work is made of.

``kind.py`` joins a kind to the claim engine, ``worker.py`` is the one loop, ``status.py`` what people are
told, ``context.py`` what all of them are built with. ``named.py`` is for kinds of records that people name;
``owner.py``, ``owned.py`` and ``reader.py`` are for those whose records own pods. All write through
``farmd.farm.writer``.
"""
