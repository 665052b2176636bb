"""What people ask for: a change that is prepared, shown and then written; waiting for it; explaining it.

Called by the command line and over HTTP alike. ``mutation`` is one change with its audit record, ``noun``
what people ask of everything that they name, ``placing``, ``bodies`` and ``remains`` what of it is about
owners of pods, ``specs`` and ``documents`` its files, ``difference`` what a change says, ``waiting`` and
``explaining`` what is read for people, ``failsafe`` a person's word on a freeze.
"""
