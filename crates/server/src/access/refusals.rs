//! Those who are refused: counted by kind, and written to the log with where they come from.
//!
//! Anybody can cause these lines, as fast as the network lets them. So there are at most so many per
//! second, and the rest is a number. The metric has them all, and names nobody.

use std::time::Instant;

use http::request::Parts;
use listener::{Peer, RequestId};

use crate::{logging::FewPerSecond, metrics::AUTH_REFUSED, problem::Problem};

/// Lines about refusals in one second; more are "and so many more".
const LINES_PER_S_MAX: u32 = 5;

static LINES: FewPerSecond = FewPerSecond::at_most(LINES_PER_S_MAX);

/// What somebody was refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessRefusal {
    /// No token at all. A page that asks before its buyer has logged in does that all day: it is
    /// counted, and not written down.
    NoToken,
    /// A buyer's token that is not good.
    BuyerToken,
    /// An admin token that is not good.
    AdminToken,
    /// An operator whose role does not suffice.
    Role,
    /// A request of the shop's backend that is not signed by it.
    Signature,
    /// A session of the console that is over.
    Session,
    /// A request by cookie that comes from no page of ours.
    Origin,
}

impl AccessRefusal {
    pub(crate) const ALL: [AccessRefusal; 7] = [
        AccessRefusal::NoToken,
        AccessRefusal::BuyerToken,
        AccessRefusal::AdminToken,
        AccessRefusal::Role,
        AccessRefusal::Signature,
        AccessRefusal::Session,
        AccessRefusal::Origin,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AccessRefusal::NoToken => "no_token",
            AccessRefusal::BuyerToken => "buyer_token",
            AccessRefusal::AdminToken => "admin_token",
            AccessRefusal::Role => "role",
            AccessRefusal::Signature => "signature",
            AccessRefusal::Session => "session",
            AccessRefusal::Origin => "origin",
        }
    }
}

/// Count it and write it down. `who` is the name of the operator, where one is known.
pub(crate) fn note(refusal: AccessRefusal, who: Option<&str>, parts: &Parts, problem: &Problem) {
    let kind = refusal.as_str();
    metrics::counter!(AUTH_REFUSED, "kind" => kind).increment(1);
    if refusal == AccessRefusal::NoToken {
        return;
    }
    let Some(more) = LINES.admit(Instant::now()) else { return };
    tell_of(more);
    let address = parts.extensions.get::<Peer>().map(|peer| peer.0.to_string());
    let address = address.as_deref().unwrap_or("unknown");
    let request = parts.extensions.get::<RequestId>().map(ToString::to_string);
    let why = problem.cause().unwrap_or_else(|| problem.code().as_str());
    let (method, path) = (&parts.method, parts.uri.path());
    tracing::warn!(kind, who, address, request, %method, path, why, "access was refused");
}

/// Say how many were kept back, should nobody have been refused since.
pub(crate) fn tell_kept_back() {
    tell_of(LINES.kept_back(Instant::now()));
}

fn tell_of(more: u64) {
    if more > 0 {
        tracing::warn!(more, "access was refused more often than is written down one by one");
    }
}
