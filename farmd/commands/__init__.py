"""What people ask for: a change that is prepared, shown and then written; waiting for it; explaining it.

Called by the command line and over HTTP alike. ``mutation`` is one change with its audit record, ``noun``
what people ask of everything that they name, ``specs`` its files, ``difference`` what a change says,
``remains`` what is left of an owner of pods, ``waiting`` and ``explaining`` what is read for people.
"""
