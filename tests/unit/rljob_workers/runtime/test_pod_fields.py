import pathlib

import pytest

from rljob_api import errors, process_config
from rljob_testing import sections, trainer_makers
from rljob_workers.runtime import boot


@pytest.fixture
def trainer(tmp_path: pathlib.Path) -> process_config.TrainerConfig:
    return trainer_makers.make_trainer_config(tmp_path)


def test_variables_of_the_pod_take_the_place_of_what_the_shared_file_says(
    trainer: process_config.TrainerConfig,
) -> None:
    found = boot.with_pod_variables(
        trainer,
        {
            "RLJOB_POD": "sums-trainer-7-1-x8k2p",
            "RLJOB_ATTEMPT": "7",
            "RLJOB_NODE_RANK": "1",
            "RLJOB_RENDEZVOUS_HOST": "sums-trainer-7-0.sums-trainer",
        },
    )
    assert (found.pod, found.attempt, found.node_rank) == ("sums-trainer-7-1-x8k2p", 7, 1)
    assert found.rendezvous_host == "sums-trainer-7-0.sums-trainer"


def test_a_rollout_learns_the_address_of_its_pod_under_which_it_serves_weights(tmp_path: pathlib.Path) -> None:
    peers = process_config.PeerConfig(bind_host="0.0.0.0", host="", port=50054)
    rollout = sections.make_config(process_config.RolloutConfig, tmp_path, peers=peers)
    found = boot.with_pod_variables(rollout, {"RLJOB_POD_IP": "10.1.2.3"})
    assert found.peers is not None
    assert found.peers.address == "10.1.2.3:50054"
    assert (
        boot.with_pod_variables(rollout.model_copy(update={"peers": None}), {"RLJOB_POD_IP": "10.1.2.3"}).peers is None
    )


def test_a_trainer_learns_the_address_of_its_pod_under_which_it_broadcasts_weights(
    trainer: process_config.TrainerConfig,
) -> None:
    broadcasts = process_config.BroadcastConfig(host="", port=50055)
    found = boot.with_pod_variables(trainer.model_copy(update={"broadcasts": broadcasts}), {"RLJOB_POD_IP": "10.1.2.3"})
    assert found.broadcasts == broadcasts.model_copy(update={"host": "10.1.2.3"})
    assert boot.with_pod_variables(trainer, {"RLJOB_POD_IP": "10.1.2.3"}).broadcasts is None


def test_a_rollout_learns_the_address_of_its_pod_under_which_it_serves_agents(tmp_path: pathlib.Path) -> None:
    gateway = process_config.GatewayConfig(bind_host="0.0.0.0", host="", port=50_055)
    rollout = sections.make_config(process_config.RolloutConfig, tmp_path, gateway=gateway)
    found = boot.with_pod_variables(rollout, {"RLJOB_POD_IP": "10.1.2.3"})
    assert found.gateway is not None
    assert found.gateway.url == "http://10.1.2.3:50055"
    encrypted = rollout.model_copy(update={"gateway": gateway.model_copy(update={"service": "sums-rollout.team.svc"})})
    named = boot.with_pod_variables(encrypted, {"RLJOB_POD_IP": "10.1.2.3"})
    assert named.gateway is not None
    assert named.gateway.url == "https://10-1-2-3.sums-rollout.team.svc:50055"


def test_without_variables_the_file_holds(trainer: process_config.TrainerConfig) -> None:
    assert boot.with_pod_variables(trainer, {}) == trainer


@pytest.mark.parametrize(
    ("name", "text"),
    [("RLJOB_ATTEMPT", "0"), ("RLJOB_ATTEMPT", "-1"), ("RLJOB_ATTEMPT", "two"), ("RLJOB_NODE_RANK", "1.5")],
)
def test_a_number_out_of_its_range_is_refused_by_name(
    trainer: process_config.TrainerConfig, name: str, text: str
) -> None:
    with pytest.raises(errors.ManifestError, match=name):
        boot.with_pod_variables(trainer, {name: text})


def test_a_program_with_a_bad_variable_ends_with_the_code_of_a_bad_config(
    trainer: process_config.TrainerConfig, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trainer.json"
    path.write_text(trainer.model_dump_json())
    monkeypatch.setenv("RLJOB_ATTEMPT", "two")
    with pytest.raises(SystemExit) as ended:
        boot.parse(process_config.TrainerConfig, program="p", about="a", argv=["--config", str(path)])
    assert ended.value.code == 78
