"""What the admin port says of itself, judged by other people's validators of OpenAPI and of JSON Schema."""

import json
import urllib.error
import urllib.request

from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from dunlin import main, scenario

PATCH = "application/merge-patch+json"


def admin(server, method, path, body=None, kind="application/json"):
    """Status, content type and parsed body of an answer of the admin port."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.admin_port}{path}", data, {"Content-Type": kind}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers.get_content_type(), json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), json.load(error)


@scenario("openapi-spec-validator: the document of the admin port is valid OpenAPI 3.1")
def document_is_valid(server):
    status, _, document = admin(server, "GET", "/openapi.json")
    assert status == 200 and document["openapi"].startswith("3.1")
    faults = [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    assert not faults, faults
    # And this would be seen.
    broken = json.loads(json.dumps(document))
    del broken["paths"]["/config"]["get"]["responses"]["200"]["description"]
    assert list(OpenAPIV31SpecValidator(broken).iter_errors())


@scenario("jsonschema: answers are as the document says, problems and dry runs included")
def answers_are_as_described(server):
    _, _, document = admin(server, "GET", "/openapi.json")
    registry = Registry().with_resource("urn:dunlin", Resource(document, DRAFT202012))

    def fits(name, value):
        schema = {"$ref": f"urn:dunlin#/components/schemas/{name}"}
        faults = [error.message for error in Draft202012Validator(schema, registry=registry).iter_errors(value)]
        assert not faults, (name, faults, value)

    chat = "/config/channel/namespaces/chat"
    status, _, made = admin(server, "PUT", chat, {"history_size": 1, "history_ttl_ms": 1000})
    assert status == 201
    fits("Committed", made)
    status, _, late = admin(server, "PATCH", "/config", {"client": {"ping_interval_ms": 20000}, "server": {"workers": 3}}, PATCH)
    assert status == 200 and late["restart_needed"] == ["/server/workers"] and late["new_connections_only"], late
    fits("Committed", late)
    with server.websocket():
        status, _, dry = admin(server, "DELETE", chat + "?dry_run=1")
        assert status == 200 and dry["sessions"]["closed"] == 0 and dry["warnings"], dry
        fits("DryRun", dry)
    status, kind, problem = admin(server, "PUT", "/config/limits/connections_max", "many")
    assert (status, kind) == (422, "application/problem+json")
    fits("Problem", problem)
    status, kind, problem = admin(server, "GET", "/config/no/such/key")
    assert (status, kind) == (404, "application/problem+json")
    fits("Problem", problem)
    _, _, page = admin(server, "GET", "/config/revisions")
    for summary in page["revisions"]:
        fits("RevisionSummary", summary)


@scenario("jsonschema: what is set fits the schema, and what the server refuses does not")
def settings_fit_the_schema(server):
    _, kind, schema = admin(server, "GET", "/config/schema")
    assert kind == "application/schema+json"
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    _, _, config = admin(server, "GET", "/config")
    faults = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(config)]
    assert not faults, faults
    for path, value in [("connections_max", "many"), ("connections_max", 0), ("connections", 1)]:
        wrong = {**config, "limits": {**config["limits"], path: value}}
        assert list(validator.iter_errors(wrong)), (path, value)
        assert admin(server, "PUT", "/config", wrong)[0] == 422, (path, value)


@scenario("openapi-spec-validator: the server API's document is valid OpenAPI 3.1, and its answers are as it says", config="presence.toml")
def server_api(server):
    with urllib.request.urlopen(f"{server.origin}/api/openapi.json", timeout=10) as answer:
        assert answer.headers.get_content_type() == "application/json"
        document = json.load(answer)
    faults = [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()]
    assert not faults, faults
    registry = Registry().with_resource("urn:api", Resource.from_contents(document, default_specification=DRAFT202012))
    position = server.publish("news", {"text": "hello"})
    calls = {
        "publish": {"channel": "news", "data": 1, "tags": {"a": "b"}},
        "broadcast": {"channels": ["a", "no-such-namespace:b"], "data": 1},
        "history": {"channel": "news", "limit": 10},
        "presence": {"channel": "news"},
        "presence_stats": {"channel": "news"},
        "subscribe": {"user": "42", "channel": "news"},
        "disconnect": {"user": "42"},
        "channels": {},
        "info": {},
        "batch": {"commands": [{"publish": {"channel": "news", "data": 2}}, {"teleport": {}}]},
    }
    for method, body in calls.items():
        status, answer = server.post(f"/api/{method}", body)
        operation = document["paths"][f"/{method}"]["post"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        for what, schema in ((answer, schema), (body, operation["requestBody"]["content"]["application/json"]["schema"])):
            if method == "batch" and what is body:
                continue
            text = json.dumps(schema).replace('"#/', '"urn:api#/')
            Draft202012Validator(json.loads(text), registry=registry).validate(what)
        assert status == 200, (method, answer)
    assert position["offset"] == 1


if __name__ == "__main__":
    main()
