"""A loopback port outside a network namespace that leads to a port inside it: `relay.py FD HOST PORT`.

The listening socket is made outside and inherited; this process runs inside, so that what it dials is inside.
"""

import asyncio
import socket
import sys


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # The other direction ends by the close below.
    finally:
        writer.close()


async def _serve(listener: socket.socket, host: str, port: int) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(relay, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    descriptor, host, port = sys.argv[1:]
    asyncio.run(_serve(socket.socket(fileno=int(descriptor)), host, int(port)))
