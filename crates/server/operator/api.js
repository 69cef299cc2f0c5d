// Calls of the admin port. The token lives in this tab (sessionStorage) and is sent as a header, so that it stands in no
// address, and no other page can make this one act.

const KEY = "dunlin-token";
const ROLES = ["see", "operate", "change", "program"];
const TIMEOUT_MS = 15_000;

export const session = {
  token: sessionStorage.getItem(KEY) ?? "",
  /// What `/whoami` said; null: signed out.
  who: null,
  remember(token) {
    session.token = token;
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  },
  may: (role) => session.who !== null && ROLES.indexOf(session.who.role) >= ROLES.indexOf(role),
};

/// What the server said against a call. `status` 0: it could not be reached.
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.status = status;
    this.errors = problem.errors ?? [];
    this.problem = problem;
  }
}

/// Called when a call shows that the server is gone or back, or that the token is not good any more.
export const notice = { reachable() {}, unauthorized() {} };

/// Makes a call; answers with the JSON. `options`: body (an object), type, headers, signal.
export async function call(method, path, { body, type = "application/json", headers = {}, signal = null } = {}) {
  let response;
  try {
    response = await fetch(path, {
      method,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: signal ? AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]) : AbortSignal.timeout(TIMEOUT_MS),
      headers: { ...(session.token && { Authorization: `Bearer ${session.token}` }), ...(body !== undefined && { "Content-Type": type }), ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    notice.reachable(false);
    throw new Refusal(0, { detail: "the server does not answer" });
  }
  notice.reachable(true);
  const text = await response.text();
  let json = {};
  try {
    json = text ? JSON.parse(text) : {};
  } catch {
    json = { detail: text.trim() };
  }
  if (!response.ok) {
    const refusal = new Refusal(response.status, json.error ? { detail: json.error.message } : json);
    if (response.status === 401 && session.who) notice.unauthorized(refusal);
    throw refusal;
  }
  const revision = response.headers.get("ETag");
  if (revision && json !== null && typeof json === "object") Object.defineProperty(json, "etag", { value: revision });
  return json;
}

export const get = (path, options) => call("GET", path, options);

/// Calls a method of the server API; answers with its result.
export async function api(method, params, options = {}) {
  const answer = await call("POST", `./api/${method}`, { ...options, body: params });
  if (answer.error) throw new Refusal(200, { detail: answer.error.message });
  return answer.result;
}

/// The call as a line for a terminal.
export function curl(method, path, { body, type = "application/json", headers = {} } = {}) {
  const words = ["curl"];
  if (method !== "GET") words.push(`-X ${method}`);
  if (session.token) words.push('-H "Authorization: Bearer $TOKEN"');
  for (const [name, value] of Object.entries(headers)) words.push("-H", quoted(`${name}: ${value}`));
  if (body !== undefined) words.push("-H", quoted(`Content-Type: ${type}`), "-d", quoted(JSON.stringify(body)));
  words.push(quoted(new URL(path, location.origin).href));
  return words.join(" ");
}

export const apiCurl = (method, params) => curl("POST", `./api/${method}`, { body: params });

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/// Calls `look` now and every `ms`, one at a time and not while the tab is hidden, until `signal` aborts.
export function poll(ms, signal, look) {
  let timer = null;
  const turn = async () => {
    clearTimeout(timer);
    timer = null;
    if (signal.aborted) return;
    if (!document.hidden) {
      try {
        await look();
      } catch (error) {
        if (!(error instanceof Refusal) && !signal.aborted) throw error;
      }
    }
    if (!signal.aborted) timer = setTimeout(turn, ms);
  };
  document.addEventListener("visibilitychange", () => !document.hidden && timer !== null && turn(), { signal });
  signal.addEventListener("abort", () => clearTimeout(timer));
  return turn();
}
