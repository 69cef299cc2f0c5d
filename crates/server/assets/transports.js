// Three ways to watch one channel, written against the bare protocol so that each can be read as an example:
// WebSocket (Centrifugal client protocol v2, JSON), server-sent events (EventSource), long-poll (fetch).
//
// A watcher remembers the stream position (epoch, offset) of what it has shown. When its connection is lost it comes
// back with that position and asks for what it missed; `on.note` reports the outcome.

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

class Watcher {
  /// `on`: { state(name, detail), publication({offset, epoch, data, recovered}), note(text, bad) }
  constructor(channel, on) {
    this.channel = channel;
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
      return;
    }
    if (result.was_recovering) this.on.note(missed.length ? `recovered ${count(missed.length, "missed message")}` : "recovered, nothing was missed");
    for (const publication of missed) this.accept(publication, result.epoch, true);
    this.position = { epoch: result.epoch, offset: Math.max(result.offset ?? 0, this.positionIn(result.epoch)) };
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
    socket.onopen = () => this.send({ id: 1, connect: { name: "dunlin-page" } });
    socket.onmessage = ({ data }) => {
      for (const line of data.split("\n")) if (line) this.reply(JSON.parse(line));
    };
    socket.onclose = ({ code, reason }) => {
      if (this.socket !== socket) return;
      clearTimeout(this.pingTimer);
      this.lost(reason || `closed (${code})`);
    };
  }

  reply(reply) {
    this.watchPing();
    if (reply.error) {
      this.on.note(`refused: ${reply.error.message} (${reply.error.code})`, true);
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
      this.on.note(`server says: ${reply.push.disconnect.reason} (${reply.push.disconnect.code})`);
    } else if (reply.push?.unsubscribe) {
      this.on.note(`unsubscribed: ${reply.push.unsubscribe.reason ?? ""} (${reply.push.unsubscribe.code})`, true);
      if (reply.push.unsubscribe.code >= 2500) this.drop();
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
    url.searchParams.set("cf_connect", JSON.stringify({ name: "dunlin-page", subs: { [this.channel]: this.subscription() } }));
    const source = new EventSource(url);
    this.source = source;
    source.onmessage = ({ data }) => this.push(JSON.parse(data));
    source.onerror = () => {
      if (this.source !== source) return;
      this.hangUp();
      this.lost("stream ended");
    };
  }

  push(push) {
    if (push.connect) {
      const subscription = push.connect.subs?.[this.channel];
      if (subscription) this.subscribed(subscription);
      else this.on.note(`connected, but not subscribed to “${this.channel}”`, true);
    } else if (push.pub) {
      this.accept(push.pub);
    } else if (push.missed) {
      this.dropped(push.missed.count);
    } else if (push.disconnect) {
      this.on.note(`server says: ${push.disconnect.reason} (${push.disconnect.code})`);
    } else if (push.unsubscribe && push.unsubscribe.code >= 2500) {
      this.drop();
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
    const response = await fetch(url, { signal, cache: "no-store" });
    if (!response.ok) throw new Error(`answered ${response.status}`);
    const answer = await response.json();
    this.cursor = answer.cursor;
    const publications = answer.publications ?? [];
    const missed = this.attempts > 0;
    this.attempts = 0;
    this.on.state("connected", "waiting for the next answer");
    for (const { reason } of answer.gap ?? []) this.on.note(`not recovered: ${GAPS[reason] ?? reason}`, true);
    if (missed && !answer.gap?.length) this.on.note(publications.length ? `recovered ${count(publications.length, "missed message")}` : "recovered, nothing was missed");
    const { epoch } = answer.positions[this.channel];
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

/// Publishes every item of `items` in one request; answers with [{offset, epoch}] or throws what the server said.
export async function publish(channel, items) {
  const commands = items.map((data) => ({ publish: { channel, data } }));
  const response = await fetch("/api/batch", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ commands }),
  });
  const body = response.headers.get("content-type")?.includes("json") ? await response.json() : { error: { message: await response.text() } };
  if (!response.ok) throw new Error(body.error?.message ?? `answered ${response.status}`);
  return body.replies.map((reply) => {
    if (reply.error) throw new Error(`${reply.error.message} (${reply.error.code})`);
    return reply.publish;
  });
}

export function count(n, noun) {
  return `${n} ${noun}${n === 1 ? "" : "s"}`;
}
