"""/metrics, judged by the parsers of Prometheus' own Python client: the strict one for OpenMetrics, the older for the text format."""

import contextlib
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import time
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
    merge(server, settings)
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


ROOT = HERE.parents[2]
REFERENCE = ROOT / "docs/reference/metrics.md"
INTRODUCTION = """# Metrics

What `GET /metrics` on the admin port has, by name. [Which one?](../operating/metrics.md) explains the labels, [what to watch](../operating/watching.md) what matters first.

| metric | type | what it is |
|---|---|---|
"""


def merge(server, settings):
    url = f"http://127.0.0.1:{server.admin_port}/config"
    headers = {"Content-Type": "application/merge-patch+json", **server.admin_headers}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(settings).encode(), headers, method="PATCH"), timeout=20).close()


def everything(server, directory):
    """A thing of each kind that has metrics of its own. Nothing listens where the engine and the proxy are."""
    set_up(server)
    key, chain = directory / "key.pem", directory / "chain.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "90", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", chain],
        check=True, capture_output=True)
    merge(server, {
        "engines": {"shared": {"addresses": ["127.0.0.1:1"]}},
        "cluster": {"engine": "shared"},
        "proxies": {"backend": {"endpoint": "http://127.0.0.1:1/"}},
        "programs": {"moderate": {"on_error": "deny", "source": "return { publish = function(event) return nil end }"}},
        "tls": {"certificates": {"main": {"chain_file": str(chain), "key_file": str(key)}}},
        "channel": {"namespaces": {
            "chat": {"publish_proxy": "moderate", "subscribe_proxy": "backend", "allow_publish_for_client": True},
            "shared": {"engine": "shared", "history_size": 10, "history_ttl_ms": 60000},
            "local": {"allow_subscribe_for_client": True, "allow_subscribe_for_anonymous": True},
        }},
    })


def of_peers(server):
    """The families of peers. A node of a cluster has none, so they are looked at before it is one."""
    merge(server, {
        "client": {"subscribe_to_user_personal_channel": {"enabled": True}},
        "federation": {"enabled": True, "domain": "a.example", "key": "11" * 32, "peers": {"b.example": {"keys": ["22" * 32]}}},
    })
    until(lambda: "dunlin_federation_link_up" in scrape(server, "*/*")[1], "a peer to have series")
    known = [family for family in families(scrape(server, "*/*")[1]) if family[0].startswith("dunlin_federation_")]
    merge(server, {"federation": {"enabled": False}})
    return known


def traffic(server):
    """Some of what dashboards show: a client, messages, calls, and each of them refused."""
    with contextlib.closing(server.connect()) as client:
        body = json.dumps({"subs": {"local:1": {}, "news": {}}})
        client.send(f"POST /connection/uni_http_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        for _ in range(20):
            server.publish("local:1", {"n": 1})
            server.publish("news", {"n": 1})
        server.post("/api/publish", {"channel": "nowhere:1", "data": 1})
        server.post("/api/nothing", {})
        server.post("/connection/uni_http_stream", {"token": "none"})
        time.sleep(1.2)


def families(text):
    """(name, type, help) of each family."""
    helps = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# HELP "))
    kinds = dict(line.split(" ", 3)[2:] for line in text.splitlines() if line.startswith("# TYPE "))
    return sorted((name, kind, helps[name]) for name, kind in kinds.items())


@scenario("metrics: the reference lists every family and no other, and pages name none that is not there", config="admin.toml")
def reference(server):
    peers = of_peers(server)
    with tempfile.TemporaryDirectory() as directory:
        everything(server, pathlib.Path(directory))
        until(lambda: "dunlin_engine_ready" in scrape(server, "*/*")[1] and "dunlin_cluster_nodes" in scrape(server, "*/*")[1], "engine and cluster to have series")
        known = sorted(families(scrape(server, "*/*")[1]) + peers)
    page = INTRODUCTION + "".join(f"| `{name}` | {kind} | {text.replace('|', chr(92) + '|')} |\n" for name, kind, text in known)
    if os.environ.get("DUNLIN_WRITE_DOCS"):
        REFERENCE.write_text(page)
    assert REFERENCE.read_text() == page, "docs/reference/metrics.md is not current: run this story with DUNLIN_WRITE_DOCS=1"
    names = {name for name, _, _ in known}
    for path in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        said = set(re.findall(r"`(?:rate of )?(dunlin_\w+[a-z])[`{]", path.read_text()))
        assert said <= names, (path.name, said - names)


@scenario("prometheus: every query of the dashboards and every alert is run by its engine on a live server's metrics", config="admin.toml")
def dashboards(server):
    with tempfile.TemporaryDirectory() as directory:
        everything(server, pathlib.Path(directory))
        texts = []
        for _ in range(3):
            traffic(server)
            texts.append(scrape(server, "*/*")[1] + "up 1\n")
    samples = {line.split("{")[0].split(" ")[0] for line in texts[-1].splitlines() if line and not line.startswith("#")}
    queries = {}
    for path in sorted((ROOT / "packaging/grafana").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "2m").replace("$instance", ".*")
                queries[f"{path.stem}: {panel['title']}: {target['refId']}"] = query
    rules = (ROOT / "packaging/prometheus/alerts.yaml").read_text()
    asked = json.dumps({"metrics": texts, "queries": queries, "rules": rules})
    run = subprocess.run([HERE.parents[2] / ".cache/interop/prometheus"], input=asked, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    assert len(answer["queries"]) > 80 and len(answer["rules"]) > 20, answer
    # What nothing has happened to has no samples yet, and a histogram without values none.
    known = {name for name, _, _ in families(texts[-1])}
    for name, result in {**answer["queries"], **answer["rules"]}.items():
        assert not result.get("error"), (name, result)
        for metric in result["names"]:
            family = re.sub(r"_(bucket|count|sum)$", "", metric)
            assert metric in samples or metric in known or family in known or metric == "up", (name, metric)
    empty = [name for name, result in answer["queries"].items() if result["series"] == 0 and not MAY_BE_EMPTY.search(name)]
    assert not empty, empty
    page = (ROOT / "docs/operating/alerts.md").read_text()
    sections = set(re.findall(r"^## (Dunlin\w+)$", page, re.MULTILINE))
    assert sections == set(answer["rules"]), sections ^ set(answer["rules"])
    for name, runbook in re.findall(r"- alert: (\w+)\n(?:.*\n)*?\s+runbook: (.*)\n", rules):
        assert runbook == f"docs/operating/alerts.md#{name.lower()}", (name, runbook)


# Of what does not happen in the story: pushes, failures, sessions that end by themselves.
MAY_BE_EMPTY = re.compile(r"Pushes|push services|Recoveries|Programs, 99|Answers of proxies|Unsubscribes|Commands refused|Connections refused|closed")


main()
