"""What differs between pods that share a config file comes from RLJOB_* variables: name, attempt, node, rendezvous."""

from collections.abc import Mapping
from typing import TypeVar

from rljob_api import errors, roles

ConfigT = TypeVar("ConfigT", bound=roles.CommonConfig)
_NUMBERS = {"RLJOB_ATTEMPT": ("attempt", 1), "RLJOB_NODE_RANK": ("node_rank", 0)}


def apply(config: ConfigT, environment: Mapping[str, str]) -> ConfigT:
    """Return the config with the variables that are set in its place. A variable that is empty counts as unset.

    Raises ManifestError that names a variable which is not a number in its range.
    """
    found: dict[str, object] = {}
    if environment.get("RLJOB_POD"):
        found["pod"] = environment["RLJOB_POD"]
    if isinstance(config, roles.TrainerConfig):
        found |= {
            field: _number(name, environment[name], least)
            for name, (field, least) in _NUMBERS.items()
            if environment.get(name)
        }
        if environment.get("RLJOB_RENDEZVOUS_HOST"):
            found["rendezvous_host"] = environment["RLJOB_RENDEZVOUS_HOST"]
    return config.model_copy(update=found)


def _number(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise errors.ManifestError(f"{name} = {text!r}: it must be a whole number from {least} on")
    return int(text)
