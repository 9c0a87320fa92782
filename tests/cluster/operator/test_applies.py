"""An object is made by one request, and by none where its name is taken: what the API server makes of a version that no
object has.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rljob_operator.kube import client as cluster
from rljob_operator.kube import kinds
from rljob_operator.kube.client import ApiError, Client
from rljob_operator.reconcile.cluster import VERSION_OF_NOTHING
from rljob_testing import operator_stage
from rljob_testing.operator_installation import Installed

pytestmark = pytest.mark.asyncio(loop_scope="module")
SPECS = {
    "ConfigMap": {"data": {"a": "ours"}},
    "ServiceAccount": {"automountServiceAccountToken": False},
    "Service": {"spec": {"clusterIP": "None", "selector": {"a": "b"}}},
    "NetworkPolicy": {"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}},
}


@pytest_asyncio.fixture(loop_scope="module")
async def client(installed: Installed) -> AsyncIterator[Client]:
    made = cluster.Client(await cluster.connect(str(installed.cluster.kubeconfig)), qps=1000.0, burst=1000)
    yield made
    await made.close()
    await operator_stage.connections_gone()


@pytest.mark.parametrize("kind", SPECS)
async def test_an_object_is_made_where_its_name_is_free_and_another_is_left_as_it_is(client: Client, kind: str) -> None:
    of = kinds.BY_NAME[kind]
    metadata = {"name": "made-once", "resourceVersion": VERSION_OF_NOTHING, "labels": {"a": "ours"}}
    body = {"apiVersion": of.api_version, "kind": kind, "metadata": metadata, **SPECS[kind]}
    made = await client.apply(of, "default", body)
    assert made["metadata"]["resourceVersion"] != VERSION_OF_NOTHING
    assert [entry["operation"] for entry in made["metadata"]["managedFields"]] == ["Apply"]
    with pytest.raises(ApiError) as refused:
        await client.apply(of, "default", {**body, "metadata": {**metadata, "labels": {"a": "another's"}}})
    assert refused.value.status == 409
    now = await client.get(of, "default", "made-once")
    assert now is not None
    assert (now["metadata"]["labels"], now["metadata"]["uid"]) == ({"a": "ours"}, made["metadata"]["uid"])
