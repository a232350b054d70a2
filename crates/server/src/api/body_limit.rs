//! How long a body may be. One that says it is longer is refused before any of it is read.

use axum::{
    extract::{DefaultBodyLimit, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use http::header::CONTENT_LENGTH;
use utoipa_axum::router::OpenApiRouter;

use super::Shared;
use crate::problem::{Code, Problem};

pub(super) fn limited(router: OpenApiRouter<Shared>, bytes_max: usize) -> OpenApiRouter<Shared> {
    let by_its_head = middleware::from_fn(move |request, next| judge(request, next, bytes_max));
    router.layer(DefaultBodyLimit::max(bytes_max)).layer(by_its_head)
}

async fn judge(request: Request, next: Next, bytes_max: usize) -> Response {
    if says_longer(&request, bytes_max) {
        return Problem::new(Code::TooLarge).into_response();
    }
    next.run(request).await
}

/// What cannot be read as a number was refused before, by its head.
fn says_longer(request: &Request, bytes_max: usize) -> bool {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|length| length.parse::<u64>().ok()).is_some_and(|n| n > bytes_max as u64)
}
