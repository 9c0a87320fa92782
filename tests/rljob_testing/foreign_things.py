"""What `docs/integrations.md` has a row of: programs of others, the job that each is run by, what it has to be told."""

import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from rljob_testing import examples

ROOT = examples.ROOT
AGENTS, ENVIRONMENTS = ROOT / "integrations/agents", ROOT / "integrations/environments"
VERIFIERS = ROOT / "integrations/verifiers"
# Where Debian's package wamerican has its words.
WORDS = pathlib.Path("/usr/share/dict/american-english")
NULL_HARNESS = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}
NUM_TASKS = 16
SHORT_WORDS = ("red", "blue", "green", "cat", "dog", "sun", "sea", "one", "two", "ten", "tea", "ice", "red")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a thing is run. python: of its environment. folder: for what it needs besides. model: the folder of the
    model's tokenizer.
    """

    python: pathlib.Path
    folder: pathlib.Path
    model: pathlib.Path


Settings = Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """A row of the table. packages: whose versions are shown. venv: the folder of its environment, "" for the worker's.
    settings: what is said to `rljob run` with --set. variables: of the process that starts the run. configured: what
    had to be said to the thing itself. remark: what did not work, or is worth knowing.
    """

    name: str
    does: str
    packages: tuple[str, ...]
    manifest: pathlib.Path
    venv: str = ""
    settings: Callable[[Place], Settings] = lambda _: {}
    variables: Callable[[Place], Mapping[str, str]] = lambda _: {}
    configured: str = ""
    remark: str = ""


def program(file: str, **more: object) -> Callable[[Place], Settings]:
    """Return the settings by which the job starts a program of `integrations/agents`."""
    return lambda place: {"spec.agents.command": [str(place.python), file], **more}


def with_tools(settings: Callable[[Place], Settings]) -> Callable[[Place], Settings]:
    """Return the settings with a tokenizer whose chat template shows tools, which the small model's own does not."""

    def added(place: Place) -> Settings:
        folder = place.folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        for file in ("tokenizer.json", "tokenizer_config.json", "config.json"):
            shutil.copy(place.model / file, folder)
        shutil.copy(AGENTS / "tools_template.jinja", folder / "chat_template.jinja")
        return {**settings(place), "spec.model.tokenizer": str(folder)}

    return added


def of_verifiers(
    environment: str, taskset: Callable[[Place], Settings], *, seat: str = "agent", **more: object
) -> Callable[[Place], Settings]:
    """Return the settings by which the job plays an environment of verifiers, whose tasks are exported first."""

    def exported(place: Place) -> Settings:
        options = {seat: NULL_HARNESS, "taskset": dict(taskset(place))}
        tasks = place.folder / "tasks.jsonl"
        command = [str(place.python), str(VERIFIERS / "agent.py")]
        chosen = [f"--environment={environment}", f"--args={json.dumps(options)}", f"--limit={NUM_TASKS}"]
        subprocess.run(
            [*command, "export", *chosen, f"--out={tasks}"], cwd=place.folder, env=offline(place), check=True
        )
        return {
            "spec.agents.command": [*command, "run", *chosen, "--sessions=4"],
            "spec.data.train": [{"name": "tasks", "path": str(tasks), "columns": {"id": "id"}}],
            **more,
        }

    return exported


def offline(place: Place) -> dict[str, str]:
    """Return the variables by which libraries fetch nothing, and find the words of NLTK in the place's folder."""
    scripts = place.python.parent
    own = {"HF_HUB_OFFLINE": "1", "UV_OFFLINE": "1", "NLTK_DATA": str(place.folder / "nltk")}
    return {**os.environ, **own, "PATH": f"{scripts}:{os.environ['PATH']}"}


def texts(place: Place) -> Settings:
    """Write texts to reverse, in place of a data set of the hub."""
    folder = place.folder / "texts"
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"prompt": f"{first} {second}"}) for first, second in itertools.pairwise(SHORT_WORDS)]
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"dataset_name": str(folder)}


def words(place: Place) -> Settings:
    """Write the list that the game takes its words from, in place of NLTK's corpus."""
    folder = place.folder / "nltk/corpora/words"
    folder.mkdir(parents=True, exist_ok=True)
    short = [word for word in WORDS.read_text(encoding="utf-8").split() if word.isascii() and word.isalpha()]
    for name in ("en", "en-basic"):
        (folder / name).write_text("\n".join(word for word in short if len(word) == 3) + "\n", encoding="utf-8")
    (folder / "README").write_text("From Debian's wamerican.\n", encoding="utf-8")
    return {"game": "Hangman-v0"}


LONG: Mapping[str, object] = {"spec.rollout.sampling.maxTokens": 96, "spec.algorithm.promptsPerStep": 2}

THINGS: Sequence[Thing] = (
    Thing(
        name="openai",
        does="agent of OpenAI's client: worked examples, a second try",
        packages=("openai",),
        manifest=AGENTS / "job.yaml",
        settings=program("openai_chat.py"),
        configured="`base_url`, `api_key`, `max_retries=0`",
    ),
    Thing(
        name="anthropic",
        does="agent of Anthropic's client: a stream, a system prompt",
        packages=("anthropic",),
        manifest=AGENTS / "job.yaml",
        settings=program("anthropic_stream.py"),
        configured="`base_url` without `/v1`, `api_key`, `max_retries=0`",
    ),
    Thing(
        name="mini-swe-agent",
        does="the command `mini`, a harness with a shell",
        packages=("mini-swe-agent", "litellm"),
        manifest=AGENTS / "job.yaml",
        venv="mini-swe-agent",
        settings=program("mini_swe.py", **LONG),
        configured="`api_base`, model `openai/policy`, its class for texts, its environment `bubblewrap`",
        remark="no answer is a command; those that it cannot read it leaves out of the conversation: a row each",
    ),
    Thing(
        name="reverse-text",
        does="environment of verifiers, one turn",
        packages=("verifiers", "reverse-text"),
        manifest=AGENTS / "job.yaml",
        venv="verifiers",
        settings=of_verifiers("reverse_text", texts),
        variables=offline,
        configured="`harness.id: null`, `runtime.type: subprocess`, `dataset_name`: a folder of texts",
        remark="no answer has the tags that it asks for",
    ),
    Thing(
        name="hangman",
        does="environment of verifiers, TextArena's game, many turns",
        packages=("verifiers", "textarena"),
        manifest=AGENTS / "job.yaml",
        venv="verifiers",
        settings=of_verifiers("textarena", words, seat="player"),
        variables=offline,
        configured="`harness.id: null`, `runtime.type: subprocess`, `game`; `NLTK_DATA`: Debian's words",
    ),
    Thing(
        name="glossary",
        does="environment of verifiers with a server of MCP for each task",
        packages=("verifiers", "glossary"),
        manifest=AGENTS / "job.yaml",
        venv="verifiers",
        settings=with_tools(of_verifiers("glossary", lambda _: {})),
        variables=offline,
        configured="`harness.id: null`, `runtime.type: subprocess`; a chat template that shows tools",
        remark="no call could be read, so its server was never asked",
    ),
    Thing(
        name="langchain-mcp",
        does="LangChain's agent with the tools of an MCP server over stdio",
        packages=("langchain", "langchain-openai", "langchain-mcp-adapters", "mcp-server-calculator"),
        manifest=AGENTS / "job.yaml",
        venv="langchain",
        settings=with_tools(program("langchain_mcp.py")),
        configured="`base_url`, `api_key`, `max_retries=0`; a chat template that shows tools",
        remark="the server was asked in 12 sessions; 7 more calls could not be read",
    ),
    Thing(
        name="reasoning-gym",
        does="tasks and scores",
        packages=("reasoning-gym",),
        manifest=ENVIRONMENTS / "reasoning-gym-cpu.yaml",
        configured="the name of the data set",
    ),
    Thing(
        name="gymnasium",
        does="FrozenLake as a workflow, in the rollout",
        packages=("gymnasium",),
        manifest=ENVIRONMENTS / "frozen-lake-cpu.yaml",
        configured='`render_mode="ansi"`, its own `TransformObservation` and `TransformAction`',
    ),
    Thing(
        name="smolagents",
        does="smolagents' ToolCallingAgent",
        packages=("smolagents",),
        manifest=AGENTS / "job.yaml",
        venv="smolagents",
        settings=with_tools(program("smolagents_tools.py")),
        configured='`api_base`, `api_key`, `tool_choice="auto"`, `retry=False`; a chat template that shows tools',
        remark="no call could be read; its third call asks for a final answer with another prompt, a row of its own",
    ),
)


def python_of(thing: Thing, venvs: pathlib.Path | None) -> pathlib.Path | None:
    """Return the Python that runs a thing, None where its environment is not there."""
    if not thing.venv:
        return pathlib.Path(sys.executable)
    python = None if venvs is None else venvs.absolute() / thing.venv / "bin/python"
    return python if python is not None and python.exists() else None
