"""A TCP connection between two programs that flips a bit of the bytes of weights when it is told to, on loopback.

It knows a frame of weights (rljob_workers/weights/frames.py) by how it begins, and flips a bit of its payload, so that
the connection lives on: what a cable, a network card or a router's memory can do to bytes that TCP's checksum passes.
"""

import contextlib
import socket
import threading

_MAGIC = b"RLW1"
# The header, and some bytes.
_PLACE = 32 + 5


class DamagingLink:
    """Connections to `address` are made to `target`, both host:port. `flips` is how many frames are still damaged."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._left, self.damaged = 0, 0
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, name="link", daemon=True).start()

    def damage(self, frames: int) -> None:
        """Flip a bit in each of the next frames of weights, whatever their direction."""
        with self._lock:
            self._left = frames

    def close(self) -> None:
        """End all connections."""
        # On Linux only a shutdown ends an `accept` that another thread is in.
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for end in (self._listening, *self._ends):
            end.close()

    def _accept(self) -> None:
        host, port = self._target.rsplit(":", 1)
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                try:
                    far = socket.create_connection((host, int(port)), 5.0)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), name="link", daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(self._damaged(data))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _damaged(self, data: bytes) -> bytes:
        with self._lock:
            place = data.find(_MAGIC) + _PLACE
            if not self._left or place < _PLACE or place >= len(data):
                return data
            self._left -= 1
            self.damaged += 1
        return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]
