from rljob_testing.cluster.recovery import Recovery, table


def test_table_has_a_row_for_each_break_in_their_order() -> None:
    rows = [Recovery("a pod deleted", 12.4, 30.6), Recovery("a node lost", 61.0, 70.2)]
    assert table(rows).splitlines()[2:] == ["| a pod deleted | 12 s | 31 s |", "| a node lost | 61 s | 70 s |"]
