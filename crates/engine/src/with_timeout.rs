//! How long a payment provider may be silent.
//!
//! A provider is another company, and its line may hang for as long as TCP lets it. Whoever calls one
//! gets an answer within [`PROVIDER_ANSWER_MAX`]: *unavailable* if need be, which means unknown and is
//! asked again. And who has just been waited for in vain is not waited for again at once: a job that
//! goes through hundreds of orders would otherwise be held up by each of them.

use std::{future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use http::HeaderMap;
use parking_lot::Mutex;
use payment::{
    BillLine, CloseOutcome, Notice, NoticeAnswer, NoticeError, Opened, PayMethod, PayRequest,
    Provider, ProviderError, QueryOutcome, RefundOutcome, RefundRequest, Title,
};
use sale::{Currency, Millis, OrderNo};
use tokio::time::Instant;

pub(crate) const PROVIDER_ANSWER_MAX: Duration = Duration::from_secs(10);
/// A bill is a file of many megabytes, and nobody stands waiting for it.
const BILL_MAX: Duration = Duration::from_secs(120);
/// How long a call that was not answered in time is not made again.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// What can be asked of a provider. Each falls silent by itself: refunds may hang while buyers pay.
#[derive(Clone, Copy)]
enum Call {
    Open,
    Close,
    Query,
    Refund,
    Bill,
}

/// A provider that always answers.
pub(crate) struct WithTimeout {
    provider: Arc<dyn Provider>,
    answer_max: Duration,
    silent_until: [Mutex<Option<Instant>>; 5],
}

impl WithTimeout {
    pub(crate) fn around(provider: Arc<dyn Provider>, answer_max: Duration) -> Arc<dyn Provider> {
        Arc::new(WithTimeout { provider, answer_max, silent_until: Default::default() })
    }

    async fn wait<T>(
        &self,
        call: Call,
        within: Duration,
        answer: impl Future<Output = Result<T, ProviderError>>,
    ) -> Result<T, ProviderError> {
        let silent_until = &self.silent_until[call as usize];
        if silent_until.lock().is_some_and(|until| Instant::now() < until) {
            let why = "it did not answer a moment ago";
            return Err(ProviderError::Unavailable(why.into()));
        }
        match tokio::time::timeout(within, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                *silent_until.lock() = Some(Instant::now() + SILENT_FOR);
                let why = format!("no answer within {} ms", within.as_millis());
                Err(ProviderError::Unavailable(why))
            }
        }
    }
}

#[async_trait]
impl Provider for WithTimeout {
    fn name(&self) -> &'static str {
        self.provider.name()
    }

    fn title(&self) -> Title {
        self.provider.title()
    }

    fn methods(&self) -> &[PayMethod] {
        self.provider.methods()
    }

    fn takes(&self, currency: Currency) -> bool {
        self.provider.takes(currency)
    }

    async fn open(&self, request: &PayRequest) -> Result<Opened, ProviderError> {
        self.wait(Call::Open, self.answer_max, self.provider.open(request)).await
    }

    async fn close(&self, order_no: OrderNo) -> Result<CloseOutcome, ProviderError> {
        self.wait(Call::Close, self.answer_max, self.provider.close(order_no)).await
    }

    async fn query(&self, order_no: OrderNo) -> Result<QueryOutcome, ProviderError> {
        self.wait(Call::Query, self.answer_max, self.provider.query(order_no)).await
    }

    fn can_be_asked(&self) -> bool {
        self.provider.can_be_asked()
    }

    async fn refund(&self, request: &RefundRequest) -> Result<RefundOutcome, ProviderError> {
        self.wait(Call::Refund, self.answer_max, self.provider.refund(request)).await
    }

    async fn verify_notice(&self, headers: &HeaderMap, body: &[u8]) -> Result<Notice, NoticeError> {
        self.provider.verify_notice(headers, body).await
    }

    fn answer(&self, answer: NoticeAnswer) -> (u16, &'static str, String) {
        self.provider.answer(answer)
    }

    fn calendar_ahead_ms(&self) -> Millis {
        self.provider.calendar_ahead_ms()
    }

    async fn bill(&self, day_from_ms: Millis) -> Result<Option<Vec<BillLine>>, ProviderError> {
        self.wait(Call::Bill, BILL_MAX, self.provider.bill(day_from_ms)).await
    }
}
