"""What people ask for: a change that is prepared, shown and then written; waiting for it; explaining it.

Called by the command line and over HTTP alike. ``mutation`` is one change with its audit record, ``edits``
what all records that own pods share, ``specs`` their files, ``difference`` what a change says,
``waiting`` and ``explaining`` what is read for people, ``deletion`` how a worker ends what a person marked.
"""
