"""One trajectory as JSON values and as text for a terminal. Pure."""

from collections.abc import Iterator

from rljob_workers.local import dumps, group_facts, terminal

_MARGIN = "  | "
_PARTS = {"prompt": "prompt", "gen": "completion"}


def fields(row: dumps.Row, facts: group_facts.Facts) -> dict[str, object]:
    """Return the row's own fields with `state`, `step`, `age`, `drop_reason`, `source` and `advantage` of its group.

    These are None or empty where the ledger does not know the group; `state` is superseded if another attempt counts.
    """
    superseded = facts.known and facts.attempt != row.attempt
    return {
        **row.model_dump(mode="json"),
        "state": "superseded" if superseded else facts.state,
        "step": None if superseded else facts.step,
        "age": None if superseded else facts.age,
        "drop_reason": "" if superseded else facts.drop_reason,
        "source": facts.source,
        "advantage": None if superseded else facts.advantage(row.sample_idx),
    }


def lines(
    row: dumps.Row, facts: group_facts.Facts, *, max_chars: int, before: dumps.Row | None = None
) -> Iterator[str]:
    """Yield the lines of a trajectory; of each text at most `max_chars` characters, 0 for all.

    The prompt that the row shown `before` has too is not shown again.
    """
    yield _heading(row, facts)
    yield "  " + "  ".join(_facts(row, facts))
    parts = row.segments or (
        dumps.Part(role="prompt", len=row.prompt_len, text=row.prompt),
        dumps.Part(role="gen", len=row.seqlen - row.prompt_len, text=row.completion),
    )
    for part in parts:
        again = part.role == "prompt" and before is not None and before.prompt == part.text
        yield f"  {_PARTS.get(part.role, 'context')} ({part.len} tokens{', as above' if again else ''})"
        if not again:
            yield from _text(part.text, max_chars)
    for index, turn in enumerate(row.turns or (), start=1):
        yield (
            f"  turn {index}/{len(row.turns or ())}: {_versions(turn.version_start, turn.version_end)}  "
            f"reward {turn.raw_reward:g}  {terminal.line(turn.reason)}  {turn.answer_len} tokens"
        )


def _heading(row: dumps.Row, facts: group_facts.Facts) -> str:
    where = terminal.line(f"{facts.source}/{row.query_id}" if facts.source else row.query_id)
    attempt = f" attempt {row.attempt}" if row.attempt else ""
    return f"group {row.group_id} sample {row.sample_idx}{attempt}  prompt {where}"


def _facts(row: dumps.Row, facts: group_facts.Facts) -> Iterator[str]:
    yield f"reward {row.reward:g}" + ("" if row.reward == row.raw_reward else f" (raw {row.raw_reward:g})")
    yield terminal.line(row.reason)
    yield _versions(row.head_version, row.tail_version)
    known = fields(row, facts)
    if known["state"]:
        yield _fate(known)
    if known["advantage"] is not None:
        yield f"advantage {known['advantage']:+.4g}"
    yield "cut by length" if row.truncated else terminal.line(row.stop_reason)


def _fate(known: dict[str, object]) -> str:
    if known["drop_reason"]:
        return f"dropped: {known['drop_reason']}"
    if known["step"] is None:
        return str(known["state"])
    age = f" at age {known['age']}" if known["age"] else ""
    return f"{known['state']} in step {known['step']}{age}"


def _versions(head: int, tail: int) -> str:
    return f"version {head}" if head == tail else f"versions {head} to {tail}"


def _text(text: str, max_chars: int) -> Iterator[str]:
    shown = text[:max_chars] if max_chars else text
    for one in terminal.block(shown.removesuffix("\n")):
        yield _MARGIN + one
    if len(shown) < len(text):
        yield f"{_MARGIN}... {len(text) - len(shown)} more characters (--max-chars 0 shows all)"
