//! What must be known of a request after it has left.

use dunlin_wire::http1::Method;

/// What must be known of a request to read its answer, and to judge whether it may be sent twice. One byte.
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

    /// A `GET`, or whatever else is idempotent and answered with a body.
    pub const GET: Kind = Kind(Kind::IDEMPOTENT);
    /// A `HEAD`: its answer ends with its head, whatever that says (RFC 9112 §6.3).
    pub const HEAD: Kind = Kind(Kind::IDEMPOTENT | Kind::NO_BODY);
    /// A `POST`, or another request that must not be repeated when its outcome is unknown.
    pub const POST: Kind = Kind(0);

    /// The kind of a request of this method; idempotent are those of RFC 9110 §9.2.2.
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

    /// Says whether the server does the same when it is sent twice: for a method that is not idempotent, when
    /// the request carries an idempotency key.
    #[must_use]
    pub const fn idempotent(self, yes: bool) -> Kind {
        Kind(if yes { self.0 | Kind::IDEMPOTENT } else { self.0 & !Kind::IDEMPOTENT })
    }

    /// Marks a request that was sent on another connection before: a 408 is then its answer, and not the end of a
    /// connection on which the server had waited too long.
    #[must_use]
    pub const fn replayed(self) -> Kind {
        Kind(self.0 | Kind::REPLAYED)
    }

    /// Whether it may be sent again when its outcome is unknown.
    pub const fn is_idempotent(self) -> bool {
        self.0 & Kind::IDEMPOTENT != 0
    }

    /// Whether its answer ends with its head.
    pub const fn is_head(self) -> bool {
        self.0 & Kind::NO_BODY != 0
    }

    /// Whether it has been sent before.
    pub const fn is_replayed(self) -> bool {
        self.0 & Kind::REPLAYED != 0
    }

    /// What the decoder of answers must know; two kinds of the same framing read the same bytes alike.
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
