"""`spec.observability.trackers`: where a run's metrics also go. Options of each built-in type, and the section.

To add a type: a class here, an entry in OPTIONS, and the tracker (docs/contributing.md).
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import pydantic
import pydantic.alias_generators
import pydantic_core
from pydantic import Field

from rljob_api import plugins
from rljob_api.manifest import reward_options
from rljob_api.manifest.base import FREE, Config, Name, Problem, Section, one_of, rule


class Options(pydantic.BaseModel):
    """Base of a tracker's `config`: camelCase keys, unknown ones refused. By itself it has none.

    library: the module that the tracker imports, of a package that the extra of the type's name installs; empty: none.
    keys: the environment variables that its service's keys come by.
    """

    library: ClassVar[str] = ""
    keys: ClassVar[tuple[str, ...]] = ()

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class AnyOptions(Options):
    """Options of `plugin:<name>`: any; the plugin's own model checks them where the plugin is installed."""

    model_config = pydantic.ConfigDict(extra="allow")


class TensorBoardOptions(Options):
    """Options of `tensorboard`. folder: of the event files; empty: in the coordinator's state directory."""

    folder: str = pydantic.Field(default="", max_length=1024)


def _text(pattern: str, right: str) -> pydantic.AfterValidator:
    """Return the check that a whole text matches a pattern. right: what is, for the refusal."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise pydantic_core.PydanticCustomError("text", right)
        return value

    return pydantic.AfterValidator(check)


# A URL with a user or a query may have a key in it.
_URL = r"https?://[^@?\s]{1,1000}"
_Label = Annotated[str, _text(r".{0,128}", "must have at most 128 characters")]
_Tag = Annotated[str, _text(r".{1,64}", "must have 1 to 64 characters")]


class WandbOptions(Options):
    """Options of `wandb`. entity: user or team; empty: the default one of the key. Offline: files for `wandb sync`."""

    library = "wandb"
    keys = ("WANDB_API_KEY",)

    project: Annotated[str, _text(r"[^/\\#?%:]{1,128}", "must have 1 to 128 characters, and none of /\\#?%:")] = "rljob"
    entity: _Label = ""
    mode: Literal["Online", "Offline"] = "Online"
    group: _Label = ""
    tags: tuple[_Tag, ...] = pydantic.Field(default=(), max_length=32)


class MlflowOptions(Options):
    """Options of `mlflow`. trackingUri: a server, or a folder of the coordinator; empty: MLFLOW_TRACKING_URI of its
    environment, and without that the coordinator's state directory.
    """

    library = "mlflow"
    keys = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")

    tracking_uri: Annotated[
        str,
        _text(
            rf"({_URL}|databricks(://[\w.-]+)?|(file://)?/.{{1,1000}})?",
            "must be http(s)://host without user and query, databricks, databricks://profile, or the path of a folder",
        ),
    ] = ""
    experiment: Annotated[str, _text(r".{1,256}", "must have 1 to 256 characters")] = "rljob"


class TrackioOptions(Options):
    """Options of `trackio`. spaceId: a Space of the Hugging Face Hub, made if it is not there, private; serverUrl: a
    server of your own; neither: the coordinator's state directory.
    """

    library = "trackio"
    keys = ("HF_TOKEN", "TRACKIO_WRITE_TOKEN")

    project: Annotated[
        str, _text(r"[A-Za-z0-9][\w.-]{0,127}", "must have 1 to 128 letters, digits and _.-, a letter or digit first")
    ] = "rljob"
    space_id: Annotated[str, _text(r"([\w.-]{1,96}/[\w.-]{1,96})?", "must be owner/name")] = ""
    server_url: Annotated[str, _text(rf"({_URL})?", "must be http(s)://host without user and query")] = ""

    @pydantic.model_validator(mode="after")
    def one_place(self) -> Self:
        """Raises PydanticCustomError for a Space and a server."""
        if self.space_id and self.server_url:
            raise pydantic_core.PydanticCustomError("places", "spaceId and serverUrl exclude each other")
        return self


OPTIONS: Mapping[str, type[Options]] = {
    "tensorboard": TensorBoardOptions,
    "wandb": WandbOptions,
    "mlflow": MlflowOptions,
    "trackio": TrackioOptions,
}

if TYPE_CHECKING:
    TrackerType = str
else:
    TrackerType = one_of(*OPTIONS, prefixes=(plugins.PREFIX,), imports=False)


class TrackerSpec(Section):
    """One experiment tracker, a process alongside the coordinator."""

    name: Name = Field(description="Name in logs and of its files, unique in the list.")
    type: TrackerType = Field(
        description="tensorboard, wandb, mlflow, trackio, or plugin:<name>, the entry point of a package."
    )
    config: Config = Field(default={}, max_length=32, json_schema_extra=FREE, description="Options of the tracker.")

    @rule()
    def options_exist(self) -> Iterator[Problem]:
        """Every key and value of a tracker's config is one that its type reads. What may be a key is not quoted."""
        model = OPTIONS.get(self.type, AnyOptions)
        variables = ", ".join(model.keys) or "a variable"
        for option, value, reason in reward_options.problems(self.type, self.config, model=model):
            if _is_secret(option, value):
                yield f"config.{option}", "***", f"a manifest holds no keys: set {variables} in {_ENVIRONMENT}"
            else:
                yield f"config.{option}".rstrip("."), value, reason


_ENVIRONMENT = "spec.coordinator.pod.env, from a Secret"
_SECRET_OPTION = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_USER_IN_URL = re.compile(r"//[^/\s]*@|[?&]\w*token=", re.IGNORECASE)


def _is_secret(option: str, value: object) -> bool:
    """Return whether a refused option may be a secret, by its name or as a part of an address."""
    return bool(_SECRET_OPTION.search(option) or (isinstance(value, str) and _USER_IN_URL.search(value)))


def missing_library(tracker: TrackerSpec) -> str:
    """Return why a built-in tracker cannot work in this environment: its package is not installed. Empty if it can."""
    library = OPTIONS.get(tracker.type, AnyOptions).library
    # A folder of that name in the working directory, such as W&B writes, is a package without an origin.
    module = importlib.util.find_spec(library) if library else None
    if not library or (module is not None and module.origin is not None):
        return ""
    return (
        f"spec.observability.trackers[{tracker.name}].type is {tracker.type!r}, whose package is not installed here:"
        f" pip install 'rljob[{tracker.type}]', and in a cluster an image of the coordinator that has it"
    )
