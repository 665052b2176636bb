"""The version of this build: for presence records, ``--version``, metrics and ``User-Agent``.

A wheel contains ``store/built.py``, which the build writes (``hatch_build.py``). A source tree has no such
file: it calls itself 0.0.0, whatever its commit.
"""

try:
    import store.built
except ModuleNotFoundError:
    VERSION = "0.0.0"
else:
    VERSION = str(store.built.VERSION)
USER_AGENT = f"farmd/{VERSION}"
