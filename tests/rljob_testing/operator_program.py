"""The operator's own program, reported where coordinators answer: no cluster DNS reaches the machine that tests run on.

`python -m rljob_testing.operator_program --config F --kubeconfig K --host H --coordinator NAMESPACE=ADDRESS`
"""

import asyncio

from rljob_operator import __main__ as program
from rljob_operator import settings

# The port of a service that discards what it is reported, if it is there at all.
_NOBODY = "127.0.0.1:9"


def main() -> None:
    """Run until stopped."""
    reader = program.arguments()
    reader.add_argument(
        "--coordinator", action="append", default=[], help="NAMESPACE=ADDRESS of all coordinators there"
    )
    given = reader.parse_args()
    chosen = settings.read(given.config)
    program.configure_logs(chosen.log)
    by_namespace: dict[str, str] = dict(one.split("=", 1) for one in given.coordinator)

    def address_of(namespace: str, name: str) -> str:
        return by_namespace.get(namespace, _NOBODY)

    asyncio.run(
        program.run(
            chosen, kubeconfig=given.kubeconfig, host=given.host, identity=given.identity, address_of=address_of
        )
    )


if __name__ == "__main__":
    main()
