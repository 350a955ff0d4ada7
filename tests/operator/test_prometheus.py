import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from controller.sources.prometheus import Ask, Fault, Numbers, PrometheusServers, QueryResult, Server
from controller.sources.promql import selectors
from tests.conftest import shared_folder
from tests.operator.scripted import Answering, Scripted, fifty_megabytes, half_a_body, hanging, serving, text

RECORDED = shared_folder("data") / "prom-http-answers"
JSON = "application/json"


def recorded(name: str) -> Answering:
    """The recorded answer as the server gave it; the folder lies beside a checkout, not in it."""
    if not RECORDED.is_dir():
        pytest.skip(f"the recorded Prometheus answers are absent: {RECORDED}")
    case = json.loads((RECORDED / f"{name}.json").read_text())
    body = case["body"] if isinstance(case["body"], str) else json.dumps(case["body"])
    return text(body, case["http_status"], case["content_type"].partition(";")[0].split(" ")[0])


def vector(*values: object, at: float = 1000.0) -> str:
    rows = [{"metric": {}, "value": [at, str(value)]} for value in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}})


@pytest.fixture
async def script() -> AsyncIterator[Scripted]:
    async with serving(text(vector(1), content_type=JSON)) as server:
        yield server


def servers(script: Scripted, clock: Callable[[], float] = lambda: 1000.0, **options: object) -> PrometheusServers:
    known = Server("default", script.url, **options)  # type: ignore[arg-type]
    return PrometheusServers([known], deadline_seconds=5.0, clock=clock)


async def ask(script: Scripted, answer: Answering, query: str = "q") -> QueryResult:
    script.answer = answer
    prometheus = servers(script)
    try:
        return (await prometheus.read([Ask("default", query)]))[Ask("default", query)]
    finally:
        await prometheus.close()


RECORDED_NUMBERS = {
    "vector_one": (1000,),
    "vector_avg": (1000,),
    "scalar": (1000,),
    "scalar_number": (42000,),
    "absent_present": (1000,),
}


@pytest.mark.parametrize("name", RECORDED_NUMBERS)
async def test_p14_a_recorded_vector_or_scalar_gives_its_numbers(name: str, script: Scripted) -> None:
    result = await ask(script, recorded(name))
    assert isinstance(result, Numbers)
    assert result.values == RECORDED_NUMBERS[name]


async def test_several_series_are_all_given_to_be_summed(script: Scripted) -> None:
    result = await ask(script, text(vector(1, 2.5, 0), content_type=JSON))
    assert isinstance(result, Numbers)
    assert result.values == (1000, 2500, 0)


RECORDED_FAULTS = {
    "P01-vector_nan": ("vector_nan", "NaN", "NaN"),
    "P01-vector_zero_by_zero": ("vector_zero_by_zero", "NaN", "NaN"),
    "P01-vector_pinf": ("vector_pinf", "NaN", "+Inf"),
    "P01-vector_ninf": ("vector_ninf", "NaN", "-Inf"),
    "P03-vector_empty": ("vector_empty", "NoData", "no series"),
    "P03-vector_empty_sum": ("vector_empty_sum", "NoData", "no series"),
    "P03-old_time_empty": ("old_time_empty", "NoData", "no series"),
    "P03-bool_filter_empty": ("bool_filter_empty", "NoData", "no series"),
    "P13-err_starting_503_text": ("err_starting_503_text", "Unreachable", "503: Service Unavailable"),
    "P13-err_404_text": ("err_404_text", "ConfigError", "404: 404 page not found; is its URL right?"),
    "P13-err_too_many_samples_422": ("err_too_many_samples_422", "InvalidQuery", "too many samples into memory"),
    "err_many_to_many_422": ("err_many_to_many_422", "InvalidQuery", "duplicate series for the match group"),
    "err_parse_400": ("err_parse_400", "InvalidQuery", 'expected 1 argument(s) in call to "rate"'),
    "err_no_query_400": ("err_no_query_400", "InvalidQuery", "no expression found in input"),
    "P14-scalar_nan_from_many": ("scalar_nan_from_many", "NaN", "NaN"),
    "P14-string_result": ("string_result", "InvalidQuery", "gives a string"),
    "P14-matrix_from_instant": ("matrix_from_instant", "InvalidQuery", "gives a matrix"),
    "P16-stale_after_target_down": ("stale_after_target_down", "NoData", "no series"),
    "series_match": ("series_match", "Unreachable", "success without data"),
    "rules_empty": ("rules_empty", "InvalidQuery", "gives a None"),
}


@pytest.mark.parametrize("name", RECORDED_FAULTS)
async def test_a_recorded_answer_that_is_no_number_is_a_fault_that_says_what_it_is(name: str, script: Scripted) -> None:
    file, word, said = RECORDED_FAULTS[name]
    result = await ask(script, recorded(file))
    assert isinstance(result, Fault)
    assert result.word == word
    assert said in result.message


async def test_every_recorded_answer_is_judged_without_an_exception(script: Scripted) -> None:
    recorded("vector_one")
    for file in sorted(RECORDED.glob("*.json")):
        assert isinstance(await ask(script, recorded(file.stem)), Numbers | Fault)


WRECKED: dict[str, tuple[Answering, str]] = {
    "html-200": (text("<html>sign in</html>", content_type="text/html"), "did not answer JSON (text/html)"),
    "not-json": (text("{", content_type=JSON), "did not answer JSON"),
    "a-list": (text("[]", content_type=JSON), "did not answer JSON"),
    "deep": (text("[" * 100_000, content_type=JSON), "did not answer JSON"),
    "fifty-megabytes": (fifty_megabytes, "larger than 16 MiB"),
    "half-a-body": (half_a_body, "server default"),
    "nothing": (text(""), "did not answer JSON"),
    "500-html": (text("<h1>boom</h1>", 500, "text/html"), "answered 500: <h1>boom</h1>"),
    "histogram": (
        text('{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1,{}]}]}}'),
        "native histogram",
    ),
    "text-value": (text(vector("many")), "'many' where a number belongs"),
    "huge-value": (text(vector("1e300")), "out of range"),
    "success-error": (text('{"status":"error","error":"odd"}'), "odd"),
}


@pytest.mark.parametrize("name", WRECKED)
async def test_a_wrecked_answer_is_a_fault_and_never_an_exception(name: str, script: Scripted) -> None:
    answer, said = WRECKED[name]
    result = await ask(script, answer)
    assert isinstance(result, Fault)
    assert said in result.message


async def test_warnings_in_an_answer_are_ignored(script: Scripted) -> None:
    body = json.loads(vector(5)) | {"warnings": ["partial response"], "infos": ["x"]}
    assert isinstance(await ask(script, text(json.dumps(body))), Numbers)


async def test_each_distinct_text_is_sent_once_a_read(script: Scripted) -> None:
    prometheus = servers(script)
    asks = [Ask("default", "a"), Ask("default", "a"), Ask("default", "b"), Ask("default", "a", 1e12)]
    results = await prometheus.read(asks)
    await prometheus.close()
    sent = [parse_qs(urlsplit(path).query)["query"][0] for path in script.requests]
    assert sorted(sent) == ["a", "b", "time() - max(timestamp(a))"]
    assert len(results) == 3


async def test_p15_two_queries_keep_their_own_values(script: Scripted) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=vector({"one": 1, "hundred": 100}[request.query["query"]]))

    script.answer = answer
    prometheus = servers(script)
    one, hundred = Ask("default", "one"), Ask("default", "hundred")
    results = await prometheus.read([one, hundred])
    await prometheus.close()
    assert [results[a].values for a in (one, hundred)] == [(1000,), (100000,)]  # type: ignore[union-attr]


async def requests_over_ticks(script: Scripted, answer: Answering, moments: list[float]) -> list[int]:
    now = 0.0
    script.answer = answer
    prometheus = PrometheusServers(
        [Server("default", script.url)], deadline_seconds=0.5, clock=lambda: now, monotonic=lambda: now
    )
    counts = []
    for moment in moments:
        now = moment
        await prometheus.read([Ask("default", "q")])
        counts.append(len(script.requests))
    await prometheus.close()
    return counts


async def test_p13_503_is_asked_again_at_the_next_tick(script: Scripted) -> None:
    assert await requests_over_ticks(script, recorded("err_starting_503_text"), [0, 2, 4]) == [1, 2, 3]


async def test_p13_404_is_a_wrong_address_and_not_retried_hot(script: Scripted) -> None:
    assert await requests_over_ticks(script, recorded("err_404_text"), [0, 2, 4, 59, 61]) == [1, 1, 1, 1, 2]


async def test_p13_a_refused_query_is_not_retried_hot(script: Scripted) -> None:
    answer = recorded("err_too_many_samples_422")
    assert await requests_over_ticks(script, answer, [0, 2, 9, 11]) == [1, 1, 1, 2]


async def test_a_refused_query_does_not_stop_another_of_the_same_server(script: Scripted) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query["query"] == "bad":
            return web.Response(status=400, text='{"status":"error","error":"parse error"}')
        return web.Response(text=vector(3))

    script.answer = answer
    prometheus = servers(script)
    for _ in range(2):
        results = await prometheus.read([Ask("default", "bad"), Ask("default", "good")])
    await prometheus.close()
    assert isinstance(results[Ask("default", "bad")], Fault)
    assert isinstance(results[Ask("default", "good")], Numbers)
    assert len(script.requests) == 3


async def test_a_hanging_server_is_a_fault_and_asked_less_often(script: Scripted) -> None:
    assert await requests_over_ticks(script, hanging(lambda: script), [0, 2, 4, 6]) == [1, 1, 1, 2]


async def test_an_unknown_server_is_named_with_the_known_ones(script: Scripted) -> None:
    prometheus = servers(script)
    wanted = Ask("prod", "q")
    result = (await prometheus.read([wanted]))[wanted]
    await prometheus.close()
    assert isinstance(result, Fault)
    assert "'prod'; it knows: default" in result.message


async def test_the_servers_headers_and_secret_files_are_sent(script: Scripted, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    for options, said in (
        ({"bearer_token_file": str(secret)}, "Bearer me:pass"),
        ({"basic_auth_file": str(secret)}, "Basic " + base64.b64encode(b"me:pass").decode()),
    ):
        secret.write_text("me:pass\n")
        prometheus = servers(script, headers={"X-Scope-OrgID": "ml"}, **options)
        await prometheus.read([Ask("default", "q")])
        await prometheus.close()
        assert script.headers[-1]["Authorization"] == said
        assert script.headers[-1]["X-Scope-OrgID"] == "ml"


@pytest.mark.parametrize("option", ["bearer_token_file", "ca_file"])
async def test_a_file_that_is_not_there_is_a_fault_of_the_settings(option: str, script: Scripted) -> None:
    prometheus = servers(script, **{option: "/does/not/exist"})
    result = (await prometheus.read([Ask("default", "q")]))[Ask("default", "q")]
    await prometheus.close()
    assert isinstance(result, Fault)
    assert result.word == "ConfigError"


@pytest.mark.parametrize(("option", "text"), [("bearer_token_file", ""), ("basic_auth_file", "nobody")])
async def test_with_a_secret_that_cannot_be_right_nothing_is_asked(
    option: str, text: str, script: Scripted, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(text)
    prometheus = servers(script, **{option: str(tmp_path / "secret")})
    result = (await prometheus.read([Ask("default", "q")]))[Ask("default", "q")]
    await prometheus.close()
    assert isinstance(result, Fault)
    assert result.word == "ConfigError"
    assert str(tmp_path / "secret") in result.message
    assert script.requests == []


async def test_a_long_query_goes_as_a_form(script: Scripted) -> None:
    query = "sum(up)" + " + sum(up)" * 400
    result = await ask(script, text(vector(1)), query)
    assert isinstance(result, Numbers)
    assert script.requests == ["/api/v1/query"]
    assert parse_qs(script.bodies[0])["query"] == [query]


def aging(ages: dict[str, str]) -> Answering:
    async def answer(request: web.Request) -> web.StreamResponse:
        query = request.query["query"]
        return web.Response(text=ages.get(query, vector(1)))

    return answer


async def gated(script: Scripted, query: str, ages: dict[str, str], limit: float) -> QueryResult:
    script.answer = aging(ages)
    prometheus = servers(script)
    wanted = Ask("default", query, limit)
    result = (await prometheus.read([wanted]))[wanted]
    await prometheus.close()
    return result


OVER_TIME = 'avg(last_over_time(util{node="a"}[5m]))'
OVER_TIME_AGE = 'time() - max(timestamp(util{node="a"}))'


async def test_p16_data_that_a_range_keeps_alive_is_stale_when_its_exporter_is_gone(script: Scripted) -> None:
    empty = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
    result = await gated(script, OVER_TIME, {OVER_TIME_AGE: empty}, 120)
    assert isinstance(result, Fault)
    assert (result.word, 'util{node="a"}' in result.message) == ("Stale", True)


async def test_p16_data_older_than_the_limit_is_stale_whoever_wrote_the_query(script: Scripted) -> None:
    result = await gated(script, OVER_TIME, {OVER_TIME_AGE: vector(900)}, 120)
    assert isinstance(result, Fault)
    assert (result.word, "900 s old" in result.message) == ("Stale", True)


async def test_data_young_enough_is_dated_by_its_samples(script: Scripted) -> None:
    assert await gated(script, OVER_TIME, {OVER_TIME_AGE: vector(30)}, 120) == Numbers((1000,), 970.0)


async def test_an_answer_that_a_cache_kept_too_long_is_stale(script: Scripted) -> None:
    result = await gated(script, "42", {"42": vector(1, at=500.0)}, 120)
    assert isinstance(result, Fault)
    assert result.word == "Stale"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("up", ("up",)),
        ("sum(rate(http_requests_total[5m])) by (job)", ("http_requests_total",)),
        ("sum by (pod, node) (a) / on (pod) group_left(x) b", ("a", "b")),
        ('{job=~".+", x="}"}', ('{job=~".+", x="}"}',)),
        ('vllm:waiting{model="a b"} offset 5m', ('vllm:waiting{model="a b"}',)),
        ("time() - max_over_time(x[5m:1m])", ("x",)),
        ('label_replace(up, "a", "$1", "b", "(.*)")', ("up",)),
        ("a and b or c unless d > bool 1e3", ("a", "b", "c", "d")),
        ("42", ()),
        ("vector(1) # up", ()),
        ("", ()),
        ("quantile(0.9, a{}) + a{}", ("a{}",)),
        ("topk(3, sum without(x) (y @ end()))", ("y",)),
    ],
)
def test_the_selectors_of_a_query_are_found(query: str, found: tuple[str, ...]) -> None:
    assert selectors(query) == found
