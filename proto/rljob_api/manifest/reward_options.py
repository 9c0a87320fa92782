"""Reward types: one class each, with its options (`verifier.rewards[].config`) and what other parts must know of it.

What an option means, the grader itself says. The classes are here and not with the graders, because a wrong option is
refused when the job is admitted, by a process that has no grader installed.
To add a reward type: a class here, an entry in OPTIONS, and the grader (docs/contributing.md).
"""

import ipaddress
import math
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

import pydantic
import pydantic.alias_generators

from rljob_api import plugins

DEFAULT_CPU_S = 10.0


class Options(pydantic.BaseModel):
    """Base of a reward's `config`: camelCase keys, unknown ones refused.

    reproduces: whether the grader reproduces a published one, and has mode compat for that.
    runs: what of the policy's text it executes: nothing, a program, or the tests of a repository that it changes.
    tasks: the tasks whose records it grades in the environment math_code_single_step; empty: records of any task.
    """

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )

    reproduces: ClassVar[bool] = False
    runs: ClassVar[Literal["", "program", "repository"]] = ""
    tasks: ClassVar[tuple[str, ...]] = ()

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002  # some types have a limit per mode
        """Return the CPU limit where the manifest sets none: seconds of the reference machine for one time limit."""
        return DEFAULT_CPU_S


class ExactOptions(Options):
    """Options of `exact`."""

    ignore_case: bool = False
    first_line: bool = False


class MathOptions(Options):
    """Options of `math`."""

    boxed_only: bool = False


class GymOptions(Options):
    """Options of `reasoning_gym`."""

    require_tags: bool = False
    binary: bool = False
    datasets: tuple[str, ...] = ()


class SolutionOptions(Options):
    """A file of references or tests; empty: the data source itself."""

    solution_path: str = ""


class CodeOptions(SolutionOptions):
    """Options of `code`. The limit is of one test case."""

    runs = "program"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 6.0


class ArealCodeOptions(CodeOptions):
    """Options of `areal-code`."""

    reproduces = True
    tasks = ("code",)


class ArealMathOptions(SolutionOptions):
    """Options of `areal-math`. The limit is of one pair of answer and reference."""

    reproduces = True
    tasks = ("math", "stem")

    def cpu_s(self, mode: str) -> float:
        """Return the original's limit in mode compat, a shorter one in mode strict."""
        return 15.0 if mode == "Compat" else 5.0


class RepositoryOptions(Options):
    """Options of `repository-tests`: none; the record says everything."""

    runs = "repository"


class Gsm8kOptions(Options):
    """Options of `gsm8k`. `method` is an extraction rule and has nothing to do with `mode`."""

    reproduces = True

    method: Literal["strict", "flexible", "math_verify"] = "strict"
    format_score: float = pydantic.Field(default=0.0, ge=0.0, le=1.0)
    precision: int = pydantic.Field(default=6, ge=1, le=15)

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 5.0 if self.method == "math_verify" else 1.0


class ClevrOptions(Options):
    """Options of `clevr_count_70k`. `method` is for hashes."""

    reproduces = True

    answer_format: Literal["brackets", "hashes"] = "brackets"
    method: Literal["strict", "flexible"] = "strict"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 1.0


class BoxedOptions(Options):
    """Options of `boxed`."""

    reproduces = True

    verifier_version: Literal["fast", "math_verify"] = "fast"

    def cpu_s(self, mode: str) -> float:  # noqa: ARG002
        return 3.0 if self.verifier_version == "math_verify" else 1.0


class AnswerTagOptions(BoxedOptions):
    """Options of `answer_tag`."""

    tag_rule: Literal["exact", "loose"] = "exact"


JUDGE = "judge"
# What a judge's template may hold, by form; the first ones it must.
_PLACEHOLDERS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rubric": (("answer",), ("question", "reference")),
    "reference": (("answer", "reference"), ("question",)),
    "pairwise": (("answer_a", "answer_b"), ("question", "reference")),
    "score": (("answer",), ("question", "reference")),
}
_TEMPLATES: Mapping[str, str] = {
    "rubric": "Judge how well the answer below answers the question: is it right, complete and clear?\n\n"
    "Question:\n{question}\n\nAnswer:\n{answer}",
    "reference": "Is the answer below equal in meaning to the reference?\n\n"
    "Question:\n{question}\n\nReference:\n{reference}\n\nAnswer:\n{answer}",
    "pairwise": "Which of the two answers below answers the question better?\n\n"
    "Question:\n{question}\n\nAnswer A:\n{answer_a}\n\nAnswer B:\n{answer_b}",
    "score": "{answer}",
}
# Options that one of these forms alone reads.
_FORMS_OF_OPTION: Mapping[str, tuple[str, ...]] = {
    "scale": ("rubric", "score"),
    "opponents": ("pairwise",),
    "endpoint": ("score",),
    "class_index": ("score",),
    "verdict": ("rubric", "reference", "pairwise"),
    "temperature": ("rubric", "reference", "pairwise"),
    "max_tokens": ("rubric", "reference", "pairwise"),
}
_SecretName = Annotated[
    str, pydantic.Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]


class SecretKey(pydantic.BaseModel):
    """One key of a Secret of the job's namespace."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: _SecretName
    key: _SecretName

    @property
    def variable(self) -> str:
        """The variable that the judge's process reads it from, in a cluster and on one machine."""
        letters = "".join(letter if letter.isalnum() else "_" for letter in f"{self.name}_{self.key}")
        return f"{JUDGE_KEY_PREFIX}{letters.upper()}"


# No other process of a run gets variables with this beginning; by its KEY a log masks their values.
JUDGE_KEY_PREFIX = "RLJOB_JUDGE_KEY_"


class JudgeOptions(Options):
    """Options of `judge`: where the language model is, what it is asked, and how much it may be asked.

    url: before `/chat/completions`, or before `/score`, `/pooling` or `/classify` for form score; url and model empty:
    the model that the job serves itself, spec.judge. scale: the lowest and
    the highest score, mapped to 0 and 1; 1 and 10 for a rubric, 0 and 1 for a reward model. opponents: with how many
    others of its group each answer is compared, each pair once, so that an answer is in twice as many comparisons.
    max_answer_chars: a longer text is judged by its first and last halves of that. Seconds are of any clock;
    deadline_seconds ends everything that is tried for one answer, call_seconds one call. calls_per_minute 0: as many as
    come.
    """

    url: str = pydantic.Field(default="", max_length=1024)
    model: str = pydantic.Field(default="", max_length=256)
    api_key: SecretKey | None = None
    form: Literal["rubric", "reference", "pairwise", "score"] = "rubric"
    template: str = pydantic.Field(default="", max_length=16_384)
    question_column: str = pydantic.Field(default="", max_length=128)
    reference_column: str = pydantic.Field(default="answer", min_length=1, max_length=128)
    verdict: Literal["line", "json", "schema"] = "line"
    scale: tuple[pydantic.FiniteFloat, pydantic.FiniteFloat] | None = None
    endpoint: Literal["score", "pooling", "classify"] = "score"
    class_index: int = pydantic.Field(default=0, ge=0, le=1023)
    opponents: int = pydantic.Field(default=1, ge=1, le=64)
    temperature: float = pydantic.Field(default=0.0, ge=0.0, le=2.0)
    max_tokens: int = pydantic.Field(default=512, ge=1, le=32_768)
    max_answer_chars: int = pydantic.Field(default=32_768, ge=64, le=1_048_576)
    max_concurrent: int = pydantic.Field(default=16, ge=1, le=1024)
    calls_per_minute: int = pydantic.Field(default=0, ge=0, le=1_000_000)
    call_seconds: float = pydantic.Field(default=60.0, gt=0.0, le=3600.0)
    deadline_seconds: float = pydantic.Field(default=180.0, gt=0.0, le=86_400.0)

    @pydantic.field_validator("url")
    @classmethod
    def _may_be_called(cls, value: str) -> str:
        if value and (problem := url_problem(value, key="apiKey")):
            raise ValueError(problem)
        return value

    @pydantic.model_validator(mode="after")
    def _whole(self) -> "JudgeOptions":
        if bool(self.url) != bool(self.model):
            lacking = "url is written and model is not" if self.url else "model is written and url is not"
            raise ValueError(f"{lacking}: write both, or neither for the model of spec.judge")
        if self.api_key is not None and not self.url:
            raise ValueError("apiKey is of a url: leave it out, the model of spec.judge needs none")
        for name in sorted(self.model_fields_set & _FORMS_OF_OPTION.keys()):
            if self.form not in _FORMS_OF_OPTION[name]:
                option = pydantic.alias_generators.to_camel(name)
                raise ValueError(f"{option} has no effect on form {self.form}: leave it out")
        low, high = self.bounds
        if low >= high:
            raise ValueError(f"scale is [{low:g}, {high:g}], but must be the lowest score and a higher one")
        needed, possible = _PLACEHOLDERS[self.form]
        missing = [name for name in needed if "{" + name + "}" not in self.prompt]
        if missing:
            raise ValueError(f"template of form {self.form} lacks " + ", ".join("{" + name + "}" for name in missing))
        foreign = [
            name for name in PLACEHOLDERS if name not in (*needed, *possible) and "{" + name + "}" in self.prompt
        ]
        if foreign:
            raise ValueError(f"template of form {self.form} has no {{{foreign[0]}}}")
        return self

    @property
    def prompt(self) -> str:
        """The template: the manifest's, or the form's own."""
        return self.template or _TEMPLATES[self.form]

    @property
    def bounds(self) -> tuple[float, float]:
        """The scores that become 0 and 1."""
        return self.scale or ((1.0, 10.0) if self.form == "rubric" else (0.0, 1.0))

    @property
    def reads_reference(self) -> bool:
        """Whether a record needs the column of references."""
        return "{reference}" in self.prompt

    @property
    def port(self) -> int:
        """The port of the URL, where there is one."""
        return port_of(self.url)

    def most_calls(self, group_size: int) -> int:
        """Return how many calls one group takes at most, tries after failures apart; twice that, if no first reply can
        be read.
        """
        return len(pairs(group_size, self.opponents)) if self.form == "pairwise" else group_size


PLACEHOLDERS = ("question", "reference", "answer", "answer_a", "answer_b")
_CLUSTER_SUFFIXES = (".svc", ".svc.cluster.local", ".localhost")


def pairs(num_answers: int, opponents: int) -> list[tuple[int, int]]:
    """Return which answers of a group are compared, each pair once: each with the next `opponents` of a ring."""
    chosen: dict[frozenset[int], tuple[int, int]] = {}
    for step in range(1, min(opponents, num_answers - 1) + 1):
        for first in range(num_answers):
            second = (first + step) % num_answers
            chosen.setdefault(frozenset((first, second)), (first, second))
    return list(chosen.values())


def port_of(url: str) -> int:
    """Return the port that a URL in which `url_problem` finds nothing has, or means."""
    parts = urllib.parse.urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def url_problem(url: str, *, key: str) -> str:
    """Return what is wrong with a URL where keys travel, empty for nothing; `key` is the option that names one."""
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port
    except ValueError:
        return "must be a URL"
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return f"must hold no user, password, query or fragment: a key is named by {key}"
    if not parts.hostname or not all(33 <= ord(letter) < 127 for letter in url):
        return "must be a URL"
    if parts.scheme == "https" or (parts.scheme == "http" and _is_near(parts.hostname)):
        return ""
    return "must begin with https://, or with http:// for this machine, a Service of the cluster or a private address"


def _is_near(host: str) -> bool:
    """Return whether a name or address is this machine's or the cluster's, where plain text may travel."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith(_CLUSTER_SUFFIXES)
    return address.is_loopback or (address.is_private and not address.is_link_local and not address.is_unspecified)


class PluginOptions(Options):
    """Options of `plugin:<name>`: any; the plugin's own model checks them where the plugin is installed."""

    model_config = pydantic.ConfigDict(extra="allow")


class CustomOptions(Options):
    """Options of `module:function`: weights by name of what it returns; whatever else there is goes to the function."""

    model_config = pydantic.ConfigDict(extra="allow")

    weights: dict[str, pydantic.FiniteFloat] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("weights", mode="before")
    @classmethod
    def _numbers(cls, value: object) -> object:
        """Refuse what pydantic would turn into numbers."""
        if isinstance(value, Mapping) and not all(_is_number(weight) for weight in value.values()):
            raise ValueError("must map names to finite numbers")
        return value


# Our own types first, then those that reproduce a published grader.
OPTIONS: Mapping[str, type[Options]] = {
    "math": MathOptions,
    "code": CodeOptions,
    "repository-tests": RepositoryOptions,
    "exact": ExactOptions,
    "reasoning_gym": GymOptions,
    JUDGE: JudgeOptions,
    "boxed": BoxedOptions,
    "answer_tag": AnswerTagOptions,
    "gsm8k": Gsm8kOptions,
    "clevr_count_70k": ClevrOptions,
    "areal-math": ArealMathOptions,
    "areal-code": ArealCodeOptions,
}


def is_function(type_: str) -> bool:
    """Return whether a reward type is `module:function`."""
    return ":" in type_ and not plugins.plugin_name(type_)


def options_class(type_: str) -> type[Options]:
    """Raises KeyError for an unknown one."""
    if plugins.plugin_name(type_):
        return PluginOptions
    return CustomOptions if is_function(type_) else OPTIONS[type_]


def problems(
    type_: str, config: Mapping[str, object], *, model: type[pydantic.BaseModel] | None = None
) -> Iterator[tuple[str, object, str]]:
    """Yield path below `config`, value and what would be right, for each option that is wrong.

    model: the class of the options, by default that of the type.
    """
    kind = model or options_class(type_)
    try:
        kind.model_validate(config)
    except pydantic.ValidationError as error:
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            yield path, problem["input"], _reason(type_, kind, problem["type"], problem["msg"])


def _reason(type_: str, kind: type[pydantic.BaseModel], problem: str, message: str) -> str:
    if problem != "extra_forbidden":
        message = message.removeprefix("Value error, ")
        return message[:1].lower() + message[1:]
    options = ", ".join(str(field.alias) for field in kind.model_fields.values())
    return f"{type_} has no such option; it has {options or 'none'}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
