import pytest

from tests.conformance_api.client import Answer, Api
from tests.conformance_api.objects import pod

READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


def eviction(name: str, **options: object) -> dict:
    body: dict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return {**body, "deleteOptions": options} if options else body


def budget(**spec: object) -> dict:
    return {"metadata": {"name": "guard"}, "spec": {"selector": {"matchLabels": {"app": "one"}}, **spec}}


async def running(api: Api, pods: str, *found: str) -> None:
    for name in found:
        (await api.post(pods, pod(name, node="no-such-node", app="one"))).object()
        (await api.patch(f"{pods}/{name}/status", READY)).object()


@pytest.fixture
def budgets(space: str) -> str:
    return f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"


async def test_an_eviction_deletes_the_pod_in_its_grace(api: Api, pods: str) -> None:
    await running(api, pods, "one")
    answer = await api.post(f"{pods}/one/eviction", eviction("one"))
    assert answer.status == 201
    assert (answer.body["kind"], answer.body["status"]) == ("Status", "Success")
    body = (await api.get(f"{pods}/one")).object()
    assert body["metadata"]["deletionTimestamp"]
    found = {condition["type"]: condition for condition in body["status"]["conditions"]}
    assert found["DisruptionTarget"]["reason"] == "EvictionByEvictionAPI"
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")


async def test_an_eviction_without_grace_takes_the_pod_away(api: Api, pods: str) -> None:
    await running(api, pods, "one")
    (await api.post(f"{pods}/one/eviction", eviction("one", gracePeriodSeconds=0))).object()
    (await api.get(f"{pods}/one")).refused(404, "NotFound")


async def test_a_budget_that_is_used_up_refuses_with_its_name(api: Api, pods: str, budgets: str) -> None:
    await running(api, pods, "one")
    (await api.post(budgets, budget(minAvailable=1))).object()
    body = (await api.post(f"{pods}/one/eviction", eviction("one"))).refused(429, "TooManyRequests")
    assert body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    cause = body["details"]["causes"][0]
    assert cause["reason"] == "DisruptionBudget"
    assert "guard" in cause["message"]
    assert "deletionTimestamp" not in (await api.get(f"{pods}/one")).object()["metadata"]
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")


@pytest.mark.usefixtures("with_controllers")
async def test_a_budget_lets_one_go_and_then_refuses(api: Api, pods: str, budgets: str) -> None:
    await running(api, pods, "one", "two")
    (await api.post(budgets, budget(minAvailable=1))).object()
    await api.until(f"{budgets}/guard", lambda a: a.body.get("status", {}).get("disruptionsAllowed") == 1, "1 allowed")
    status = (await api.get(f"{budgets}/guard")).object()["status"]
    assert (status["currentHealthy"], status["desiredHealthy"], status["expectedPods"]) == (2, 1, 2)
    assert (await api.post(f"{pods}/one/eviction", eviction("one"))).status == 201
    (await api.post(f"{pods}/two/eviction", eviction("two"))).refused(429, "TooManyRequests")
    for name in ("one", "two"):
        await api.delete(f"{pods}/{name}", gracePeriodSeconds="0")


@pytest.mark.usefixtures("with_controllers")
async def test_a_budget_is_recounted_when_pods_become_ready(api: Api, pods: str, budgets: str) -> None:
    await running(api, pods, "one")
    (await api.post(budgets, budget(minAvailable=1))).object()

    def counted(answer: Answer) -> bool:
        return answer.body.get("status", {}).get("currentHealthy") == 2

    (await api.post(pods, pod("two", node="no-such-node", app="one"))).object()
    (await api.patch(f"{pods}/two/status", READY)).object()
    await api.until(f"{budgets}/guard", counted, "2 healthy")
    assert (await api.post(f"{pods}/two/eviction", eviction("two"))).status == 201
    for name in ("one", "two"):
        await api.delete(f"{pods}/{name}", gracePeriodSeconds="0")


async def test_a_pod_that_has_not_started_is_not_guarded(api: Api, pods: str, budgets: str) -> None:
    (await api.post(pods, pod(node="no-such-node", app="one"))).object()
    (await api.post(budgets, budget(minAvailable=1))).object()
    assert (await api.post(f"{pods}/one/eviction", eviction("one"))).status == 201
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")


async def test_an_eviction_of_nothing_is_not_found(api: Api, pods: str) -> None:
    (await api.post(f"{pods}/none/eviction", eviction("none"))).refused(404, "NotFound")


async def test_an_eviction_names_the_pod_of_its_path(api: Api, pods: str) -> None:
    await running(api, pods, "one")
    (await api.post(f"{pods}/one/eviction", eviction("two"))).refused(400, "BadRequest")
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")


async def test_a_dry_eviction_takes_nothing(api: Api, pods: str) -> None:
    await running(api, pods, "one")
    assert (await api.post(f"{pods}/one/eviction", eviction("one"), dryRun="All")).status == 201
    assert "deletionTimestamp" not in (await api.get(f"{pods}/one")).object()["metadata"]
    await api.delete(f"{pods}/one", gracePeriodSeconds="0")


@pytest.mark.parametrize(
    "spec",
    [
        {"minAvailable": 1, "maxUnavailable": 1},
        {"minAvailable": -1},
        {"minAvailable": "half"},
        {"maxUnavailable": "101%"},
    ],
)
async def test_a_budget_that_makes_no_sense_is_refused(api: Api, budgets: str, spec: dict) -> None:
    (await api.post(budgets, budget(**spec))).refused(422, "Invalid")


async def test_a_selector_that_makes_no_sense_is_refused(api: Api, budgets: str) -> None:
    for rule in (
        {"key": "a", "operator": "Near", "values": ["b"]},
        {"key": "a", "operator": "In"},
        {"operator": "Exists"},
    ):
        sent = {"metadata": {"name": "guard"}, "spec": {"minAvailable": 1, "selector": {"matchExpressions": [rule]}}}
        (await api.post(budgets, sent)).refused(422, "Invalid")
