"""Pages written by hand name only metrics, fields, values of the chart and pages that exist."""

import pathlib
import re

import pytest
import yaml
from generators import metric_catalog

from rljob_api.manifest.job import JobSpec
from rljob_api.validation import fields, load, migration
from rljob_api.validation import rules as rules_of_manifests
from rljob_testing import pages, rules
from rljob_workers.models import families

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Made from the code, and compared with it by tests of their own.
MADE = {DOCS / "metrics.md", DOCS / "manifest.md"}
PAGES = sorted({*DOCS.rglob("*.md"), ROOT / "README.md"} - MADE - set((DOCS / "coverage").iterdir()))
FIELDS = {path for path, _ in fields.all_paths(JobSpec)}
# A page may speak of what is not served yet.
NAMED = FIELDS | set(migration.UNSUPPORTED)
SECTIONS = {path.split(".", 1)[0].removesuffix("[]") for path in NAMED}
SERIES = {
    name for entry in metric_catalog.exported().values() for name in (entry.metric.name, *metric_catalog.series(entry))
}
# Words with our prefix that are not metrics: the packages, the label, what vLLM calls us.
NOT_METRICS = {"rljob_api", "rljob_operator", "rljob_workers", "rljob_testing", "rljob_namespace"}
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def metrics_in(text: str) -> set[str]:
    """Return words that look like metrics of ours."""
    return set(re.findall(r"(?<![\w./-])rljob_[a-z][a-z_]*[a-z](?![\w/.*{]*/)", text)) - NOT_METRICS


def recorded_in(text: str) -> set[str]:
    """Return words that look like recording rules of ours."""
    return set(re.findall(r"rljob:[a-z_]+:[a-z0-9]+", text))


def unknown_fields(text: str) -> set[str]:
    """Return words in code marks that begin as a field of the manifest and continue as none."""
    marked = re.findall(r"`(?:spec\.)?([a-z][A-Za-z]*(?:\[\])?\.[A-Za-z.\[\]]+[A-Za-z\]])(?::[^`]*)?`", text)
    named = {path for path in marked if path.split(".", 1)[0].removesuffix("[]") in SECTIONS}
    return {path for path in named if not any(known(path, field) for field in NAMED)}


def known(path: str, field: str) -> bool:
    """Say whether a path is a field, or ends inside what a field leaves free."""
    free = field.rsplit(".", 1)[-1] in ("config", "extraArgs", "extra", "limits", "requests")
    plain = field.replace("[]", "")
    return path.replace("[]", "") == plain or (free and path.replace("[]", "").startswith(f"{plain}."))


def test_words_of_metrics_and_fields_are_found() -> None:
    text = "`rljob_step`, `rollout.replcas`, `rljob_stepp`, `workflow.config.agent: m:C`, `verifier.rewards[].type`"
    assert metrics_in(text) - SERIES == {"rljob_stepp"}
    assert unknown_fields(text) == {"rollout.replcas"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_page_names_metrics_that_a_process_exports(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert metrics_in(text) - SERIES == set()
    assert recorded_in(text) - set(rules.recorded()) == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_page_names_fields_of_the_manifest_that_exist(page: pathlib.Path) -> None:
    assert unknown_fields(page.read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_of_a_page_lead_to_files_and_headings(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name) if name else page
        if not found.is_file() or (anchor and anchor not in pages.heading_anchors(found.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_files_that_a_page_names_exist(page: pathlib.Path) -> None:
    named = re.findall(
        r"`((?:docs|charts|crds|tests|proto|operator|workers)/[\w./-]+)`", page.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_values_of_the_chart_that_pages_name_exist() -> None:
    values = yaml.safe_load((ROOT / "charts/rljob-operator/values.yaml").read_text(encoding="utf-8"))
    for name in re.findall(r"`(jobs\.[\w.]+)`", (DOCS / "security.md").read_text(encoding="utf-8")):
        inside = values
        for key in name.split("."):
            assert key in inside, f"docs/security.md names {name}"
            inside = inside[key]


def test_manifest_of_the_readme_is_accepted_and_served() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    spec = load.load_manifest(text).spec
    assert rules_of_manifests.problems(spec) == []


def test_limits_name_every_field_that_nothing_serves_yet_and_no_other() -> None:
    """Fields that only one of two ways serves are named too."""
    partly = {"resumeFrom.uri", "resumeFrom.job", "model.lora"}
    part = (DOCS / "limits.md").read_text(encoding="utf-8").split("## Bounds")[0]
    named = {path for path in re.findall(r"`([a-z][A-Za-z.]+)`", part) if path.split(".", 1)[0] in SECTIONS}
    assert named - partly == set(migration.UNSUPPORTED)


def test_the_table_of_models_is_the_families_that_are_supported() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text.split("## The self-test")[0], flags=re.MULTILINE))
    assert listed == families.SUPPORTED
