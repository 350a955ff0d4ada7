"""The client of the Kubernetes API against a server that misbehaves on demand."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
from aiohttp import web

from controller import transport
from controller.cluster import (
    LEASE,
    POD,
    ApiError,
    Cluster,
    ConfigError,
    Conflict,
    Connection,
    Forbidden,
    Gone,
    Kind,
    NotFound,
    NotLeading,
    Object,
    Scale,
    TooMany,
    Unauthorized,
    Unreachable,
)
from controller.discovery import Discovery
from tests.k8s.scripted import ScriptedApi, events, reply, silent, status, status_object, text, until

PODS = "/api/v1/pods"
ONE = "/api/v1/namespaces/ml/pods/a"
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment", namespaced=True)
SCALE = "/apis/apps/v1/namespaces/ml/deployments/web/scale"


@pytest.fixture
async def impatient(api: ScriptedApi) -> AsyncIterator[Cluster]:
    client = Cluster(Connection(api.url), concurrency=2, request_seconds=0.3)
    yield client
    await client.close()


async def end_of(stream: AsyncGenerator[tuple[str, Object], None], expect: int = 0) -> ApiError | None:
    """With what a watch ends, after so many events."""
    count = 0
    try:
        async for _ in stream:
            count += 1
    except ApiError as error:
        assert count == expect
        return error
    return None


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client would have slept."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(transport.asyncio, "sleep", sleep)
    return slept


async def test_a_list_is_read_in_pages_to_its_end(api: ScriptedApi, cluster: Cluster) -> None:
    for number in range(1201):
        await api.put(PODS, {"metadata": {"name": f"pod-{number:05}"}})
    listing = await cluster.list(POD)
    assert len({obj["metadata"]["name"] for obj in listing.items}) == 1201
    assert listing.resource_version == str(api.version)
    assert [(seen.query["limit"], seen.query.get("continue")) for seen in api.seen] == [
        ("500", None),
        ("500", "500"),
        ("500", "1000"),
    ]


async def test_a_list_begins_again_when_its_page_token_has_become_too_old(api: ScriptedApi, cluster: Cluster) -> None:
    for number in range(600):
        await api.put(PODS, {"metadata": {"name": f"pod-{number:05}"}})
    first = {"metadata": {"continue": "500"}, "items": [{"metadata": {"name": "old"}}]}
    api.once("GET", PODS, reply(first), status(410, "Expired"))
    names = [obj["metadata"]["name"] for obj in (await cluster.list(POD)).items]
    assert len(names) == 600
    assert "old" not in names


async def test_a_list_that_always_expires_is_given_up(api: ScriptedApi, cluster: Cluster) -> None:
    api.down = status(410, "Expired")
    with pytest.raises(Gone):
        await cluster.list(POD)
    assert len(api.seen) == 4


async def test_selectors_are_sent_with_every_page(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", PODS, reply({"metadata": {"continue": "x"}, "items": []}), reply({"metadata": {}, "items": None}))
    assert (await cluster.list(POD, label_selector="a=b", field_selector="spec.nodeName=n")).items == []
    assert {(s.query["labelSelector"], s.query["fieldSelector"]) for s in api.seen} == {("a=b", "spec.nodeName=n")}


async def test_an_answer_without_items_is_no_empty_list(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", PODS, reply({"kind": "Table", "metadata": {}}))
    with pytest.raises(Unreachable, match="no list"):
        await cluster.list(POD)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [(401, Unauthorized), (404, NotFound), (409, Conflict), (410, Gone), (429, TooMany), (500, ApiError)],
)
async def test_errors_are_named_by_their_meaning(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float], code: int, meaning: type[ApiError]
) -> None:
    api.down = status(code, "TheReason", "the message")
    with pytest.raises(ApiError) as caught:
        await cluster.get(POD, "a", "ml")
    assert type(caught.value) is meaning
    assert (caught.value.status, caught.value.reason) == (code, "TheReason")
    assert caught.value.message == f"GET {ONE}: the message"


async def test_too_many_requests_is_waited_out_as_long_as_the_server_asks(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.once("GET", ONE, status(429, **{"Retry-After": "3"}), status(429, **{"Retry-After": "2"}), reply({"spec": 1}))
    assert await cluster.get(POD, "a", "ml") == {"spec": 1}
    assert [int(seconds) for seconds in no_waiting] == [3, 2]


async def test_patience_with_too_many_requests_ends(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.down = status(429, **{"Retry-After": "1"})
    with pytest.raises(TooMany) as caught:
        await cluster.get(POD, "a", "ml")
    assert caught.value.retry_after == 1
    assert len(api.seen) == 1 + transport.TOO_MANY_RETRIES


async def test_a_long_retry_after_is_handed_to_the_caller(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.down = status(429, **{"Retry-After": "120"})
    with pytest.raises(TooMany) as caught:
        await cluster.get(POD, "a", "ml")
    assert (caught.value.retry_after, no_waiting, len(api.seen)) == (120, [], 1)


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "-1", "nan", "inf", ""])
async def test_a_retry_after_that_is_no_number_of_seconds_counts_as_not_given(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float], header: str
) -> None:
    api.down = status(503, **{"Retry-After": header})
    with pytest.raises(ApiError) as caught:
        await cluster.get(POD, "a", "ml")
    assert caught.value.retry_after is None


async def test_an_eviction_refused_by_a_budget_is_not_tried_again(api: ScriptedApi, cluster: Cluster) -> None:
    budget = status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
    api.once("POST", f"{ONE}/eviction", budget)
    with pytest.raises(TooMany, match="disruption budget"):
        await cluster.evict("a", "ml")
    assert len(api.seen) == 1


async def test_an_eviction_says_whom_and_how(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("POST", f"{ONE}/eviction", reply({"kind": "Status", "status": "Success"}, 201))
    await cluster.evict("a", "ml", grace_seconds=5)
    assert api.seen[0].body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ml"},
        "deleteOptions": {"gracePeriodSeconds": 5},
    }


async def test_a_read_survives_a_short_spell_of_403(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.once("GET", ONE, status(403, "Forbidden"), status(403, "Forbidden"), reply({"spec": 1}))
    assert await cluster.get(POD, "a", "ml") == {"spec": 1}
    assert len(no_waiting) == 2


async def test_a_right_that_is_missing_costs_the_waiting_only_once(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.down = status(403, "Forbidden", "no right to read pods")
    with pytest.raises(Forbidden, match="no right"):
        await cluster.get(POD, "a", "ml")
    first = len(api.seen)
    with pytest.raises(Forbidden):
        await cluster.get(POD, "b", "ml")
    assert (first, len(api.seen)) == (1 + transport.FORBIDDEN_RETRIES, first + 1)


async def test_a_missing_right_on_a_subresource_is_remembered_for_all_names(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.down = status(403, "Forbidden")
    for name in ("web", "api", "db"):
        with pytest.raises(Forbidden):
            await cluster.get_scale(DEPLOYMENT, name, "ml")
    assert len(api.seen) == 1 + transport.FORBIDDEN_RETRIES + 2
    with pytest.raises(Forbidden):
        await cluster.get_scale(DEPLOYMENT, "web", "other")
    assert len(api.seen) == 2 * (1 + transport.FORBIDDEN_RETRIES) + 2, "rights are given by namespace"


async def test_after_a_success_a_spell_of_403_is_waited_out_again(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.down = status(403, "Forbidden")
    with pytest.raises(Forbidden):
        await cluster.get(POD, "a", "ml")
    api.once("GET", ONE, reply({}), status(403, "Forbidden"), reply({"spec": 2}))
    assert await cluster.get(POD, "a", "ml") == {}
    assert await cluster.get(POD, "a", "ml") == {"spec": 2}


async def test_a_forbidden_write_is_not_repeated_but_that_of_the_lease_is(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    api.once("PATCH", ONE, status(403, "Forbidden"), reply({}))
    with pytest.raises(Forbidden):
        await cluster.patch(POD, "a", {}, "ml")
    path = LEASE.path("gpuscale", "l")
    api.once("PUT", path, status(403, "Forbidden"), reply({"ok": True}))
    assert await cluster.replace(LEASE, {"metadata": {"name": "l"}}, "gpuscale") == {"ok": True}


async def test_html_in_place_of_json_is_no_answer(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", ONE, text(200, "<html><title>Sign in</title></html>"))
    with pytest.raises(Unreachable, match="text/html"):
        await cluster.get(POD, "a", "ml")


async def test_html_of_an_error_becomes_one_short_line(api: ScriptedApi, cluster: Cluster) -> None:
    page = "<html><style>p {color: red}</style><h1>502 Bad Gateway</h1>\n<p>" + "x" * 5000 + "</p></html>"
    api.once("GET", ONE, text(502, page))
    with pytest.raises(ApiError) as caught:
        await cluster.get(POD, "a", "ml")
    message = caught.value.message
    assert "502 Bad Gateway" in message
    assert len(message) <= 300
    assert not set(message) & set("<>\n")
    assert "color" not in message


async def test_a_redirect_is_not_followed_with_our_token(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", ONE, text(302, "", Location=f"{api.url}/login"))
    with pytest.raises(Unreachable, match="redirected"):
        await cluster.get(POD, "a", "ml")
    assert [seen.path for seen in api.seen] == [ONE]


@pytest.mark.parametrize(
    "leaky",
    [
        "auth failed for Bearer abc.def-ghi",
        'bad header "Authorization: Basic dXNlcjpwYXNz"',
        "jwt eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJrdWJlcm5l.c2lnbmF0dXJl is expired",
        "cannot dial https://admin:hunter22@10.0.0.1:6443",
        "GET /login?token=abc.def-ghi",
    ],
)
async def test_secrets_in_a_message_are_blotted_out(api: ScriptedApi, cluster: Cluster, leaky: str) -> None:
    api.once("GET", ONE, status(500, "InternalError", leaky))
    with pytest.raises(ApiError) as caught:
        await cluster.get(POD, "a", "ml")
    for secret in ("abc.def", "dXNlcjpwYXNz", "eyJpc3Mi", "hunter22"):
        assert secret not in str(caught.value)
    assert "***" in str(caught.value)


async def test_a_server_that_never_answers_is_unreachable(api: ScriptedApi, impatient: Cluster) -> None:
    api.down = silent()
    with pytest.raises(Unreachable, match="no answer within"):
        await impatient.get(POD, "a", "ml")


async def test_a_port_where_nobody_listens_is_unreachable() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        client = await Cluster.connect(f"http://127.0.0.1:{held.getsockname()[1]}")
        with pytest.raises(Unreachable):
            await client.get(POD, "a", "ml")
        await client.close()


async def test_no_more_requests_are_under_way_than_allowed(api: ScriptedApi, impatient: Cluster) -> None:
    under_way, most = 0, 0

    async def count(_request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return web.json_response({})

    api.down = count
    await asyncio.gather(*(impatient.get(POD, f"pod-{n}", "ml") for n in range(8)))
    assert most == 2


async def test_the_lease_does_not_queue_behind_hung_requests(api: ScriptedApi, impatient: Cluster) -> None:
    api.once("GET", ONE, silent(), silent())
    hung = [asyncio.create_task(impatient.get(POD, "a", "ml")) for _ in range(2)]
    await api.put(LEASE.path(), {"metadata": {"name": "l", "namespace": "gpuscale"}})
    await until(lambda: len(api.seen) == 2)
    assert (await impatient.get(LEASE, "l", "gpuscale"))["metadata"]["name"] == "l"
    assert not any(task.done() for task in hung)
    assert all(isinstance(e, Unreachable) for e in await asyncio.gather(*hung, return_exceptions=True))


async def test_a_guarded_write_is_sent_only_while_allowed_but_reads_and_the_lease_always(
    api: ScriptedApi, cluster: Cluster
) -> None:
    cluster.guard_writes(lambda: 0.0)
    api.down = reply({})
    for write in (
        cluster.patch(POD, "a", {}, "ml"),
        cluster.create(POD, {"metadata": {"name": "a"}}, "ml"),
        cluster.patch_scale(DEPLOYMENT, "web", "ml", 1, "7"),
        cluster.evict("a", "ml"),
        cluster.delete(POD, "a", "ml"),
    ):
        with pytest.raises(NotLeading):
            await write
    assert api.seen == []
    await cluster.get(POD, "a", "ml")
    await cluster.replace(LEASE, {"metadata": {"name": "l"}}, "gpuscale")
    assert len(api.seen) == 2


async def test_a_guarded_write_is_not_repeated_after_leadership_has_gone(
    api: ScriptedApi, cluster: Cluster, no_waiting: list[float]
) -> None:
    allowed = [10.0, 0.0]
    cluster.guard_writes(lambda: allowed.pop(0))
    api.once("PATCH", ONE, status(429, **{"Retry-After": "9"}), reply({}))
    with pytest.raises(NotLeading):
        await cluster.patch(POD, "a", {}, "ml")
    assert len(api.seen) == 1


async def test_a_guarded_write_that_waited_for_a_free_place_is_held_back_if_we_lead_no_more(
    api: ScriptedApi, impatient: Cluster
) -> None:
    leads = [True]
    impatient.guard_writes(lambda: 10.0 if leads[0] else 0.0)
    api.once("GET", ONE, silent(), silent())
    hung = [asyncio.create_task(impatient.get(POD, "a", "ml")) for _ in range(2)]
    await until(lambda: len(api.seen) == 2)
    write = asyncio.create_task(impatient.patch(POD, "a", {}, "ml"))
    await asyncio.sleep(0)
    leads[0] = False
    with pytest.raises(NotLeading):
        await write
    await asyncio.gather(*hung, return_exceptions=True)
    assert {seen.method for seen in api.seen} == {"GET"}


async def test_a_guarded_write_lasts_no_longer_than_allowed(api: ScriptedApi, cluster: Cluster) -> None:
    cluster.guard_writes(lambda: 0.2)
    api.once("PATCH", ONE, silent())
    with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
        await cluster.patch(POD, "a", {}, "ml")


@pytest.mark.parametrize(
    ("content", "header"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_each_patch_names_its_form_and_its_writer(
    api: ScriptedApi, cluster: Cluster, content: str, header: str
) -> None:
    api.once("PATCH", f"{ONE}/status", reply({}))
    await cluster.patch(POD, "a", {"status": {}}, "ml", "status", content)  # type: ignore[arg-type]
    assert api.seen[0].headers["Content-Type"] == header
    assert api.seen[0].query["fieldManager"] == "gpuscale"
    assert api.seen[0].query.get("force") == ("true" if content == "apply" else None)


async def test_a_scale_is_read_of_any_kind(api: ScriptedApi, cluster: Cluster) -> None:
    full = {
        "metadata": {"resourceVersion": "7"},
        "spec": {"replicas": 3},
        "status": {"replicas": 2, "selector": "app=web"},
    }
    api.once("GET", SCALE, reply(full), reply({"metadata": {}, "spec": {}, "status": {"selector": {"a": "b"}}}))
    assert await cluster.get_scale(DEPLOYMENT, "web", "ml") == Scale(3, 2, "app=web", "7")
    assert await cluster.get_scale(DEPLOYMENT, "web", "ml") == Scale(0, 0, "", "")


async def test_a_size_is_written_with_the_version_it_was_computed_from(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("PATCH", SCALE, reply({"metadata": {"resourceVersion": "8"}, "spec": {"replicas": 5}}), status(409))
    assert (await cluster.patch_scale(DEPLOYMENT, "web", "ml", 5, "7")).resource_version == "8"
    assert api.seen[0].body == {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 5}}
    with pytest.raises(Conflict):
        await cluster.patch_scale(DEPLOYMENT, "web", "ml", 5, "7")
    assert len(api.seen) == 2, "a conflict is decided again, not sent again"


async def test_a_delete_can_be_meant_for_one_object_only(api: ScriptedApi, cluster: Cluster) -> None:
    await api.put(PODS, {"metadata": {"name": "a", "namespace": "ml"}})
    await cluster.delete(POD, "a", "ml", uid="u-1")
    assert api.seen[0].body["preconditions"] == {"uid": "u-1"}
    with pytest.raises(NotFound):
        await cluster.delete(POD, "a", "ml")


# --- watch


async def test_a_watch_yields_events_of_any_size_however_they_are_cut(api: ScriptedApi, cluster: Cluster) -> None:
    big = {"type": "ADDED", "object": {"metadata": {"name": "a"}, "data": "x" * 700_000}}
    small = {"type": "DELETED", "object": {"metadata": {"name": "a"}}}

    async def in_pieces(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        raw = json.dumps(big).encode() + b"\n\n" + json.dumps(small).encode() + b"\n"
        for start in range(0, len(raw), 99_991):
            await response.write(raw[start : start + 99_991])
        return response

    api.once("GET", PODS, in_pieces, watch=True)
    opened = []
    got = [event async for event in cluster.watch(POD, resource_version="5", opened=lambda: opened.append(1))]
    assert got == [("ADDED", big["object"]), ("DELETED", small["object"])]
    assert opened == [1]
    assert api.seen[0].query["resourceVersion"] == "5"
    assert api.seen[0].query["allowWatchBookmarks"] == "true"


async def test_watches_are_not_all_ended_at_one_moment(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", PODS, *[events() for _ in range(20)], watch=True)
    for _ in range(20):
        assert [event async for event in cluster.watch(POD, timeout_seconds=300)] == []
    lengths = {int(seen.query["timeoutSeconds"]) for seen in api.seen}
    assert len(lengths) > 5
    assert min(lengths) >= 240
    assert max(lengths) <= 360


@pytest.mark.parametrize(
    "answer",
    [status(410, "Expired"), events({"type": "ERROR", "object": status_object(410, "Expired", "too old")})],
    ids=["status", "event"],
)
async def test_a_version_that_is_too_old_is_gone(api: ScriptedApi, cluster: Cluster, answer: object) -> None:
    api.once("GET", PODS, answer, watch=True)  # type: ignore[arg-type]
    assert isinstance(await end_of(cluster.watch(POD, resource_version="1")), Gone)


@pytest.mark.parametrize(
    "row", [{"type": "ADDED"}, {"object": {}}, {"type": "ADDED", "object": {"metadata": None}}, {"type": 1}, []]
)
async def test_a_line_that_is_no_event_ends_the_watch_with_an_error(
    api: ScriptedApi, cluster: Cluster, row: dict[str, object]
) -> None:
    api.once("GET", PODS, events(row), watch=True)
    assert isinstance(await end_of(cluster.watch(POD, resource_version="1")), ApiError)


async def test_a_silent_watch_is_dead(api: ScriptedApi, cluster: Cluster) -> None:
    row = {"type": "ADDED", "object": {"metadata": {"name": "a"}}}
    api.once("GET", PODS, events(row, then_silent=True), watch=True)
    end = await end_of(cluster.watch(POD, silence_seconds=0.2), expect=1)
    assert isinstance(end, Unreachable)
    assert "silent for 0.2 s" in end.message


async def test_a_watch_that_is_cut_is_unreachable(api: ScriptedApi, cluster: Cluster) -> None:
    api.once("GET", PODS, events({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, cut=True), watch=True)
    assert isinstance(await end_of(cluster.watch(POD), expect=1), Unreachable)


async def test_a_watch_whose_answer_does_not_begin_is_unreachable(api: ScriptedApi, impatient: Cluster) -> None:
    api.once("GET", PODS, silent(), watch=True)
    end = await end_of(impatient.watch(POD))
    assert isinstance(end, Unreachable)
    assert "no answer within" in end.message


async def test_leaving_a_watch_early_closes_its_connection(api: ScriptedApi, cluster: Cluster) -> None:
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await events({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, then_silent=True)(request)
        finally:
            ended.set()

    api.once("GET", PODS, answer, watch=True)
    async with aclosing(cluster.watch(POD)) as stream:
        async for _ in stream:
            break
    await asyncio.wait_for(ended.wait(), 10)


# --- discovery


async def test_a_kind_is_resolved_with_one_request_for_all_who_ask(api: ScriptedApi, cluster: Cluster) -> None:
    api.kinds["/apis/apps/v1"] = [("deployments", "Deployment", True)]
    kinds = await asyncio.gather(*(cluster.resolve("apps/v1", "Deployment") for _ in range(20)))
    assert set(kinds) == {DEPLOYMENT}
    assert len(api.seen) == 1


async def test_the_core_group_and_cluster_scoped_kinds_have_their_own_paths(api: ScriptedApi, cluster: Cluster) -> None:
    api.kinds["/api/v1"] = [("nodes", "Node", False), ("pods", "Pod", True)]
    node, pod = await cluster.resolve("v1", "Node"), await cluster.resolve("v1", "Pod")
    assert node.path("ignored", "n 1", "status") == "/api/v1/nodes/n%201/status"
    assert pod.path("ml", "a") == ONE
    assert (node.resource, DEPLOYMENT.resource) == ("nodes", "deployments.apps")


async def test_a_kind_that_is_missing_is_named(api: ScriptedApi, cluster: Cluster) -> None:
    api.kinds["/apis/apps/v1"] = [("deployments", "Deployment", True)]
    with pytest.raises(NotFound, match="apps/v1 has no kind Deploymnet"):
        await cluster.resolve("apps/v1", "Deploymnet")
    with pytest.raises(NotFound, match=r"train.ai/v1 of kind Job is not served"):
        await cluster.resolve("train.ai/v1", "Job")


async def test_a_missing_kind_is_looked_for_again_but_not_at_each_try() -> None:
    now, asked, served = [0.0], [0], [{"resources": []}]

    async def fetch(_path: str) -> dict[str, object]:
        asked[0] += 1
        return served[0]

    discovery = Discovery(fetch, clock=lambda: now[0])
    for _ in range(5):
        with pytest.raises(NotFound):
            await discovery.resolve("apps/v1", "Deployment")
    assert asked == [1]
    served[0] = {"resources": [{"name": "deployments", "kind": "Deployment", "namespaced": True}]}
    now[0] = 11.0
    assert await discovery.resolve("apps/v1", "Deployment") == DEPLOYMENT
    assert asked == [2]


async def test_a_known_kind_is_looked_up_again_in_time_and_kept_if_that_fails() -> None:
    now, answers = [0.0], [{"resources": [{"name": "jobs", "kind": "Job", "namespaced": True}]}]

    async def fetch(_path: str) -> dict[str, object]:
        if not answers:
            raise Unreachable(0, "Unreachable", "no route")
        return answers.pop()

    discovery = Discovery(fetch, clock=lambda: now[0])
    assert (await discovery.resolve("batch/v1", "Job")).plural == "jobs"
    now[0] = 601.0
    assert (await discovery.resolve("batch/v1", "Job")).plural == "jobs"
    answers += [{"resources": []}] * 2
    now[0] = 605.0
    assert (await discovery.resolve("batch/v1", "Job")).plural == "jobs", "not asked again at once"
    now[0] = 612.0
    with pytest.raises(NotFound):
        await discovery.resolve("batch/v1", "Job")


async def test_a_known_kind_needs_no_server(api: ScriptedApi, cluster: Cluster) -> None:
    api.kinds["/apis/apps/v1"] = [("deployments", "Deployment", True)]
    await cluster.resolve("apps/v1", "Deployment")
    api.down = status(503)
    assert await cluster.resolve("apps/v1", "Deployment") == DEPLOYMENT


async def test_an_api_that_cannot_be_asked_is_not_a_missing_kind(api: ScriptedApi, cluster: Cluster) -> None:
    api.down = status(503, "ServiceUnavailable")
    for _ in range(2):
        with pytest.raises(ApiError) as caught:
            await cluster.resolve("apps/v1", "Deployment")
        assert caught.value.status == 503


@pytest.mark.parametrize("server", ["10.0.0.1:6443", "ftp://x", "http://", "https://user:pass@host"])
async def test_a_server_that_is_no_address_is_refused_in_one_sentence(server: str) -> None:
    with pytest.raises(ConfigError, match="must look like") as caught:
        await Cluster.connect(server)
    assert "pass@" not in str(caught.value)
