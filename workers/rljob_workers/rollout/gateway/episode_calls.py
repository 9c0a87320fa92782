"""Answers the calls of one episode, and makes its rows of them once the agent is done."""

import dataclasses
import functools
import time

import pydantic
import pydantic.alias_generators

from rljob_api import errors, types
from rljob_workers.rollout import generation
from rljob_workers.rollout.episodes import protocols, turns
from rljob_workers.rollout.gateway import conversation, interactions, rendering, streaming, tools
from rljob_workers.rollout.gateway.dialects import fields

TOOL_PARSER_FIELD = "spec.workflow.config.proxy.toolParser"


class ProxyConfig(pydantic.BaseModel):
    """`workflow.config.proxy`: how calls become rows."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel)

    export: interactions.Export = "individual"
    turn_discount: float = pydantic.Field(default=1.0, allow_inf_nan=False)
    drop_retry_orphans: bool = True
    tool_parser: str = pydantic.Field(default=tools.AUTO, min_length=1, max_length=64)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolReader:
    """Reads calls of tools out of answers, in the notation that `workflow.config.proxy.toolParser` names or the chat
    template shows. notation: None if there is none for the template.
    """

    tokens: protocols.Tokens
    notation: tools.Notation | None

    def check(self, call: conversation.Call) -> None:
        """Raise BadCallError for tools whose calls no one would read."""
        if call.tools and self.notation is None:
            raise fields.BadCallError(
                "tools: the chat template of the model shows no notation of tool calls that is known; name the parser"
                f" in {TOOL_PARSER_FIELD}"
            )

    def output(self, sampled: turns.Answer, call: conversation.Call, *, name: str) -> conversation.Message:
        """Return the answer as a message; `name` is the call's."""
        if not call.tools or self.notation is None:
            return fields.assistant(sampled.text)
        ids = sampled.result.output_ids
        # Some notations are special tokens; the end mark is not the parser's affair.
        whole = self.tokens.decode_exact(ids[:-1] if ids[-1] in self.tokens.eos_ids else ids)
        text = generation.completion_text(whole, sampled.result, sampled.request.sampling, own_stops=call.stops)
        read = tools.calls_in(text, self.notation.parser, tools=call.tools, prefix=name)
        return fields.assistant(sampled.text) if read is None else fields.assistant(read[0], *read[1])


def tool_reader(config: ProxyConfig, tokens: protocols.Tokens) -> ToolReader:
    """Return the reader that a config asks for. Raises ManifestError for a parser that does not exist."""
    return ToolReader(tokens=tokens, notation=tokens.tool_notation(config.tool_parser, field=TOOL_PARSER_FIELD))


@dataclasses.dataclass(slots=True, kw_only=True)
class EpisodeCalls:
    """`failure` is what the engine raised: the attempt has failed then, even if the agent got over it."""

    asker: turns.Asker
    tool_reader: ToolReader
    client: turns.EpisodeClient
    gconfig: types.Sampling
    history: interactions.Interactions = dataclasses.field(default_factory=interactions.Interactions)
    failure: errors.RLJobError | None = None

    async def answer(
        self, call: conversation.Call, follower: conversation.Follower | None = None
    ) -> conversation.Answer:
        """Generate the answer to a call. Raises BadCallError, EngineError, or EpisodeError if no context is left.

        A follower hears nothing where the call has tools of a notation that only a whole answer can be read in.
        """
        self.tool_reader.check(call)
        place = self.history.place(call)
        ids = rendering.prompt_ids(call, place, self.asker)
        interaction = self.history.begin(call, prompt_ids=ids, place=place)
        opening = conversation.Opening(id=interaction.id, num_prompt_tokens=len(ids), created_at_s=int(time.time()))
        growing = None if follower is None else self._growing(call, follower, name=interaction.id)
        if growing is not None and follower is not None:
            follower.begun(opening)
        try:
            sampled = await self.asker.ask(
                self.client,
                name=interaction.id,
                context=ids,
                gconfig=self.gconfig,
                max_new_tokens=min(call.max_tokens or self.gconfig.max_tokens, self.gconfig.max_tokens),
                own_stops=call.stops,
                on_tokens=None if growing is None else growing.read,
            )
        except errors.EpisodeError:
            raise
        except errors.RLJobError as error:
            self.failure = error
            raise
        output = self.tool_reader.output(sampled, call, name=interaction.id)
        if isinstance(growing, streaming.GrowingCalls):
            output = growing.settled(output)
        self.history.finish(interaction, output=output, result=sampled.result)
        return conversation.Answer(
            id=opening.id,
            output=output,
            truncated=sampled.result.truncated,
            num_prompt_tokens=opening.num_prompt_tokens,
            num_output_tokens=len(sampled.result.output_ids),
            created_at_s=opening.created_at_s,
            stopped_by=sampled.result.matched_stop if sampled.result.matched_stop in call.stops else "",
        )

    def _growing(
        self, call: conversation.Call, follower: conversation.Follower, *, name: str
    ) -> streaming.GrowingText | streaming.GrowingCalls | None:
        """Return what tells the follower of the answer while it is sampled; `name` is the call's."""
        sampling, decode = self.asker.sampling(self.gconfig), self.asker.tokens.decode
        # What the user asked to keep is part of the text.
        stops = call.stops if sampling.include_stop else (*sampling.stop, *call.stops)
        hold_back = max((len(stop) - 1 for stop in stops), default=0)
        notation = self.tool_reader.notation
        if not call.tools or notation is None:
            return streaming.GrowingText(decode=decode, hold_back=hold_back, send=follower.grew)
        if notation.marks is None:
            return None
        return streaming.GrowingCalls(
            decode=decode,
            decode_exact=self.asker.tokens.decode_exact,
            hold_back=hold_back,
            marks=notation.marks,
            read_calls=functools.partial(tools.calls_in, parser=notation.parser, tools=call.tools, prefix=name),
            follower=follower,
        )

    async def graded_episode(
        self, grader: protocols.Grader, config: ProxyConfig, *, prompt: str
    ) -> protocols.Episode | None:
        """Return the rows with the grader's reward for the last answer, as `episode` does with the agent's own.

        A call of tools is no text of an answer. Raises SandboxError or JudgeError without a verdict.
        """
        if self.failure is not None:
            raise self.failure
        last = self.history.last_answer(drop_orphans=config.drop_retry_orphans)
        if last is None:
            return None
        assert last.result is not None, "it was answered"
        assert last.output is not None, "it was answered"
        last.verdict = await grader.grade(
            prompt=prompt,
            completion=last.output.content,
            truncated=last.result.truncated,
            prompt_ids=last.prompt_ids,
            completion_ids=last.result.output_ids,
        )
        return self.episode({last.id: turns.reward_of(last.verdict)}, config)

    def episode(self, returned: object, config: ProxyConfig) -> protocols.Episode | None:
        """Return the rows with the rewards that the agent returned, None if no call was answered. Raises what the
        engine raised, for the sample would be a part, and EpisodeError for rewards that are none.
        """
        if self.failure is not None:
            raise self.failure
        self.history.reward(returned, drop_orphans=config.drop_retry_orphans)
        total = self.history.discount(config.turn_discount)
        rows = self.history.rows(config.export)
        num_turns = len(self.history.finished())
        return protocols.Episode(rows=rows, total_reward=total, num_turns=num_turns) if rows else None
