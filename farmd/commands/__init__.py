"""What people ask for: a change that is prepared, shown and then written; waiting for it; explaining it.

The command line and HTTP both call these. ``mutation`` is one change with its audit record, ``noun`` the
commands of all named records; ``placing``, ``bodies`` and ``remains`` are about owners of pods, ``specs`` and
``documents`` about files, ``difference`` about the fields of a change; ``waiting`` and ``explaining`` read
for people, ``failsafe`` acknowledges a freeze.
"""
