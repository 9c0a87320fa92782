"""An agent of the `openai` package: a sum after worked examples, and a second try if the first was wrong."""

import openai
import sessions

SECOND_TRY = 0.5


def play(session: sessions.Session) -> float:
    """Return 1 for the sum, half of what it scores at the second try."""
    # The package repeats calls that fail; a repeat would be one more call of the session.
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)
    messages: list[dict[str, str]] = []
    for question, answer in session.examples:
        messages += [{"role": "user", "content": f"{question} ="}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": f"{session.question} ="})
    share = 1.0
    text = answer_of(client, messages)
    if not session.is_right(text):
        share = SECOND_TRY
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"No. {session.question} ="}]
        text = answer_of(client, messages)
    return float(share * session.score(text))


def answer_of(client: openai.OpenAI, messages: list[dict[str, str]]) -> str:
    """Return what the model answers."""
    answer = client.chat.completions.create(model=sessions.MODEL, messages=messages)  # type: ignore[arg-type]
    return answer.choices[0].message.content or ""


if __name__ == "__main__":
    sessions.serve(play, num_sessions=8)
