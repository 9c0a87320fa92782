"""Free loopback ports, found by binding and releasing."""

import contextlib
import socket

HOST = "127.0.0.1"


def free_ports(count: int) -> tuple[int, ...]:
    """Return `count` different TCP ports that nothing listened on a moment ago.

    All are held at once, so that none is given twice. Another process may still take one before the role binds it: the
    role then ends with the infrastructure code and is started again.
    """
    with contextlib.ExitStack() as held:
        return tuple(_bound(held) for _ in range(count))


def _bound(held: contextlib.ExitStack) -> int:
    opened = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
    opened.bind((HOST, 0))
    return int(opened.getsockname()[1])
