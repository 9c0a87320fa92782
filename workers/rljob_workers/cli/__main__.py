"""`rljob`, `kubectl-rljob` and `python -m rljob_workers.cli`. Each command imports what it needs when it is called."""

import io
import os
import pathlib
import sys

from rljob_workers.cli.app import app


def main() -> None:
    # Read when grpc is imported: its own notes about lost connections would mix with ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # kubectl starts a plug-in under its own name.
    as_plug_in = pathlib.Path(sys.argv[0]).name.startswith("kubectl-")
    # A terminal that cannot show a character shows its escape.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="kubectl rljob" if as_plug_in else "rljob")


if __name__ == "__main__":
    main()
