"""What is wrong with how a run learns, from what it counted and measured. Pure: status, report and tests ask it."""

from collections.abc import Mapping

from rljob_api import enums, types

LENGTH_SELECTION = "LengthSelection"
# Mean length of trained answers over that of all answers of which some are trained: what is usual.
LENGTH_RATIO = (0.95, 1.05)
_CANCELLED_MANY = 0.05
_ENOUGH_ANSWERS = 200


def length_selection(answers: Mapping[str, int], tokens: Mapping[str, int]) -> types.Concern | None:
    """Return what is to be said where long or short answers are trained less often; None where they are not.

    answers, tokens: how many by fate (`enums.AnswerFate`), and their sampled tokens. Filtered answers are left out of
    the comparison: they are chosen by their rewards. Of cancelled ones only the number is known.
    """
    trained, stale, cancelled = (
        answers.get(fate, 0) for fate in (enums.AnswerFate.TRAINED, enums.AnswerFate.STALE, enums.AnswerFate.CANCELLED)
    )
    if trained < _ENOUGH_ANSWERS:
        return None
    remedy = "set spec.async.onStale to Mask, which trains every answer, or raise spec.async.maxOffPolicySteps"
    share = cancelled / (trained + stale + cancelled)
    if share > _CANCELLED_MANY:
        sentence = f"{share:.0%} of the answers were cancelled while they were generated, the long ones first: {remedy}"
        return types.Concern(reason=LENGTH_SELECTION, message=sentence)
    mean = tokens.get(enums.AnswerFate.TRAINED, 0) / trained
    overall = (tokens.get(enums.AnswerFate.TRAINED, 0) + tokens.get(enums.AnswerFate.STALE, 0)) / (trained + stale)
    if LENGTH_RATIO[0] <= mean / max(overall, 1e-9) <= LENGTH_RATIO[1]:
        return None
    sentence = f"trained answers have {mean:.1f} tokens in the mean, generated ones {overall:.1f}: {remedy}"
    return types.Concern(reason=LENGTH_SELECTION, message=sentence)
