import pathlib

import pytest

from rljob_api import enums
from rljob_operator import settings


def test_settings_are_read_with_the_keys_of_the_charts_values(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text(
        '{"watchNamespaces": ["a"], "jobs": {"requireTLS": true, "images": {"rollout": "r:1"},'
        ' "egress": [{"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"], "ports": [443, 9000]}]}}'
    )
    found = settings.read(path)
    assert found.watch_namespaces == ("a",)
    assert found.jobs.require_tls
    assert found.jobs.images == {enums.Role.ROLLOUT: "r:1"}
    assert found.jobs.egress == (settings.Egress(cidr="10.0.0.0/8", excluded=("10.1.0.0/16",), ports=(443, 9000)),)
    assert found.concurrency == 8


def test_a_misspelt_setting_is_refused_with_its_name(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('{"jobs": {"requireTsl": true}}')
    with pytest.raises(ValueError, match=r"settings\.json: jobs\.requireTsl: Extra inputs"):
        settings.read(path)


def test_a_missing_file_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read the settings .*absent\.json: No such file"):
        settings.read(tmp_path / "absent.json")
