"""Whose jobs are looked after: those of all namespaces that this process may see, or of those whose labels match.

Namespaces that match are followed while they come, lose the label or go. One that comes is listed whole before anything
is judged there; of one that goes everything is forgotten, and what runs in it continues.
"""

import logging

from rljob_operator.kube.client import Client
from rljob_operator.kube.kinds import NAMESPACE

logger = logging.getLogger(__name__)


def everywhere(namespace: str) -> bool:  # noqa: ARG001  # the shape of Scope.includes
    return True


class Scope:
    """Namespaces by name. selector: of their labels, as `kubectl get -l` takes it; empty for all of them."""

    def __init__(self, selector: str = "") -> None:
        self.selector = selector
        self._names = set[str]()
        # Those that were not listed yet since they came, each time with a mark of its own.
        self.opening: dict[str, object] = {}

    def includes(self, namespace: str) -> bool:
        return not self.selector or namespace in self._names

    def add(self, namespace: str) -> bool:
        """Take a namespace in that is to be listed; return whether it is new."""
        if namespace in self._names:
            return False
        logger.info("namespace %s has come to match %s", namespace, self.selector)
        self._names.add(namespace)
        self.opening[namespace] = object()
        return True

    def remove(self, namespace: str) -> bool:
        """Let go of a namespace; return whether it was included."""
        if namespace not in self._names:
            return False
        logger.info("namespace %s does not match %s any more", namespace, self.selector)
        self._names.discard(namespace)
        self.opening.pop(namespace, None)
        return True

    async def differences(self, client: Client) -> tuple[set[str], set[str]]:
        """Return the namespaces that match now and are not included, and those that are and do not match any more.

        Raises ApiError.
        """
        if not self.selector:
            return set(), set()
        listed = {raw["metadata"]["name"] for raw in await client.list(NAMESPACE, None, selector=self.selector)}
        return listed - self._names, self._names - listed
