"""Webhooks at backends that are Python's own HTTP server, as the page says they should be, and at some that misbehave."""

import collections
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dunlin import HERE, frame, free_port, main, scenario, until

SECRET = "the-key-of-the-hook-0123456789abcdef"
PAGE = HERE.parent.parent.parent / "docs" / "operating" / "webhooks.md"
EVERYTHING = ["connect", "disconnect", "subscribe", "unsubscribe", "publish"]


class Backend:
    """An HTTP server that keeps what it is posted. `answer(handler, number)` may answer otherwise: its status, or None if it
    has answered by itself."""

    def __init__(self, port=None, answer=None, tls=None):
        self.requests = []
        self.lock = threading.Lock()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with backend.lock:
                    number = len(backend.requests)
                    backend.requests.append((self.path, self.headers, body))
                status = answer(self, number) if answer else 200
                if status:
                    self.send_response(status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    if status == 200:
                        with backend.lock:
                            backend.requests[number] += ("done",)

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            connections = []

            def process_request(self, request, address):
                self.connections.append(request)
                super().process_request(request, address)

            def handle_error(self, *_):
                pass

        Server.connections = []
        self.server = Server(("127.0.0.1", port or 0), Handler)
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def die(self):
        """Closes its listener and cuts its connections."""
        self.server.shutdown()
        self.server.server_close()
        for connection in self.server.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def events(self):
        """Every event of requests answered with 200, in the order they came in; each once."""
        with self.lock:
            done = [body for _, _, body, *done in self.requests if done]
        events = {event["id"]: event for body in done for event in json.loads(body)}
        return list(events.values())


def admin(server, method, path, body=None, kind="application/json"):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.admin_port}{path}", data, {"Content-Type": kind, **server.admin_headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or "null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def configure(server, ports, upstream=None, **hook):
    """A hook `audit` to members at these ports."""
    members = {f"m{n}": {"address": f"127.0.0.1:{port}"} for n, port in enumerate(ports)}
    webhooks = {
        "upstreams": {"pool": {"members": members, "connect_timeout_ms": 2000, **(upstream or {})}},
        "hooks": {"audit": {"upstream": "pool", "path": "/hook", "events": ["publish"], "secret": SECRET, **hook}},
    }
    status, answer = admin(server, "PUT", "/config/webhooks", webhooks)
    assert status in (200, 201), (status, answer)


def counter(server, name):
    return server.counted(rf"^dunlin_webhook_{name}(_total)?\{{hook=")


def publish_many(server, channels, messages, start=0):
    for n in range(start, start + messages):
        commands = [{"publish": {"channel": f"room{c}", "data": n}} for c in range(channels)]
        status, answer = server.post("/api/batch", {"commands": commands})
        assert status == 200, answer


def published(events):
    by_channel = collections.defaultdict(list)
    for event in events:
        if event["event"] == "publish":
            by_channel[event["channel"]].append(event["data"])
    return dict(by_channel)


def expected(channels, messages):
    return {f"room{c}": list(range(messages)) for c in range(channels)}


def say(connection, **command):
    connection.send(frame(json.dumps(command)))


def replies_to(connection, number):
    while True:
        for line in connection.frame()[1].splitlines():
            if json.loads(line).get("id") == number:
                return json.loads(line)


@scenario("webhooks: the page's Python backend verifies what a client does, reported in order and once", config="admin.toml")
def story_of_a_client(server):
    port = free_port()
    [source] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "backend.py"
        program.write_text(source)
        # Appended to and read through two descriptions: to read through its own would move where the backend writes.
        file = pathlib.Path(folder) / "events"
        output = open(file, "a")
        environment = {**os.environ, "HOOK_SECRET": SECRET}
        backend = subprocess.Popen([sys.executable, program, str(port)], env=environment, stdout=output, stderr=subprocess.DEVNULL)
        try:
            configure(server, [port], events=EVERYTHING)
            client = server.websocket()
            say(client, id=2, subscribe={"channel": "chat"})
            assert "subscribe" in replies_to(client, 2)
            say(client, id=3, publish={"channel": "chat", "data": {"text": "häß\"lich"}})
            replies_to(client, 3)
            say(client, id=4, unsubscribe={"channel": "chat"})
            replies_to(client, 4)
            say(client, id=5, subscribe={"channel": "news"})
            replies_to(client, 5)
            server.publish("news", [1, 2])
            client.close()

            def events():
                whole, _, _ = file.read_text().rpartition("\n")
                return [json.loads(line) for line in whole.splitlines()]

            until(lambda: len(events()) == 8, "eight events")
            reported = events()
            assert len({event["id"] for event in reported}) == 8
            of_session = [event for event in reported if event["event"] != "publish"]
            names = [(event["event"], event.get("channel"), event.get("reason")) for event in of_session]
            assert names == [
                ("connect", None, None),
                ("subscribe", "chat", None),
                ("unsubscribe", "chat", "client"),
                ("subscribe", "news", None),
                ("unsubscribe", "news", "disconnect"),
                ("disconnect", None, "connection closed"),
            ], names
            assert len({event["client"] for event in of_session}) == 1 and of_session[0]["transport"] == "websocket"
            # Of two channels, whichever came first: order is promised within one.
            publications = {event["channel"]: event for event in reported if event["event"] == "publish"}
            by_client, by_api = publications["chat"], publications["news"]
            assert by_client["data"] == {"text": "häß\"lich"} and by_client["client"] == of_session[0]["client"]
            assert by_api["data"] == [1, 2] and "client" not in by_api and by_api["offset"] == 1
            # The backend has written an event down before it answers, and what it answered counts.
            until(lambda: counter(server, "delivered") == 8, "eight answers to be counted")

            # Another secret: the backend does not know who asks, and says so once.
            admin(server, "PUT", "/config/webhooks/hooks/audit/secret", "not-the-key-of-the-hook-0123")
            server.publish("news", 3)
            until(lambda: counter(server, "dropped_rejected") == 1, "the refusal to be counted")
            assert counter(server, "requests_rejected") == 1
            _, status = admin(server, "GET", "/status/webhooks")
            assert "401" in status["hooks"]["audit"]["last_error"]["error"], status
        finally:
            backend.kill()
            backend.wait()


@scenario("webhooks: a backend that is down and comes back gets everything, in order", config="admin.toml")
def down_and_back(server):
    port = free_port()
    configure(server, [port])
    publish_many(server, channels=10, messages=30)
    until(lambda: counter(server, "requests_unreachable") >= 2, "a second try")
    _, status = admin(server, "GET", "/status/webhooks")
    assert "check that the server runs" in status["failing"]["pool"]["m0"]["error"], status
    # The last of them may still be on their way to the thread that counts them.
    until(lambda: counter(server, "queue_events") == 300, "all events to be queued")
    backend = Backend(port)
    until(lambda: counter(server, "delivered") == 300, "all events")
    assert published(backend.events()) == expected(10, 30)
    assert counter(server, "dropped_") == 0 and counter(server, "queue_bytes") == 0
    assert admin(server, "GET", "/status/webhooks")[1]["failing"] == {}
    sizes = [len(json.loads(body)) for _, _, body, *_ in backend.requests]
    assert max(sizes) > 10, f"what waits leaves together: {sizes}"
    for path, headers, body, *_ in backend.requests:
        signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert (path, headers["Dunlin-Signature"], headers["Content-Type"]) == ("/hook", f"sha256={signature}", "application/json")
    backend.die()


@scenario("webhooks: of two backends one dies, and the other gets what it had and all that follows", config="admin.toml")
def one_of_two_dies(server):
    backends = [Backend(), Backend()]
    configure(server, [backend.port for backend in backends], upstream={"timeout_ms": 2000})
    publish_many(server, channels=20, messages=5)
    until(lambda: counter(server, "delivered") == 100, "the first hundred")
    assert all(backend.events() for backend in backends), "both take part"
    backends[0].die()
    publish_many(server, channels=20, messages=25, start=5)
    until(lambda: counter(server, "delivered") == 600, "all events")
    together = {event["id"]: event for backend in backends for event in backend.events()}
    took = {channel: sorted(data) for channel, data in published(together.values()).items()}
    assert took == expected(20, 30)
    # Whatever the one had not taken, the other has in order.
    alone = published(event for event in backends[1].events() if event["data"] >= 5)
    assert all(data == sorted(data) for data in alone.values())
    assert counter(server, "dropped_") == 0
    backends[1].die()


@scenario("webhooks: hooks and members are changed while events flow; a removed hook's events are counted", config="admin.toml")
def changed_at_run_time(server):
    first, second = Backend(), Backend()
    configure(server, [first.port])
    publish_many(server, channels=4, messages=5)
    until(lambda: len(first.events()) == 20, "the first events")
    # A second member instead of the first, another path, only some channels.
    members = {"m1": {"address": f"127.0.0.1:{second.port}"}, "m0": None}
    patch = {"webhooks": {"upstreams": {"pool": {"members": members}}, "hooks": {"audit": {"path": "/v2?a=b", "channels": "room[01]"}}}}
    status, answer = admin(server, "PATCH", "/config", patch, "application/merge-patch+json")
    assert status == 200, answer
    publish_many(server, channels=4, messages=5, start=5)
    until(lambda: len(second.events()) == 10, "the events of two rooms")
    assert published(second.events()) == {f"room{c}": list(range(5, 10)) for c in (0, 1)}
    assert {path for path, *_ in second.requests} == {"/v2?a=b"} and len(first.events()) == 20
    # Down, events wait; up, they leave; removed, they are dropped and counted.
    admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m1/down", True)
    publish_many(server, channels=2, messages=5, start=10)
    until(lambda: counter(server, "queue_events") == 10, "events to wait")
    admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m1/down", False)
    until(lambda: len(second.events()) == 20, "what waited")
    admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m1/down", True)
    publish_many(server, channels=2, messages=5, start=15)
    until(lambda: counter(server, "queue_events") == 10, "events to wait")
    status, answer = admin(server, "DELETE", "/config/webhooks/hooks/audit")
    assert status == 200, answer
    until(lambda: counter(server, "dropped_hook_removed") == 10, "the dropped to be counted")
    reported = server.counted("^dunlin_webhook_events_emitted_total")
    publish_many(server, channels=2, messages=5, start=20)
    assert server.counted("^dunlin_webhook_events_emitted_total") == reported, "workers emit nothing any more"
    # Of an upstream that a hook names, and of a hook without one.
    configure(server, [first.port])
    status, refused = admin(server, "DELETE", "/config/webhooks/upstreams/pool")
    assert status == 422 and "there is no upstream" in json.dumps(refused), (status, refused)
    status, refused = admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m9", {"address": "nonsense"})
    assert status == 422 and "it has no port" in json.dumps(refused), (status, refused)
    for backend in (first, second):
        backend.die()


def raw_answers(*lines):
    """A server that says something to each connection in turn, the last to all that follow; what it was posted."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve():
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                with contextlib.suppress(OSError):
                    connection.recv(1 << 20)
                    connection.sendall(lines[min(number, len(lines) - 1)])
            number += 1

    threading.Thread(target=serve, daemon=True).start()
    return listener


@scenario("webhooks: backends that answer 500, 429, too late, by halves or nonsense are distinguished and asked again", config="admin.toml")
def bad_backends(server):
    def asked_later(handler, number):
        if number > 0:
            return 200
        handler.send_response(429)
        handler.send_header("Retry-After", "1")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return None

    late = threading.Event()
    answers = {
        "busy": lambda handler, number: [500, 502, 200][min(number, 2)],
        "later": asked_later,
        "slow": lambda handler, number: late.wait(20) and None if number == 0 else 200,
    }
    backends = {name: Backend(answer=answer) for name, answer in answers.items()}
    half = raw_answers(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    nonsense = raw_answers(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    moved = raw_answers(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n")
    never = Backend(answer=lambda handler, number: 500)
    ports = {name: backend.port for name, backend in backends.items()}
    ports |= {"half": half.getsockname()[1], "nonsense": nonsense.getsockname()[1], "moved": moved.getsockname()[1], "never": never.port}
    webhooks = {
        "upstreams": {name: {"members": {"m": {"address": f"127.0.0.1:{port}"}}, "timeout_ms": 700, "connections_per_member_max": 1} for name, port in ports.items()},
        "hooks": {name: {"upstream": name, "events": ["publish"], "attempts_max": 3 if name == "never" else 20} for name in ports},
    }
    status, answer = admin(server, "PUT", "/config/webhooks", webhooks)
    assert status in (200, 201), answer
    server.publish("news", 1)

    def of(name):
        # Not there until the thread that delivers has taken the change.
        nothing = {"delivered": 0, "dropped_rejected": 0, "dropped_given_up": 0}
        return admin(server, "GET", "/status/webhooks")[1]["hooks"].get(name, nothing)

    delivered = ["busy", "later", "slow", "half", "nonsense"]
    until(lambda: all(of(name)["delivered"] == 1 for name in delivered), "five backends to take it")
    until(lambda: of("moved")["dropped_rejected"] == 1 and of("never")["dropped_given_up"] == 1, "two to be given up")
    late.set()
    kinds = ["requests_busy", "requests_timed_out", "requests_broken", "requests_rejected", "requests_unreachable"]
    counted = {name: {kind: of(name)[kind] for kind in kinds if of(name)[kind]} for name in ports}
    assert counted == {
        "busy": {"requests_busy": 2},
        "later": {"requests_busy": 1},
        "slow": {"requests_timed_out": 1},
        "half": {"requests_broken": 1},
        "nonsense": {"requests_broken": 1},
        "moved": {"requests_rejected": 1},
        "never": {"requests_busy": 3},
    }, counted
    assert "redirects are not followed" in of("moved")["last_error"]["error"]
    for backend in (*backends.values(), never):
        keys = {headers["Idempotency-Key"] for _, headers, *_ in backend.requests}
        bodies = {body for _, _, body, *_ in backend.requests}
        attempts = [headers["Dunlin-Attempt"] for _, headers, *_ in backend.requests]
        assert len(keys) == len(bodies) == 1, "each attempt is the same request"
        assert attempts == [str(n + 1) for n in range(len(attempts))], attempts
    for listener in (half, nonsense, moved):
        listener.close()


def certificates(folder):
    """A private authority, and a certificate of it for 127.0.0.1."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=a private authority", "-days", "2")
    openssl("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=backend")
    (pathlib.Path(folder) / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.pem", "-days", "2", "-extfile", "names")


@scenario("webhooks: a backend behind TLS is trusted by its authority, and by nothing else", config="admin.toml")
def private_authority(server):
    with tempfile.TemporaryDirectory() as folder:
        certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{folder}/server.pem", f"{folder}/server.key")
        backend = Backend(tls=context)
        configure(server, [backend.port], upstream={"tls": True})
        server.publish("news", 1)
        until(lambda: counter(server, "requests_unreachable") >= 1, "the stranger to be refused")
        _, status = admin(server, "GET", "/status/webhooks")
        assert "TLS failed" in status["failing"]["pool"]["m0"]["error"], status
        assert backend.requests == []
        status, refused = admin(server, "PUT", "/config/webhooks/upstreams/pool/ca", "no certificate")
        assert status == 422 and "no certificate in PEM" in json.dumps(refused), (status, refused)
        authority = (pathlib.Path(folder) / "ca.pem").read_text()
        status, answer = admin(server, "PUT", "/config/webhooks/upstreams/pool/ca", authority)
        assert status in (200, 201), answer
        until(lambda: counter(server, "delivered") == 1, "the event that waited")
        # By a name that the certificate does not bear.
        admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m0/address", f"localhost:{backend.port}")
        server.publish("news", 2)
        until(lambda: admin(server, "GET", "/status/webhooks")[1]["failing"], "the wrong name to be refused")
        assert counter(server, "delivered") == 1
        admin(server, "PUT", "/config/webhooks/upstreams/pool/members/m0/address", f"127.0.0.1:{backend.port}")
        until(lambda: counter(server, "delivered") == 2, "the second event")
        backend.die()


@scenario("webhooks: what happens until the very end is delivered before the process ends", config="admin.toml")
def the_last_words(server):
    def slowly(handler, number):
        threading.Event().wait(0.3)
        return 200

    backend = Backend(answer=slowly)
    configure(server, [backend.port], events=EVERYTHING)
    clients = [server.websocket() for _ in range(10)]
    publish_many(server, channels=5, messages=20)
    server.assert_whole()
    assert server.terminate() == 0
    events = collections.Counter(event["event"] for event in backend.events())
    assert events == {"connect": 10, "disconnect": 10, "publish": 100}, events
    assert {event["code"] for event in backend.events() if event["event"] == "disconnect"} == {3001}
    for client in clients:
        client.close()
    backend.die()
    server.start()


main()
