"""Traces and metrics, taken by the receiver of the OpenTelemetry Collector (../otlp, a Go program)."""

import contextlib
import json
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dunlin import HERE, free_port, main, scenario, until

RECEIVER = HERE.parents[2] / ".cache/interop/otlp"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


class Collector:
    """The receiver, with what it has taken."""

    def __init__(self):
        self.port = free_port()
        self.process = subprocess.Popen([RECEIVER, str(self.port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.spans, self.metrics = [], {}
        assert "ready" in self.process.stdout.readline()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            taken = json.loads(line)
            for resource in taken.get("resourceSpans", []):
                about = {of["key"]: of["value"] for of in resource["resource"]["attributes"]}
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        span["of"] = {of["key"]: next(iter(of["value"].values())) for of in span.get("attributes", [])}
                        span["service"] = about["service.name"]["stringValue"]
                        self.spans.append(span)
            for resource in taken.get("resourceMetrics", []):
                for scope in resource["scopeMetrics"]:
                    for metric in scope["metrics"]:
                        self.metrics[metric["name"]] = metric

    def named(self, name, trace=None):
        return [span for span in self.spans if span["name"] == name and trace in (None, span["traceId"])]

    def close(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def backend():
    """A backend that lets everybody in, with the path and the `traceparent` of each request."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers.get("traceparent")))
            body = b'{"result": {"user": "ann"}}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()


def merge(server, settings):
    url = f"http://127.0.0.1:{server.admin_port}/config"
    headers = {"Content-Type": "application/merge-patch+json", **server.admin_headers}
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(settings).encode(), headers, method="PATCH"), timeout=20).close()


def subscribe(server, stack, channel):
    client = stack.enter_context(contextlib.closing(server.connect()))
    body = json.dumps({"subs": {channel: {}}})
    client.send(f"POST /connection/uni_http_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}")
    until(lambda: server.counted(r"^dunlin_subscriptions") >= 1, "the subscription")


@scenario("otlp: a trace leads from a call over the channel's home to delivery, webhook and proxy; metrics are those of /metrics", config="admin.toml")
def traces(server):
    collector = Collector()
    with contextlib.ExitStack() as stack:
        stack.callback(collector.close)
        address, seen = stack.enter_context(backend())
        merge(server, {
            "otlp": {"endpoint": f"http://127.0.0.1:{collector.port}", "sampled_per_million": 0, "metrics_interval_ms": 300},
            "webhooks": {
                "upstreams": {"pool": {"members": {"m": {"address": address}}}},
                "hooks": {"audit": {"upstream": "pool", "path": "/hook", "events": ["publish"]}},
            },
        })
        subscribe(server, stack, "news")
        server.publish("news", {"n": 0})
        server.publish("news", {"n": 0}, {"traceparent": f"00-{'1' * 32}-{CALLER}-00"})
        server.publish("news", {"n": 1}, {"traceparent": f"00-{TRACE}-{CALLER}-01"})
        until(lambda: all(collector.named(name, TRACE) for name in ("api", "deliver", "webhook")), "the spans of the trace")
        [call], [delivery], [hook] = (collector.named(name, TRACE) for name in ("api", "deliver", "webhook"))
        assert call["parentSpanId"] == CALLER and call["kind"] == 2 and call["service"] == "dunlin", call
        assert (call["of"]["dunlin.method"], str(call["of"]["dunlin.result"])) == ("publish", "0"), call
        assert delivery["parentSpanId"] == call["spanId"] and delivery["of"]["messaging.destination.name"] == "news", delivery
        assert str(delivery["of"]["dunlin.deliveries"]) == "1" and int(delivery["endTimeUnixNano"]) >= int(delivery["startTimeUnixNano"]), delivery
        assert hook["parentSpanId"] == call["spanId"] and hook["of"]["url.path"] == "/hook", hook
        assert ("/hook", f"00-{TRACE}-{hook['spanId']}-01") in seen, seen
        assert {span["traceId"] for span in collector.spans} == {TRACE}, "neither what its caller does not trace, nor what is not sampled"

        merge(server, {
            "otlp": {"sampled_per_million": 1_000_000},
            "proxies": {"who": {"endpoint": f"http://{address}/connect"}},
            "client": {"proxy": {"connect": "who"}},
        })
        until(lambda: subscribe(server, stack, "news") or collector.named("ask"), "the span of a question")
        ask = collector.named("ask")[0]
        assert (ask["of"]["dunlin.event"], ask["of"]["dunlin.proxy"], ask["kind"]) == ("connect", "who", 3), ask
        assert ("/connect", f"00-{ask['traceId']}-{ask['spanId']}-01") in seen, seen

        until(lambda: "dunlin_messages_delivered_total" in collector.metrics, "the metrics")
        assert set(collector.metrics) >= {"dunlin_connections", "dunlin_api_commands_total", "dunlin_delivery_duration_seconds", "process_cpu_seconds_total"}
        assert collector.metrics["dunlin_api_commands_total"]["sum"]["isMonotonic"]
        points = collector.metrics["dunlin_delivery_duration_seconds"]["histogram"]["dataPoints"]
        assert sum(int(point.get("count", 0)) for point in points) >= 3, points
        assert server.counted("dunlin_otlp_spans_sent_total") >= 3 and server.counted("dunlin_otlp_spans_dropped_total") == 0


@scenario("otlp: a collector that hangs, is gone or refuses delays nobody, and what is lost is counted", config="admin.toml")
def hanging(server):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(16)
        for endpoint in (f"http://127.0.0.1:{silent.getsockname()[1]}", f"http://127.0.0.1:{free_port()}", server.origin):
            before = server.counted("dunlin_otlp_requests_failed_total")
            merge(server, {"otlp": {"endpoint": endpoint, "sampled_per_million": 1_000_000, "timeout_ms": 200, "metrics_interval_ms": 0}})
            slowest = 0
            for number in range(300):
                began = time.monotonic()
                server.publish("news", {"n": number})
                slowest = max(slowest, time.monotonic() - began)
            assert slowest < 1, f"{endpoint}: a publication took {slowest:.2f} s"
            until(lambda: server.counted("dunlin_otlp_requests_failed_total") > before, f"{endpoint}: the failure to be counted")
        until(lambda: server.counted("dunlin_otlp_spans_failed_total") >= 300, "the lost spans to be counted", timeout_s=20)
    assert server.terminate() == 0
    server.start()


if __name__ == "__main__":
    main()
