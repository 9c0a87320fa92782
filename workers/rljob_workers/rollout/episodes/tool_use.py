"""tool_use: the model acts by calls of tools until it makes none; the whole conversation is ONE row.

    prompt -> answer -> its calls -> what they gave -> answer -> ... -> an answer without a call -> the task's tests

A record's `tests` are commands that run where the model worked, once it is done and never seen by it: the reward is
the share that passes. Without them the job's verifiers grade the last answer. Text is never decoded and encoded again.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import pydantic
import pydantic.alias_generators

from rljob_api import errors, types
from rljob_api.manifest.rollout import (
    MOST_TOOL_SERVERS,
    SERVED_DECLARATION_TOKENS,
    TERMINAL,
    TOOL_OUTPUT_CHARS,
    TOOL_TURNS,
    ToolServer,
)
from rljob_workers.rollout import generation, prompts
from rljob_workers.rollout.episodes import agent, protocols, rows, shell_tool, turns
from rljob_workers.rollout.gateway import conversation, episode_calls, rendering
from rljob_workers.rollout.gateway import tools as reading
from rljob_workers.rollout.tool_servers import catalog, sessions

NOTATION_FIELD = "spec.workflow.config.notation"
SHELL: Mapping[str, object] = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a command in a shell on Linux. Files stay from one command to the next.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command, as for sh -c."}},
            "required": ["command"],
        },
    },
}
# Without the space after it: tokens of words begin with theirs.
_PROMPT, _EXIT = "$", "exit"
# Of names that a model which called another tool is shown.
_MOST_NAMES = 32


class ToolUseConfig(pydantic.BaseModel):
    """`workflow.config` of tool_use. mcp: servers of further tools, whose declarations may take `declaration_tokens` of
    the prompt. notation: how the model writes calls: `auto`, as its chat template shows; the name
    of a parser of vLLM; or `terminal`, each answer a line after "$", of which `exit` is the last.
    """

    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True
    )

    tools: tuple[Literal["shell"], ...] = pydantic.Field(default=(), max_length=1)
    mcp: tuple[ToolServer, ...] = pydantic.Field(default=(), max_length=MOST_TOOL_SERVERS)
    declaration_tokens: int = pydantic.Field(default=SERVED_DECLARATION_TOKENS, ge=1, le=1_000_000)
    notation: str = pydantic.Field(default=reading.AUTO, min_length=1, max_length=64)
    num_turns: int = pydantic.Field(default=TOOL_TURNS, ge=1, le=64)
    command_seconds: float = pydantic.Field(default=30.0, gt=0, le=600)
    output_chars: int = pydantic.Field(default=TOOL_OUTPUT_CHARS, ge=64, le=65_536)
    wait_seconds: float = pydantic.Field(default=600.0, gt=0, le=600)
    max_new_tokens_per_turn: int | None = pydantic.Field(default=None, ge=1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A command of the model's, a call of a server's tool, or why it is neither, which the model reads as output."""

    command: str = ""
    tool: catalog.Tool | None = None
    arguments: Mapping[str, object] = dataclasses.field(default_factory=dict)
    refused: str = ""


class Transcript(Protocol):
    """How one episode is written down for the model. stops: what ends an answer besides the job's stops."""

    stops: Sequence[str]

    def opening(self, task: protocols.Task) -> tuple[int, ...]:
        """Return the ids before the first answer."""

    def requests(self, answer: turns.Answer, *, name: str) -> Sequence[Request]:
        """Return what an answer asks for; nothing if it is the last one. `name` is the answer's."""

    def results(self, context: tuple[int, ...], outputs: Sequence[str]) -> tuple[int, ...]:
        """Return the ids between `context`, which ends with the answer, and the next answer."""


class Terminal:
    """A record of a terminal: no chat template is needed, and a prompt of examples shows how it goes on."""

    stops: Sequence[str] = ("\n",)

    def __init__(self, tokens: protocols.Tokens) -> None:
        self._tokens = tokens

    def opening(self, task: protocols.Task) -> tuple[int, ...]:
        """Return the prompt, which ends with "$"."""
        return task.input_ids

    def requests(self, answer: turns.Answer, *, name: str) -> Sequence[Request]:  # noqa: ARG002  # a line has no id
        command = answer.text.strip()
        return [] if command in ("", _EXIT) else [Request(command=command)]

    def results(self, context: tuple[int, ...], outputs: Sequence[str]) -> tuple[int, ...]:
        ends_line = self._tokens.decode_exact(context[-1:]).endswith("\n")
        lines = [output for output in outputs if output]
        return self._tokens.encode_more("\n".join([*([] if ends_line else [""]), *lines, _PROMPT]))


class Calls:
    """A conversation by the model's chat template, in which the tools are declared."""

    stops: Sequence[str] = ()

    def __init__(
        self, asker: turns.Asker, notation: reading.Notation, *, tools: catalog.Catalog, declarations: "Declarations"
    ) -> None:
        self._asker, self._tokens = asker, asker.tokens
        self._tools, self._has_shell = tools, declarations.has_shell
        self._declared, self._call = declarations.tools, declarations.call
        self._reader = episode_calls.ToolReader(tokens=asker.tokens, notation=notation)
        self._messages: list[Mapping[str, object]] = []
        self._calls: Sequence[conversation.ToolCall] = ()

    def opening(self, task: protocols.Task) -> tuple[int, ...]:
        """Return the prompt with the tools declared, which `task.input_ids` are without."""
        prompt = task.record.columns.get("prompt")
        # The loader's messages are checked.
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": str(prompt)}]
        self._messages = [dict(message) for message in messages]
        return self._tokens.chat_ids(self._messages, tools=self._declared)

    def requests(self, answer: turns.Answer, *, name: str) -> Sequence[Request]:
        message = self._reader.output(answer, self._call, name=name)
        self._calls = message.tool_calls
        self._messages += rendering.as_template_reads([message])
        return [self._request(call) for call in message.tool_calls]

    def _request(self, call: conversation.ToolCall) -> Request:
        arguments = json.loads(call.arguments)
        if call.name == "shell" and self._has_shell:
            command = arguments.get("command")
            if not isinstance(command, str) or not command.strip():
                return Request(refused="[refused: shell needs command, a text that is not empty]")
            return Request(command=command)
        tool = self._tools.get(call.name)
        if tool is None:
            names = [*(["shell"] if self._has_shell else []), *self._tools][:_MOST_NAMES]
            only = f"{names[0]} alone" if len(names) == 1 else ", ".join(names)
            return Request(refused=f"[refused: there is no such tool; there is {only}]")
        if problem := tool.problem(arguments):
            return Request(refused=f"[refused: {problem}]")
        return Request(tool=tool, arguments=arguments)

    def results(self, context: tuple[int, ...], outputs: Sequence[str]) -> tuple[int, ...]:
        answers = [
            conversation.Message(role=conversation.TOOL, content=output, tool_call_id=call.id)
            for call, output in zip(self._calls, outputs, strict=True)
        ]
        before = list(self._messages)
        self._messages += rendering.as_template_reads(answers)
        between = self._tokens.continuation_ids(before, self._messages, tools=self._declared)
        return self._asker.closing_ids(context) + between


class Declarations:
    """All tools as a chat template takes them, the shell first; the same in every episode, so made once."""

    def __init__(self, tools: catalog.Catalog, *, has_shell: bool) -> None:
        self.has_shell = has_shell
        self.tools = [*([SHELL] if has_shell else []), *(tool.declaration for tool in tools.values())]
        # What an answer's calls are read against.
        self.call = conversation.Call(tools=json.dumps(self.tools))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What one episode acts with; None for what it has not."""

    shell: shell_tool.EpisodeShell | None
    servers: sessions.EpisodeSessions | None

    async def output(self, request: Request) -> str:
        """Return what the model sees of a request. Raises PlaceError, UnavailableError and DataError."""
        if request.refused:
            return request.refused
        if request.tool is not None:
            assert self.servers is not None, "a tool is of a server"
            return await self.servers.run(request.tool, request.arguments)
        assert self.shell is not None, "a command is the shell's"
        return await self.shell.run(request.command)


class ToolUseCollector:
    """Holds no state between episodes."""

    def __init__(
        self,
        config: ToolUseConfig,
        *,
        tokens: protocols.Tokens,
        template: str,
        max_model_len: int,
        places: shell_tool.Places | None = None,
        offer: sessions.Offer | None = None,
    ) -> None:
        """`places` are where commands run, `offer` what the servers of `config.mcp` have: None for a check that asks
        none. Raises ManifestError for a model or template that cannot call tools.
        """
        self._config, self._asker = config, turns.Asker(tokens=tokens, template=template)
        self._max_model_len, self._places, self._offer = max_model_len, places, offer
        self._limits = shell_tool.Limits(
            command_s=config.command_seconds, output_chars=config.output_chars, wait_s=config.wait_seconds
        )
        self._begin = self._transcripts()

    def _transcripts(self) -> Callable[[], Transcript]:
        tokens, name = self._asker.tokens, self._config.notation
        if name == TERMINAL:
            return lambda: Terminal(tokens)
        if self._asker.template != prompts.CHAT:
            raise errors.ManifestError(
                f"{NOTATION_FIELD} is '{name}', but {prompts.FIELD} is '{self._asker.template}': a chat template"
                f" declares tools to the model; use template chat, or notation {TERMINAL}"
            )
        notation = tokens.tool_notation(name, field=NOTATION_FIELD)
        if notation is None:
            raise errors.ManifestError(
                f"{NOTATION_FIELD} is '{name}', but the model's chat template shows no notation of tool calls that is"
                f" known: name one of vLLM's parsers, or use {TERMINAL}"
            )
        _check_template(tokens)
        tools: catalog.Catalog = self._offer.tools if self._offer is not None else {}
        _check_length(tokens, tools, most=self._config.declaration_tokens)
        declarations = Declarations(tools, has_shell=self._places is not None)
        return lambda: Calls(self._asker, notation, tools=tools, declarations=declarations)

    async def arun_episode(
        self,
        *,
        llm_client: generation.Generator,
        gconfig: types.Sampling,
        task: protocols.Task,
        grader: protocols.Grader,
        seed: int,
    ) -> protocols.Episode | None:
        """Let the model act until it is done. Raises PlaceError for a place that is lost, and UnavailableError for a
        server: the attempt is made again.
        """
        where = f"record {task.query_id} of {task.record.source}"
        files = shell_tool.files_of(task.record.columns, where=where)
        tests = shell_tool.tests_of(task.record.columns, where=where)
        if self._places is None and (files or tests):
            raise errors.DataError(
                f"{where}: column '{'tests' if tests else 'files'}' needs the tool shell, in whose place tests run and"
                " files are: add it to spec.workflow.config.tools, or leave the column out"
            )
        client = turns.EpisodeClient(inner=llm_client, seed=seed, max_model_len=self._max_model_len)
        transcript, row, answers = self._begin(), rows.RowBuilder(), list[turns.Answer]()
        row.insert(transcript.opening(task))
        async with contextlib.AsyncExitStack() as stack:
            shell = servers = None
            if self._places is not None:
                episode_shell = shell_tool.EpisodeShell(self._places, task.query_id, files=files, limits=self._limits)
                shell = await stack.enter_async_context(episode_shell)
            if self._offer is not None:
                servers = await stack.enter_async_context(self._offer.sessions(self._limits))
            hands = Hands(shell=shell, servers=servers)
            is_whole = await self._act(transcript, row, answers, hands, client, gconfig, task.query_id)
            share = await shell.share_passed(tests) if shell is not None and tests else None
        # The place is free again: a grader answers once all members of the group ask it, and some may wait for one.
        if share is None:
            last = await turns.graded(answers[-1], grader, prompt=task.prompt_text)
            verdict, reward = last.verdict, last.raw_reward
        else:
            verdict, reward = agent.verdict_of(share, grader="tests"), share
        trajectory = row.finished(
            last=answers[-1].result,
            reward=reward,
            raw_reward=reward,
            verdict=verdict,
            num_turns=len(answers),
            out_of_context=not is_whole,
        )
        records = (turns.record_of(each.request, each.result, verdict, raw_reward=reward) for each in answers)
        return protocols.Episode(rows=(trajectory,), total_reward=reward, num_turns=len(answers), turns=tuple(records))

    async def _act(
        self,
        transcript: Transcript,
        row: rows.RowBuilder,
        answers: list[turns.Answer],
        hands: Hands,
        client: turns.EpisodeClient,
        gconfig: types.Sampling,
        name: str,
    ) -> bool:
        """Append to row and answers until the model is done; return False if the context ended before."""
        for index in range(self._config.num_turns):
            answer = await self._asker.ask(
                client,
                name=f"{name}-{index}",
                context=tuple(row.ids),
                gconfig=gconfig,
                max_new_tokens=self._config.max_new_tokens_per_turn,
                own_stops=transcript.stops,
            )
            row.sample(answer.result, turn=index)
            answers.append(answer)
            # Half a call is not run.
            requests = [] if answer.result.truncated else transcript.requests(answer, name=f"{name}-{index}")
            if not requests:
                return True
            outputs = [await hands.output(request) for request in requests]
            if index + 1 == self._config.num_turns:
                return True
            results = transcript.results(tuple(row.ids), [self._asker.tokens.plain(output) for output in outputs])
            if len(row.ids) + len(results) >= self._max_model_len:
                return False
            row.insert(results)
        return True


def _check_template(tokens: protocols.Tokens) -> None:
    """Raise ManifestError for a chat template that does not declare tools, or does not append what they gave."""
    question: list[Mapping[str, object]] = [{"role": "user", "content": "a"}]
    if tokens.chat_ids(question, tools=[SHELL]) == tokens.chat_ids(question):
        raise errors.ManifestError(
            "spec.workflow.config.tools: the model's chat template does not show tools to it; use another model, or"
            f" notation {TERMINAL}"
        )
    call = conversation.ToolCall(id="call00000", name="shell", arguments='{"command": "ls"}')
    answer = conversation.Message(role=conversation.ASSISTANT, content="b", tool_calls=(call,))
    result = conversation.Message(role=conversation.TOOL, content="c", tool_call_id=call.id)
    before = [*question, *rendering.as_template_reads([answer])]
    try:
        tokens.continuation_ids(before, [*before, *rendering.as_template_reads([result])], tools=[SHELL])
    except errors.ManifestError as error:
        raise errors.ManifestError(
            "spec.workflow.type is 'tool_use', but the model's chat template does not append what tools gave to the"
            f" turns before: use another model, or notation {TERMINAL}"
        ) from error


def _check_length(tokens: protocols.Tokens, tools: catalog.Catalog, *, most: int) -> None:
    """Raise ManifestError for declarations of tools that take more of a prompt than they may."""
    question: list[Mapping[str, object]] = [{"role": "user", "content": "a"}]
    without = len(tokens.chat_ids(question, tools=[SHELL]))
    length = len(tokens.chat_ids(question, tools=Declarations(tools, has_shell=True).tools)) - without
    if length > most:
        raise errors.ManifestError(
            f"spec.workflow.config.declarationTokens is {most}, but the declarations of {len(tools)} tools of"
            f" {catalog.FIELD} take {length} tokens of each prompt: name fewer in tools of the servers, or raise it"
        )
