"""Chart, pages and Makefile agree on the versions of Kubernetes, and on what was run."""

import re

import pytest
import yaml
from generators import CHART, ROOT, kubernetes_page

from rljob_testing.charts import Helm, HelmError
from rljob_testing.cluster import binaries

MINORS = list(binaries.SUPPORTED_KUBERNETES)
OLDEST = MINORS[0]
_ROW = r"^\| (1\.\d+\.\d+) \| \d{4}-\d\d-\d\d \| (\d+) \| (\d+) \| (\d+) \|$"
PAGE = kubernetes_page.PAGE.read_text(encoding="utf-8")
RUNS = re.findall(_ROW, PAGE, flags=re.MULTILINE)


def test_the_chart_admits_the_oldest_version_and_those_after_it() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    # With -0, since versions of providers (1.34.2-gke.1) count as pre-releases.
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"


@pytest.mark.parametrize("version", ["1.33.9", "1.34.0-gke.100", "1.34.4", "1.36.3", "1.37.0"])
def test_helm_refuses_an_older_cluster_alone(helm: Helm, version: str) -> None:
    words = ("template", "rljob", str(CHART), f"--kube-version={version}")
    if version.startswith("1.33"):
        with pytest.raises(HelmError, match="kubeVersion"):
            helm.run(*words)
    else:
        assert "kind: Deployment" in helm.run(*words)


def test_the_readme_of_the_chart_names_the_oldest_version() -> None:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    assert f"Kubernetes {OLDEST} or later" in text
    assert f"Kubernetes {OLDEST} or later" in PAGE


@pytest.mark.parametrize("minor", MINORS)
def test_the_page_says_of_each_version_what_ran_on_it_or_that_nothing_did(minor: str) -> None:
    patch = binaries.SUPPORTED_KUBERNETES[minor].removeprefix("v")
    assert (f"\n| {patch} | " in PAGE) is not (f"\n{minor} was not run" in PAGE)


def test_the_page_gives_the_reason_of_every_test_that_did_not_pass() -> None:
    assert RUNS
    for version, passed, failed, skipped in RUNS:
        assert f"v{version}" in binaries.SUPPORTED_KUBERNETES.values()
        assert int(passed) > 0
        for outcome, count in (("failed", failed), ("skipped", skipped)):
            reasons = re.findall(rf"^- {re.escape(version)}, `[^`]+`, {outcome}: .+$", PAGE, flags=re.MULTILINE)
            assert bool(reasons) is (int(count) > 0)


def test_make_runs_each_of_them() -> None:
    assert f"\nKUBERNETES ?= {' '.join(MINORS)}\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
