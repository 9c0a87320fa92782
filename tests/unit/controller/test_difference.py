import pytest

from rljob_operator.policies.difference import covers, quantity


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
