"""Spans of time: their union, and how much two sets of them share. Pure; seconds."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span]) -> list[Span]:
    """Return disjoint spans in order that cover the same time; empty and reversed ones cover none."""
    merged: list[Span] = []
    for begin, end in sorted(span for span in spans if span[1] > span[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def length_s(spans: Iterable[Span]) -> float:
    """Return the time covered."""
    return sum(end - begin for begin, end in union(spans))


def shared_s(first: Sequence[Span], second: Sequence[Span]) -> float:
    """Return the time covered by both: |A| + |B| - |A or B|."""
    return length_s(first) + length_s(second) - length_s([*first, *second])
