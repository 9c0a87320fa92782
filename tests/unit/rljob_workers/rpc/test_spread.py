from typing import Any

import grpc.aio

from rljob_workers.rpc import channel

METHOD = "/test.Echo/Which"


async def _server(name: bytes) -> tuple[grpc.aio.Server, int]:
    async def which(_request: bytes, _context: Any) -> bytes:
        return name

    server = channel.aio_server(None)
    handlers = {"Which": grpc.unary_unary_rpc_method_handler(which)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = channel.bind(server, "127.0.0.1:0", None)
    await server.start()
    return server, port


async def test_calls_to_a_name_of_two_pods_are_spread_over_both() -> None:
    (first, first_port), (second, second_port) = await _server(b"a"), await _server(b"b")
    client = channel.aio_channel(f"ipv4:127.0.0.1:{first_port},127.0.0.1:{second_port}", None)
    try:
        answers: set[bytes] = set()
        for _ in range(200):
            answers.add(await client.unary_unary(METHOD)(b"", wait_for_ready=True, timeout=60))
            if len(answers) == 2:
                break
        assert answers == {b"a", b"b"}
    finally:
        await client.close()
        await first.stop(None)
        await second.stop(None)
