"""Starts the operator."""


def main() -> None:
    """Run until stopped."""
    raise SystemExit("the operator is not built yet")


if __name__ == "__main__":
    main()
