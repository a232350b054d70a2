// Receipts: the buyer's signed proof of each claim, kept in this browser. Should the gate ever lose a
// claim, the receipt brings it back.

import { forget, keepJson, recallJson } from "../storage.js";

const RECEIPTS_MAX = 100;
const KEY = "seckill_receipts";

export function keepReceipt(user, entry) {
  const others = recallJson(KEY, []).filter((r) => r.order_no !== entry.order_no);
  keepJson(KEY, [...others, { user, ...entry }].slice(-RECEIPTS_MAX));
}

export const receiptsOf = (user) => recallJson(KEY, []).filter((r) => r.user === user);

export const receiptFor = (user, orderNo) => receiptsOf(user).find((r) => r.order_no === orderNo)?.receipt ?? null;

// A key whose claim was never answered. Pressing again, even after a reload, asks with the same key.
const pendingKey = (user, itemId) => `seckill_pending:${user}:${itemId}`;

export const keepPending = (user, itemId, pending) => keepJson(pendingKey(user, itemId), pending);
export const pendingOf = (user, itemId) => recallJson(pendingKey(user, itemId), null);
export const dropPending = (user, itemId) => forget(pendingKey(user, itemId));
