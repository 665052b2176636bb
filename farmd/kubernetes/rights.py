"""The rights of farms in a cluster: the shipped roles, for all namespaces or for some, and who bears them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from store.errors import refuse

GROUP = "rbac.authorization.k8s.io"
VERSION = f"{GROUP}/v1"
DEFAULT_SUBJECT = "user/farmd"
IDENTITY_ROLE, IDENTITY_NAMESPACE = "farmd-identity", "kube-system"
_KINDS = {"user": "User", "group": "Group", "serviceaccount": "ServiceAccount"}


@dataclass(frozen=True, slots=True)
class Rights:
    """Where farms may work (no namespaces: in all), and the ``subject`` that bears the rights, as
    ``user/NAME``, ``group/NAME`` or ``serviceaccount/NAMESPACE/NAME``; empty: the roles are bound by hand.
    """

    namespaces: Sequence[str] = ()
    subject: str = ""

    def of(self, role: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """A shipped ClusterRole as it is, or as a Role in each namespace; and its bindings.

        Raises:
            InputInvalid: the subject is none.
        """
        name = role["metadata"]["name"]
        if not self.namespaces:
            yield role
            if self.subject:
                yield self._binding("ClusterRole", name)
            return
        inside = [rule for rule in role["rules"] if "namespaces" not in rule["resources"]]
        for namespace in self.namespaces:
            yield from self._bound(name, namespace, inside)
        # The right to read a namespace is one within that namespace.
        rest = [rule for rule in role["rules"] if rule not in inside]
        yield from self._bound(IDENTITY_ROLE, IDENTITY_NAMESPACE, rest)

    def _bound(self, name: str, namespace: str, rules: list[Any]) -> Iterator[dict[str, Any]]:
        meta = {"name": name, "namespace": namespace}
        yield {"apiVersion": VERSION, "kind": "Role", "metadata": meta, "rules": rules}
        yield self._binding("Role", name, namespace)

    def _binding(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        meta = {"name": name} | ({"namespace": namespace} if namespace else {})
        return {
            "apiVersion": VERSION,
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name},
            "subjects": [self._subject()],
        }

    def _subject(self) -> dict[str, str]:
        text = self.subject or DEFAULT_SUBJECT
        kind, _, rest = text.partition("/")
        if kind in ("user", "group") and rest:
            return {"apiGroup": GROUP, "kind": _KINDS[kind], "name": rest}
        namespace, _, name = rest.partition("/")
        if kind != "serviceaccount" or not namespace or not name or "/" in name:
            refuse("subject", repr(text), "user/NAME, group/NAME or serviceaccount/NAMESPACE/NAME")
        return {"kind": _KINDS[kind], "namespace": namespace, "name": name}


EVERYWHERE = Rights()
