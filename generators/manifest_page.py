"""`docs/manifest.md` from the models of the manifest: `python -m generators.manifest_page`."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from generators import ROOT
from rljob_api.manifest import base
from rljob_api.manifest.job import JobSpec
from rljob_api.validation import crd, migration

PAGE = ROOT / "docs" / "manifest.md"
ROLES = ("coordinator", "rollout", "verifier", "trainer")
Schema = Mapping[str, Any]

_HEAD = """# The manifest
Every field of `spec`. This page is made from the models that read a manifest, from which the CRD is made too
(`make gen`). `rljob plan job.yaml` prints the value that each field has in a job, and where it came from.

- `[]` is an item of a list. A field whose default is *required* must be written; *unset* means that it then plays no
  part; other words say what a value is derived from.
- Numbers with a fraction are decimal strings ("1e-6"), because an API server may not store floats. A quantity is a
  number with a unit suffix ("512Mi").
- What a job may not combine is refused with a sentence: by the API server for the rules at the end of this page, and
  for all of them by `rljob plan`, `rljob run` and the operator.
- *Elsewhere* is what the field is called in the configs of verl, prime-rl, AReaL, OpenRLHF and TRL, where one was read
  there; a note says how it differs. Such a name in a manifest is refused with ours. Names move between versions.
"""
_TABLE = "| field | type | default | meaning | elsewhere |\n|---|---|---|---|---|"


def text() -> str:
    root: Schema = crd.structural(JobSpec)
    parts = [_HEAD, _section("The job", _leaves(root, own_only=True))]
    for key, node in root["properties"].items():
        rows = [row for row in _below(node, key, required=key in root.get("required", ())) if not _is_pod(row[0])]
        if _has_fields(node) and rows:
            parts.append(_section(f"`{key}`", iter(rows), node["description"]))
    pod = root["properties"]["rollout"]["properties"]["pod"]
    about = "A part of core/v1 PodSpec, the same for " + ", ".join(f"`{role}.pod`" for role in ROLES) + "."
    parts.append(_section("`<role>.pod`", _below(pod, "pod", required=False), about))
    parts.append(_rules())
    return "\n".join(parts)


def paths() -> list[str]:
    """Return every path that the page has a row for."""
    return re.findall(r"^\| `([^`]+)` \|", text(), flags=re.MULTILINE)


def _section(title: str, rows: Iterator[tuple[str, Schema, bool]], about: str = "") -> str:
    lines = [_row(path, node, required=required) for path, node, required in rows]
    return "\n".join([f"## {title}", *([about] if about else []), _TABLE, *lines]) + "\n"


def _leaves(root: Schema, *, own_only: bool) -> Iterator[tuple[str, Schema, bool]]:
    for key, node in root["properties"].items():
        if not (own_only and _has_fields(node)):
            yield key, node, key in root.get("required", ())


def _has_fields(node: Schema) -> bool:
    return "properties" in node


def _below(node: Schema, path: str, *, required: bool) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the fields below a node in the order of the manifest; a block that may be left out has a row too."""
    if not _has_fields(node):
        yield path, node, required
        return
    if "default" not in node and "." in path and not required:
        yield path, node, required
    for key, inner in node["properties"].items():
        yield from _field(inner, f"{path}.{key}", required=key in node.get("required", ()))


def _field(node: Schema, path: str, *, required: bool) -> Iterator[tuple[str, Schema, bool]]:
    yield from _below(node, path, required=required)
    if node.get("type") == "array" and _has_fields(node["items"]):
        for key, inner in node["items"]["properties"].items():
            yield from _field(inner, f"{path}[].{key}", required=key in node["items"].get("required", ()))


def _is_pod(path: str) -> bool:
    return bool(re.match(rf"({'|'.join(ROLES)})\.pod(\.|$)", path))


def _row(path: str, node: Schema, *, required: bool) -> str:
    meaning, default = _meaning(node, required=required)
    cells = (f"`{path}`", _type(node), default, meaning, _foreign_names(path))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _meaning(node: Schema, *, required: bool) -> tuple[str, str]:
    """Return a field's sentence and its default; what a description says of the default goes there."""
    meaning, _, derived = str(node["description"]).partition(" Default: ")
    if required:
        return meaning, "*required*"
    if derived:
        return meaning, derived.rstrip(".")
    if "default" not in node or isinstance(node["default"], dict):
        empty = {"array": "`[]`", "boolean": "`false`"}.get(str(node.get("type")))
        return meaning, empty or "*unset*"
    return meaning, f"`{_literal(node['default'])}`"


def _literal(value: object) -> str:
    return json.dumps(value)


def _type(node: Schema) -> str:
    if "enum" in node:
        return ", ".join(f"`{word}`" for word in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = node["type"]
    if kind == "integer":
        return f"{node['minimum']} to {node['maximum']}"
    if kind == "array":
        inner = "blocks" if _has_fields(node["items"]) else f"({_type(node['items'])})"
        return f"list of {node.get('minItems', 0)} to {node['maxItems']} {inner}"
    if kind == "object":
        return "block" if _has_fields(node) else f"map of at most {node['maxProperties']}"
    return "true, false" if kind == "boolean" else _text_type(node)


def _text_type(node: Schema) -> str:
    pattern = str(node.get("pattern", ""))
    names = {
        base.DECIMAL_PATTERN: "decimal string",
        base.LAMBDA_PATTERN: 'decimal string, "vapo{a}", "relativePosition{q}"',
        base.NAME_PATTERN: f"name of at most {node['maxLength']} characters",
        f"^{base.IMPORT_PATTERN}$": "`module:name`",
    }
    if pattern in names:
        return names[pattern]
    words = _choices(pattern)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    return f"text of {node.get('minLength', 0)} to {node['maxLength']} characters"


def _choices(pattern: str) -> list[str]:
    """Return the shapes of a pattern that `base.one_of` made; none for another pattern."""
    if not (pattern.startswith("^(") and pattern.endswith(")$")) or "|" not in pattern:
        return []
    inside = pattern[2:-2].replace(base.IMPORT_PATTERN, "module:name")
    shapes = [part.replace("[a-z0-9]([a-z0-9.-]*[a-z0-9])?", "<name>").replace("\\", "") for part in inside.split("|")]
    return shapes if all(re.fullmatch(r"[\w.:<>-]+", shape) for shape in shapes) else []


def _foreign_names(path: str) -> str:
    named = [each for each in migration.foreign_fields() if each.path == path]
    shown = [f"{each.system}: `{each.name}`" + (f" ({each.note})" if each.note else "") for each in named]
    return "<br>".join(shown) or "-"


def _place(rule: base.CelRule) -> str:
    """Return the field that a refusal names; of the object's name, the object."""
    path = ".".join(part for part in (rule.at, rule.field) if part)
    return f"`{path.removeprefix('spec.')}`" if path else "`metadata.name`"


def _rules() -> str:
    frozen = ", ".join(f"`{path}`" for path in crd.frozen(crd.root_schema()))
    frozen_with_checkpoint = ", ".join(f"`{path}`" for path in crd.FROZEN_WITH_CHECKPOINT)
    lines = [
        "## Rules",
        "The API server refuses a manifest that writes what breaks one of these; the operator checks all with the"
        " values of the\njob's runtime and the defaults:",
        *dict.fromkeys(f"- {_place(rule)}: {rule.message}" for rule in crd.RULES),
        "",
        f"May change before the first attempt, while the job is Suspended, and once it has Failed: {frozen}.",
        "",
        f"May not change once there is a checkpoint (start another job for that): {frozen_with_checkpoint}.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
