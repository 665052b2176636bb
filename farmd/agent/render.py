"""Renders one template in a process of its own: ``python -I render.py``, JSON on stdin and stdout.

The text of a template is a person's, so what renders it may do nothing but compute: once Jinja2 is loaded the
process is nobody where it was root, opens no file or socket, starts no program, and has a bound of CPU time
and memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys

from store import templates

CPU_SECONDS, MEMORY, NOBODY = 1, 256 << 20, 65534
PR_SET_NO_NEW_PRIVS = 38


def confined() -> None:
    """Give up all that rendering does not need."""
    for text in (
        "{% for _ in range(1) %}{{ env.a | upper }}{% endfor %}",
        "{{ 'x' ~ 1.5 ~ env | tojson }}",
        "{{ env.b }}",
        "{% x %}",
    ):
        with contextlib.suppress(templates.Unfit):  # what it imports for errors, too
            templates.rendered(text, {"a": "b"}, {}, set())
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_NOFILE: 0,
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_CPU: CPU_SECONDS,
    }
    for kind, most in limits.items():
        resource.setrlimit(kind, (most, most))


def answer(told: dict[str, object]) -> dict[str, object]:
    """The rendered text, or why there is none; and the services that the template asks for."""
    used: set[str] = set()
    try:
        text = templates.rendered(told["text"], told["env"], told["endpoints"], used)  # type: ignore[arg-type]
    except templates.Unknown as error:
        return {"unknown": str(error), "used": sorted(used)}
    except templates.Unfit as error:
        return {"error": str(error), "used": sorted(used)}
    return {"text": text, "used": sorted(used)}


if __name__ == "__main__":
    given = json.load(sys.stdin)
    confined()
    sys.stdout.write(json.dumps(answer(given)))
