"""What a process or an API server counts, as it says it in the text format of Prometheus."""

from prometheus_client.parser import text_string_to_metric_families

# Label values in the order of their names.
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def series(text: str) -> Series:
    """Return the samples of an exposition by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(found: Series, name: str, **labels: str) -> float:
    """Return the sum over the series of a name that have these labels."""
    return sum(value for (each, has), value in found.items() if each == name and labels.items() <= dict(has).items())


def share_within(before: Series, after: Series, name: str, *, seconds: float) -> float:
    """Return the share of a histogram's observations between two scrapes that took at most `seconds`, a bucket's bound.

    Raises ValueError where nothing was observed, or no bucket ends there.
    """
    bounds = {float(dict(has)["le"]) for each, has in after if each == f"{name}_bucket"}
    if seconds not in bounds:
        raise ValueError(f"no bucket of {name} ends at {seconds}: there are {sorted(bounds)}")

    def within(found: Series) -> float:
        return sum(value for (each, has), value in found.items() if each == f"{name}_bucket" and dict(has)["le"] == le)

    (le,) = {dict(has)["le"] for each, has in after if each == f"{name}_bucket" and float(dict(has)["le"]) == seconds}
    observed = total(after, f"{name}_count") - total(before, f"{name}_count")
    if not observed:
        raise ValueError(f"{name} observed nothing between the scrapes")
    return (within(after) - within(before)) / observed
