"""The gateway over real connections: the official clients' calls are trained as they were sampled, many sessions wait
for nobody but the engine. Larger: `python -m tests.bench.gateway`.
"""

from rljob_testing import gateway_load


async def test_what_the_official_clients_were_answered_is_what_is_trained() -> None:
    compared = await gateway_load.compare_ids(200)
    assert compared.num_calls >= 200
    assert compared.num_trained == compared.num_tokens


async def test_agents_of_another_process_hold_sessions_side_by_side() -> None:
    added = await gateway_load.time_calls(50, calls_each=3, most_s=0.5)
    assert (added.num_sessions, added.num_calls) == (50, 150)
