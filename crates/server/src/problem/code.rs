//! Every code an error answer can carry, with its status and what it says to people.
//!
//! Codes are for programs and never change; the sentences are for people and may be improved.

use http::StatusCode;

use super::Lang;

macro_rules! codes {
    ($( $(#[$doc:meta])* $name:ident = $code:literal, $status:ident,
        $title_en:literal, $title_zh:literal, $detail_en:literal, $detail_zh:literal; )*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $( $(#[$doc])* $name, )* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code,)* }
            }

            /// The stable, relative `type`: the code's paragraph in the reader at `/docs`.
            pub fn uri(self) -> &'static str {
                match self { $(Code::$name => concat!("/docs#", $code),)* }
            }

            pub fn status(self) -> StatusCode {
                match self { $(Code::$name => StatusCode::$status,)* }
            }

            pub fn title(self, lang: Lang) -> &'static str {
                match (self, lang) {
                    $((Code::$name, Lang::En) => $title_en, (Code::$name, Lang::Zh) => $title_zh,)*
                }
            }

            /// What is said when the one who made the problem had nothing more particular to say.
            pub fn detail(self, lang: Lang) -> &'static str {
                match (self, lang) {
                    $((Code::$name, Lang::En) => $detail_en, (Code::$name, Lang::Zh) => $detail_zh,)*
                }
            }
        }
    };
}

codes! {
    /// No units left.
    SoldOut = "sold_out", CONFLICT,
        "Sold out", "已售罄",
        "All units are sold. Unpaid orders may free some again.",
        "商品已售罄。如有未支付订单超时，库存会重新释放。";
    /// The buyer holds a claim or an order for this item.
    AlreadyBought = "already_bought", CONFLICT,
        "Already bought", "您已抢购过",
        "You already have an order for this item.",
        "您已抢到该商品，请勿重复下单。";
    /// The `Idempotency-Key` was answered before, for another quantity or item.
    KeyReused = "key_reused", UNPROCESSABLE_ENTITY,
        "Key used before", "幂等键已被使用",
        "This Idempotency-Key was used for another claim. Send a new key for a new claim.",
        "该幂等键（Idempotency-Key）已用于另一笔抢购请求，请为新的请求使用新的键。";
    /// Before the window, by the gate's clock.
    NotStarted = "not_started", FORBIDDEN,
        "Not started", "尚未开始",
        "The sale has not started yet.",
        "活动尚未开始，请稍候。";
    /// After the window, or ended by an operator.
    Ended = "ended", FORBIDDEN,
        "Ended", "已结束",
        "The sale has ended.",
        "活动已结束。";
    /// The lane is full.
    TooHot = "too_hot", TOO_MANY_REQUESTS,
        "Too many buyers", "抢购人数过多",
        "Too many buyers at once. Please try again in a moment.",
        "当前抢购人数过多，请稍后再试。";
    /// This buyer or address asks too often.
    RateLimited = "rate_limited", TOO_MANY_REQUESTS,
        "Too many requests", "请求过于频繁",
        "You are asking too often. Please slow down.",
        "您的操作过于频繁，请稍后再试。";
    /// The gate or the ledger cannot answer now. Nothing was done.
    Busy = "busy", SERVICE_UNAVAILABLE,
        "Busy", "系统繁忙",
        "The service is busy. Please try again in a moment.",
        "系统繁忙，请稍后再试。";
    /// Time ran out and the outcome is not known; asking again is safe and tells.
    Unknown = "unknown", GATEWAY_TIMEOUT,
        "Outcome unknown", "结果未知",
        "It took too long, and we cannot say yet whether it was done. Asking again is safe.",
        "处理超时，暂时无法确认结果，可以放心重试。";
    /// Missing, forged, expired or foreign sale token.
    BadToken = "bad_token", FORBIDDEN,
        "Bad sale token", "抢购令牌无效",
        "The sale token is missing, expired or not yours for this item.",
        "抢购令牌缺失、已过期或与该商品不符，请重新获取。";
    /// The challenge was not solved, or solved before.
    BadChallenge = "bad_challenge", FORBIDDEN,
        "Challenge not passed", "验证未通过",
        "The challenge was not solved. Please try again with a new one.",
        "验证未通过，请重新验证。";
    /// The lists of the shop say that this buyer may not; why is in `reason`.
    NotEligible = "not_eligible", FORBIDDEN,
        "Not for you", "不符合参与条件",
        "This sale is not open to you.",
        "您不符合该活动的参与条件。";
    /// This buyer has to wait; why is in `reason`.
    CoolingDown = "cooling_down", TOO_MANY_REQUESTS,
        "Please wait", "请稍后再来",
        "Too many of your orders were not paid. Please try again later.",
        "您有较多订单未支付，请稍后再参与抢购。";
    /// A field does not make sense; which one is in `field`.
    Invalid = "invalid", UNPROCESSABLE_ENTITY,
        "Invalid request", "请求参数有误",
        "Something in the request does not make sense.",
        "请求参数有误，请检查后重试。";
    /// The request cannot be understood at all.
    BadRequest = "bad_request", BAD_REQUEST,
        "Bad request", "请求无法识别",
        "The request cannot be understood.",
        "请求无法识别。";
    /// The name it asks for is none of ours; see `http.allowed_hosts`.
    Misdirected = "misdirected", MISDIRECTED_REQUEST,
        "Wrong host", "主机名不符",
        "This shop is not known by the name that was asked for.",
        "请求的主机名不属于本站。";
    /// No or no valid identity.
    Unauthorized = "unauthorized", UNAUTHORIZED,
        "Please log in", "请先登录",
        "The request carries no valid token.",
        "未登录或登录已过期，请重新登录。";
    /// Known, but not allowed.
    Forbidden = "forbidden", FORBIDDEN,
        "Not allowed", "没有权限",
        "Your role does not allow this.",
        "您没有执行此操作的权限。";
    /// No such thing, or not yours.
    NotFound = "not_found", NOT_FOUND,
        "Not found", "未找到",
        "There is nothing here by that name.",
        "您访问的内容不存在。";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED,
        "Method not allowed", "请求方法不支持",
        "This address does not take that method.",
        "该地址不支持此请求方法。";
    /// The present state does not allow it; nothing was changed.
    Conflict = "conflict", CONFLICT,
        "Not possible now", "当前状态不允许",
        "The present state does not allow this.",
        "当前状态不允许执行此操作。";
    /// Money that is not the whole amount. Nothing was credited.
    AmountMismatch = "amount_mismatch", UNPROCESSABLE_ENTITY,
        "Not the whole amount", "金额不符",
        "Amount or currency are not the order's. Nothing was credited: give this money back to the buyer.",
        "金额或币种与订单不符，未入账：请将该笔款项退还买家。";
    /// The transaction id stands for another payment.
    TransactionUsed = "transaction_used", CONFLICT,
        "Transaction used before", "交易号已被使用",
        "This transaction_id was told with another order or amount. Nothing was changed.",
        "该 transaction_id 已用于另一订单或另一金额，未做任何更改。";
    TooLarge = "too_large", PAYLOAD_TOO_LARGE,
        "Too large", "请求内容过大",
        "The body of the request is too large.",
        "请求内容过大。";
    /// The head of the request: its fields, or its address.
    HeadTooLarge = "head_too_large", REQUEST_HEADER_FIELDS_TOO_LARGE,
        "Head too large", "请求头过大",
        "The header fields of the request are too many or too long.",
        "请求头过多或过长。";
    /// `Expect` asks for something that is not `100-continue`.
    ExpectationFailed = "expectation_failed", EXPECTATION_FAILED,
        "Expectation not met", "无法满足 Expect 要求",
        "Of the header Expect only 100-continue is understood.",
        "Expect 请求头仅支持 100-continue。";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE,
        "Not JSON", "内容类型不支持",
        "Send the body as application/json.",
        "请以 application/json 格式提交。";
    /// The client took too long to send its request.
    RequestTimeout = "request_timeout", REQUEST_TIMEOUT,
        "Request too slow", "请求超时",
        "The request did not arrive in time.",
        "请求未能及时送达，请检查网络后重试。";
    /// Our fault.
    Internal = "internal", INTERNAL_SERVER_ERROR,
        "Something went wrong", "服务异常",
        "Something went wrong on our side. It has been noted.",
        "服务出现异常，我们已记录该问题。";
}

impl Code {
    /// Programs may simply try again, after this pause unless a better one is known.
    pub fn retry_after_ms(self) -> Option<u64> {
        match self {
            Code::TooHot | Code::RateLimited | Code::Busy | Code::Unknown | Code::CoolingDown => {
                Some(1_000)
            }
            _ => None,
        }
    }

    /// The code for an error answer that some library made without one.
    pub(crate) fn of_status(status: StatusCode) -> Code {
        match status {
            StatusCode::MISDIRECTED_REQUEST => Code::Misdirected,
            StatusCode::UNAUTHORIZED => Code::Unauthorized,
            StatusCode::FORBIDDEN => Code::Forbidden,
            StatusCode::NOT_FOUND => Code::NotFound,
            StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
            StatusCode::REQUEST_TIMEOUT => Code::RequestTimeout,
            StatusCode::CONFLICT => Code::Conflict,
            StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Code::HeadTooLarge,
            StatusCode::EXPECTATION_FAILED => Code::ExpectationFailed,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
            StatusCode::UNPROCESSABLE_ENTITY => Code::Invalid,
            StatusCode::TOO_MANY_REQUESTS => Code::RateLimited,
            StatusCode::SERVICE_UNAVAILABLE => Code::Busy,
            StatusCode::GATEWAY_TIMEOUT => Code::Unknown,
            other if other.is_client_error() => Code::BadRequest,
            _ => Code::Internal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_named_once_and_speaks_both_languages() {
        let mut names: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Code::ALL.len());
        for &code in Code::ALL {
            assert!(code.status().is_client_error() || code.status().is_server_error());
            assert!(code.title(Lang::En).is_ascii() && code.detail(Lang::En).is_ascii());
            assert!(!code.title(Lang::Zh).is_ascii() && !code.detail(Lang::Zh).is_ascii());
            assert_eq!(code.uri(), format!("/docs#{}", code.as_str()));
        }
    }
}
