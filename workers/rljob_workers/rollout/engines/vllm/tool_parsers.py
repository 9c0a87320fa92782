"""vLLM's parsers of tool calls, by its names (`--tool-call-parser`): what `vllm serve` would read, an agent gets."""

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rljob_workers.rollout.gateway import tools as reading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.tokenizers import TokenizerLike


# They log what they cannot read as errors, with stacks and pieces of the text: every few answers of a policy that
# learns to make calls.
_LOGGERS = ("vllm.tool_parsers", "vllm.parser")


def names() -> Sequence[str]:
    """Return the names that vLLM has a parser for."""
    from vllm.tool_parsers import ToolParserManager

    return sorted(ToolParserManager.list_registered())


def parser(name: str, tokenizer: "PreTrainedTokenizerBase") -> reading.Parser:
    """Return the parser of one of `names`. It takes seconds, in which much of vLLM is imported."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    kind = ToolParserManager.get_tool_parser(name)
    for logger in _LOGGERS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)

    def read(text: str, *, tools: str) -> reading.Read:
        request = ChatCompletionRequest(
            model="policy", messages=[{"role": "user", "content": ""}], tools=json.loads(tools)
        )
        # One for each text: they keep what they have read.
        reader = kind(cast("TokenizerLike", tokenizer), [*(request.tools or ())])
        extracted = reader.extract_tool_calls(text, request)
        if not extracted.tools_called:
            return reading.Read(content=text, calls=())
        calls = [
            # An id that is not in the text was made up at random, and would differ from run to run.
            (call.function.name, call.function.arguments, call.id if call.id in text else "")
            for call in extracted.tool_calls
        ]
        return reading.Read(content=extracted.content or "", calls=calls)

    return read
