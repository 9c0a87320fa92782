"""`rljob`, `kubectl-rljob` and `python -m rljob_workers.cli`. Each command imports what it needs when it is called."""

from rljob_workers.cli.app import app


def main() -> None:
    """Run the command line and exit."""
    app(prog_name="rljob")


if __name__ == "__main__":
    main()
