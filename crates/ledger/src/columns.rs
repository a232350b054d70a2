//! The column lists that both engines read, each in the order its reader expects.

pub(crate) const ORDER_COLUMNS: &str = "order_no, user_id, activity_id, product_id, product_name, \
     price, currency, quantity, amount, status, close_reason, epoch, created_at, pay_deadline, \
     paid_at, closed_at";

/// Orders and dead letters both have them.
pub(crate) const CLAIM_COLUMNS: &str =
    "order_no, product_id, user_id, quantity, epoch, claimed_at, claim_key";

/// The columns of a dead letter after those of its claim.
pub(crate) const LETTER_COLUMNS: &str = "state, tries, next_try_at, cause, created_at, updated_at";

/// Claims that failed and hold their units, counted by item: retrying, dead, units. By the index over
/// the state, so letters that are over cost nothing.
pub(crate) const OPEN_BY_ITEM: &str = "SELECT product_id, CAST(SUM(state = 0) AS SIGNED),
         CAST(SUM(state = 1) AS SIGNED), CAST(SUM(quantity) AS SIGNED)
     FROM tb_dead_letter WHERE state IN (0, 1) GROUP BY product_id ORDER BY product_id";

/// Of a dead letter `d`: its claim became an order after all. The number alone does not say so.
pub(crate) const ITS_OWN_ORDER: &str = "EXISTS (SELECT 1 FROM tb_seckill_order AS o
     WHERE o.order_no = d.order_no AND o.product_id = d.product_id AND o.user_id = d.user_id)";

pub(crate) const ACTIVITY_COLUMNS: &str = "id, name, opens_at, closes_at, pay_within_ms, \
     state, publish_at, version";

pub(crate) const ITEM_COLUMNS: &str = "id, activity_id, name, image_url, price, currency, \
     origin_price, stock, total, limit_per_user, shards, version, epoch, state";

pub(crate) const STOCK_LOG_COLUMNS: &str = "id, order_no, product_id, product_name, quantity, \
     before_stock, after_stock, type, create_time";

pub(crate) const PAYMENT_COLUMNS: &str =
    "provider, provider_txn, order_no, kind, amount, currency, created_at";

/// Of a payment `p`: it was not given back.
pub(crate) const NOT_REFUNDED: &str = "NOT EXISTS (SELECT 1 FROM tb_payment AS r
     WHERE r.provider = p.provider AND r.provider_txn = p.provider_txn AND r.kind = 2)";

/// The columns of an open payment `p` and its order `o`.
pub(crate) const OPEN_PAYMENT_COLUMNS: &str = "p.id, p.order_no, p.provider, p.created_at,
     CASE o.status WHEN 0 THEN NULL ELSE COALESCE(o.closed_at, o.paid_at, o.created_at) END";

/// Of a payment `p`: it was opened, its provider has not told us of money, and may still have some.
/// Yesterday's binary credits money without marking the payment as over.
pub(crate) const OPEN_PAYMENT: &str = "p.kind = 0 AND p.over_at IS NULL
     AND NOT EXISTS (SELECT 1 FROM tb_payment AS m
         WHERE m.order_no = p.order_no AND m.provider = p.provider AND m.kind = 1)";

/// Of a payment `p` and its order `o`: the money is not ours to keep, and was not given back.
/// An unpaid order cannot have money; if it has, the problem is another one.
pub(crate) const OWED: &str = "p.kind = 1
     AND (o.status IN (2, 3, 4, 5) OR EXISTS (SELECT 1 FROM tb_payment AS earlier
         WHERE earlier.order_no = p.order_no AND earlier.kind = 1 AND earlier.id < p.id))";
