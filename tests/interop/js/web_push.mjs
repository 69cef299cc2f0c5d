// Web Push as a browser receives it: decrypted by the http_ece package, its signature checked by Node.

import { execFile } from "node:child_process";
import crypto from "node:crypto";
import path from "node:path";
import { promisify } from "node:util";
import { assert, installed, scenario } from "./dunlin.mjs";

const ece = installed("http_ece");
const EXAMPLE = path.join(path.dirname(process.env.DUNLIN_BIN), "examples", "web_push_request");

await scenario("a browser decrypts what was encrypted for it, and its push service can tell by whom", async () => {
  for (const message of ["", "hello", "ä".repeat(1_996)]) {
    const keys = crypto.createECDH("prime256v1");
    const p256dh = keys.generateKeys("base64url");
    const auth = crypto.randomBytes(16).toString("base64url");
    const subscription = JSON.stringify({ endpoint: "https://push.example.net/push/x?y=1", expirationTime: null, keys: { p256dh, auth } });
    const { stdout } = await promisify(execFile)(EXAMPLE, [subscription, message]);
    const request = JSON.parse(stdout);

    const plain = ece.decrypt(Buffer.from(request.body, "base64url"), { version: "aes128gcm", privateKey: keys, authSecret: auth });
    assert.equal(plain.toString(), message);
    assert.equal(request.origin + request.path, "https://push.example.net/push/x?y=1");

    const [, token, key] = request.headers.authorization.match(/^vapid t=([^,]+), k=(.+)$/);
    const point = Buffer.from(key, "base64url");
    const jwk = { kty: "EC", crv: "P-256", x: point.subarray(1, 33).toString("base64url"), y: point.subarray(33).toString("base64url") };
    const [header, claims, signature] = token.split(".");
    const publicKey = { key: crypto.createPublicKey({ key: jwk, format: "jwk" }), dsaEncoding: "ieee-p1363" };
    assert.ok(crypto.verify("sha256", Buffer.from(`${header}.${claims}`), publicKey, Buffer.from(signature, "base64url")));
    assert.equal(JSON.parse(Buffer.from(claims, "base64url")).aud, "https://push.example.net");
  }
});
