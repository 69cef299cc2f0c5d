"""curl alone: long-poll, the unidirectional HTTP stream, the server API from a shell."""

import contextlib
import json
import re
import subprocess
import threading
import urllib.parse

from dunlin import HERE, main, scenario, until


def curl(server, path, *arguments, stdin=None):
    """Runs curl to its end; the status and the parsed body."""
    answer = subprocess.run(
        ["curl", "--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}", *arguments, server.origin + path],
        check=True, capture_output=True, text=True, input=stdin,
    )
    body, _, status = answer.stdout.rpartition("\n")
    return int(status), json.loads(body) if body else None


def poll(server, channels, cursor=None, timeout=0, arguments=()):
    query = [("channel", channel) for channel in channels] + [("timeout", timeout)]
    if cursor:
        query.append(("cursor", cursor))
    status, answer = curl(server, "/connection/poll?" + urllib.parse.urlencode(query), *arguments)
    assert status == 200, (status, answer)
    return answer


def publications(answer):
    return [(p["channel"], p["offset"], p["data"]) for p in answer["publications"]]


@contextlib.contextmanager
def streaming(*arguments):
    """Runs curl without buffering; yields the live list of the JSON lines it prints."""
    process = subprocess.Popen(["curl", "--silent", "--no-buffer", *arguments], stdout=subprocess.PIPE, text=True)
    lines = []

    def read():
        for line in process.stdout:
            lines.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield lines
    finally:
        process.kill()
        process.wait()
        reader.join()


@scenario("curl: a long-poll is answered as soon as there is a message, and the cursor goes on from there")
def waits(server):
    cursor = poll(server, ["news"])["cursor"]
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(poll(server, ["news"], cursor, timeout=15)))
    waiting.start()
    # Published while it waits or just before: the cursor says the same either way.
    server.publish("news", {"n": 1})
    waiting.join(10)
    assert answers, "the poll still waits although there is a message"
    assert publications(answers[0]) == [("news", 1, {"n": 1})]
    server.publish("news", {"n": 2})
    server.publish("news", {"n": 3})
    answer = poll(server, ["news"], answers[0]["cursor"], timeout=15)
    assert publications(answer) == [("news", 2, {"n": 2}), ("news", 3, {"n": 3})]
    assert publications(poll(server, ["news"], answer["cursor"])) == []


@scenario("curl: a long-poll without news ends at its time-out with an empty list and a cursor that still works")
def times_out(server):
    server.publish("news", 1)
    cursor = poll(server, ["news"])["cursor"]
    empty = poll(server, ["news"], cursor, timeout=1)
    assert empty["publications"] == [] and not empty.get("gap")
    server.publish("news", 2)
    assert [data for _, _, data in publications(poll(server, ["news"], empty["cursor"]))] == [2]


@scenario("curl: one long-poll over several channels on several workers, one cursor", workers=4)
def several(server):
    channels = ["a", "b", "c", "d"]
    cursor = poll(server, channels)["cursor"]
    for n in (1, 2):
        for channel in channels:
            server.publish(channel, f"{channel}{n}")
    seen = []
    while len(seen) < 8:
        answer = poll(server, channels, cursor, timeout=10)
        seen += publications(answer)
        cursor = answer["cursor"]
    for channel in channels:
        assert [(offset, data) for c, offset, data in seen if c == channel] == [(1, f"{channel}1"), (2, f"{channel}2")]
    assert publications(poll(server, channels, cursor)) == []


@scenario("curl: polling with the cursor it was given misses nothing of five hundred messages", config="delivery.toml", workers=4)
def misses_nothing(server):
    cursor = poll(server, ["news"])["cursor"]

    def publish():
        for n in range(500):
            server.publish("news", n)

    publisher = threading.Thread(target=publish)
    publisher.start()
    seen = []
    while len(seen) < 500:
        answer = poll(server, ["news"], cursor, timeout=10)
        assert not answer.get("gap"), answer["gap"]
        seen += [(offset, data) for _, offset, data in publications(answer)]
        cursor = answer["cursor"]
    publisher.join()
    assert seen == [(n + 1, n) for n in range(500)]


@scenario("curl: a cursor older than the history, or of an earlier run of the server, learns what it misses")
def gaps(server):
    server.publish("news", 0)
    cursor = poll(server, ["news"])["cursor"]
    for n in range(150):
        server.publish("news", n)
    answer = poll(server, ["news"], cursor)
    assert answer["gap"] == [{"channel": "news", "reason": "expired"}], answer
    assert [offset for _, offset, _ in publications(answer)] == list(range(52, 152)), "not all that the history still holds"
    server.kill()
    server.start()
    server.publish("news", "after")
    reborn = poll(server, ["news"], answer["cursor"])
    assert reborn["gap"] == [{"channel": "news", "reason": "new_stream"}], reborn
    server.publish("news", "and on")
    assert publications(poll(server, ["news"], reborn["cursor"]))[-1][1:] == (2, "and on")
    assert not poll(server, ["news"], reborn["cursor"]).get("gap")


@scenario("curl: a long-poll with a nonsense cursor, no channel or a bad time-out is a 400 that says which")
def nonsense(server):
    for query, word in (("channel=news&cursor=%00nonsense", "cursor"), ("", "channel"), ("channel=news&timeout=soon", "timeout"), ("channel=", "channel"), ("channel=news&cursr=x", "cursr")):
        status, answer = curl(server, f"/connection/poll?{query}")
        assert status == 400 and word in json.dumps(answer), (query, status, answer)


@scenario("curl: uni_http_stream prints a line of JSON for each message, at once")
def uni_http_stream(server):
    with streaming("--data", '{"subs": {"news": {}}}', f"{server.origin}/connection/uni_http_stream") as lines:
        until(lambda: lines, "the connect push")
        assert "news" in json.loads(lines[0])["connect"]["subs"]
        for n in (1, 2, 3):
            server.publish("news", {"n": n})
            until(lambda: len(lines) > n, f"message {n}")
            push = json.loads(lines[n])
            assert (push["channel"], push["pub"]["offset"], push["pub"]["data"]) == ("news", n, {"n": n})


@scenario("curl: uni_sse prints an event for each message, at once")
def uni_sse(server):
    address = f"{server.origin}/connection/uni_sse?" + urllib.parse.urlencode({"cf_connect": '{"subs": {"news": {}}}'})
    with streaming("--header", "Accept: text/event-stream", address) as lines:
        events = lambda: [json.loads(line.removeprefix("data:")) for line in list(lines) if line.startswith("data:")]
        until(events, "the connect push")
        server.publish("news", {"text": "two\nlines"})
        until(lambda: len(events()) > 1, "the message")
        assert events()[1]["pub"]["data"] == {"text": "two\nlines"}


@scenario("curl: the server API from a shell, with and without a body it understands", config="delivery.toml")
def api(server):
    status, answer = curl(server, "/api/publish", "--data", '{"channel": "news", "data": {"text": "hello"}}')
    assert (status, answer["result"]["offset"]) == (200, 1)
    status, answer = curl(server, "/api/batch", "--data", '{"commands": [{"publish": {"channel": "news", "data": 1}}, {"teleport": {}}, {"publish": {}}]}')
    assert status == 200
    published, unknown, bad = answer["replies"]
    assert (published["publish"]["offset"], unknown["error"]["code"], bad["error"]["code"]) == (2, 104, 107)


@scenario("curl: keep-alive, HEAD, HTTP/1.0 and Expect: 100-continue as curl does them")
def http(server):
    twice = subprocess.run(["curl", "--silent", "--verbose", server.origin + "/", server.origin + "/"], capture_output=True, text=True, check=True)
    assert "Re-using existing connection" in twice.stderr and twice.stdout.count("<!doctype html>") == 2
    head = subprocess.run(["curl", "--silent", "--head", "--max-time", "5", server.origin + "/"], capture_output=True, text=True, check=True)
    assert head.stdout.startswith("HTTP/1.1 200") and "<!doctype" not in head.stdout
    old = subprocess.run(["curl", "--silent", "--http1.0", "--max-time", "5", server.origin + "/"], capture_output=True, text=True, check=True)
    assert old.stdout.startswith("<!doctype html>")
    big = json.dumps({"channel": "news", "data": "x" * 500_000})
    status, answer = curl(server, "/api/publish", "--header", "Expect: 100-continue", "--data", "@-", stdin=big)
    assert (status, answer["result"]["offset"]) == (200, 1)


@scenario("curl: the first commands of docs/operating/changing.md do what they say in development mode")
def changing(server):
    page = (HERE.parents[2] / "docs/operating/changing.md").read_text()
    commands = re.search("```sh\n(.*?)```", page, re.DOTALL)[1].replace("curl ", "curl -sS --fail-with-body ").replace(":8001", f":{server.admin_port}")
    ran = subprocess.run(["bash", "-e", "-c", commands], capture_output=True, text=True)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
    assert [json.loads(line)["revision"] for line in ran.stdout.splitlines()] == [2, 3], ran.stdout


if __name__ == "__main__":
    main()
