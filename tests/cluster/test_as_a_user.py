"""What kubectl shows of our resources, as a user reads it."""

from controller.cluster import Cluster
from controller.view import POOLS, WORKLOADS
from tests.cluster.kubectl import Kubectl
from tests.cluster.operators import Operators
from tests.cluster.scenery import deployment, made, node_pool, pool_scaler, until, workload_scaler
from tests.realparts import cloud
from tests.realparts.machines import Machines


async def test_kubectl_get_and_describe_tell_sizes_reason_and_events(
    cluster: Cluster, space: str, machines: Machines, operators: Operators, kubectl: Kubectl
) -> None:
    pool = node_pool("gpu", size=1)
    async with made(cluster, cloud.POOL, pool), made(cluster, POOLS, pool_scaler(pool)):
        llm = deployment(space, "llm", replicas=2)
        await cluster.create(cloud.DEPLOYMENT, llm, space)
        machines.work[space, "llm"] = 300.0
        await cluster.create(WORKLOADS, workload_scaler(llm), space)
        operators.start()

        async def described() -> str:
            return kubectl("describe", "gws", "llm", "-n", space)

        told = await until(described, lambda text: "MetricAboveTarget" in text and "Events:  <none>" not in text)
        print(told)
        assert "2 -> 3" in told
        print(kubectl("get", "gws", "-A"), kubectl("get", "gnps"), kubectl("describe", "gnps", "gpu"), sep="\n")
        [head, row] = kubectl("get", "gws", "-n", space).splitlines()
        columns = dict(zip(head.split(), row.split(), strict=False))
        assert columns["NAME"] == "llm"
        [head, row] = kubectl("get", "gnps").splitlines()
        assert row.split()[0] == "gpu"
        assert "AGE" in head
