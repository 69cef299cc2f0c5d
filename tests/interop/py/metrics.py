"""/metrics, judged by the parsers of Prometheus' own Python client: the strict one for OpenMetrics, the older for the text format."""

import json
import math
import re
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from dunlin import HERE, main, scenario, until

# Made for tests; it opens nothing.
KEY = (HERE.parents[2] / "crates/server/tests/data/apns-key.p8").read_text()

# What Prometheus 3 sends.
PROMETHEUS_ACCEPT = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def scrape(server, accept):
    """Content type and text of /metrics."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.admin_port}/metrics", headers={"Accept": accept, **server.admin_headers})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def samples(families):
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def set_up(server):
    """A hook and a credential, neither of which reaches anybody."""
    settings = {
        "webhooks": {
            "upstreams": {"pool": {"members": {"m": {"address": "127.0.0.1:1"}}}},
            "hooks": {"audit": {"upstream": "pool", "path": "/hook", "events": ["publish"]}},
        },
        "push": {"apns": {"shop": {
            "key": KEY, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": "com.example.app", "route": {"address": "127.0.0.1:1"},
        }}},
    }
    url = f"http://127.0.0.1:{server.admin_port}/config"
    headers = {"Content-Type": "application/merge-patch+json", **server.admin_headers}
    request = urllib.request.Request(url, json.dumps(settings).encode(), headers, method="PATCH")
    urllib.request.urlopen(request, timeout=10).close()
    server.publish("news", {"n": 1})
    until(lambda: server.counted("^dunlin_webhook_requests_unreachable_total") >= 1, "an attempt to be counted")


@scenario("prometheus_client: both expositions parse, agree, and have the types, units and buckets of their format", config="admin.toml")
def expositions(server):
    set_up(server)
    kind, text = scrape(server, PROMETHEUS_ACCEPT)
    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8", kind
    strict = list(openmetrics(text))
    names = [family.name for family in strict]
    assert len(names) == len(set(names)), "a family is there twice"
    assert all(family.type != "unknown" and family.documentation for family in strict), strict
    units = {family.name: family.unit for family in strict if family.unit}
    assert units["dunlin_outbox_bytes"] == "bytes" and units["dunlin_push_response_seconds"] == "seconds", units

    kind, text = scrape(server, "*/*")
    assert kind == "text/plain; version=0.0.4; charset=utf-8", kind
    older = list(prometheus_text(text))
    assert sorted(family.name for family in older) == sorted(names)
    assert {family.name: family.type for family in older} == {family.name: family.type for family in strict}
    assert set(samples(older)) >= set(samples(strict)), set(samples(strict)) - set(samples(older))

    turns = [sample for family in strict if family.name == "dunlin_loop_turn_seconds" for sample in family.samples if sample.labels["worker"] == "0"]
    buckets = [(float(sample.labels["le"]), sample.value) for sample in turns if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets) and buckets[-1][0] == math.inf and buckets[0][1] < buckets[-1][1], buckets
    count = next(sample.value for sample in turns if sample.name.endswith("_count"))
    total = next(sample.value for sample in turns if sample.name.endswith("_sum"))
    assert count == buckets[-1][1] and 0 < total < 60, (count, total)


@scenario("metrics: every figure that docs/operating/metrics.md maps to is there")
def mapped(server):
    page = (HERE.parents[2] / "docs/operating/metrics.md").read_text()
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    names = set(re.findall(r"\bdunlin_\w+", page))
    assert len(names) > 20, names
    missing = [name for name in names if f"# TYPE {name} " not in text]
    assert not missing, missing


main()
