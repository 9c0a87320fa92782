"""Times of the Kubernetes API: RFC 3339 text in UTC, to the second, and unix seconds."""

import datetime


def to_text(seconds: float) -> str:
    """Return unix seconds as the API server writes them; fractions are cut off."""
    return datetime.datetime.fromtimestamp(int(seconds), tz=datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_seconds(text: str | None) -> float | None:
    """Return unix seconds of a time; None for none. Raises ValueError if it is no RFC 3339 time."""
    return None if text is None else datetime.datetime.fromisoformat(text).timestamp()
