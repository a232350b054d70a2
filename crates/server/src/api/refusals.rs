//! How the engine's refusals are told to a client.

use gate::GateError;
use payment::{ProviderError, sandbox::ActError};
use sale::{Activity, ActivityId, OrderStatus};
use serde_json::{Value, json};

use super::admin::activities::LedgerActivity;
use crate::problem::{Code, Problem};
use engine::{BadPlan, OperateError, PayError, StoreError, WarmError};

/// Mistakes of an import that are named in one answer.
const ERRORS_TOLD_MAX: usize = 100;

/// The state of the thing does not allow it. `state` is told, so that a program need not ask.
pub(super) fn conflict(state: &'static str) -> Problem {
    let known = STATES.iter().find(|(word, _, _)| *word == state);
    let (en, zh) = known.map_or((state, state), |(_, en, zh)| (en, zh));
    Problem::new(Code::Conflict)
        .detail(
            format!("This is not possible while it is {en}."),
            format!("当前状态为“{zh}”，无法执行此操作。"),
        )
        .with("state", state)
}

/// States as people call them, in both languages.
const STATES: &[(&str, &str, &str)] = &[
    ("draft", "a draft", "草稿"),
    ("published", "published", "已发布"),
    ("paused", "paused", "已暂停"),
    ("ended", "over", "已终止"),
    ("queued", "queued", "排队中"),
    ("unpaid", "unpaid", "待付款"),
    ("paid", "paid", "已付款"),
    ("closed", "closed", "已关闭"),
    ("refunding", "being refunded", "退款中"),
    ("refunded", "refunded", "已退款"),
    ("void", "void", "已作废"),
    ("dead", "a dead letter", "死信"),
    ("retrying", "being retried", "重试中"),
    ("settled", "settled", "已入账"),
    ("voided", "voided", "已作废"),
    ("being warmed by somebody else", "being warmed by somebody else", "正由他人预热"),
];

/// Somebody else was faster. What is true now is told, so that nobody need ask before they decide.
fn changed(now: Activity) -> Problem {
    let version = now.version;
    let (state, activity) = (now.state.as_str(), LedgerActivity::from(now));
    Problem::new(Code::Conflict)
        .detail(
            format!("Somebody else has changed it since: it is version {version} now."),
            format!("已被他人修改：当前版本为 {version}。"),
        )
        .with("state", state)
        .with("version", version)
        .with("activity", serde_json::to_value(activity).unwrap_or_default())
}

/// Another activity has the id that the shop wants to give.
fn taken(by: ActivityId) -> Problem {
    Problem::new(Code::Conflict)
        .detail(
            format!("Activity {by} has this external_id already."),
            format!("活动 {by} 已使用该 external_id。"),
        )
        .with("field", "external_id")
        .with("activity_id", by.0)
}

fn key_reused(made: &[ActivityId]) -> Problem {
    let ids: Vec<i64> = made.iter().map(|id| id.0).collect();
    Problem::new(Code::KeyReused)
        .detail(
            "This Idempotency-Key was used for something else. Send a new key for a new activity.",
            "该幂等键（Idempotency-Key）已用于另一次请求，请为新的活动使用新的键。",
        )
        .with("activity_ids", ids)
}

/// Everything that is wrong with what was to be made, so that nobody corrects line after line.
fn bad_plans(bad: &[BadPlan]) -> Problem {
    let field = |bad: &BadPlan| match bad.why.field.as_str() {
        "" => format!("activities[{}]", bad.n),
        field => format!("activities[{}].{field}", bad.n),
    };
    let named = |bad: &BadPlan| {
        let (problem, zh) = (&bad.why.problem, &bad.why.problem_zh);
        json!({"field": field(bad), "problem": problem, "problem_zh": zh.as_ref().unwrap_or(problem)})
    };
    let errors: Vec<Value> = bad.iter().take(ERRORS_TOLD_MAX).map(named).collect();
    let first = bad.first().map(|first| (field(first), &first.why));
    let problem = match first {
        Some((field, why)) => {
            let zh = why.problem_zh.as_ref().unwrap_or(&why.problem);
            Problem::invalid_in(field, &why.problem, zh)
        }
        None => Problem::new(Code::Invalid),
    };
    problem.with("errors", errors).with("errors_total", bad.len())
}

impl From<GateError> for Problem {
    fn from(error: GateError) -> Self {
        Problem::busy(error)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Ledger(error) => error.into(),
            StoreError::Gate(error) => error.into(),
        }
    }
}

impl From<OperateError> for Problem {
    fn from(error: OperateError) -> Self {
        match error {
            OperateError::NotFound => Problem::not_found(),
            OperateError::Invalid(invalid) => invalid.into(),
            OperateError::BadPlans(bad) => bad_plans(&bad),
            OperateError::Taken(by) => taken(by),
            OperateError::KeyReused(made) => key_reused(&made),
            OperateError::ReferenceUsed(other) => {
                Problem::new(Code::TransactionUsed).with("order_no", other.to_string())
            }
            OperateError::Conflict(state) => conflict(state),
            OperateError::Random(_) => Problem::internal(&error),
            OperateError::Changed(now) => changed(*now),
            OperateError::NotAtGate(ref now) => Problem::busy(&error)
                .detail(
                    "The new window is in the books. The gate does not answer; it admits nobody until \
                     it has heard of it, by itself.",
                    "新的时间已写入账本；闸口暂无应答，恢复后会自动更新，在此之前不会放行。",
                )
                .with("version", now.version),
            OperateError::Unknown(no) => Problem::busy(&error)
                .detail(
                    format!(
                        "It is not known whether this was done. Ask again with adjust_no {no}."
                    ),
                    format!("结果未知。请携带 adjust_no {no} 重试。"),
                )
                .with("adjust_no", no.to_string()),
            OperateError::NoNumber => Problem::busy(&error),
            OperateError::Ledger(error) => error.into(),
            OperateError::Gate(error) => error.into(),
        }
    }
}

impl From<WarmError> for Problem {
    fn from(error: WarmError) -> Self {
        OperateError::from(error).into()
    }
}

impl From<PayError> for Problem {
    fn from(error: PayError) -> Self {
        match error {
            PayError::UnknownProvider => {
                Problem::invalid("provider", "is not a payment provider of this shop")
            }
            PayError::UnknownMethod => {
                Problem::invalid("method", "is not a way to pay that this provider has here")
            }
            PayError::OtherCurrency => {
                Problem::invalid("provider", "does not take the currency of this order")
            }
            PayError::Conflict(OrderStatus::Queued) => conflict("queued").retry_after_ms(1_000),
            PayError::Conflict(status) => conflict(status.as_str()),
            PayError::TooLate => Problem::new(Code::Conflict)
                .detail("The order's time to pay is over.", "订单支付时间已过。")
                .with("state", "overdue"),
            PayError::Provider(error) => error.into(),
            PayError::Ledger(error) => error.into(),
        }
    }
}

impl From<ProviderError> for Problem {
    fn from(error: ProviderError) -> Self {
        match error {
            ProviderError::Unavailable(_) => Problem::busy(error),
            ProviderError::Refused(_) => Problem::new(Code::Conflict)
                .detail("The payment provider refuses this.", "支付渠道拒绝了该请求。")
                .inside(error),
        }
    }
}

impl From<ActError> for Problem {
    fn from(error: ActError) -> Self {
        match error {
            ActError::Unknown => Problem::not_found(),
            ActError::Refused(why) => Problem::new(Code::Conflict)
                .detail(why, format!("当前状态不允许执行此操作（{why}）。")),
            ActError::Unavailable(_) => Problem::busy(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use ledger::LedgerError;
    use sale::Invalid;

    use super::*;

    #[test]
    fn what_does_not_answer_is_busy_and_what_makes_no_sense_is_invalid() {
        let down = || LedgerError::Unavailable("disk full".into());
        let gate = || GateError::new(gate::GateFailure::Unreachable, "no");
        for (problem, code) in [
            (Problem::from(StoreError::Ledger(down())), Code::Busy),
            (Problem::from(StoreError::Gate(gate())), Code::Busy),
            (Problem::from(OperateError::from(down())), Code::Busy),
            (Problem::from(OperateError::from(Invalid::new("delta", "is 0"))), Code::Invalid),
            (Problem::from(OperateError::Conflict("draft")), Code::Conflict),
            (Problem::from(WarmError::UnknownItem), Code::NotFound),
            (Problem::from(WarmError::NotPublished), Code::Conflict),
            (Problem::from(PayError::UnknownProvider), Code::Invalid),
            (Problem::from(PayError::UnknownMethod), Code::Invalid),
            (Problem::from(PayError::OtherCurrency), Code::Invalid),
            (Problem::from(PayError::Conflict(OrderStatus::Queued)), Code::Conflict),
            (Problem::from(PayError::TooLate), Code::Conflict),
            (Problem::from(ProviderError::Unavailable("x".into())), Code::Busy),
            (Problem::from(ActError::Unknown), Code::NotFound),
            (Problem::from(ActError::Refused("it is paid")), Code::Conflict),
        ] {
            assert_eq!(problem.code(), code);
        }
    }
}
