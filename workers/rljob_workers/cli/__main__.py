"""`rljob`, `kubectl-rljob` and `python -m rljob_workers.cli`. Each command imports what it needs when it is called."""

import os

from rljob_workers.cli.app import app


def main() -> None:
    """Run the command line and exit."""
    # Read when grpc is imported: its own notes about lost connections would mix with ours.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app(prog_name="rljob")


if __name__ == "__main__":
    main()
