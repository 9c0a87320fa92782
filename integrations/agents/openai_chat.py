"""An agent of the `openai` package: a sum after worked examples, and a second try if the first was wrong."""

import openai
import sessions

SECOND_TRY = 0.5


def play(session: sessions.Session) -> float:
    """Return 1 for the sum, 0.5 for the sum at the second try."""
    # The package repeats calls that fail; a repeat would be one more call of the session.
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)
    messages: list[dict[str, str]] = []
    for question, answer in session.examples:
        messages += [{"role": "user", "content": f"{question} ="}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": f"{session.question} ="})
    for reward in (1.0, SECOND_TRY):
        text = client.chat.completions.create(model=sessions.MODEL, messages=messages).choices[0].message.content or ""
        if session.is_right(text):
            return reward
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"No. {session.question} ="}]
    return 0.0


if __name__ == "__main__":
    sessions.serve(play, num_sessions=8)
