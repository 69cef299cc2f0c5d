//! The properties of a request that are needed after it was sent.

use dunlin_wire::http1::Method;

/// The properties of a request that determine how its answer is read and whether it may be sent twice. One byte.
///
/// ```
/// use dunlin_pipeline::Kind;
///
/// assert!(Kind::GET.is_idempotent() && !Kind::POST.is_idempotent());
/// assert!(Kind::POST.idempotent(true).is_idempotent(), "it carries an idempotency key");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(u8);

impl Kind {
    const IDEMPOTENT: u8 = 1;
    const NO_BODY: u8 = 2;
    const TUNNEL: u8 = 4;
    const REPLAYED: u8 = 8;

    /// A `GET`, or another idempotent request whose answer has a body.
    pub const GET: Kind = Kind(Kind::IDEMPOTENT);
    /// A `HEAD`: its answer has no body, independent of its headers (RFC 9112 §6.3).
    pub const HEAD: Kind = Kind(Kind::IDEMPOTENT | Kind::NO_BODY);
    /// A `POST`, or another request that must not be repeated if its outcome is unknown.
    pub const POST: Kind = Kind(0);

    /// Returns the kind of a request with this method. The idempotent methods are those of RFC 9110 §9.2.2.
    pub fn of_method(method: &str) -> Kind {
        match Method::new(method) {
            Method::Head => Kind::HEAD,
            Method::Get | Method::Put | Method::Delete | Method::Options | Method::Trace => {
                Kind::GET
            }
            Method::Connect => Kind(Kind::TUNNEL),
            Method::Post | Method::Patch | Method::Other(_) => Kind::POST,
        }
    }

    /// Sets whether the request is idempotent. A request with an idempotency key is, whatever its method.
    #[must_use]
    pub const fn idempotent(self, yes: bool) -> Kind {
        Kind(if yes { self.0 | Kind::IDEMPOTENT } else { self.0 & !Kind::IDEMPOTENT })
    }

    /// Marks a request that was sent on another connection before. A 408 is then its answer, and not the end of an
    /// idle connection.
    #[must_use]
    pub const fn replayed(self) -> Kind {
        Kind(self.0 | Kind::REPLAYED)
    }

    /// Returns whether the request may be sent again if its outcome is unknown.
    pub const fn is_idempotent(self) -> bool {
        self.0 & Kind::IDEMPOTENT != 0
    }

    /// Returns whether the answer has no body.
    pub const fn is_head(self) -> bool {
        self.0 & Kind::NO_BODY != 0
    }

    /// Returns whether the request has been sent before.
    pub const fn is_replayed(self) -> bool {
        self.0 & Kind::REPLAYED != 0
    }

    /// Returns the part that affects decoding: answers to kinds with equal framing are decoded alike.
    pub(crate) const fn framing(self) -> u8 {
        self.0 & (Kind::NO_BODY | Kind::TUNNEL)
    }

    pub(crate) const fn method(self) -> Method<'static> {
        match self.framing() {
            Kind::NO_BODY => Method::Head,
            Kind::TUNNEL => Method::Connect,
            _ => Method::Get,
        }
    }
}
