"""An agent of the `anthropic` package: a sum after worked examples, read as a stream."""

import anthropic
import sessions

SYSTEM = "Answer with a number."
MAX_TOKENS = 16


def play(session: sessions.Session) -> float:
    """Return what the answer scores."""
    client = anthropic.Anthropic(
        # It adds /v1 itself.
        base_url=session.base_url.removesuffix("/v1"),
        api_key=session.api_key,
        max_retries=0,
    )
    messages: list[anthropic.types.MessageParam] = []
    for question, answer in session.examples:
        messages += [{"role": "user", "content": f"{question} ="}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": f"{session.question} ="})
    with client.messages.stream(
        model=sessions.MODEL, system=SYSTEM, messages=messages, max_tokens=MAX_TOKENS
    ) as stream:
        text = "".join(stream.text_stream)
    return float(session.score(text))


if __name__ == "__main__":
    sessions.serve(play, num_sessions=8)
