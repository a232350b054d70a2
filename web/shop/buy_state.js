// What the buy button is, from what is known. The only place that decides it.

/** After a refusal the button rests, so that worry does not become a hundred requests. */
export const COOL_DOWN_MS = 5_000;
/** A refusal for being early needs no rest beyond this: the clock was just set right. */
const EARLY_REST_MS = 1_000;
const COOL_DOWN_MS_MAX = 120_000;

/** `data-state` of the button: waiting | ready | queueing | bought | sold_out | ended. */
export function buyState({
  now, synced, opensAt, closesAt, activityState, itemState, left, sending, orderStatus, coolUntil,
}) {
  if (sending || orderStatus === "queued") return "queueing";
  if (orderStatus === "unpaid" || orderStatus === "paid") return "bought";
  // Without the server's clock the page does not know whether the sale is open.
  if (!synced) return "waiting";
  if (activityState === "ended" || itemState === "ended" || now >= closesAt) return "ended";
  if (now < opensAt) return "waiting";
  if (left !== null && left !== undefined && left <= 0) return "sold_out";
  if (activityState === "paused") return "waiting";
  return now < (coolUntil ?? 0) ? "waiting" : "ready";
}

/** Why a waiting button waits: clock | opening | paused | cooling. */
export function waitReason({ now, synced, opensAt, activityState }) {
  if (!synced) return "clock";
  if (now < opensAt) return "opening";
  return activityState === "paused" ? "paused" : "cooling";
}

export function coolDownMs(problem) {
  // The server knows its queues better than we do, within reason; it can only lengthen the rest.
  const asked = Math.min(problem.retryAfterMs ?? 0, COOL_DOWN_MS_MAX);
  const own = problem.code === "not_started" ? EARLY_REST_MS : COOL_DOWN_MS;
  return Math.max(asked, own);
}
