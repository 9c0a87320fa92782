import dataclasses
from collections.abc import Callable, Mapping

import pytest

from rljob_api import enums
from rljob_api.manifest.job import RLJob
from rljob_api.placement import Placement, local_placement, num_local_ports

MakeJob = Callable[..., RLJob]


@dataclasses.dataclass(frozen=True)
class Share:
    affinity: tuple[int, ...]
    num_threads: int


def place(job: RLJob, ports: range, shares: Mapping[enums.Role, tuple[Share, ...]] | None = None) -> Placement:
    return local_placement(
        job, uid="u", run_dir="/r", base_dir="/b", cache_dir="/c", ports=ports, num_cores=4, shares=shares
    )


def test_ports_are_counted_by_replicas(make_job: MakeJob) -> None:
    job = make_job({"rollout.replicas": 3, "verifier.replicas": 2})
    assert num_local_ports(job) == 3 + 2 + 2 * 2 + 2 * 3
    with pytest.raises(ValueError, match="need 15 ports, got 14"):
        place(job, range(14))


def test_several_rollouts_serve_weights_to_one_another_on_ports_of_their_own(make_job: MakeJob) -> None:
    placement = place(make_job({"rollout.replicas": 2}), range(100, 120))
    addresses = [peer.address for peer in placement.peers]
    assert len({*addresses, *(f"127.0.0.1:{rollout.health_port}" for rollout in placement.rollouts)}) == 4
    for alone in ({"rollout.replicas": 1}, {"rollout.replicas": 2, "weightSync.transport": "file"}):
        assert place(make_job(alone), range(100, 120)).peers == ()


def test_a_trainer_that_broadcasts_weights_has_a_port_more_which_no_other_process_has(make_job: MakeJob) -> None:
    job = make_job({"rollout.replicas": 2, "weightSync.transport": "gloo"})
    num_ports = num_local_ports(job)
    assert num_ports == num_local_ports(make_job({"rollout.replicas": 2})) + 1
    placement = place(job, range(100, 100 + num_ports))
    broadcasts = placement.trainer.broadcasts
    assert broadcasts is not None
    assert (broadcasts.host, broadcasts.port) == ("127.0.0.1", 100 + num_ports - 1)
    assert placement.peers[-1].port < broadcasts.port
    assert place(make_job(), range(100, 120)).trainer.broadcasts is None


def test_rollouts_of_one_machine_serve_agents_on_ports_one_after_the_other(make_job: MakeJob) -> None:
    job = make_job({"rollout.replicas": 2, "workflow.type": "external", "rollout.gateway": {"port": 50_100}})
    gateways = place(job, range(100, 120)).gateways
    assert [(gateway.host, gateway.port) for gateway in gateways] == [("127.0.0.1", 50_100), ("127.0.0.1", 50_101)]
    assert place(make_job(), range(100, 120)).gateways == ()


def test_each_process_gets_the_cores_planned_for_it(make_job: MakeJob) -> None:
    shares = {
        enums.Role.ROLLOUT: (Share((2,), 1), Share((3,), 1)),
        enums.Role.TRAINER: (Share((0,), 1), Share((1,), 1)),
    }
    placement = place(make_job({"rollout.replicas": 2, "trainer.processesPerNode": 2}), range(20), shares)
    assert [process.cpu_affinity for process in placement.rollouts] == [(2,), (3,)]
    assert placement.trainer.process.cpu_affinity == (0, 1)
    assert placement.coordinator.cpu_affinity == ()
    assert placement.coordinator.num_threads == 1


def test_everything_lies_below_the_run_directory(make_job: MakeJob) -> None:
    placement = place(make_job(), range(20))
    folders = (placement.state_dir, placement.checkpoint_dir, placement.export_dir, placement.dump_dir)
    assert all(folder.startswith("/r/") for folder in folders)
    assert len({*folders, placement.coordinator.scratch_dir, placement.trainer.process.scratch_dir}) == 6


def test_job_without_a_rollout_is_no_placement(make_job: MakeJob) -> None:
    with pytest.raises(ValueError, match="at least one rollout"):
        dataclasses.replace(place(make_job(), range(20)), rollouts=())
