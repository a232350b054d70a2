// What a buyer is told of money that goes back: why, how much, where to, and whether it is there.

import { dateTime, language, locale, say } from "../i18n.js";
import { formatMoney } from "../money.js";
import { words } from "./words.js";

/** What people call a provider; its own name if nobody has said. */
export function titleOf(titles, provider) {
  return titles?.[provider]?.[language()] ?? provider;
}

export function refundText(refund, titles, now) {
  const known = `refund_${refund.reason}` in words.en;
  const why = known ? say(words, `refund_${refund.reason}`) : "";
  const amount = formatMoney(refund.amount, refund.currency, locale());
  const provider = titleOf(titles, refund.provider);
  const how = refund.state === "done"
    ? say(words, "refundDone", { amount, provider, time: dateTime(refund.done_at, now) })
    : say(words, "refundPending", { amount, provider });
  return [why, refund.note, how].filter(Boolean).join(" ");
}
