"""`spec.observability.trackers`: where a run's metrics also go. Options of each built-in type, and the section.

To add a type: a class here, an entry in OPTIONS, and the tracker (docs/contributing.md).
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pydantic
import pydantic.alias_generators
from pydantic import Field

from rljob_api import plugins
from rljob_api.manifest import reward_options
from rljob_api.manifest.base import FREE, Config, Name, Problem, Section, one_of, rule


class Options(pydantic.BaseModel):
    """Base of a tracker's `config`: camelCase keys, unknown ones refused. By itself it has none."""

    model_config = pydantic.ConfigDict(
        alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


class AnyOptions(Options):
    """Options of `plugin:<name>`: any; the plugin's own model checks them where the plugin is installed."""

    model_config = pydantic.ConfigDict(extra="allow")


class TensorBoardOptions(Options):
    """Options of `tensorboard`. folder: of the event files; empty: in the coordinator's state directory."""

    folder: str = pydantic.Field(default="", max_length=1024)


OPTIONS: Mapping[str, type[Options]] = {
    "tensorboard": TensorBoardOptions,
}

if TYPE_CHECKING:
    TrackerType = str
else:
    TrackerType = one_of(*OPTIONS, prefixes=(plugins.PREFIX,), imports=False)


class TrackerSpec(Section):
    """One experiment tracker, a process alongside the coordinator."""

    name: Name = Field(description="Name in logs and of its files, unique in the list.")
    type: TrackerType = Field(description="tensorboard, or plugin:<name>, the entry point of a package.")
    config: Config = Field(default={}, max_length=32, json_schema_extra=FREE, description="Options of the tracker.")

    @rule()
    def options_exist(self) -> Iterator[Problem]:
        """Every key and value of a tracker's config is one that its type reads."""
        model = OPTIONS.get(self.type, AnyOptions)
        for option, value, reason in reward_options.problems(self.type, self.config, model=model):
            yield f"config.{option}", value, reason
