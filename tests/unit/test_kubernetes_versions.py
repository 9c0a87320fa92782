"""The tools module of another version of Kubernetes, derived from the one that is checked in."""

import re

import pytest

from rljob_testing.cluster import binaries

(APISERVER,) = (tool for tool in binaries.TOOLS if tool.name == "kube-apiserver")
OWN = (binaries.MODULES / "kubernetes" / "go.mod").read_text()


def test_another_version_has_the_same_programs_and_every_staged_module_of_its_minor() -> None:
    text = binaries.of_version(OWN, own=binaries.OWN_KUBERNETES, other="v1.35.4")
    assert text.startswith(OWN.partition("require (")[0].rstrip())
    assert re.findall(r"^require (.+)$", text, flags=re.MULTILINE) == ["k8s.io/kubernetes v1.35.4"]
    staged = re.findall(r"^replace (k8s\.io/\S+) => (\S+) (\S+)$", text, flags=re.MULTILINE)
    assert len(staged) == OWN.count("=> k8s.io/") > 30
    assert all(name == target and version == "v0.35.4" for name, target, version in staged)


def test_the_own_version_is_built_from_what_is_checked_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "KUBERNETES_VERSION", binaries.OWN_KUBERNETES)
    assert binaries.go_mod(APISERVER) == OWN
    assert binaries.is_own(APISERVER)


@pytest.mark.parametrize("version", ["1.3", "latest", "2.1.0", "1.35.4.1", "v"])
def test_a_version_that_is_none_is_refused_with_the_variable(version: str) -> None:
    with pytest.raises(ValueError, match="RLJOB_KUBERNETES"):
        binaries.kubernetes_version(version)


@pytest.mark.parametrize("minor", binaries.SUPPORTED_KUBERNETES)
def test_a_supported_minor_version_means_one_of_its_patches(minor: str) -> None:
    assert re.fullmatch(rf"v{re.escape(minor)}\.[0-9]+", binaries.kubernetes_version(minor))


def test_a_release_means_itself_and_nothing_means_the_checked_in_one() -> None:
    assert binaries.kubernetes_version("1.35.2") == binaries.kubernetes_version("v1.35.2") == "v1.35.2"
    assert binaries.kubernetes_version("") == binaries.OWN_KUBERNETES


def test_other_tools_do_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "KUBERNETES_VERSION", "v1.35.4")
    (helm,) = (tool for tool in binaries.TOOLS if tool.name == "helm")
    assert binaries.go_mod(helm) == (binaries.MODULES / "helm" / "go.mod").read_text()
