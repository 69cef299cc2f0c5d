// Access: tenants and what they use, tokens of clients that are revoked, and what stands in a token.

import { api, apiCurl, call, curl, get, poll, session } from "./api.js";
import { callLine, fill, fmt, h, name, table, toast } from "./dom.js";

const LOOK_MS = 5000;

export function open(root, _, signal) {
  const [tenants, revoked] = [h("div"), h("div")];
  const may = session.may("operate");
  root.append(
    h("div.head", h("h1", "Access")),
    h("div.stack",
      h("section.card", h("h2", "Tenants"), tenants, callLine(curl("GET", "./status/tenants"))),
      h("section.card", h("h2", "Revoked tokens and blocked users"), revoked, may ? blockForm() : h("p.quiet.small", "Revoking takes the role operate.")),
      h("section.card", h("h2", "What stands in a token"), decoder())));

  async function look() {
    const [ofTenants, { revocations }] = await Promise.all([get("./status/tenants", { signal }), get("./revocations", { signal })]);
    fill(tenants, [table([
      ["Tenant", ([key]) => name(key, 80), "name"],
      ["Status", ([, of]) => h("code", name(JSON.stringify(of), 1000)), "name"],
    ], Object.entries(ofTenants.tenants ?? ofTenants), { empty: "There are no tenants: everything belongs to the operator. Tenants share one server; see Settings, tenants." })]);
    fill(revoked, [table([
      ["What", (of) => Object.entries(of).filter(([key]) => !/expire|until/.test(key)).map(([key, value]) => `${key.replaceAll("_", " ")} ${name(value, 80)}`).join(", "), "name"],
      ["Until", (of) => until(of.expire_at ?? of.expire_at_s)],
      ["", (of) => (may ? h("button", { onclick: () => takeBack(of) }, "Take back") : ""), "act"],
    ], revocations.slice(0, 200), { empty: "Nothing is revoked." })]);
  }

  async function takeBack(of) {
    try {
      await call("DELETE", "./revocations", { body: of });
      toast("Taken back.");
    } catch (error) {
      toast(error.message, { bad: true });
    }
    document.activeElement?.blur();
    look().catch(() => {});
  }

  function blockForm() {
    const user = h("input", { required: true, spellcheck: "false", autocomplete: "off" });
    const line = callLine(apiCurl("block_user", { user: "USER" }));
    user.addEventListener("input", () => line.say(apiCurl("block_user", { user: user.value })));
    const act = async (method, done) => {
      if (!user.reportValidity()) return;
      line.say(apiCurl(method, { user: user.value }));
      try {
        await api(method, { user: user.value });
        toast(done);
        user.value = "";
      } catch (error) {
        toast(error.message, { bad: true });
      }
      look().catch(() => {});
    };
    return h("div",
      h("form.bar", { onsubmit: (event) => (event.preventDefault(), act("invalidate_user_tokens", "The user's tokens are not good any more.")) },
        h("label.field", h("span", "User"), user),
        h("button", { title: "Tokens that were issued until now are refused" }, "Revoke tokens"),
        h("button.danger", { type: "button", title: "Disconnected, and all tokens refused", onclick: () => act("block_user", "Blocked.") }, "Block"),
        h("button", { type: "button", onclick: () => act("unblock_user", "Unblocked.") }, "Unblock")),
      line);
  }

  poll(LOOK_MS, signal, look);
}

/// Reads a JSON Web Token in this page; it is sent nowhere.
function decoder() {
  const out = h("div");
  const field = h("textarea", { rows: 3, spellcheck: "false", placeholder: "eyJhbGciOi…", "aria-label": "A client's token", oninput: () => {
    if (!field.value.trim()) return out.replaceChildren();
    try {
      const [head, claims] = field.value.trim().split(".").slice(0, 2).map((part) => JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(part.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0)))));
      const times = ["iat", "nbf", "exp"].filter((key) => Number.isFinite(claims[key])).map((key) => [{ iat: "Issued", nbf: "Good from", exp: "Good until" }[key], claims[key]]);
      const now = Date.now() / 1000;
      out.replaceChildren(
        h("dl.facts",
          h("dt", "Signed with"), h("dd", `${name(head.alg ?? "nothing", 40)}${head.kid ? `, key ${name(head.kid, 80)}` : ""}`),
          h("dt", "User"), h("dd", claims.sub ? name(claims.sub) : "anonymous"),
          times.map(([title, at]) => [h("dt", title), h("dd", { class: title === "Good until" && at < now ? "bad" : null }, `${fmt.time(at * 1000)}${title === "Good until" ? (at < now ? ", expired" : `, for ${fmt.duration(at - now)}`) : ""}`)])),
        h("pre", name(JSON.stringify(claims, null, 2), 4000)),
        h("p.quiet.small", "Whether its signature is good only the server knows; it was not asked."));
    } catch {
      out.replaceChildren(h("p.bad.small", "This is no JSON Web Token: three parts with dots between them, the first two in base64url."));
    }
  } });
  return h("div.stack", h("p.quiet.small", "Paste a client's token to see its user, times and claims. It stays in this page."), field, out);
}

function until(at) {
  return at ? fmt.time(at * 1000) : "for good";
}
