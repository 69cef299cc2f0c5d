//! What is said of pushes beside their figures.

use super::super::results::SIMULATOR;
use crate::pushes::PushTable;

pub(super) const INTRODUCTION: &str = "\
What a sender gets out of HTTP/2 connections to Apple's push service. Apple does not let itself be measured; what answers is \
`dunlin apns simulate`, which keeps to Apple's documents and is judged by h2spec, in the same process on threads of its own, \
and two servers of other people, `nghttpd` and one on Go's `net/http`, behind a proxy that makes the round trip long. Bytes \
wait on a timer in both, so that a round trip of 250 ms takes 250.2 ms or a little more: *shortest* is the quickest answer.

What binds a connection: the *window*, bytes that may be on their way until the server has said that it has read them, \
65,535 by default (allowed is window ÷ (payload × round trip)); the *streams*, requests that may be under way at one time, \
1,000 as at Apple (allowed is streams ÷ round trip); or *demand*, what the caller hands over. *Allowed* is what the one that \
binds permits, where it is known. *After* is how long it took from the start, before the first connection, to 95 % of it. *In \
round trips* is the median time from push to answer: 1 is as fast as can be, and what is above waited somewhere on the way.

Beside it the senders a2 (Rust) and apns2 (Go), unchanged, on one connection, with 1,000 callers who each wait for their \
answer. Their rates are good, for they fill every window there is; what they push beyond it waits in queues, and each push \
takes as much longer. a2 puts 100 requests on their way before it has heard that the server takes one at a time until it \
has seen a valid token; the server refuses 99 of them, which the notes say. CPU is that of the sender's thread in `dunlin`, with \
what makes the pushes, and of the whole process of the others, seconds for 10,000 pushes, without the first two seconds. A \
row that misses what was asked says so.";

pub(super) fn title(table: PushTable) -> &'static str {
    match table {
        PushTable::Windows => "One connection: window, round trip and payload",
        PushTable::Connections => "As many connections as pay, and fixed ones",
        PushTable::Bad => "Bad tokens, with the stream limit lowered after each",
        PushTable::Reference => "Serial, 150 in flight, batches, adaptive",
        PushTable::Cpu => "CPU, next door",
        PushTable::Queue => "A bounded queue",
        PushTable::Storm => "A storm, both ledgers compared push by push",
    }
}

/// What is to be said of a table beside its figures.
pub(super) fn remark(table: PushTable, server: &str) -> String {
    match table {
        PushTable::Windows if server == SIMULATOR => {
            "Connection windows of 64 KiB (65,535 bytes) that the server returns *at once*, as Go does, or *by halves*, when half \
             of it has been read, as Netty and nghttp2 do; and one of 16 MiB, behind which the 1,000 streams bind. A server that \
             returns *by halves* keeps up to half of it back at any moment; allowed is what the other half permits, so that more \
             than all of it can be reached."
                .to_owned()
        }
        PushTable::Windows => format!(
            "{server} by itself, with its own settings: allowed follows from the streams that it says it takes and the part of \
             its window that is certain, which it is known for."
        ),
        PushTable::Connections => {
            "At 250 ms and 437 bytes. *Auto* is asked for 10,000 a second and opens connections while each pays for itself; the \
             note says how many the limit needs at least. The rate is that of the last five seconds."
                .to_owned()
        }
        PushTable::Bad => {
            "One connection at 250 ms. After each 4xx the server allows 100 streams until it has accepted 500 pushes. Pushes to \
             tokens that nobody has seen working go on a connection of their own, *apart*; allowed is the rate without bad \
             tokens."
                .to_owned()
        }
        PushTable::Reference => {
            "At 250 ms, 436 bytes, a window of 65,535 bytes. Why did batches on short connections beat one long connection, for \
             those who pushed to Apple from 200 to 300 ms away? Because a new connection brings a new window, and nothing else: a \
             hundred and fifty pushes of 436 bytes are exactly one window. As long as the server returns what it read (*at once*), \
             one long connection with 150 in flight is as fast as the window allows, and faster than short ones, which spend \
             round trips on connecting. Where the server returns it late, or not at all (*never*), the long connection has sent \
             its window and stands still until it is given up, while each short one has a fresh one: they win although they waste \
             most of their time on connecting. The number 150 found by hand is the window divided by the payload, and moves with \
             both. A sender that sees the window needs neither: it fills the window, opens a connection where the window binds, \
             and keeps those that pay. Rates here count from before the first connection."
                .to_owned()
        }
        PushTable::Cpu => {
            let limit = if server == SIMULATOR { "the CPU" } else { "the server" };
            format!(
                "At a round trip of nothing {limit} is the limit; the rate for a core of the sender's own says what is left \
                 without it. h2load knows nothing of pushes: it sends one prepared request again and again, and is the floor, \
                 what HTTP/2 and TLS cost."
            )
        }
        PushTable::Queue => {
            "Pushes of 437 bytes. Memory is that of the whole process, at its peak, beyond what it was before.".to_owned()
        }
        PushTable::Storm => {
            "GOAWAY every 10,000 pushes with the last 20 not processed, resets of accepted streams, lost answers, bursts of 503, \
             a stream limit that changes between 1 and 1,000. A push *disagrees* if the sender says accepted and the server has it \
             not once (or, if marked as perhaps sent twice, not at all), or says anything else and the server has it all the \
             same, uncertain ones apart."
                .to_owned()
        }
    }
}
