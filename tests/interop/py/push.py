"""A backend's pushes with curl and Python, against `dunlin apns simulate` in a process of its own."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import urllib.request

from dunlin import HERE, free_port, main, scenario, until

TOPIC = "com.example.app"
# Made for tests; it opens nothing.
KEY = (HERE.parents[2] / "crates/server/tests/data/apns-key.p8").read_text()


@contextlib.contextmanager
def simulator():
    """A simulator, as (address, text of its root certificate)."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        ca = pathlib.Path(directory) / "ca.pem"
        process = subprocess.Popen(
            [os.environ["DUNLIN_BIN"], "apns", "simulate", "--listen", f"127.0.0.1:{port}", "--control", f"127.0.0.1:{free_port()}", "--ca", ca],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=directory,
        )
        try:
            until(lambda: ca.exists() and answers(port), "the simulator to listen")
            yield f"127.0.0.1:{port}", ca.read_text()
        finally:
            process.kill()
            process.wait()


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def configure(server, pointer, value):
    url = f"http://127.0.0.1:{server.admin_port}/config/{pointer}"
    request = urllib.request.Request(url, json.dumps(value).encode(), {"Content-Type": "application/json", **server.admin_headers}, method="PUT")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.status


def curl(server, path, body):
    """The lines that curl prints for a POST whose body it reads from its standard input."""
    answer = subprocess.run(
        ["curl", "--silent", "--show-error", "--fail", "--no-buffer", "--max-time", "30", "--data-binary", "@-", server.origin + path],
        input=json.dumps(body), check=True, capture_output=True, text=True,
    )
    return [json.loads(line) for line in answer.stdout.splitlines()]


@scenario("push: a credential is set while it runs, a batch is streamed to curl, dead devices leave the registry", config="admin.toml")
def pushes(server):
    with simulator() as (address, ca):
        credential = {"key": KEY, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": TOPIC, "route": {"address": address, "ca": ca}}
        assert configure(server, "push/apns/shop", credential) == 201

        mine, dead = f"{1:064x}", f"bad0{2:060x}"
        devices = [{"provider": "apns", "app": "shop", "tokens": [mine, dead]}]
        assert server.post("/api/push/devices/register", {"user": "ada", "devices": devices})[1]["result"]["registered"] == 2

        tokens = [f"{n:064x}" for n in range(100, 2100)]
        others = {"notification": {"title": "Sale"}, "devices": [{"provider": "apns", "app": "shop", "tokens": tokens}]}
        lines = curl(server, "/api/push/batch", {"pushes": [others, {"notification": {"title": "Hi"}, "users": ["ada"]}]})
        end = lines.pop()
        assert end == {"end": True, "accepted": 2001, "rejected": 1, "not_sent": 0, "uncertain": 0}, end
        assert sorted(line["token"] for line in lines if line["push"] == 0) == tokens
        refused = [line for line in lines if line["outcome"] == "rejected"]
        assert [(line["user"], line["token"], line["reason"]) for line in refused] == [("ada", dead, "BadDeviceToken")]

        feed = curl(server, "/api/push/devices/feed", {"after": 0, "wait_ms": 10_000})[0]["result"]
        assert [(v["user"], v["device"]["token"], v["dropped"]) for v in feed["entries"]] == [("ada", dead, True)]
        left = server.post("/api/push/devices/list", {"user": "ada"})[1]["result"]["devices"]
        assert [device["token"] for device in left] == [mine]
        assert curl(server, "/api/push/devices/feed", {"after": feed["cursor"]})[0]["result"]["entries"] == []


@contextlib.contextmanager
def tinyproxy(login=None):
    """Debian's HTTP proxy, as HOST:PORT, and what it has written down."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        log, config = pathlib.Path(directory) / "log", pathlib.Path(directory) / "config"
        auth = f"BasicAuth {login[0]} {login[1]}" if login else ""
        config.write_text(f'Port {port}\nListen 127.0.0.1\nTimeout 60\nLogFile "{log}"\nLogLevel Connect\n{auth}\n')
        with running([tool("tinyproxy"), "-d", "-c", config], port):
            yield f"127.0.0.1:{port}", log.read_text


@contextlib.contextmanager
def microsocks(login=None):
    """Debian's SOCKS5 server, as HOST:PORT."""
    port = free_port()
    flags = ["-u", login[0], "-P", login[1]] if login else []
    with running([tool("microsocks"), "-i", "127.0.0.1", "-p", str(port), *flags], port):
        yield f"127.0.0.1:{port}"


def tool(name):
    return shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")


@contextlib.contextmanager
def running(command, port):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: answers(port), f"{command[0]} to listen")
        yield
    finally:
        process.kill()
        process.wait()


@scenario("push: through an HTTP proxy and a SOCKS5 proxy of others, with a login and without; a wrong one is reported", config="admin.toml")
def proxies(server):
    login = ("ada", "sesame")
    push = {"notification": {"title": "Hi"}, "devices": [{"provider": "apns", "app": "shop", "token": f"{1:064x}"}], "timeout_ms": 3_000}

    def by(address, ca, proxy):
        route = {"address": address, "ca": ca, "proxy": proxy}
        credential = {"key": KEY, "key_id": "KEY1234567", "team_id": "TEAM123456", "topic": TOPIC, "route": route}
        assert configure(server, "push/apns/shop", credential) in (200, 201)
        return server.post("/api/push", push)[1]["result"]["outcomes"][0]

    with simulator() as (address, ca):
        with tinyproxy() as (proxy, log):
            assert by(address, ca, f"http://{proxy}")["outcome"] == "accepted"
            assert f"CONNECT {address}" in log(), log()
        with tinyproxy(login) as (proxy, _):
            assert by(address, ca, f"http://ada:sesame@{proxy}")["outcome"] == "accepted"
            for wrong in [f"http://{proxy}", f"http://ada:wrong@{proxy}"]:
                reported = by(address, ca, wrong)
                assert reported["reason"] == "connect" and proxy in reported["detail"] and "login" in reported["detail"], reported
        with microsocks() as proxy:
            assert by(address, ca, f"socks5://{proxy}")["outcome"] == "accepted"
        with microsocks(login) as proxy:
            assert by(address, ca, f"socks5://ada:sesame@{proxy}")["outcome"] == "accepted"
            for wrong in [f"socks5://{proxy}", f"socks5://ada:wrong@{proxy}"]:
                reported = by(address, ca, wrong)
                assert reported["reason"] == "connect" and proxy in reported["detail"] and "login" in reported["detail"], reported


main()
