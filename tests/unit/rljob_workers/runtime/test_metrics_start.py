from rljob_api import enums, process_config
from rljob_workers.runtime import metrics


def test_a_counter_without_labels_of_its_own_is_shown_before_its_first_event() -> None:
    made = metrics.Metrics(role=enums.Role.VERIFIER, job=process_config.JobIdentity(name="j", namespace="n", uid="u"))
    assert b'rljob_sandbox_survivors_total{rljob="j",rljob_namespace="n"} 0.0' in made.exposition()
