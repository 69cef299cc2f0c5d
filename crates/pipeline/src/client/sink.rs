//! Passes the answers of a link to the caller.

use dunlin_net::Context;

use super::Caller;
use super::core::{Core, Requests};
use super::host::HostId;
use super::host_connection::Gathered;
use super::outcome::{Effect, ErrorKind, Outcome, RequestError, ResponseView};
use super::request::BodyMode;
use crate::{Head, InFlight, Sink};

pub(crate) struct LinkSink<'a, C: Caller> {
    pub(crate) cx: &'a mut Context<C::Data>,
    pub(crate) caller: &'a mut C,
    pub(crate) core: &'a mut Core,
    pub(crate) host: HostId,
    pub(crate) gathered: &'a mut Gathered,
    /// When the last answered request was written.
    pub(crate) last_sent_ns: u64,
}

impl<C: Caller> Sink for LinkSink<'_, C> {
    fn on_head(&mut self, request: &InFlight, head: &Head<'_>) {
        let gathered = &mut *self.gathered;
        gathered.clear();
        gathered.head.extend_from_slice(head.bytes);
        (gathered.status, gathered.keep_alive) = (head.status, head.keep_alive);
        gathered.length = head.length;
        let Some(record) = self.core.records.get_mut(request.tag as u32) else { return };
        gathered.mode = record.prepared.answer;
        if gathered.mode == BodyMode::Stream {
            record.begun = true;
            let (id, tag) = (record.id, record.tag);
            self.caller.on_head(self.cx, &mut Requests { core: self.core }, id, tag, head);
        }
    }

    fn on_body(&mut self, request: &InFlight, bytes: &[u8]) {
        let gathered = &mut *self.gathered;
        gathered.body_bytes += bytes.len() as u64;
        match gathered.mode {
            BodyMode::Count => {}
            BodyMode::Gather => {
                let max = self.core.hosts[self.host.0 as usize].config.body_bytes_max;
                if gathered.too_long || gathered.body.len() + bytes.len() > max {
                    gathered.too_long = true;
                    gathered.body = Vec::new();
                    // A second answer would be too long, too.
                    if let Some(record) = self.core.records.get_mut(request.tag as u32) {
                        record.begun = true;
                    }
                } else {
                    gathered.body.extend_from_slice(bytes);
                }
            }
            BodyMode::Stream => {
                let Some(record) = self.core.records.get(request.tag as u32) else { return };
                let (id, tag) = (record.id, record.tag);
                self.caller.on_body(self.cx, &mut Requests { core: self.core }, id, tag, bytes);
            }
        }
    }

    fn on_end(&mut self, request: &InFlight) {
        self.last_sent_ns = request.sent_ns;
        let Some(record) = self.core.records.remove(request.tag as u32) else { return };
        let too_long = std::mem::take(&mut self.gathered.too_long);
        let gathered = &*self.gathered;
        let outcome = if too_long {
            let host = self.core.hosts[self.host.0 as usize].name.clone();
            let kind = ErrorKind::BodyTooLong;
            let effect = Effect::Possible;
            Outcome::Failed(RequestError { host, request: record.id, kind, effect })
        } else {
            Outcome::Answered(ResponseView {
                status: gathered.status,
                head: Head {
                    status: gathered.status,
                    length: gathered.length,
                    keep_alive: gathered.keep_alive,
                    repeated: false,
                    bytes: &gathered.head,
                    method: request.kind.method(),
                },
                body: &gathered.body,
                body_bytes: gathered.body_bytes,
                queue_ns: request.sent_ns.saturating_sub(record.queued_ns),
                service_ns: self.core.now_ns.saturating_sub(request.sent_ns),
            })
        };
        let mut requests = Requests { core: self.core };
        self.caller.on_outcome(self.cx, &mut requests, record.id, record.tag, &outcome);
    }
}
