"""What Oat's actor reports of a step, under its names, in the step's history line. Pure. Source:
docs/design/workflows.md#s-9.

Means are over responses, never means of means. Times are means over the step's groups, seconds: groups overlap.
`GAUGES` has a Prometheus name for each of them.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence

# Prometheus wants units in a name, and `_count` and `_total` mean something else there.
GAUGES: Mapping[str, str] = {
    "actor/rewards": "rljob_actor_rewards",
    "actor/avg_reward": "rljob_actor_avg_reward",
    "actor/num_data": "rljob_actor_num_data",
    "actor/num_transitions": "rljob_actor_num_transitions",
    "actor/formatted": "rljob_actor_formatted_ratio",
    "actor/response_tok_len": "rljob_actor_response_tok_len",
    "actor/no_eos_count": "rljob_actor_no_eos",
    "actor/sampling_max_tokens": "rljob_actor_sampling_max_tokens",
    "actor/sampling_temperature": "rljob_actor_sampling_temperature",
    "actor/generate_time": "rljob_actor_generate_seconds",
    "actor/verify_time": "rljob_actor_verify_seconds",
    "actor/total_time": "rljob_actor_sum_seconds",
    "actor/generate_avg_str_len": "rljob_actor_generate_avg_str_len",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response: what it was graded, and how it ended. num_chars: None where the workflow does not say."""

    graded: float
    formatted: bool
    truncated: bool
    num_tokens: int
    num_chars: int | None = None


def metrics(
    responses: Sequence[Response], *, zero_truncated: bool, generate_s: Sequence[float], verify_s: Sequence[float]
) -> dict[str, float]:
    """Return the metrics. `actor/rewards` is before truncated responses are set to 0, `actor/avg_reward` after: the
    mean of each response's largest dense reward, which is 0 but for the last token. `actor/generate_avg_str_len` is
    left out where a response does not say its characters.
    """
    learned = [0.0 if zero_truncated and response.truncated else response.graded for response in responses]
    generate, verify = statistics.fmean(generate_s), statistics.fmean(verify_s)
    chars = [response.num_chars for response in responses if response.num_chars is not None]
    texts = {"actor/generate_avg_str_len": statistics.fmean(chars)} if len(chars) == len(responses) else {}
    return {
        "actor/rewards": statistics.fmean(response.graded for response in responses),
        "actor/avg_reward": statistics.fmean(max(0.0, reward) for reward in learned),
        "actor/num_data": len(responses),
        "actor/num_transitions": len(responses),
        "actor/formatted": statistics.fmean(response.formatted for response in responses),
        "actor/response_tok_len": statistics.fmean(response.num_tokens for response in responses),
        "actor/no_eos_count": sum(response.truncated for response in responses),
        "actor/generate_time": generate,
        "actor/verify_time": verify,
        "actor/total_time": generate + verify,
        **texts,
    }
