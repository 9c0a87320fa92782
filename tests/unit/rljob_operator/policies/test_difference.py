import pytest

from rljob_operator.policies.drift import covers, due_at, intent, quantity, signed, write


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ({"a": 1, "added by the server": 2}, {"a": 1}),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1000m", "memory": 1073741824}}),
        ({"emptyDir": {"sizeLimit": "1500M"}}, {"emptyDir": {"sizeLimit": "1.5G"}}),
        ({}, {"ingress": {}, "hostNetwork": False, "minReadySeconds": 0}),
        (
            {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
        ),
        ({"ports": [{"port": 53, "protocol": "UDP", "targetPort": 53}]}, {"ports": [{"port": 53}]}),
        (
            {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
            {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
        ),
    ],
)
def test_nothing_is_written_where_the_server_only_spells_it_otherwise(live: object, desired: object) -> None:
    assert covers(live, desired)


@pytest.mark.parametrize(
    ("live", "desired"),
    [
        ({"a": 1}, {"a": 2}),
        ({}, {"a": 1}),
        ({"args": ["x"]}, {"args": ["x", "y"]}),
        ({"args": ["x", "y"]}, {"args": ["y", "x"]}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "2"}]}),
        ({"env": [{"name": "A"}, {"name": "by hand"}]}, {"env": [{"name": "A"}]}),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": "1001m"}}),
        ({"replicas": 0}, {"replicas": 2}),
        ({"label": "1"}, {"label": "1000m"}),
        (None, {"spec": {"replicas": 1}}),
    ],
)
def test_a_change_of_what_we_own_is_seen(live: object, desired: object) -> None:
    assert not covers(live, desired)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", 0.5), ("1Ki", 1024), ("2E", 2 * 10**18), ("1Ei", 2**60), ("1e3", 1000), ("12E2", 1200)],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, value: float) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "4GBs", "one", "1.2.3", True])
def test_what_is_no_quantity_has_no_value(text: object) -> None:
    assert quantity(text) is None


def deployment(**pod: object) -> dict[str, object]:
    container = {"name": "rljob", "env": [{"name": "A", "value": "1"}]}
    template = {
        "metadata": {"annotations": {"rljob.dev/template-hash": "h"}},
        "spec": {"containers": [container], **pod},
    }
    return {"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 1, "template": template}}


@pytest.mark.parametrize(
    ("pod", "injected"),
    [
        ({"tolerations": [{"key": "gpu"}]}, {"tolerations": [{"key": "gpu"}, {"key": "team"}]}),
        ({"volumes": [{"name": "a"}]}, {"volumes": [{"name": "token"}, {"name": "a"}]}),
        ({}, {"containers": [{"name": "rljob", "env": [{"name": "A", "value": "1"}]}, {"name": "proxy"}]}),
        ({}, {"containers": [{"name": "rljob", "env": [{"name": "A", "value": "1"}, {"name": "VAULT"}]}]}),
    ],
)
def test_what_a_webhook_adds_to_a_pod_template_is_left_to_it(
    pod: dict[str, object], injected: dict[str, object]
) -> None:
    wanted = signed(deployment(**pod))
    live = {**deployment(**{**pod, **injected}), "metadata": wanted["metadata"]}
    assert due_at(live, wanted, None, now=1.0) is None


@pytest.mark.parametrize(
    "theirs",
    [
        {"containers": [{"name": "rljob", "env": [{"name": "A", "value": "2"}]}]},
        {"containers": [{"name": "proxy"}]},
        {"tolerations": [{"key": "other"}]},
    ],
)
def test_change_of_what_is_ours_in_a_pod_template_is_repaired(theirs: dict[str, object]) -> None:
    wanted = signed(deployment(tolerations=[{"key": "gpu"}]))
    live = {**deployment(**{"tolerations": [{"key": "gpu"}], **theirs}), "metadata": wanted["metadata"]}
    assert due_at(live, wanted, None, now=1.0) == 1.0


def test_rule_that_another_hand_adds_to_a_network_policy_is_repaired() -> None:
    policy = {"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {"ingress": [{"ports": [{"port": 1}]}]}}
    wanted = signed(policy)
    for opened in ([{"ports": [{"port": 1}, {"port": 2}]}], [{"ports": [{"port": 1}]}, {}]):
        live = {**policy, "metadata": wanted["metadata"], "spec": {"ingress": opened}}
        assert due_at(live, wanted, None, now=1.0) == 1.0


def test_field_that_is_not_wanted_any_more_is_written_away() -> None:
    before = signed({"kind": "Service", "metadata": {"name": "s"}, "spec": {"a": 1, "b": 2}})
    after = signed({"kind": "Service", "metadata": {"name": "s"}, "spec": {"a": 1}})
    assert covers(before["spec"], after["spec"]), "what is there covers what is wanted"
    assert due_at(before, after, None, now=1.0) == 1.0


def test_child_of_a_version_that_left_no_mark_is_not_written_where_it_fits() -> None:
    plain = deployment()
    assert intent(plain) == ""
    assert due_at(plain, signed(plain), None, now=1.0) is None
    assert due_at({**plain, "spec": {"replicas": 2}}, signed(plain), None, now=1.0) == 1.0


def test_who_takes_our_mark_away_again_and_again_is_answered_once() -> None:
    wanted = signed(deployment(tolerations=[{"key": "gpu"}]))
    stripped = deployment(tolerations=[{"key": "gpu"}, {"key": "team"}])
    assert due_at(stripped, wanted, None, now=0.0) == 0.0, "nobody else says who added it"
    known = write(None, stripped, wanted, repair=False, now=0.0)
    assert known is not None
    assert due_at(stripped, wanted, known, now=9.0) is None
    edited = deployment(tolerations=[{"key": "other"}])
    assert due_at(edited, wanted, known, now=9.0) == 9.0
