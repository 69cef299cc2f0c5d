// Three ways to watch one channel, written against the bare protocol so that each can be read as an example:
// WebSocket (Centrifugal client protocol v2, JSON), server-sent events (EventSource), long-poll (fetch).
//
// A watcher remembers the stream position (epoch, offset) of what it has shown. When its connection is lost it comes
// back with that position and asks for what it missed; `on.note` reports the outcome. What the server refuses for good
// it is not asked again.

const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 8000;
const PING_SLACK_MS = 10000;
const POLL_TIMEOUT_S = 25;

// Why something is missing, by the word the long-poll uses for it.
const GAPS = {
  expired: "history no longer reaches back",
  new_stream: "the channel restarted (new epoch)",
  no_history: "the channel keeps no history",
};

/// Whether a client that is disconnected with this code stays away (client protocol: 3500–3999 and 4500–4999).
const isFinal = (code) => (code >= 3500 && code < 4000) || (code >= 4500 && code < 5000);

/// Whether a refusal is about who asks: a token or a key mends it.
const isAboutCredentials = (code) => [101, 103, 109, 401, 403, 3500, 3507].includes(code);

class Watcher {
  /// `token`: a connection token, or "".
  /// `on`: { state(name, detail), publication({offset, epoch, data, recovered}), note(text, bad), skipped(position, lost),
  /// unauthorized() }. `skipped`: nothing up to the position comes any more; `lost`: it should have.
  constructor(channel, token, on) {
    this.channel = channel;
    this.token = token;
    this.on = on;
    this.position = null;
    this.attempts = 0;
    this.timer = null;
    this.closed = false;
  }

  open() {
    this.on.state(this.attempts === 0 ? "connecting" : "reconnecting");
    this.connect();
  }

  /// Ends the watch for good.
  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.hangUp();
    this.on.state("closed");
  }

  /// Breaks the connection as a bad network would; the watcher then recovers.
  drop() {
    this.hangUp();
    this.lost("dropped manually");
  }

  /// The server will say no again: nothing is asked any more.
  refused(why, code) {
    if (this.closed) return;
    this.closed = true;
    clearTimeout(this.timer);
    this.hangUp();
    this.on.state("refused", why);
    this.on.note(`refused: ${why} (${code})`, true);
    if (isAboutCredentials(code)) this.on.unauthorized();
  }

  /// The server's word on the whole connection.
  disconnected({ code, reason }) {
    if (isFinal(code)) this.refused(reason, code);
    else this.on.note(`server says: ${reason} (${code})`);
  }

  /// The server's word on the subscription.
  unsubscribed({ code, reason = "" }) {
    if (code < 2500) return this.refused(`unsubscribed, ${reason}`, code);
    this.on.note(`unsubscribed: ${reason} (${code})`, true);
    this.drop();
  }

  lost(why, delay_ms = null) {
    if (this.closed) return;
    clearTimeout(this.timer);
    this.attempts += 1;
    const ceiling = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** this.attempts);
    this.on.state("reconnecting", why);
    this.timer = setTimeout(() => this.open(), delay_ms ?? ceiling / 2 + Math.random() * (ceiling / 2));
  }

  /// The server's answer to a subscription: where the stream stands and what we missed.
  subscribed(result) {
    this.attempts = 0;
    this.on.state("connected");
    const missed = result.publications ?? [];
    if (result.was_recovering && !result.recovered) {
      this.on.note(`not recovered: ${result.epoch === this.position?.epoch ? GAPS.expired : GAPS.new_stream}`, true);
      this.position = { epoch: result.epoch, offset: result.offset ?? 0 };
      this.on.skipped(this.position, true);
      return;
    }
    if (result.was_recovering) this.on.note(missed.length ? `recovered ${count(missed.length, "missed message")}` : "recovered, nothing was missed");
    for (const publication of missed) this.accept(publication, result.epoch, true);
    this.position = { epoch: result.epoch, offset: Math.max(result.offset ?? 0, this.positionIn(result.epoch)) };
    if (!result.was_recovering) this.on.skipped(this.position, false);
  }

  accept(publication, epoch = this.position?.epoch, recovered = false) {
    const offset = publication.offset ?? 0;
    if (offset > 0) this.position = { epoch, offset };
    this.on.publication({ offset, epoch, data: publication.data, recovered });
  }

  /// The server dropped messages of ours because this client is slow (a channel's `overflow` policy).
  dropped(messages) {
    this.on.note(`${count(messages, "message")} dropped: slow client`, true);
  }

  /// Asks over plain HTTP why a browser's own client was refused: it tells no page.
  async explain(url) {
    const abort = new AbortController();
    this.on.state("reconnecting", "asking why");
    try {
      const response = await fetch(url, { signal: abort.signal, cache: "no-store" });
      if (response.ok || response.status === 426) this.lost("the connection was closed");
      else await this.answered(response);
    } catch (error) {
      this.lost(error.message);
    } finally {
      abort.abort();
    }
  }

  /// An HTTP response that is an error: its reason, and whether to ask again.
  async answered(response) {
    const why = await reason(response);
    if (response.status < 500 && ![408, 429].includes(response.status)) return this.refused(why, response.status);
    this.hangUp();
    this.lost(`${why} (${response.status})`);
  }

  positionIn(epoch) {
    return this.position?.epoch === epoch ? this.position.offset : 0;
  }

  subscription() {
    return this.position?.epoch ? { recover: true, epoch: this.position.epoch, offset: this.position.offset } : {};
  }
}

export class WebSocketWatcher extends Watcher {
  static endpoint = "/connection/websocket";

  connect() {
    const url = new URL(WebSocketWatcher.endpoint, location.href);
    url.protocol = url.protocol.replace("http", "ws");
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.onopen = () => this.send({ id: 1, connect: { name: "dunlin-page", ...(this.token && { token: this.token }) } });
    socket.onmessage = ({ data }) => {
      for (const line of data.split("\n")) if (line) this.reply(JSON.parse(line));
    };
    socket.onclose = ({ code, reason }) => {
      if (this.socket !== socket) return;
      clearTimeout(this.pingTimer);
      if (isFinal(code)) return this.refused(reason, code);
      if (code === 1006 && this.attempts > 0) return this.explain(WebSocketWatcher.endpoint);
      this.lost(reason || `closed (${code})`);
    };
  }

  reply(reply) {
    this.watchPing();
    if (reply.error) {
      const { message, code, temporary } = reply.error;
      if (!temporary) return this.refused(message, code);
      this.on.note(`not now: ${message} (${code})`, true);
      this.drop();
    } else if (reply.id === 1) {
      this.ping_ms = (reply.connect.ping ?? 0) * 1000;
      this.pong = reply.connect.pong ?? false;
      this.watchPing();
      this.send({ id: 2, subscribe: { channel: this.channel, positioned: true, recoverable: true, ...this.subscription() } });
    } else if (reply.id === 2) {
      this.subscribed(reply.subscribe);
    } else if (reply.push?.pub) {
      this.accept(reply.push.pub);
    } else if (reply.push?.missed) {
      this.dropped(reply.push.missed.count);
    } else if (reply.push?.disconnect) {
      this.disconnected(reply.push.disconnect);
    } else if (reply.push?.unsubscribe) {
      this.unsubscribed(reply.push.unsubscribe);
    } else if (Object.keys(reply).length === 0 && this.pong) {
      this.send({});
    }
  }

  /// Anything the server sends proves the connection alive; longer silence than the ping interval means it is lost.
  watchPing() {
    clearTimeout(this.pingTimer);
    if (this.ping_ms) this.pingTimer = setTimeout(() => this.drop(), this.ping_ms + PING_SLACK_MS);
  }

  send(command) {
    this.socket.send(JSON.stringify(command));
  }

  hangUp() {
    clearTimeout(this.pingTimer);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }
}

export class EventSourceWatcher extends Watcher {
  static endpoint = "/connection/uni_sse";

  // EventSource reconnects by itself, but with its first address; so that it recovers what was missed since,
  // each reconnection is a new EventSource with the position in its address.
  connect() {
    const url = new URL(EventSourceWatcher.endpoint, location.href);
    url.searchParams.set("cf_connect", JSON.stringify({ name: "dunlin-page", ...(this.token && { token: this.token }), subs: { [this.channel]: this.subscription() } }));
    const source = new EventSource(url);
    this.source = source;
    source.onmessage = ({ data }) => this.push(JSON.parse(data));
    source.onerror = () => {
      if (this.source !== source) return;
      // A stream that was refused is closed for good, and does not say with what status.
      const isRefused = source.readyState === EventSource.CLOSED;
      this.hangUp();
      if (isRefused) this.explain(url);
      else this.lost("stream ended");
    };
  }

  push(push) {
    if (push.connect) {
      const subscription = push.connect.subs?.[this.channel];
      if (subscription) this.subscribed(subscription);
      else this.refused(`this client may not subscribe to “${this.channel}”, or there is no such channel`, 103);
    } else if (push.pub) {
      this.accept(push.pub);
    } else if (push.missed) {
      this.dropped(push.missed.count);
    } else if (push.disconnect) {
      this.disconnected(push.disconnect);
    } else if (push.unsubscribe) {
      this.unsubscribed(push.unsubscribe);
    }
  }

  hangUp() {
    this.source?.close();
    this.source = null;
  }
}

export class LongPollWatcher extends Watcher {
  static endpoint = "/connection/poll";

  async connect() {
    const abort = new AbortController();
    this.abort = abort;
    try {
      while (this.abort === abort) await this.poll(abort.signal);
    } catch (error) {
      if (this.abort !== abort) return;
      this.abort = null;
      this.lost(error.message);
    }
  }

  async poll(signal) {
    const url = new URL(LongPollWatcher.endpoint, location.href);
    url.searchParams.set("channel", this.channel);
    // The first poll of a connection answers at once: it proves the line and, after a loss, says what was missed.
    url.searchParams.set("timeout", this.attempts > 0 || !this.cursor ? 0 : POLL_TIMEOUT_S);
    if (this.cursor) url.searchParams.set("cursor", this.cursor);
    const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
    const response = await fetch(url, { signal, headers, cache: "no-store" });
    if (!response.ok) return this.answered(response);
    const answer = await response.json();
    this.cursor = answer.cursor;
    const publications = answer.publications ?? [];
    const missed = this.attempts > 0;
    const begins = !url.searchParams.has("cursor");
    this.attempts = 0;
    this.on.state("connected", "waiting for the next answer");
    for (const { reason } of answer.gap ?? []) this.on.note(`not recovered: ${GAPS[reason] ?? reason}`, true);
    if (missed && !answer.gap?.length) this.on.note(publications.length ? `recovered ${count(publications.length, "missed message")}` : "recovered, nothing was missed");
    const { epoch, offset } = answer.positions[this.channel];
    const lost = Boolean(answer.gap?.length);
    if (lost || begins) this.on.skipped({ epoch, offset: (publications.find((of) => of.offset)?.offset ?? offset + 1) - 1 }, lost);
    for (const publication of publications) {
      if (publication.missed) this.dropped(publication.missed);
      else this.accept(publication, epoch, missed);
    }
  }

  hangUp() {
    const abort = this.abort;
    this.abort = null;
    abort?.abort();
  }
}

/// Publishes every item of `items` in one request; answers with [{offset, epoch}] or throws what the server said, with
/// its `code`.
export async function publish(channel, items, key) {
  const commands = items.map((data) => ({ publish: { channel, data } }));
  const response = await fetch("/api/batch", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key && { "X-API-Key": key }) },
    body: JSON.stringify({ commands }),
  });
  if (!response.ok) throw Object.assign(new Error(await reason(response)), { code: response.status });
  return (await response.json()).replies.map((reply) => {
    if (reply.error) throw Object.assign(new Error(reply.error.message), { code: reply.error.code });
    return reply.publish;
  });
}

/// What a response that is an error says.
async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `answered ${response.status}`;
  }
}

export function count(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}
